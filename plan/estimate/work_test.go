package estimate

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	m, vision := model(t, "llama-3-8b"), model(t, "resnet50")
	for want, w := range map[string]Work{
		"no model":                         Generate{OutputTokens: 1},
		"unknown precision \"fp3\"":        Generate{Model: m, Precision: "fp3", OutputTokens: 1},
		"is more than the 8192":            Generate{Model: m, Context: 9000, OutputTokens: 1},
		"output_tokens is 0":               Generate{Model: m},
		"output_tokens is -5":              Generate{Model: m, OutputTokens: -5},
		"output_tokens is NaN":             Generate{Model: m, OutputTokens: math.NaN()},
		"input_tokens is -1":               Generate{Model: m, InputTokens: -1, OutputTokens: 1},
		"concurrency is -1":                Generate{Model: m, Concurrency: -1, OutputTokens: 1},
		"of the kind vision":               Generate{Model: vision, OutputTokens: 1},
		"tokens is 0":                      Finetune{Model: m, Method: "lora"},
		"unknown method \"dora\"":          Finetune{Model: m, Method: "dora", Tokens: 1},
		"cannot be trained in full":        Finetune{Model: m, Method: "full", Precision: "int4", Tokens: 1},
		"sequence of 10000 tokens is more": Finetune{Model: m, Sequence: 10000, Tokens: 1},
		"weights in q4_k_m cannot":         Train{Model: m, Precision: "q4_k_m", Tokens: 1},
		"images is 0":                      Images{Model: vision, Mode: "train"},
		"unknown mode \"guess\"":           Images{Model: vision, Mode: "guess", Count: 1},
		"per image is not known":           Images{Model: m, Count: 1},
	} {
		_, err := New().Prepare(w)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", w, err, want)
		} else if fault.HintOf(err) == "" {
			t.Errorf("%v has no hint", err)
		}
	}
}

func TestUnknownSpeed(t *testing.T) {
	t.Parallel()
	j, err := New().Prepare(Generate{Model: model(t, "llama-3-8b"), OutputTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.On(&gpu.Model{Name: "NEW"}, 1, gpu.Partition{}); fault.KindOf(err) != fault.NothingFits {
		t.Errorf("error %v", err)
	}
}

// anyWork draws work on a text model with its amount scaled by k.
func anyWork(t *rapid.T) func(k float64) Work {
	m := rapid.SampledFrom([]string{"llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gemma-2-9b", "mistral-7b-v0.1"}).Draw(t, "model")
	found, err := FindModel(m)
	if err != nil {
		t.Fatal(err)
	}
	in, out := rapid.Float64Range(0, 1e7).Draw(t, "in"), rapid.Float64Range(1e3, 1e7).Draw(t, "out")
	context := rapid.IntRange(64, 8000).Draw(t, "context")
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		precision := rapid.SampledFrom([]string{"bf16", "fp8", "q4_k_m", "int4"}).Draw(t, "precision")
		many := rapid.IntRange(0, 64).Draw(t, "concurrency")
		return func(k float64) Work {
			return Generate{Model: found, Precision: precision, Concurrency: many, Context: context, InputTokens: in * k, OutputTokens: out * k}
		}
	case 1:
		method := rapid.SampledFrom([]string{"lora", "qlora", "full"}).Draw(t, "method")
		return func(k float64) Work {
			return Finetune{Model: found, Method: method, Sequence: context, Tokens: out * k}
		}
	}
	return func(k float64) Work { return Train{Model: found, Sequence: context, Tokens: out * k} }
}

func anyCard(t *rapid.T) *gpu.Model {
	var known []*gpu.Model
	for _, m := range gpu.Models() {
		if _, ok := newHardware(m, 1, gpu.Partition{}); ok {
			known = append(known, m)
		}
	}
	return rapid.SampledFrom(known).Draw(t, "card")
}

func TestMoreWorkTakesLonger(t *testing.T) {
	t.Parallel()
	e := New()
	rapid.Check(t, func(t *rapid.T) {
		work, c := anyWork(t), anyCard(t)
		n := rapid.IntRange(1, 16).Draw(t, "count")
		k := rapid.Float64Range(1, 100).Draw(t, "times")
		hours := func(k float64) Quantiles {
			j, err := e.Prepare(work(k))
			if err != nil {
				t.Fatal(err)
			}
			x, err := j.On(c, n, gpu.Partition{})
			if err != nil {
				t.Fatal(err)
			}
			h := x.Hours
			if !(0 < h.P10 && h.P10 <= h.P50 && h.P50 <= h.P90 && h.P10 <= h.Expected) || math.IsInf(h.P90, 0) || math.IsInf(h.Expected, 0) {
				t.Fatalf("hours %+v", h)
			}
			return h
		}
		if less, more := hours(1), hours(k); more.P50 < less.P50*(1-1e-9) {
			t.Fatalf("%v times the work takes %v, not %v hours", k, more.P50, less.P50)
		}
	})
}

func TestLongerContextTakesMoreMemory(t *testing.T) {
	t.Parallel()
	e := New()
	rapid.Check(t, func(t *rapid.T) {
		m, err := FindModel(rapid.SampledFrom([]string{"llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"}).Draw(t, "model"))
		if err != nil {
			t.Fatal(err)
		}
		c := anyCard(t)
		n := rapid.IntRange(1, 8).Draw(t, "count")
		tune := rapid.Bool().Draw(t, "finetune")
		need := func(context int) float64 {
			var w Work = Generate{Model: m, Context: context, Concurrency: 4, InputTokens: 1e6, OutputTokens: 1e6}
			if tune {
				w = Finetune{Model: m, Method: "qlora", Sequence: context, Tokens: 1e6}
			}
			j, err := e.Prepare(w)
			if err != nil {
				t.Fatal(err)
			}
			return j.shape.need(float64(n), 0, false).asked
		}
		a := rapid.IntRange(16, 8000).Draw(t, "context")
		b := rapid.IntRange(a, 8100).Draw(t, "longer")
		if need(b) < need(a) {
			t.Fatalf("%d tokens on %d %s need %v, %d need %v GB", b, n, c.Name, need(b), a, need(a))
		}
	})
}

func TestPartitionIsSlower(t *testing.T) {
	t.Parallel()
	j, err := New().Prepare(Generate{Model: model(t, "llama-3.1-8b"), Precision: "int4", Concurrency: 1, OutputTokens: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := j.On(card(t, "a100-sxm-80"), 1, gpu.Partition{})
	if err != nil {
		t.Fatal(err)
	}
	cut, err := j.On(card(t, "a100-sxm-80"), 1, gpu.Partition{Profile: "3g.40gb"})
	if err != nil {
		t.Fatal(err)
	}
	if cut.Rate.P50 >= whole.Rate.P50 || cut.Fit.HaveGB >= whole.Fit.HaveGB {
		t.Errorf("3g.40gb does %v tokens/s in %v GB, the whole card %v in %v", cut.Rate.P50, cut.Fit.HaveGB, whole.Rate.P50, whole.Fit.HaveGB)
	}
}
