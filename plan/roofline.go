package plan

import (
	"fmt"
	"math"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
)

// bytesPerWeight gives the bytes of one weight by precision, block scales of
// quantised formats included (llama.cpp and vendor formats).
var bytesPerWeight = map[string]float64{
	"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "f16": 2, "fp8": 1, "int8": 1.03, "8bit": 1.03, "q8_0": 1.0625,
	"q6_k": .82, "q5_k_m": .711, "q4_k_m": .606, "q4_k_s": .573, "q4_0": .5625, "int4": .5625, "4bit": .5625,
	"nvfp4": .5625, "fp4": .5625, "iq4_xs": .535, "mxfp4": .53, "q3_k_m": .489, "q2_k": .37,
}

// Efficiencies that open stacks reach of the peaks, as medians over public
// measurements (MLPerf, vendor tables, community rows of 2022 to 2026). The
// range around an estimate from them is wide.
const (
	servingCompute   = 0.30 // of peak FLOPS in batched decoding and prefill
	servingBandwidth = 0.65
	trainCompute     = 0.38
	finetuneCompute  = 0.30
	imageCompute     = 0.25
	spread           = 2.2 // P10 and P90 are this factor from the estimate
	activation       = 60  // bytes per hidden unit and token with checkpointing
	contextGB        = 0.9 // driver, kernels and buffers of one process
	fitsServing      = 0.92
	fitsTraining     = 0.85
)

// work is a job's work in numbers that hold for every GPU.
type work struct {
	model *Model
	form  string // generate, finetune, train, images
	unit  string
	count float64 // units of work in all
	bytes float64 // per weight
	low   string  // precision of compute
	ctx   float64 // tokens of one sequence in the cache
	in    float64 // tokens read for each token written
	batch float64 // 0: as many as fit
	flops float64 // per unit of work
	seq   float64
	job   *job.Work
}

// newWork reads a model-based form of work; its mistakes are the job's.
func newWork(w *job.Work) (*work, error) {
	var ref job.Model
	switch {
	case w.Generate != nil:
		ref = w.Generate.Model
	case w.Finetune != nil:
		ref = w.Finetune.Model
	case w.Train != nil:
		ref = w.Train.Model
	case w.Images != nil:
		ref = w.Images.Model
	case w.Traffic != nil:
		ref = w.Traffic.Model
	}
	m, err := modelOf(ref)
	if err != nil {
		return nil, err
	}
	k := &work{model: m, unit: "token", bytes: 2, low: "bf16", job: w}
	language := m.Kind == "llm" || m.Kind == "moe"
	switch {
	case w.Images != nil:
		k.form, k.unit, k.count = "images", "image", w.Images.Images*w.Images.Epochs
		if m.GFLOPs == 0 {
			return nil, fault.New(fault.Invalid, "the work of model %q per image is not known", m.ID).
				Hint("state hours or units with a rate instead, or name a vision model of the table")
		}
		k.flops = m.GFLOPs * 1e9
		if w.Images.Mode == "train" {
			k.flops *= 3
		}
		return k, nil
	case !language && (w.Generate != nil || w.Traffic != nil || w.Finetune != nil):
		return nil, fault.New(fault.Invalid, "model %q is of the kind %s and makes no tokens", m.ID, m.Kind).Hint("use work.images, or state hours")
	case w.Generate != nil:
		g := w.Generate
		k.form, k.count = "generate", g.OutputTokens
		k.precision(g.Precision)
		k.in = g.InputTokens / g.OutputTokens
		k.ctx, k.batch = float64(g.Context), float64(g.Concurrency)
		if k.ctx == 0 {
			k.ctx = math.Min(4096, orElse(m.Context, 4096))
		}
		if m.Context > 0 && k.ctx > m.Context {
			return nil, fault.New(fault.Invalid, "a context of %.0f tokens is more than the %.0f of %s", k.ctx, m.Context, m.ID).Hint("lower work.generate.context, or choose a model with a longer one")
		}
	case w.Traffic != nil:
		t := w.Traffic
		k.form, k.count = "generate", t.RequestsPerDay*t.OutputTokens*money.MonthHours/24
		k.in, k.ctx = t.InputTokens/t.OutputTokens, t.InputTokens+t.OutputTokens
	case w.Finetune != nil:
		f := w.Finetune
		k.form, k.count = "finetune", f.Tokens*f.Epochs
		k.seq = orElse(float64(f.Sequence), 2048)
		attention := m.Layers * m.Hidden * k.seq
		per := 4.0
		if f.Method == "full" {
			per = 6
		}
		k.flops = (per + 2) * (m.Active*1e9 + attention)
	case w.Train != nil:
		k.form, k.count = "train", w.Train.Tokens
		k.precision(w.Train.Precision)
		k.seq = 2048
		k.flops = 6 * (m.Active*1e9 + m.Layers*m.Hidden*k.seq)
	}
	return k, nil
}

func orElse(x, other float64) float64 {
	if x > 0 {
		return x
	}
	return other
}

func (k *work) precision(p string) {
	if p != "" {
		k.low, k.bytes = p, bytesPerWeight[p]
	}
}

// modelHours estimates the hours of work that names a model: the roofline of
// the GPU's specification, with the efficiencies that stacks usually reach.
func (r *ranker) modelHours(e *estimated, cut gpu.Partition) {
	k := r.work
	m, n := e.Model, float64(max(1, e.Count))
	share := shareOf(m, cut)
	memory := memoryOf(m, cut)
	peak := peakFor(m, k.low) * 1e12 * share
	bandwidth := m.BandwidthGBs * 1e9 * share
	if peak == 0 || bandwidth == 0 {
		e.refusal = Refusal{Kind: RefusedGPU, text: "its speed is not known"}
		return
	}
	need, limit := k.memory(n)
	e.Fit = Fit{Verdict: "fits", NeedGB: round1(need), HaveGB: memory * n}
	switch have := memory * n; {
	case need > have:
		e.Fit.Verdict = "no"
		e.refusal = Refusal{Kind: RefusedMemory, need: need, have: have}
		return
	case need > limit*have:
		e.Fit.Verdict = "tight"
	}
	e.WeightsGB = k.model.Params * k.bytes
	e.Evidence = Specification
	e.Unit = k.unit
	rate := k.rate(peak, bandwidth, memory, n) // units per second
	e.Basis = fmt.Sprintf("%s of %s: %.3g %ss/s from FP16 %.4g TFLOPS and %.4g GB/s", k.form, k.model.ID, rate, k.unit, flops(m), m.BandwidthGBs)
	e.Rate = rate * 3600
	if t := r.job.Work.Traffic; t != nil {
		busiest := k.count / money.MonthHours / 3600 * t.Peak // tokens per second
		e.Replicas = int(math.Max(1, math.Ceil(busiest/rate*0.999999)))
		if e.Replicas > 100_000 {
			e.refusal = Refusal{Kind: RefusedGPU, text: "it would take more than 100000 machines"}
			return
		}
		e.Hours = Exactly(money.MonthHours)
		e.Basis += fmt.Sprintf("; %d machines carry the peak of %.3g tokens/s for a month", e.Replicas, busiest)
		return
	}
	h := k.count / rate / 3600 / float64(r.nodes)
	// The mean of a lognormal lies above its median.
	sigma := math.Log(spread) / 1.2815515655446004
	e.Hours = Quantiles{P10: h / spread, P50: h, P90: h * spread, Expected: h * math.Exp(sigma*sigma/2)}
}

// peakFor is the dense peak in TFLOPS that a precision computes at.
func peakFor(m *gpu.Model, precision string) float64 {
	switch {
	case precision == "fp32":
		return m.FP32TFLOPS
	case strings.HasPrefix(precision, "fp8") && m.FP8TFLOPS > 0:
		return m.FP8TFLOPS
	case (precision == "nvfp4" || precision == "fp4" || precision == "mxfp4") && m.FP4TFLOPS > 0:
		return m.FP4TFLOPS
	}
	return flops(m)
}

// memory is the need in GB on n GPUs together, and the share of the memory up
// to which it fits with room to spare.
func (k *work) memory(n float64) (need, limit float64) {
	m := k.model
	weights := (m.Params-m.embedding())*k.bytes + m.embedding()*math.Max(2, k.bytes)
	if k.bytes >= 2 {
		weights = m.Params * k.bytes
	}
	switch k.form {
	case "generate":
		return weights + m.kvBytes()*k.ctx*math.Max(1, k.batch)/1e9 + contextGB*n, fitsServing
	case "finetune":
		tokens := k.seq
		adapters := 16 * 16 * 2 * 7 * m.Layers * m.Hidden / 1e9 // rank 16 on 7 matrices, 16 bytes each
		work := (2*m.Layers*m.Hidden+activation*m.Hidden)*tokens/1e9 + 12*m.Vocab*tokens/1e9
		switch k.job.Finetune.Method {
		case "full":
			return 16*m.Params + work*n + contextGB*n, fitsTraining
		case "qlora":
			return .5625*(m.Params-m.embedding()) + 2*m.embedding() + adapters + work + contextGB*n, fitsTraining
		}
		return 2*m.Params + adapters + work + contextGB*n, fitsTraining
	case "train":
		return 16*m.Params + (2*m.Layers*m.Hidden+activation*m.Hidden)*k.seq*n/1e9 + contextGB*n, fitsTraining
	}
	return 4*m.Params + contextGB*n + 2, fitsTraining
}

// rate is units of work per second on n GPUs of one machine: output tokens
// when generating, trained tokens, or images.
func (k *work) rate(peak, bandwidth, memory, n float64) float64 {
	m := k.model
	parallel := math.Pow(n, 0.92) // what several GPUs of one machine keep of n times the speed
	switch k.form {
	case "generate":
		weights := m.Params * k.bytes * 1e9
		kv := m.kvBytes()
		room := math.Max(0, 0.9*memory*n*1e9-weights)
		batch := k.batch
		if batch == 0 {
			batch = math.Max(1, math.Min(256, room/(kv*k.ctx)))
		}
		touched := weights
		if m.Experts > 0 && m.Routed > 0 {
			touched = weights * math.Max(m.Active/m.Params, 1-math.Pow(1-m.Routed/m.Experts, batch))
		}
		step := (touched+batch*kv*k.ctx/2)/(bandwidth*servingBandwidth*parallel) + 2*m.Active*1e9*batch/(peak*servingCompute*parallel) + m.Layers*15e-6
		read := k.in * 2 * m.Active * 1e9 / (peak * servingCompute * parallel) // seconds of prefill for each token written
		return 1 / (step/batch + read)
	case "finetune":
		return peak * finetuneCompute * parallel / k.flops
	case "train":
		return peak * trainCompute * parallel / k.flops
	}
	return peak * imageCompute * parallel / k.flops
}
