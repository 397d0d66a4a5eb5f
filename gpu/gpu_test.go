package gpu

import (
	"encoding/csv"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
)

// shared reads a table of the collected data, or skips.
func shared(t *testing.T, name string) []map[string]string {
	t.Helper()
	f, err := os.Open("../../shared/data/" + name)
	if err != nil {
		t.Skipf("collected data is not here: %v", err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, r := range rows[1:] {
		m := map[string]string{}
		for i, c := range rows[0] {
			m[c] = r[i]
		}
		out = append(out, m)
	}
	return out
}

func TestEveryAliasIsOneCard(t *testing.T) {
	t.Parallel()
	for _, row := range shared(t, "gpus.csv") {
		m, ok := ByID(row["id"])
		if !ok {
			t.Errorf("no card %s", row["id"])
			continue
		}
		for _, a := range strings.Split(row["aliases"], "|") {
			if a == "" {
				continue
			}
			got, err := Resolve(a, 0, "")
			if err != nil || got != m {
				t.Errorf("Resolve(%q) = %v, %v; want %s", a, got, err, m.ID)
			}
			r, err := ParseRequest(a)
			if err != nil || !r.Matches(m) {
				t.Errorf("a request for %q does not fit %s: %v", a, m.ID, err)
			}
		}
		if b := row["benchmark_name"]; b != "" {
			if got, _ := ByBenchmarkName(b); got != m {
				t.Errorf("benchmark name %q = %v, want %s", b, got, m.ID)
			}
		}
	}
}

func TestAmbiguousNames(t *testing.T) {
	t.Parallel()
	for _, row := range shared(t, "gpu-ambiguous-names.csv") {
		name := row["name"]
		if _, err := Resolve(name, 0, ""); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Resolve(%q): %v; want an error of the kind invalid", name, err)
		}
		r, err := ParseRequest(name)
		if err != nil {
			t.Errorf("ParseRequest(%q): %v", name, err)
			continue
		}
		for _, id := range strings.Split(row["candidates"], "|") {
			m, _ := ByID(id)
			if !r.Matches(m) {
				t.Errorf("a request for %q does not fit %s", name, id)
			}
		}
	}
}

func TestCanonicalNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range Models() {
		if seen[m.Name] {
			t.Errorf("two cards are called %s", m.Name)
		}
		seen[m.Name] = true
		if got, err := Resolve(m.Name, 0, ""); err != nil || got != m {
			t.Errorf("Resolve(%q) = %v, %v", m.Name, got, err)
		}
		for _, s := range []string{m.Name, m.Family, m.Title, strings.ToLower(m.Name)} {
			if r, err := ParseRequest(s); err != nil || !r.Matches(m) {
				t.Errorf("a request for %q does not fit %s: %v", s, m.ID, err)
			}
		}
		if m.Source == "" || m.Checked == "" || m.Vendor == "" || m.MemoryGB == 0 {
			t.Errorf("%s lacks a source, a check, a vendor or a memory", m.ID)
		}
	}
	if len(seen) < 146 {
		t.Errorf("%d cards", len(seen))
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		memory float64
		hint   string
		want   string // id, or a part of the error
	}{
		{"A100", 40, "sxm4", "a100-sxm-40"},
		{"A100", 0, "", "ambiguous"},
		{"A100", 80, "", "A100-SXM-80GB (80 GB), A100-PCIE-80GB (80 GB)"},
		{"A100-80GB", 0, "a100-80gb-pcie", "a100-pcie-80"},
		{"A100-80G-PCIe", 85.9, "", "a100-pcie-80"},
		{"RTX6000", 24, "", "rtx-6000-turing"},
		{"RTX 4090", 48, "", "contradicts"},
		{"RTX 4090", 0, "", "rtx-4090"},
		{"NVIDIA GeForce RTX 4090", 23.6, "", "rtx-4090"},
		{"L4", 22.5, "", "l4"},
		{"H200", 143771.0 / 1024, "gpu_1x_h200_sxm", "h200-sxm"},
		{"H100", 80, "gpu_8x_h100_sxm5", "h100-sxm"},
		{"H100", 94, "", "ambiguous"},
		{"H100NVL", 0, "", "h100-nvl"},
		{"B300", 262, "", "b300"},
		{"NVIDIA GB200 NVL72", 0, "", "gb200"},
		{"H1000", 0, "", "did you mean"},
		{"", 0, "", "unknown GPU"},
		{"V100", 16, "", "ambiguous"},
		{"V100S", 32, "", "v100s"},
	} {
		m, err := Resolve(c.name, c.memory, c.hint)
		if err != nil {
			if !strings.Contains(err.Error()+fault.HintOf(err), c.want) {
				t.Errorf("Resolve(%q, %v, %q): %v (%s); want %q", c.name, c.memory, c.hint, err, fault.HintOf(err), c.want)
			}
			continue
		}
		if m.ID != c.want {
			t.Errorf("Resolve(%q, %v, %q) = %s; want %q", c.name, c.memory, c.hint, m.ID, c.want)
		}
	}
}

func TestParseRequest(t *testing.T) {
	t.Parallel()
	ids := func(r Request) string {
		var out []string
		for _, m := range r.Models() {
			out = append(out, m.ID)
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct{ text, want, shown string }{
		{"H100", "h100-sxm h100-sxm-94 h100-pcie h100-nvl", "H100"},
		{"h100:8", "h100-sxm h100-sxm-94 h100-pcie h100-nvl", "h100:8"},
		{"A100-80GB", "a100-sxm-80 a100-pcie-80", "A100-80GB"},
		{"A100 80G", "a100-sxm-80 a100-pcie-80", "A100 80G"},
		{"H100-SXM", "h100-sxm h100-sxm-94", "H100-SXM"},
		{"A100@3g.40gb", "a100-sxm-80 a100-pcie-80", "A100@3g.40gb"},
		{"H100:2@0.5", "h100-sxm h100-sxm-94 h100-pcie h100-nvl", "H100:2@0.5"},
		{"RTX6000", "rtx-6000-turing rtx-6000-ada", "RTX6000"},
		{"MI300X", "mi300x", "MI300X"},
		{"rtx 4090", "rtx-4090", "rtx 4090"},
	} {
		r, err := ParseRequest(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if diff := cmp.Diff(c.want, ids(r)); diff != "" {
			t.Errorf("%q: %s", c.text, diff)
		}
		if r.String() != c.shown {
			t.Errorf("%q is shown as %q", c.text, r.String())
		}
	}
	r, err := ParseRequest("24GB+")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range Models() {
		if want := m.Vendor == "nvidia" && m.MemoryGB >= 24; r.Matches(m) != want {
			t.Errorf("24GB+ fits %s: %v", m.ID, !want)
		}
	}
	r, err = Long{Memory: "40GB+", Compute: "8.0+"}.Request()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a100-sxm-80", "h100-sxm", "l40s", "rtx-pro-6000-se"} {
		if m, _ := ByID(id); !r.Matches(m) {
			t.Errorf("compute 8.0+ does not fit %s", id)
		}
	}
	if m, _ := ByID("rtx-8000-turing"); r.Matches(m) {
		t.Error("compute 8.0+ fits Turing")
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"H1000":          "did you mean",
		"H100:0":         "no number of GPUs",
		"H100:x":         "no number of GPUs",
		"H100@":          "ends in @",
		"H100@2":         "no share",
		"H100@9g.90gb":   "they have",
		"RTX4090@1g.5gb": "cannot be cut",
		"24 GX+":         "unknown unit",
		"24+":            "no unit",
		"":               "names no GPU",
		"99999GB+":       "no known GPU",
	} {
		_, err := ParseRequest(text)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error()+" "+fault.HintOf(err), want) {
			t.Errorf("%q: %v (%s); want %q", text, err, fault.HintOf(err), want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Bytes{"24GB": 24e9, "1.5 TiB": 3 << 39, "500 mb": 5e8, "0GB": 0, "40gib": 40 << 30} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"24 GX", "-3GB", "NaN GB", "1e300GB", "24", "GB", "", "1.2.3GB", "9999999999999GB", "1,5GB"} {
		if got, err := ParseBytes(text); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ParseBytes(%q) = %d, %v", text, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1e17).Draw(t, "bytes"))
		if got, err := ParseBytes(b.String()); err != nil || got != b {
			t.Fatalf("%d is shown as %q and read as %d, %v", b, b.String(), got, err)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	for _, s := range []string{"H100:8", "24GB+", "A100@3g.40gb", "0", "x@y:z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRequest(s)
		if err == nil && !r.None() && r.Width() == 0 {
			t.Errorf("%q fits nothing and is no error", s)
		}
	})
}

func FuzzResolve(f *testing.F) {
	f.Add("H100", 80.0, "sxm")
	f.Fuzz(func(t *testing.T, name string, memory float64, hint string) {
		if m, err := Resolve(name, memory, hint); (m == nil) == (err == nil) {
			t.Errorf("%v, %v", m, err)
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	for b.Loop() {
		if _, err := Resolve("RTX 4090", 24, ""); err != nil {
			b.Fatal(err)
		}
	}
}
