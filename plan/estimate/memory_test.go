package estimate

import (
	"testing"

	"github.com/destajo/destajo/gpu"
)

// on judges work on one card of a made-up size, or of the table.
func on(t *testing.T, w Work, card *gpu.Model, count int) Estimate {
	t.Helper()
	j, err := New().Prepare(w)
	if err != nil {
		t.Fatal(err)
	}
	e, err := j.On(card, count, gpu.Partition{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func model(t testing.TB, name string) *Model {
	t.Helper()
	m, err := FindModel(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func card(t testing.TB, id string) *gpu.Model {
	t.Helper()
	c, ok := gpu.ByID(id)
	if !ok {
		t.Fatalf("no card %s", id)
	}
	return c
}

// sized is an Ada card with another memory.
func sized(t testing.TB, gb float64) *gpu.Model {
	c := *card(t, "l40s")
	c.MemoryGB = gb
	return &c
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	const n = 1e6
	for _, c := range []struct {
		name  string
		work  Work
		gb    float64
		count int
		want  Verdict
	}{
		{"70B at 16 bit in 16 GB", Generate{Model: model(t, "llama-3.1-70b"), OutputTokens: n}, 16, 1, NoFit},
		{"70B at 16 bit in 80 GB", Generate{Model: model(t, "llama-3.1-70b"), OutputTokens: n}, 80, 1, NoFit},
		{"70B at 16 bit in 4 x 80 GB", Generate{Model: model(t, "llama-3.1-70b"), OutputTokens: n}, 80, 4, FitsWell},
		{"8B at 4 bit in 16 GB", Generate{Model: model(t, "llama-3.1-8b"), Precision: "int4", OutputTokens: n}, 16, 1, FitsWell},
		{"8B at Q4_K_M in 8 GB", Generate{Model: model(t, "llama-3.1-8b"), Precision: "Q4_K_M", OutputTokens: n}, 8, 1, FitsWell},
		{"8B at 16 bit in 16 GB", Generate{Model: model(t, "llama-3.1-8b"), OutputTokens: n, Context: 8192}, 16, 1, NoFit},
		{"8B LoRA in 24 GB", Finetune{Model: model(t, "llama-3.1-8b"), Method: "lora", Stack: "torchtune", Tokens: n}, 24, 1, FitsWell},
		{"8B QLoRA in 16 GB", Finetune{Model: model(t, "llama-3.1-8b"), Method: "qlora", Stack: "unsloth", Tokens: n}, 16, 1, FitsWell},
		{"7B full in 80 GB", Finetune{Model: model(t, "llama-2-7b"), Method: "full", Tokens: n}, 80, 1, NoFit},
		{"7B full in 4 x 80 GB", Finetune{Model: model(t, "llama-2-7b"), Method: "full", Tokens: n}, 80, 4, FitsWell},
		{"SDXL in 4 GB", Images{Model: model(t, "sdxl"), Count: n}, 4, 1, NoFit},
		{"SDXL in 16 GB", Images{Model: model(t, "sdxl"), Count: n}, 16, 1, FitsWell},
		{"ResNet-50 trained in 16 GB", Images{Model: model(t, "resnet50"), Mode: "train", Count: n}, 16, 1, FitsWell},
		{"many sequences wait", Generate{Model: model(t, "llama-2-7b"), Concurrency: 64, Context: 4096, OutputTokens: n}, 24, 1, Tight},
	} {
		e := on(t, c.work, sized(t, c.gb), c.count)
		if e.Fit.Verdict != c.want {
			t.Errorf("%s: %s (%.1f of %.1f GB), want %s", c.name, e.Fit.Verdict, e.Fit.NeedGB, e.Fit.HaveGB, c.want)
		}
		if e.Fit.Verdict == NoFit && e.Fit.NeedGB <= e.Fit.HaveGB || e.Fit.Verdict != NoFit && e.Fit.NeedGB > e.Fit.HaveGB {
			t.Errorf("%s: %s contradicts %.1f of %.1f GB", c.name, e.Fit.Verdict, e.Fit.NeedGB, e.Fit.HaveGB)
		}
	}
}

// A model of 70 billion parameters at 16 bit fits no card of 16 GB or less, at
// whatever length and engine.
func TestSeventyBillionNeverFits16GB(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, m := range Models() {
		if !m.Kind.tokens() || m.Params < 65 {
			continue
		}
		for _, engine := range []string{"", "llama.cpp", "trt-llm"} {
			j, err := New().Prepare(Generate{Model: m, Precision: "fp16", Engine: engine, Context: 16, OutputTokens: 1e6})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range gpu.Models() {
				if c.MemoryGB > 16 {
					continue
				}
				e, err := j.On(c, 1, gpu.Partition{})
				if err != nil {
					continue // its speed is not known
				}
				checked++
				if e.Fit.Verdict != NoFit {
					t.Errorf("%s on %s: %s", m.ID, c.Name, e.Fit.Verdict)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("nothing was checked")
	}
}

// The longest contexts that Unsloth publishes for QLoRA of rank 32 at batch 1:
// a twentieth less must fit, a tenth more must not. On the smallest card, where
// a hundredth of the need is all that is left beside the weights, half and
// twice of it.
func TestUnslothContexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model   string
		gb      float64
		longest float64
	}{
		{"llama-3.1-8b", 8, 2972}, {"llama-3.1-8b", 12, 21848}, {"llama-3.1-8b", 16, 40724}, {"llama-3.1-8b", 24, 78475},
		{"llama-3.1-8b", 80, 342733}, {"llama-3.1-70b", 48, 12106}, {"llama-3.1-70b", 80, 89389},
	} {
		m := *model(t, c.model)
		m.Context = 1e6
		fit := func(tokens float64) Fit {
			return on(t, Finetune{Model: &m, Method: "qlora", Stack: "unsloth", Rank: 32, Sequence: int(tokens), Tokens: 1e6}, sized(t, c.gb), 1).Fit
		}
		less, more := .95, 1.1
		if c.gb == 8 {
			less, more = .5, 2
		}
		if f := fit(c.longest * less); f.Verdict == NoFit {
			t.Errorf("%s in %v GB: %.0f tokens need %.2f of %.2f GB, %.0f ran", c.model, c.gb, c.longest*less, f.NeedGB, f.HaveGB, c.longest)
		}
		if f := fit(c.longest * more); f.Verdict != NoFit {
			t.Errorf("%s in %v GB: %.0f tokens need %.2f of %.2f GB, the longest that ran is %.0f", c.model, c.gb, c.longest*more, f.NeedGB, f.HaveGB, c.longest)
		}
	}
}
