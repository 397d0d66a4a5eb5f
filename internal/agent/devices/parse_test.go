package devices

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/machine"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a value with its JSON in testdata.
func golden(t *testing.T, name string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name+".golden.json")
	if *update {
		if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := read(t, path)
	if d := cmp.Diff(string(want), string(got)+"\n"); d != "" {
		t.Errorf("%s: (-want +got)\n%s", path, d)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestNvidiaDocuments(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(all) < 10 {
		t.Fatalf("%d documents, %v", len(all), err)
	}
	for _, path := range all {
		name := strings.TrimSuffix(filepath.Base(path), ".xml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, _ := os.ReadFile(strings.TrimSuffix(path, ".xml") + ".list")
			n, err := ParseNvidia(read(t, path), list)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, n)
		})
	}
}

func TestAMDDocuments(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("testdata/*.static.json")
	if err != nil || len(all) < 5 {
		t.Fatalf("%d documents, %v", len(all), err)
	}
	for _, path := range all {
		base := strings.TrimSuffix(path, ".static.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			t.Parallel()
			a, err := ParseAMD(read(t, base+".list.json"), read(t, path), read(t, base+".metric.json"))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Base(base), a)
		})
	}
}

// TestContract holds the keys of doctor's JSON, and null for what is unknown.
func TestContract(t *testing.T) {
	t.Parallel()
	n, err := ParseNvidia(read(t, "testdata/gb10-580.xml"), nil)
	if err != nil || len(n.Devices) != 1 {
		t.Fatalf("%+v, %v", n, err)
	}
	text, err := json.Marshal(n.Devices[0])
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"index": 0.0, "uuid": "GPU-0000000e-0000-4000-8000-00000000000e", "model": "NVIDIA GB10", "memory_bytes": nil, "shared_memory": true, "mig": []any{}, "power_watts": 11.17, "utilization_percent": 3.0}
	for key, value := range want {
		if d := cmp.Diff(value, got[key]); d != "" {
			t.Errorf("%s: %s", key, d)
		}
		if _, ok := got[key]; !ok {
			t.Errorf("no key %s", key)
		}
	}
}

func TestBroken(t *testing.T) {
	t.Parallel()
	n, err := ParseNvidia(read(t, "testdata/lost-550.txt"), nil)
	if err == nil || len(n.Devices) != 1 || n.Driver != "550.54.15" {
		t.Errorf("a document that breaks off: %d GPUs, driver %q, %v", len(n.Devices), n.Driver, err)
	}
	for _, text := range []string{"", "No devices were found", "<html>", "<nvidia_smi_log>"} {
		if n, err := ParseNvidia([]byte(text), nil); err == nil {
			t.Errorf("%q gives %+v and no error", text, n)
		}
	}
	if n, err := ParseNvidia([]byte("warning: x\n<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>"), nil); err != nil || len(n.Devices) > 0 || len(n.Problems) > 0 {
		t.Errorf("no GPUs: %+v, %v", n, err)
	}
	for _, text := range []string{"", "[", "{}", "ERROR:root:Driver not loaded", `{"gpu_data": 3}`, `["a"]`} {
		if a, err := ParseAMD([]byte(text), nil, nil); err == nil {
			t.Errorf("%q gives %+v and no error", text, a)
		}
	}
	a, err := ParseAMD([]byte("[WARNING] no libdrm\n[{\"gpu\": 0, \"uuid\": \"x\"}]"), []byte("oh"), nil)
	if err == nil || len(a.Devices) != 1 || a.Devices[0].UUID != "x" {
		t.Errorf("a warning before, a broken document beside: %+v, %v", a, err)
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor, name string
		mib          int64
		want         string
	}{
		{"nvidia", "NVIDIA A100-SXM4-80GB", 81920, "a100-sxm-80"},
		{"nvidia", "A100-PCIE-40GB", 40536, "a100-pcie-40"},
		{"nvidia", "NVIDIA A100 80GB PCIe", 81920, "a100-pcie-80"},
		{"nvidia", "NVIDIA A10G", 23028, "a10g"},
		{"nvidia", "NVIDIA H100 80GB HBM3", 81559, "h100-sxm"},
		{"nvidia", "NVIDIA H100 NVL", 95830, "h100-nvl"},
		{"nvidia", "NVIDIA H200", 143771, "h200-sxm"},
		{"nvidia", "NVIDIA H20", 97871, "h20"},
		{"nvidia", "NVIDIA GH200 480GB", 97871, "gh200-96"},
		{"nvidia", "NVIDIA GH200 120GB", 97871, "gh200-96"},
		{"nvidia", "NVIDIA GH200 120GB", 0, ""},
		{"nvidia", "NVIDIA GH200 144G HBM3e", 146831, "gh200-144"},
		{"nvidia", "NVIDIA B300 SXM6 AC", 275040, "b300"},
		{"nvidia", "NVIDIA GB10", 0, "gb10"},
		{"nvidia", "Tesla V100-SXM2-32GB", 32510, "v100-sxm-32"},
		{"nvidia", "Tesla T4", 15109, "t4"},
		{"nvidia", "NVIDIA GeForce RTX 4090", 24564, "rtx-4090"},
		{"nvidia", "NVIDIA GeForce RTX 3080", 10240, "rtx-3080"},
		{"nvidia", "NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12"},
		{"nvidia", "NVIDIA GeForce RTX 3080", 20480, ""}, // a modified card
		{"nvidia", "NVIDIA GeForce RTX 3080", 0, ""},     // 10 or 12 GB
		{"nvidia", "NVIDIA GeForce RTX 4090 D", 24564, ""},
		{"nvidia", "NVIDIA GeForce RTX 3080 Laptop GPU", 16384, ""},
		{"nvidia", "GRID A100D-80C", 81920, ""},
		{"nvidia", "Quadro RTX 6000", 22698, "rtx-6000-turing"},
		{"nvidia", "NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada"},
		{"nvidia", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "rtx-pro-6000-se"},
		{"nvidia", "Orin (nvgpu)", 0, ""},
		{"nvidia", "AMD Instinct MI300X", 196592, ""},
		{"nvidia", "", 24564, ""},
		{"amd", "AMD Instinct MI300X", 196592, "mi300x"},
		{"amd", "AMD Instinct MI300X VF", 196300, "mi300x"},
		{"amd", "AMD Instinct MI210", 65520, "mi210"},
		{"amd", "AMD INSTINCT MI250 (MCM) OAM AC MBA", 65520, "mi250-gcd"},
		{"amd", "AMD Instinct MI250X", 65520, ""}, // one die of it is not in the table
		{"amd", "AMD Instinct MI300A", 131072, ""},
		{"amd", "Arcturus GL-XL [Instinct MI100]", 32752, "mi100"},
		{"amd", "AMD Radeon AI PRO R9700", 32624, "r9700"},
		{"amd", "Radeon 8060S Graphics", 98304, "radeon-8060s"},
		{"amd", "AMD Radeon Graphics", 512, ""},
	} {
		var memory *int64
		if c.mib > 0 {
			b := c.mib << 20
			memory = &b
		}
		if got := Identify(c.vendor, c.name, memory); got != c.want {
			t.Errorf("%s %q with %d MiB: %q, want %q", c.vendor, c.name, c.mib, got, c.want)
		}
	}
}

// TestIdentifyAll finds no card by the maker's own title that is another one.
func TestIdentifyAll(t *testing.T) {
	t.Parallel()
	for _, m := range gpu.Models() {
		if m.MemoryGB == 0 || m.Vendor != "nvidia" && m.Vendor != "amd" {
			continue
		}
		b := int64(m.MemoryGB * float64(gpu.GiB))
		if got := Identify(m.Vendor, m.Title, &b); got != "" && got != m.ID {
			t.Errorf("%s %q: %q", m.ID, m.Title, got)
		}
	}
}

func TestReadings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "ERR!", "Unknown Error", "[Unknown Error]", "[GPU requires reset]", "GPU is lost", "Insufficient Permissions", "-1 W", "NaN", "Inf W", "1e999 W", "12 apples", "."} {
		if v := watts(text); v != nil {
			t.Errorf("watts of %q: %v", text, *v)
		}
		if v := mebibytes(text); v != nil {
			t.Errorf("bytes of %q: %v", text, *v)
		}
	}
	for text, want := range map[string]int64{"24564 MiB": 24564 << 20, "24564": 24564 << 20, "196592 MB": 196592 << 20, "8 GiB": 8 << 30, "512 KiB": 512 << 10} {
		if v := mebibytes(text); v == nil || *v != want {
			t.Errorf("bytes of %q: %v, want %d", text, v, want)
		}
	}
	if v := mebibytes("0 MiB"); v != nil {
		t.Errorf("a GPU of no memory: %d", *v)
	}
	if v := used("0 MiB"); v == nil || *v != 0 {
		t.Errorf("none used: %v", v)
	}
	if v := percent("65535 %"); v != nil {
		t.Errorf("65535 %%: %v", *v)
	}
	for text, want := range map[string]bool{"N/A": true, "[N/A]": true, "Not Supported": true, "": false, "ERR!": false, "[Unknown Error]": false, "1 MiB": false} {
		if got := inapplicable(text); got != want {
			t.Errorf("inapplicable(%q) = %v", text, got)
		}
	}
}

// TestInstances loses and doubles no MIG instance, whatever the two documents
// say.
func TestInstances(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 7).Draw(t, "instances")
		old := rapid.Bool().Draw(t, "old")
		var xml []smiMIG
		var listed []ListedMIG
		want := map[string]string{}
		for i := range n {
			id := string(rune('1' + i))
			one := smiMIG{Index: string(rune('0' + i)), Instance: id, Compute: "0", Memory: smiTotal{Total: id + " GiB"}}
			uuid := "MIG-" + id
			if old {
				uuid = "MIG-GPU-0/" + id + "/0"
			}
			want[uuid] = id + "g"
			xml = append(xml, one)
			listed = append(listed, ListedMIG{Index: i, Profile: id + "g", UUID: uuid})
		}
		got := instances(rapid.Permutation(xml).Draw(t, "xml"), rapid.Permutation(listed).Draw(t, "list"))
		if len(got) != n {
			t.Fatalf("%d of %d instances", len(got), n)
		}
		for _, m := range got {
			// Instance 3 has 3 GiB and the profile 3g.
			if want[m.UUID] != m.Profile || m.MemoryBytes == nil || int64(m.Profile[0]-'0')<<30 != *m.MemoryBytes {
				t.Fatalf("%+v", m)
			}
			delete(want, m.UUID)
		}
	})
}

func FuzzParseNvidia(f *testing.F) {
	for _, name := range []string{"a100-mig-470", "gb10-580"} {
		list, _ := os.ReadFile("testdata/" + name + ".list")
		f.Add(read(f, "testdata/"+name+".xml"), list)
	}
	f.Fuzz(func(t *testing.T, document, list []byte) {
		n, _ := ParseNvidia(document, list)
		check(t, n.Devices)
	})
}

func FuzzParseNvidiaList(f *testing.F) {
	f.Add(read(f, "testdata/a100-mig-450.list"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, g := range ParseNvidiaList(text) {
			if g.Index < 0 {
				t.Fatalf("%+v", g)
			}
		}
	})
}

func FuzzParseAMD(f *testing.F) {
	f.Add(read(f, "testdata/mi300x-rocm6.list.json"), read(f, "testdata/mi300x-rocm6.static.json"), read(f, "testdata/mi300x-rocm6.metric.json"))
	f.Fuzz(func(t *testing.T, list, static, metric []byte) {
		a, _ := ParseAMD(list, static, metric)
		check(t, a.Devices)
	})
}

func FuzzSamples(f *testing.F) {
	f.Add([]byte("0, GPU-1, NVIDIA H200, 143771, 0, 0, 77.10, 28, Disabled\n1, [Unknown Error], ERR!, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseSamples(text)
		if (err == nil) != (len(all) > 0) {
			t.Fatalf("%d samples, %v", len(all), err)
		}
		check(t, all)
	})
}

// check holds what is true of any device.
func check(t *testing.T, all []machine.Device) {
	t.Helper()
	for _, d := range all {
		if d.Index < 0 || d.MemoryBytes != nil && *d.MemoryBytes <= 0 || d.Utilization != nil && (*d.Utilization < 0 || *d.Utilization > 100) || d.PowerWatts != nil && *d.PowerWatts < 0 {
			t.Fatalf("%+v", d)
		}
		if _, err := json.Marshal(d); err != nil {
			t.Fatal(err)
		}
	}
}
