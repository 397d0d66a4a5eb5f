package estimate

import (
	"math"
	"strings"

	"github.com/destajo/destajo/fault"
)

// Work is what is to be done: Generate, Finetune, Train or Images.
type Work interface {
	situations(e *Estimator) (*Job, error)
}

// Generate is writing text with a language model.
type Generate struct {
	Model        *Model
	Precision    string  // of weights; bf16 unless said
	Engine       string  // vllm, llama.cpp, trt-llm, ollama, ...; chosen by precision unless said
	Concurrency  int     // sequences at once; 1 one stream; 0 as many as fit
	InputTokens  float64 // of the whole job
	OutputTokens float64
	Context      int // tokens of one sequence, read and written; at most 4096 unless said
}

// Finetune is adapting a language model.
type Finetune struct {
	Model     *Model
	Method    string // lora, qlora, full
	Stack     string // hf-peft-fa2, torchtune, unsloth, nemo, ...; peft unless said
	Precision string // of compute; bf16 unless said
	Sequence  int    // tokens; 2048 unless said
	Batch     int    // sequences at once on each card; 1 unless said
	Rank      int    // of the adapters; as usual in the stack unless said
	Tokens    float64
}

// Train is training a language model or encoder from the start.
type Train struct {
	Model     *Model
	Stack     string // llm-foundry-fsdp, nemo, torchtitan, ...
	Precision string
	Sequence  int
	Tokens    float64
}

// Images is training on images, or reading or making them.
type Images struct {
	Model     *Model
	Mode      string // train, infer
	Stack     string
	Precision string // fp16 unless said
	Pixels    int    // side of a square image; the model's own unless said
	Batch     int    // as many as fit unless said
	Count     float64
}

// Prepare reads work, once for all cards. Work that cannot be is a fault of
// the kind Invalid.
func (e *Estimator) Prepare(w Work) (*Job, error) {
	if e.base == nil {
		e = &Estimator{base: embedded(), own: e.own, effects: e.effects}
	}
	j, err := w.situations(e)
	if err != nil {
		return nil, err
	}
	j.work, j.effects = w, e.effects
	for i := range j.parts {
		p := &j.parts[i]
		p.prepared = e.base.learnt[p.situation.regime].prepare(&p.situation)
	}
	for i := range e.own {
		j.observe(&e.own[i])
	}
	return j, nil
}

func needModel(m *Model) error {
	if m == nil {
		return fault.New(fault.Invalid, "no model").Hint("name a model, or %s", describe)
	}
	return nil
}

func needTokens(m *Model) error {
	if err := needModel(m); err != nil {
		return err
	}
	if !m.Kind.tokens() {
		return fault.New(fault.Invalid, "model %q is of the kind %s and has no tokens", m.ID, m.Kind).Hint("use work.images, or state hours")
	}
	return nil
}

func amount(name string, x float64) error {
	if !(x > 0) || math.IsInf(x, 0) {
		return fault.New(fault.Invalid, "%s is %v: nothing to do", name, x).Hint("state a number above 0")
	}
	return nil
}

func readPrecision(name, otherwise string) (precision, error) {
	if name == "" {
		name = otherwise
	}
	p, ok := precisions[strings.ToLower(strings.TrimSpace(name))]
	if !ok {
		return p, unknownPrecision(name)
	}
	return p, nil
}

func withinContext(field string, tokens int, m *Model) error {
	if tokens < 0 {
		return fault.New(fault.Invalid, "%s is %d", field, tokens).Hint("state a number of tokens above 0")
	}
	if m.Context > 0 && float64(tokens) > m.Context {
		return fault.New(fault.Invalid, "%s of %d tokens is more than the %.0f of %s", field, tokens, m.Context, m.ID).
			Hint("lower it, or choose a model with a longer context")
	}
	return nil
}

// single says that an engine is measured as one stream, not as a batch of one.
func single(engine string) bool {
	switch engine {
	case "llama.cpp", "ollama", "exllamav2", "mlc-llm", "hf-transformers", "litgpt-eager":
		return true
	}
	return false
}

// weights gives the precision of the work. A file that holds the model decides
// it: formats that were not measured count as the next larger or smaller one.
func (g Generate) weights() (precision, error) {
	m := g.Model
	if m.WeightsGB == 0 {
		return readPrecision(g.Precision, "bf16")
	}
	each := m.WeightsGB / m.Params
	p, ok := precisions[strings.ToLower(m.Format)]
	if !ok {
		nearest := math.Inf(1)
		for _, q := range inFiles {
			if d := math.Abs(precisions[q].bytes - each); d < nearest {
				p, nearest = precisions[q], d
			}
		}
	}
	if g.Precision != "" && !strings.EqualFold(g.Precision, m.Format) {
		return p, fault.New(fault.Invalid, "the precision is to be %s and the model's file holds %s", g.Precision, m.Format).Hint("remove precision: the file decides it")
	}
	p.bytes = each
	return p, nil
}

// in gives the work with weights of another precision, which no file holds.
func (g Generate) in(precision string) Generate {
	m := *g.Model
	m.WeightsGB, m.Format = 0, ""
	g.Model, g.Precision = &m, precision
	return g
}

func (g Generate) situations(*Estimator) (*Job, error) {
	if err := needTokens(g.Model); err != nil {
		return nil, err
	}
	if err := amount("output_tokens", g.OutputTokens); err != nil {
		return nil, err
	}
	if g.InputTokens < 0 || math.IsNaN(g.InputTokens) || math.IsInf(g.InputTokens, 0) {
		return nil, fault.New(fault.Invalid, "input_tokens is %v", g.InputTokens).Hint("state a number of 0 or more")
	}
	if g.Concurrency < 0 {
		return nil, fault.New(fault.Invalid, "concurrency is %d", g.Concurrency).Hint("0 is as many as fit, 1 is one stream")
	}
	if err := withinContext("context", g.Context, g.Model); err != nil {
		return nil, err
	}
	p, err := g.weights()
	if err != nil {
		return nil, err
	}
	engine := knownEngine(g.Engine)
	if engine == "" && g.Model.WeightsGB > 0 {
		engine = "llama.cpp"
	}
	if engine == "" {
		engine = "vllm"
		if strings.HasPrefix(p.name, "q") || strings.HasPrefix(p.name, "iq") || p.name == "mxfp4" {
			engine = "llama.cpp"
		}
	}
	sequence := float64(g.Context)
	if sequence == 0 {
		sequence = 4096
		if g.Model.Context > 0 {
			sequence = math.Min(sequence, g.Model.Context)
		}
		sequence = math.Min(sequence, g.InputTokens+g.OutputTokens)
	}
	sequence = math.Max(sequence, 2)
	share := g.OutputTokens / (g.InputTokens + g.OutputTokens)
	out := math.Max(1, sequence*share)
	in := math.Max(0, sequence-out)
	s := situation{regime: serving, metric: Total, model: g.Model, precision: p, method: "full", engine: engine, batch: float64(g.Concurrency), in: in, out: out}
	j := &Job{count: g.OutputTokens, unit: "token"}
	switch {
	case g.Concurrency == 1 && single(engine):
		read, write := s, s
		read.regime, read.metric, read.batch, read.out = prefilling, Prefill, 1, 0
		write.regime, write.metric = decoding, Decode
		if in >= 1 {
			j.parts = append(j.parts, part{situation: read, units: in / out, scale: 1})
		}
		j.parts = append(j.parts, part{situation: write, units: 1, scale: 1})
	case g.Concurrency == 0 && engineFamily(engine) == "trt":
		s.metric = Output
		j.parts = []part{{situation: s, units: 1, scale: 1}}
	default:
		j.parts = []part{{situation: s, units: 1, scale: out / (math.Max(1, in) + out)}}
	}
	j.shape = &s
	return j, nil
}

func (f Finetune) situations(*Estimator) (*Job, error) {
	if err := needTokens(f.Model); err != nil {
		return nil, err
	}
	if err := amount("tokens", f.Tokens); err != nil {
		return nil, err
	}
	if err := withinContext("sequence", f.Sequence, f.Model); err != nil {
		return nil, err
	}
	method := strings.ToLower(f.Method)
	switch method {
	case "":
		method = "lora"
	case "lora", "qlora", "full":
	default:
		return nil, fault.New(fault.Invalid, "unknown method %q", f.Method).Hint("one of lora, qlora, full")
	}
	p, err := readPrecision(f.Precision, "bf16")
	if err != nil {
		return nil, err
	}
	if p.bytes < 1 && method == "full" {
		return nil, fault.New(fault.Invalid, "weights in %s cannot be trained in full", p.name).Hint("use method: qlora, or precision: bf16")
	}
	if method == "qlora" {
		p = precisions["int4"]
	}
	engine := knownEngine(f.Stack)
	if engine == "" {
		engine = "hf-peft-fa2"
		if f.Model.Kind == Encoder {
			engine, method = "ngc-pytorch-lambda-v2", "full"
		}
	}
	s := situation{regime: training, metric: Trained, model: f.Model, precision: p, method: method, engine: engine, batch: float64(max(1, f.Batch)), in: float64(f.Sequence)}
	if s.in == 0 {
		s.in = 2048
		if f.Model.Context > 0 {
			s.in = math.Min(s.in, f.Model.Context)
		}
	}
	shape := s
	if strings.EqualFold(strings.TrimSpace(f.Stack), "unsloth") {
		shape.engine = "unsloth" // its memory differs from the stack whose speed is taken
	}
	return &Job{count: f.Tokens, unit: "token", rank: float64(f.Rank), shape: &shape, parts: []part{{situation: s, units: 1, scale: 1}}}, nil
}

func (t Train) situations(*Estimator) (*Job, error) {
	if err := needTokens(t.Model); err != nil {
		return nil, err
	}
	if err := amount("tokens", t.Tokens); err != nil {
		return nil, err
	}
	if err := withinContext("sequence", t.Sequence, t.Model); err != nil {
		return nil, err
	}
	p, err := readPrecision(t.Precision, "bf16")
	if err != nil {
		return nil, err
	}
	if p.bytes < 1 && p.unit != units4 {
		return nil, fault.New(fault.Invalid, "weights in %s cannot be trained", p.name).Hint("use bf16, fp16, fp8 or fp32")
	}
	engine := knownEngine(t.Stack)
	if engine == "" {
		engine = "llm-foundry-fsdp-ac"
		if t.Model.Kind == Encoder {
			engine = "nemo-mlperf"
		}
	}
	s := situation{regime: training, metric: Trained, model: t.Model, precision: p, method: "full", engine: engine, in: float64(t.Sequence)}
	if s.in == 0 {
		s.in = 2048
		if t.Model.Context > 0 {
			s.in = math.Min(s.in, t.Model.Context)
		}
	}
	return &Job{count: t.Tokens, unit: "token", shape: &s, parts: []part{{situation: s, units: 1, scale: 1}}}, nil
}

func (i Images) situations(*Estimator) (*Job, error) {
	if err := needModel(i.Model); err != nil {
		return nil, err
	}
	if err := amount("images", i.Count); err != nil {
		return nil, err
	}
	if i.Model.GFLOPs == 0 {
		return nil, fault.New(fault.Invalid, "the work of model %q per image is not known", i.Model.ID).
			Hint("state hours or units with a rate, or name a vision model such as resnet50, vit-base-16, yolov8s or sdxl")
	}
	p, err := readPrecision(i.Precision, "fp16")
	if err != nil {
		return nil, err
	}
	if i.Pixels < 0 {
		return nil, fault.New(fault.Invalid, "an image of %d pixels a side", i.Pixels)
	}
	s := situation{regime: imageInferring, metric: Imaged, model: i.Model, precision: p, method: "full", engine: knownEngine(i.Stack), batch: float64(i.Batch), pixels: float64(i.Pixels)}
	if s.pixels == 0 {
		s.pixels = i.Model.Pixels
	}
	switch strings.ToLower(i.Mode) {
	case "train":
		s.regime = imageTraining
	case "", "infer", "inference":
	default:
		return nil, fault.New(fault.Invalid, "unknown mode %q", i.Mode).Hint("one of train, infer")
	}
	if s.engine == "" {
		s.engine = "timm-pytorch"
		switch {
		case s.regime == imageInferring && (i.Model.Kind == Diffusion || p.bytes < 2):
			s.engine = "mlperf-trt-offline"
		case s.regime == imageTraining && i.Model.Kind == Diffusion:
			s.engine = "mlperf"
		case s.regime == imageTraining:
			s.engine = "ngc-pytorch-lambda-v2"
		}
	}
	return &Job{count: i.Count, unit: "image", shape: &s, parts: []part{{situation: s, units: 1, scale: 1}}}, nil
}
