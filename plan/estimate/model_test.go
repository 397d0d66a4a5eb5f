package estimate

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
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
