package estimate

import (
	"math"
	"strconv"
	"strings"

	"github.com/destajo/destajo/gpu"
)

// Metric is what a rate counts.
type Metric string

// The metrics of tables of measurements. Rates are for all GPUs together.
const (
	Decode  Metric = "decode_tok_s"  // written tokens of one stream
	Prefill Metric = "prefill_tok_s" // read tokens
	Total   Metric = "total_tok_s"   // read and written tokens of a static batch
	Output  Metric = "output_tok_s"  // written tokens at the highest throughput
	Trained Metric = "train_tok_s"   // tokens trained on
	Imaged  Metric = "images_s"      // images
	Peak    Metric = "peak_mem_gb"   // memory at its highest
	Fits    Metric = "fits"          // 0: ran out of memory
	spilled Metric = "decode_tok_s_spill"
)

// Workloads of tables of measurements.
const (
	TextInference  = "text_inference"
	TextFinetune   = "text_finetune"
	TextTrain      = "text_train"
	ImageTrain     = "image_train"
	ImageInference = "image_inference"
)

// regime is a part of the estimator with its own formula and coefficients.
type regime int

const (
	decoding regime = iota
	prefilling
	serving
	training
	imageTraining
	imageInferring
	regimes
)

var regimeNames = [regimes]string{"decode", "prefill", "serve", "train", "image_train", "image_infer"}

func (r regime) String() string { return regimeNames[r] }

// precision is a format of weights: its name, the bytes of one weight with
// block scales, and what units compute in it.
type precision struct {
	name  string
	bytes float64
	unit  unit
}

type unit int

const (
	units16 unit = iota
	units32
	unitsTF32
	units8
	unitsInt8
	units4
)

var precisions = func() map[string]precision {
	table := map[string]precision{}
	for _, p := range []precision{
		{"fp32", 4, units32}, {"tf32", 4, unitsTF32}, {"fp16", 2, units16}, {"f16", 2, units16}, {"bf16", 2, units16},
		{"fp8", 1, units8}, {"int8", 1.03, unitsInt8}, {"8bit", 1.03, unitsInt8}, {"q8_0", 1.0625, units16}, {"q6_k", .82, units16},
		{"q5_k_m", .711, units16}, {"q5_k_s", .69, units16}, {"q5_0", .6875, units16}, {"q4_k_m", .606, units16}, {"q4_k_s", .573, units16},
		{"q4_0", .5625, units16}, {"q4_1", .625, units16}, {"int4", .5625, units16}, {"4bit", .5625, units16}, {"awq", .5625, units16}, {"gptq", .5625, units16},
		{"fp4", .5625, units4}, {"nvfp4", .5625, units4}, {"iq4_xs", .535, units16}, {"iq4_nl", .5625, units16}, {"mxfp4", .53, units4},
		{"q3_k_m", .489, units16}, {"q3_k_s", .44, units16}, {"q3_k_l", .53, units16}, {"iq3_xxs", .39, units16}, {"q2_k", .37, units16}, {"iq2_xxs", .27, units16},
	} {
		table[p.name] = p
	}
	return table
}()

// inFiles are the precisions that were measured on weights in GGUF files.
var inFiles = []string{"fp32", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "q3_k_s", "iq3_xxs", "q2_k", "iq2_xxs"}

// precisionNames lists what precisions there are, most usual first.
var precisionNames = []string{"bf16", "fp16", "fp8", "int8", "int4", "fp4", "q4_k_m", "q8_0", "q5_k_m", "q6_k", "q3_k_m", "iq4_xs", "mxfp4", "tf32", "fp32"}

// situation is one piece of work as the formulas see it, on any GPU.
type situation struct {
	regime    regime
	metric    Metric
	model     *Model
	precision precision
	method    string // full, lora, qlora
	engine    string // as in the table of measurements
	batch     float64
	in, out   float64 // tokens of one sequence
	pixels    float64
}

// hardware is what the formulas know of GPUs.
type hardware struct {
	card      *gpu.Model
	count     float64
	bandwidth float64 // bytes/s of one
	peak16    float64 // FLOP/s of one, dense
	share     float64 // of the card
	memory    float64 // bytes of one
}

// newHardware reads a card; a partition has its share of the card's speed.
// ok is false where the card's bandwidth or speed is unknown.
func newHardware(card *gpu.Model, count int, cut gpu.Partition) (h hardware, ok bool) {
	h = hardware{card: card, count: float64(max(1, count)), share: 1, memory: card.MemoryGB * 1e9}
	if !cut.Whole() {
		if cut.Share > 0 {
			h.share = cut.Share
			h.memory *= cut.Share
		}
		if p, found := card.Profile(cut.Profile); found {
			h.memory = p.MemoryGB * 1e9
			h.share = p.ComputeShare
			if h.share == 0 {
				h.share = p.MemoryGB / card.MemoryGB
			}
		}
	}
	h.bandwidth = card.BandwidthGBs * 1e9 * h.share
	h.peak16 = card.FP16TFLOPS
	if h.peak16 == 0 {
		h.peak16 = card.FP32TFLOPS
	}
	h.peak16 *= 1e12 * h.share
	return h, h.bandwidth > 0 && h.peak16 > 0
}

// peak is the dense FLOP/s that work in a precision can use.
func (h *hardware) peak(s *situation) float64 {
	c := h.card
	t := 0.0
	switch s.precision.unit {
	case units32:
		t = c.FP32TFLOPS
	case unitsTF32:
		t = c.FP32TFLOPS
		if c.FP16TFLOPS > 1.5*c.FP32TFLOPS && c.Year >= 2020 {
			t = c.FP16TFLOPS / 2
		}
	case units8:
		t = c.FP8TFLOPS
	case unitsInt8:
		if s.regime == imageInferring || s.regime == imageTraining {
			t = c.INT8TOPS
		}
	case units4:
		if s.engine != "llama.cpp" {
			if t = c.FP4TFLOPS; t == 0 {
				t = c.FP8TFLOPS
			}
		}
	}
	if t == 0 {
		return h.peak16
	}
	return t * 1e12 * h.share
}

// Seconds of launch per layer and token, by engine.
func launch(engine string) float64 {
	switch engine {
	case "llama.cpp":
		return 4e-6
	case "ollama", "trt-llm", "exllamav2", "mlc-llm":
		return 6e-6
	case "tensorrt-llm":
		return 8e-6
	case "hf-transformers", "litgpt-eager":
		return 30e-6
	}
	return 10e-6
}

// trainLaunch is the launch time per layer and microbatch of eager stacks.
func trainLaunch(s *situation) float64 {
	t := 0.0
	switch s.engine {
	case "hf-peft", "hf-peft-fa2":
		t = 5e-3
	case "hf-peft-ddp":
		t = 4e-3
	case "torchtune":
		t = 3e-3
	}
	if s.method == "qlora" {
		t *= 1.45
	}
	return t
}

// layered says that an engine gives each GPU some of the layers: more GPUs add
// memory, not speed.
func layered(engine string) bool {
	return engine == "llama.cpp" || engine == "ollama" || engine == "exllamav2"
}

// Formula is the roofline of one estimate before anything learnt: the seconds
// that each cause takes for one step, and the rate that follows.
type Formula struct {
	Unit    string // token or image
	Rate    float64
	Seconds []Term
}

// Term is one named part of a formula.
type Term struct {
	Name  string
	Value float64
}

const numbers = 4 // of each block of features

// features are what the learnt part compares: two blocks of numbers.
type features [2][numbers]float64

// roofline gives the natural logarithm of the formula's rate and the features.
// When f is not nil the formula's terms are written there.
func roofline(s *situation, h *hardware, f *Formula) (logRate float64, x features) {
	m := s.model
	n := h.count
	ne := n
	if layered(s.engine) {
		ne = 1
	}
	active, weights := m.Active*1e9, m.Params*1e9*s.precision.bytes
	peak := h.peak(s)
	switch s.regime {
	case decoding:
		tau := launch(s.engine)
		if n > 1 && tau > 20e-6 {
			tau *= 2
		}
		ctx := s.in + s.out/2
		read, cache := active*s.precision.bytes, m.KVBytes*ctx
		layers := m.Layers * tau
		t := (read+cache)/(h.bandwidth*ne) + layers
		x[0][0], x[0][1], x[0][2], x[0][3] = math.Log(weights), math.Log(ctx+64), math.Log(n), math.Log(active)
		x[1][0], x[1][1] = math.Log(layers/t), cache/(read+cache)
		if f != nil {
			*f = Formula{"token", 1 / t, []Term{{"read active weights", read / (h.bandwidth * ne)}, {"read cache", cache / (h.bandwidth * ne)}, {"launch layers", layers}}}
		}
		return -math.Log(t), x
	case prefilling:
		tokens := s.in * math.Max(1, s.batch)
		compute := (2*active + 2*m.Layers*m.Hidden*s.in) / (peak * ne)
		read := active * s.precision.bytes / h.bandwidth / math.Max(1, tokens)
		t := compute + read
		x[0][0], x[0][1], x[0][2], x[0][3] = math.Log(active), math.Log(tokens+1), math.Log(n), math.Log(read/compute)
		x[1][0], x[1][1] = x[0][1], x[0][2]
		if f != nil {
			*f = Formula{"token", 1 / t, []Term{{"compute", compute}, {"read weights", read}}}
		}
		return -math.Log(t), x
	case serving:
		in, out := math.Max(1, s.in), math.Max(1, s.out)
		b := s.concurrency(h)
		touched := math.Max(weights*m.touched(b), active*s.precision.bytes)
		if m.Experts <= 0 {
			touched = weights
		}
		prefill := b * (2*active*in + 2*m.Layers*m.Hidden*in*in) / (peak * ne)
		read := out * touched / (h.bandwidth * ne)
		cache := out * b * m.KVBytes * (in + out/2) / (h.bandwidth * ne)
		compute := out * 2 * active * b / (peak * ne)
		layers := out * m.Layers * launch(s.engine)
		t := prefill + read + cache + compute + layers
		tokens := b * out
		if s.metric == Total {
			tokens = b * (in + out)
		}
		x[0][0], x[0][1], x[0][2], x[0][3] = math.Log(active), math.Log(b), math.Log(in+out), math.Log(n)
		x[1][0], x[1][1], x[1][2], x[1][3] = prefill/t, read/t, cache/t, layers/t
		if f != nil {
			*f = Formula{"token", tokens / t, []Term{{"prefill", prefill}, {"read weights", read}, {"read cache", cache}, {"compute", compute}, {"launch layers", layers}}}
		}
		return math.Log(tokens / t), x
	case training:
		k := 6.0
		if s.method != "full" {
			k = 4
		}
		if strings.HasSuffix(s.engine, "-ac") || s.engine == "hf-peft-fa2" || s.engine == "torchtune" {
			k += 2
		}
		sequence := s.in
		if sequence == 0 {
			sequence = 2048
		}
		flops := k * (active + m.Layers*m.Hidden*sequence)
		x[0][0], x[0][1], x[0][2] = math.Log(active), math.Log(sequence), math.Log(n)
		x[1][0], x[1][1] = x[0][2], x[0][0]
		tau := trainLaunch(s)
		tokens := sequence * math.Max(1, s.batch)
		compute, launches := tokens*flops/(.5*peak), m.Layers*tau
		if tau > 0 {
			x[0][3] = math.Log(launches / (compute + launches))
		}
		rate := n * tokens / (compute + launches)
		if f != nil {
			*f = Formula{"token", rate, []Term{{"compute at half of the peak", compute}, {"launch layers", launches}}}
		}
		return math.Log(rate), x
	}
	gflops := s.gflops()
	k := 1.0
	if s.regime == imageTraining {
		k = 3
	}
	t := k * gflops * 1e9 / peak
	x[0][0], x[1][0] = math.Log(n), math.Log(gflops)
	if f != nil {
		*f = Formula{"image", n / t, []Term{{"compute", t}}}
	}
	return math.Log(n / t), x
}

// gflops of one image of the situation's size.
func (s *situation) gflops() float64 {
	g := s.model.GFLOPs
	if g == 0 {
		g = 4
	}
	if s.pixels > 0 && s.model.Pixels > 0 {
		g *= (s.pixels / s.model.Pixels) * (s.pixels / s.model.Pixels)
	}
	return g
}

// concurrency is the number of sequences at once: as asked, or as many as the
// memory holds, at most what engines schedule.
func (s *situation) concurrency(h *hardware) float64 {
	if s.batch > 0 {
		return s.batch
	}
	limit := 512.0
	if strings.HasPrefix(s.engine, "trt") || strings.HasPrefix(s.engine, "mlperf") {
		limit = 2048
	}
	in, out := math.Max(1, s.in), math.Max(1, s.out)
	weights := s.model.Params * 1e9 * s.precision.bytes
	return math.Min(math.Max((.9*h.memory*h.count-weights)/(s.model.KVBytes*(in+.6*out)), 1), limit)
}

// engineFamily joins engines that are the same program.
func engineFamily(engine string) string {
	switch {
	case strings.HasPrefix(engine, "mlperf-trt"), engine == "trt-llm":
		return "trt"
	case engine == "tensorrt-llm":
		return "trt-static"
	case strings.HasPrefix(engine, "mlperf-vllm"), strings.HasPrefix(engine, "mlperf-other"):
		return "mlperf-vllm"
	}
	return engine
}

// engineNames are other names of engines and stacks.
var engineNames = map[string]string{
	"llamacpp": "llama.cpp", "llama-cpp": "llama.cpp", "llama-cpp-python": "llama.cpp", "llama.cpp-server": "llama.cpp", "lmstudio": "llama.cpp",
	"transformers": "hf-transformers", "hf": "hf-transformers", "exllama": "exllamav2", "exllamav3": "exllamav2", "mlc": "mlc-llm",
	"sglang": "vllm", "tgi": "vllm", "lmdeploy": "vllm", "tensorrt": "trt-llm", "trtllm": "trt-llm",
	"peft": "hf-peft-fa2", "trl": "hf-peft-fa2", "axolotl": "hf-peft-fa2", "llama-factory": "hf-peft-fa2", "unsloth": "torchtune",
	"megatron": "nemo", "megatron-bridge": "nemo", "fsdp": "llm-foundry-fsdp", "torchtitan": "torchtitan-fsdp2-ac", "timm": "timm-pytorch",
}

// class is the categories of a situation on a card, as strings; see bits.
func (s *situation) class(card *gpu.Model) [categories]string {
	var special string
	switch s.regime {
	case decoding, prefilling:
		special = strconv.FormatBool(s.model.Experts > 0)
	case serving:
		special = string(s.metric)
	case training:
		special = s.method
	default:
		special = s.model.family + "|" + strconv.FormatFloat(s.pixels, 'g', -1, 64)
	}
	return [categories]string{card.ID, architecture(card), card.Vendor, engineFamily(s.engine), s.engine, s.model.family, s.precision.name, special}
}

// architecture joins the steps of one generation of chips.
func architecture(card *gpu.Model) string {
	a := strings.ToLower(card.Architecture)
	a = strings.TrimSuffix(a, " ultra")
	return card.Vendor + "/" + a
}
