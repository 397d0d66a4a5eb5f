package estimate

import (
	"math"
	"strings"
	"testing"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

func TestCalibrated(t *testing.T) {
	t.Parallel()
	j, err := New().Prepare(Finetune{Model: model(t, "qwen2.5-7b"), Method: "lora", Tokens: 1e7})
	if err != nil {
		t.Fatal(err)
	}
	here, there := card(t, "rtx-4090"), card(t, "h100-sxm")
	before := func(j *Job, c *gpu.Model) Estimate {
		e, err := j.On(c, 1, gpu.Partition{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b := before(j, here), before(j, there)
	cal, err := j.Calibrated(here, 1, gpu.Partition{}, a.Rate.P50*2)
	if err != nil {
		t.Fatal(err)
	}
	a2, b2 := before(cal, here), before(cal, there)
	if r := a2.Rate.P50 / a.Rate.P50; math.Abs(r-2) > .2 {
		t.Errorf("the measured card is rescaled by %.2f, want about 2", r)
	}
	if a2.Evidence != MeasuredHere {
		t.Errorf("evidence %q", a2.Evidence)
	}
	if r := b2.Rate.P50 / b.Rate.P50; r <= 1.05 || r > 2 {
		t.Errorf("another card is rescaled by %.2f, want between 1.05 and 2", r)
	}
	width := func(e Estimate) float64 { return e.Rate.P90 / e.Rate.P10 }
	if width(a2) >= width(a) || width(b2) >= width(b) {
		t.Errorf("ranges %v and %v do not narrow from %v and %v", width(a2), width(b2), width(a), width(b))
	}
	if _, err := j.Calibrated(here, 1, gpu.Partition{}, 0); fault.KindOf(err) != fault.Invalid {
		t.Errorf("rate 0: %v", err)
	}
}

func TestOwnRowsCountMost(t *testing.T) {
	t.Parallel()
	m := model(t, "llama-3.1-8b")
	w := Generate{Model: m, Precision: "q4_k_m", Engine: "llama.cpp", Concurrency: 1, OutputTokens: 1e6, Context: 256}
	c := card(t, "rtx-3090")
	plain := on(t, w, c, 1)
	row := Row{GPU: "rtx-3090", Count: 1, Workload: TextInference, Model: "llama-3.1-8b", Precision: "Q4_K_M", Engine: "llama.cpp", Batch: 1, Out: 256,
		Metric: Decode, Value: plain.Rate.P50 * .5}
	j, err := New(row).Prepare(w)
	if err != nil {
		t.Fatal(err)
	}
	e, err := j.On(c, 1, gpu.Partition{})
	if err != nil {
		t.Fatal(err)
	}
	if r := e.Rate.P50 / row.Value; math.Abs(math.Log(r)) > .15 || e.Evidence != MeasuredHere {
		t.Errorf("%v tokens/s (%s), measured %v", e.Rate.P50, e.Evidence, row.Value)
	}
	if err := Check(&Row{GPU: "RTX 9999", Model: "x", Metric: Decode}); err == nil {
		t.Error("a row of an unknown card passes")
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	j, err := New().Prepare(Generate{Model: model(t, "llama-3.1-8b"), Precision: "q4_k_m", Concurrency: 1, InputTokens: 1e6, OutputTokens: 1e6, Context: 1024})
	if err != nil {
		t.Fatal(err)
	}
	x, err := j.Explain(card(t, "rtx-4090"), 1, gpu.Partition{})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Parts) != 2 || x.Parts[0].Regime != "prefill" || x.Parts[1].Regime != "decode" {
		t.Fatalf("parts %+v", x.Parts)
	}
	seconds := 0.0
	for _, p := range x.Parts {
		product := 1.0
		for _, f := range p.Factors {
			product *= f.Value
		}
		if math.Abs(math.Log(product/p.Learnt)) > 1e-4 {
			t.Errorf("%s: the factors give %v, not %v", p.Regime, product, p.Learnt)
		}
		if len(p.Nearest) != 5 || p.Nearest[0].Row.Source == "" || p.Nearest[0].Alike < p.Nearest[4].Alike {
			t.Errorf("%s: nearest %+v", p.Regime, p.Nearest)
		}
		seconds += 1 / (p.Formula.Rate * p.Learnt)
	}
	if r := 1 / seconds / x.Estimate.Rate.P50; math.Abs(r-1) > 1e-6 {
		t.Errorf("the parts give %v times the rate", r)
	}
	need := 0.0
	for _, p := range x.Estimate.Fit.Parts {
		need += p.Value
	}
	if math.Abs(need-x.Estimate.Fit.NeedGB) > 1e-6 {
		t.Errorf("the parts add up to %v of %v GB", need, x.Estimate.Fit.NeedGB)
	}
}

func TestVariants(t *testing.T) {
	t.Parallel()
	e := New()
	for _, c := range []struct {
		work Work
		gb   float64
		want string
	}{
		{Generate{Model: model(t, "llama-3.1-70b"), OutputTokens: 1e6}, 48, "4-bit weights"},
		{Finetune{Model: model(t, "llama-3.1-8b"), Method: "lora", Tokens: 1e6}, 16, "QLoRA"},
		{Finetune{Model: model(t, "llama-3.1-8b"), Method: "full", Tokens: 1e6}, 80, "LoRA instead"},
		{Generate{Model: model(t, "llama-3.1-8b"), OutputTokens: 1e6, Context: 131072}, 24, "tokens at once"},
		{Train{Model: model(t, "llama-3.1-8b"), Tokens: 1e6}, 80, "cards"},
	} {
		j, err := e.Prepare(c.work)
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, v := range e.Variants(j, sized(t, c.gb), 1, gpu.Partition{}) {
			said = append(said, v.Change)
			if got, err := v.Job.On(sized(t, c.gb), v.Count, gpu.Partition{}); err != nil || got.Fit.Verdict == NoFit {
				t.Errorf("%s does not fit: %+v, %v", v.Change, got.Fit, err)
			}
		}
		if !strings.Contains(strings.Join(said, "; "), c.want) {
			t.Errorf("%T in %v GB: %q, want %q", c.work, c.gb, said, c.want)
		}
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	parts, slow := Start{ImageGB: 8, WeightsGB: 16, DownloadMbps: 1000}.Seconds()
	_, fast := Start{ImageGB: 8, WeightsGB: 16, DownloadMbps: 10000}.Seconds()
	sum := 0.0
	for _, p := range parts {
		sum += p.Value
	}
	if sum != slow || fast >= slow || math.Abs((slow-usualBoot)/60-6) > .5 {
		t.Errorf("%v s in parts %v; %v s at ten times the line", slow, parts, fast)
	}
}
