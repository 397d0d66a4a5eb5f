package estimate

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

func TestFindModel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"llama-3.1-8b": "llama-3.1-8b", "LLAMA-3.1-8B": "llama-3.1-8b", "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
		" qwen3-30b-a3b ": "qwen3-30b-a3b", "google-bert/bert-large-uncased": "bert-large", "resnet50": "resnet50",
	} {
		m, err := FindModel(name)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if m.ID != want {
			t.Errorf("%q is %s, want %s", name, m.ID, want)
		}
	}
}

func TestFindModelUnknown(t *testing.T) {
	t.Parallel()
	_, err := FindModel("llama-3.1-9b")
	if fault.KindOf(err) != fault.Invalid {
		t.Fatalf("kind %q of %v", fault.KindOf(err), err)
	}
	hint := fault.HintOf(err)
	for _, part := range []string{"llama-3.1-8b", "params: 7B"} {
		if !strings.Contains(hint, part) {
			t.Errorf("hint %q lacks %q", hint, part)
		}
	}
}

func TestModelsAreWhole(t *testing.T) {
	t.Parallel()
	tokens := 0
	seen := map[string]bool{}
	for _, m := range Models() {
		if seen[m.ID] {
			t.Errorf("%s twice", m.ID)
		}
		seen[m.ID] = true
		if m.Params <= 0 || m.Source == "" || m.Checked == "" {
			t.Errorf("%s lacks parameters, source or check: %+v", m.ID, m)
		}
		if m.Active > m.Params*1.001 && m.Kind != Speech {
			t.Errorf("%s uses %v of %v billion parameters", m.ID, m.Active, m.Params)
		}
		if m.Kind == Language || m.Kind == Mixture {
			tokens++
			if m.Layers == 0 || m.Hidden == 0 || m.KVBytes == 0 || m.Vocab == 0 {
				t.Errorf("%s has no shape", m.ID)
			}
		}
	}
	if tokens < 60 {
		t.Errorf("%d language models, want 60 or more", tokens)
	}
}

func TestDescribedInfers(t *testing.T) {
	t.Parallel()
	m, err := Described(Model{Params: 7})
	if err != nil {
		t.Fatal(err)
	}
	if got := 12 * m.Layers * m.Hidden * m.Hidden / 1e9; math.Abs(got/7-1) > .2 {
		t.Errorf("%v layers of %v hold %.2f billion parameters, want about 7", m.Layers, m.Hidden, got)
	}
	got, err := Described(Model{Params: 8, Layers: 32, Hidden: 4096, KVHeads: 8, HeadDim: 128, Vocab: 128256, Context: 8192})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float64{32, 4096, 131072}, []float64{got.Layers, got.Hidden, got.KVBytes}); diff != "" {
		t.Errorf("shape (-want +got):\n%s", diff)
	}
	if m, err := Described(Model{Params: 30, Active: 3}); err != nil || m.Kind != Mixture {
		t.Errorf("30B with 3B active is %v, %v; want a mixture", m, err)
	}
}

// A description with the shape of a model of the table is that model, as far
// as it leaves something open.
func TestDescribedIsRecognised(t *testing.T) {
	t.Parallel()
	gemma := model(t, "gemma-3-12b")
	d := Model{ID: "mine", Params: 12.2, Layers: gemma.Layers, Hidden: gemma.Hidden, KVHeads: gemma.KVHeads, HeadDim: gemma.HeadDim, Vocab: gemma.Vocab}
	got, err := Described(d)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "mine" || got.family != gemma.family || got.Window != gemma.Window || got.KVLayers != gemma.KVLayers || got.Context != gemma.Context || !got.Tied {
		t.Errorf("%+v is not like %+v", got, gemma)
	}
	d.Layers++
	if got, err = Described(d); err != nil || got.family == gemma.family || got.Window != 0 {
		t.Errorf("with another layer: %+v, %v", got, err)
	}
	d.Layers, d.KVHeads = gemma.Layers, 1
	if got, err = Described(d); err != nil || got.family == gemma.family {
		t.Errorf("with other heads: %+v, %v", got, err)
	}
}

// The bytes of a file are taken as they are, and its format decides the
// precision.
func TestModelOfFile(t *testing.T) {
	t.Parallel()
	known := model(t, "llama-3.1-8b")
	for _, c := range []struct {
		format string
		gb     float64
		as     string
	}{{"q4_k_m", 4.92, "q4_k_m"}, {"Q8_0", 8.54, "q8_0"}, {"fp16", 16.07, "fp16"}, {"iq3_m", 3.78, "q3_k_m"}, {"q4_k", 4.7, "q4_k_m"}, {"tq1_0", 2.1, "iq2_xxs"}} {
		m := *known
		m.WeightsGB, m.Format = c.gb, c.format
		j, err := New().Prepare(Generate{Model: &m, OutputTokens: 1e6, Concurrency: 1, Context: 512})
		if err != nil {
			t.Fatal(err)
		}
		e, err := j.On(card(t, "rtx-4090"), 1, gpu.Partition{})
		if err != nil {
			t.Fatal(err)
		}
		if s := j.shape; s.precision.name != c.as || s.engine != "llama.cpp" || e.Weights != c.gb {
			t.Errorf("%s of %v GB is taken as %s on %s with %v GB", c.format, c.gb, s.precision.name, s.engine, e.Weights)
		}
	}
	m := *known
	m.WeightsGB, m.Format = 16.07, "fp16"
	j, err := New().Prepare(Generate{Model: &m, OutputTokens: 1e6, Context: 512})
	if err != nil {
		t.Fatal(err)
	}
	all := New().Variants(j, sized(t, 8), 1, gpu.Partition{})
	if len(all) == 0 || all[0].Change != "4-bit weights (Q4_K_M)" || all[0].Job.shape.model.WeightsGB != 0 {
		t.Errorf("variants %+v", all)
	}
	if _, err := New().Prepare(Generate{Model: &m, Precision: "int4", OutputTokens: 1e6}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "file holds fp16") {
		t.Errorf("another precision than the file's: %v", err)
	}
}

func TestDescribedBad(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Model{
		"size is missing": {}, "cannot be -1": {Params: -1}, "cannot use": {Params: 7, Active: 8},
		"larger than any": {Params: 7e9}, "cannot be NaN": {Params: math.NaN()},
	} {
		_, err := Described(d)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), name) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v (%s), want %q and a hint", d, err, fault.HintOf(err), name)
		}
	}
}

func TestFindLoosely(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Qwen_Qwen3.5-4B": "qwen3.5-4b", "Qwen3.6-35B-A3B (MoE A3B)": "qwen3.6-35b-a3b", "Qwen3.5-0.8B-Q8_0.gguf": "qwen3.5-0.8b",
		"Llama-2-7B-QLoRA": "llama-2-7b", "vit_base_patch16_224-224": "vit-base-16", "SDXL-1024-20step": "sdxl",
	} {
		if m := findLoosely(name); m == nil || m.ID != want {
			t.Errorf("%q is %v, want %s", name, m, want)
		}
	}
	if m := findLoosely("nobody_knows-12B"); m != nil {
		t.Errorf("found %s", m.ID)
	}
}
