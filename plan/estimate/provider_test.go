package estimate

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/gpu"
)

// streamed is a row of the user's own at a provider.
func streamed(provider, card string, rate float64) Row {
	return Row{GPU: card, Count: 1, Workload: TextInference, Model: "llama-3.1-8b", Precision: "q4_k_m", Engine: "llama.cpp", Batch: 1, Out: 256,
		Metric: Decode, Value: rate, Provider: provider}
}

func stream(t testing.TB) Work {
	return Generate{Model: model(t, "llama-3.1-8b"), Precision: "q4_k_m", Engine: "llama.cpp", Concurrency: 1, OutputTokens: 1e6, Context: 256}
}

func streaming(t testing.TB, rows ...Row) *Job {
	t.Helper()
	j, err := New(rows...).Prepare(stream(t))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestProviderEffect(t *testing.T) {
	t.Parallel()
	two := []Row{streamed("Fast", "rtx-4090", 120), streamed("slow", "rtx-4090", 90)}
	half := math.Log(120.0/90) / 2
	for _, c := range []struct {
		name     string
		rows     []Row
		provider string
		card     string
		want     Effect
	}{
		{"two providers", two, "fast", "rtx-4090", Effect{"Fast", math.Exp(half / 1.5), 1, []string{"slow"}}},
		{"the other", two, "SLOW", "rtx-4090", Effect{"slow", math.Exp(-half / 1.5), 1, []string{"Fast"}}},
		{"more rows say more", append(two, two...), "fast", "rtx-4090", Effect{"Fast", math.Exp(half * 2 / 2.5), 2, []string{"slow"}}},
		{"another card", two, "fast", "h100-sxm", Effect{"fast", 1, 0, nil}},
		{"a provider without rows", two, "third", "rtx-4090", Effect{"third", 1, 0, nil}},
		{"one provider alone", two[:1], "fast", "rtx-4090", Effect{"fast", 1, 0, nil}},
		{"rows without providers", []Row{streamed("", "rtx-4090", 1), streamed("", "rtx-4090", 2)}, "", "rtx-4090", Effect{"", 1, 0, nil}},
		{"another setting", []Row{two[0], func() Row { r := two[1]; r.Out = 512; return r }()}, "fast", "rtx-4090", Effect{"fast", 1, 0, nil}},
	} {
		got := streaming(t, c.rows...).Effect(c.provider, card(t, c.card))
		if diff := cmp.Diff(c.want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestAtProvider(t *testing.T) {
	t.Parallel()
	c := card(t, "rtx-4090")
	j := streaming(t, streamed("fast", "rtx-4090", 120), streamed("slow", "rtx-4090", 90))
	rate := func(j *Job) float64 {
		e, err := j.On(c, 1, gpu.Partition{})
		if err != nil {
			t.Fatal(err)
		}
		if h := j.Units() / e.Rate.P50 / 3600; math.Abs(h/e.Hours.P50-1) > 1e-9 {
			t.Errorf("%v tokens/s and %v hours contradict", e.Rate.P50, e.Hours.P50)
		}
		return e.Rate.P50
	}
	fast, middle, slow := rate(j.At("fast")), rate(j), rate(j.At("slow"))
	if !(slow < middle && middle < fast) {
		t.Errorf("slow %v, others %v, fast %v", slow, middle, fast)
	}
	if r := middle / math.Sqrt(120*90); math.Abs(math.Log(r)) > .1 {
		t.Errorf("a provider without rows gets %v tokens/s, the mean of the others is %v", middle, math.Sqrt(120*90))
	}
	if fast > 120 || slow < 90 {
		t.Errorf("not shrunk: %v and %v, measured 120 and 90", fast, slow)
	}
	x, err := j.At("fast").Explain(c, 1, gpu.Partition{})
	if err != nil || x.Provider == nil || !strings.Contains(x.Provider.String(), "beside slow") {
		t.Errorf("explained as %v, %v", x.Provider, err)
	}
	if s := j.Effect("third", c).String(); !strings.Contains(s, "no measurement of yours") {
		t.Errorf("without rows: %q", s)
	}
}

// The effects of a setting's providers, whatever was measured, lie within
// what was measured, are drawn towards 1 and keep the order of the providers.
func TestProviderEffectsAreShrunk(t *testing.T) {
	t.Parallel()
	c := card(t, "rtx-4090")
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}[:rapid.IntRange(2, 4).Draw(t, "providers")]
		n := rapid.IntRange(1, 5).Draw(t, "rows of each")
		rates := map[string]float64{}
		var rows []Row
		mean := 0.0
		for _, p := range names {
			rates[p] = rapid.Float64Range(10, 1000).Draw(t, p)
			mean += math.Log(rates[p]) / float64(len(names))
			for range n {
				rows = append(rows, streamed(p, "rtx-4090", rates[p]))
			}
		}
		effects := effectsOf(rows)
		for _, p := range names {
			e := math.Log(effects[placed{p, c}].Factor)
			measured := math.Log(rates[p]) - mean
			if e*measured < -1e-12 || math.Abs(e) > math.Abs(measured)+1e-12 {
				t.Fatalf("%s: effect %v, measured %v", p, e, measured)
			}
			for _, q := range names {
				if rates[p] > rates[q] && e < math.Log(effects[placed{q, c}].Factor)-1e-12 {
					t.Fatalf("%s is faster than %s and gets the smaller effect", p, q)
				}
			}
		}
	})
}
