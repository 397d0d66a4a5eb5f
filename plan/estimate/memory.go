package estimate

import (
	"math"
	"strings"
)

// Verdict says whether work fits into memory.
type Verdict string

// The verdicts. Tight work runs when nothing else uses the card, or with fewer
// sequences at once than asked.
const (
	FitsWell Verdict = "fits"
	Tight    Verdict = "tight"
	NoFit    Verdict = "no"
)

// Fit compares the memory that work needs with what all its cards have.
type Fit struct {
	Verdict Verdict
	NeedGB  float64 // 10^9 bytes over all cards, cache and buffers included
	HaveGB  float64 // 10^9 bytes over all cards that programs can use
	Parts   []Term  // of NeedGB, in GB
}

// A driver names memory in GiB and keeps a little of it; systems on a chip
// share it with the rest of the machine (macOS lets a GPU wire about 70 %).
const (
	gib          = 1.073741824
	driverShare  = 0.99
	wiredShare   = 0.70
	tightServing = 0.92 // of the usable memory: above it a fit is tight
	tightTrain   = 0.85
)

func usableGB(h *hardware) float64 {
	gb := h.memory / 1e9 * gib * h.count
	if h.card.Vendor == "apple" {
		return gb * wiredShare
	}
	return gb * driverShare
}

// stack is how a fine-tuning program spends memory.
type stack struct {
	rank      float64 // of adapters unless stated
	adapter   float64 // bytes per adapter parameter: weight, gradient, optimizer
	full      float64 // bytes per parameter of full fine-tuning
	four      float64 // bytes per 4-bit weight
	perHidden float64 // bytes per token and unit of hidden size beside checkpoints
	perLayer  float64 // bytes per token, layer and unit of hidden size
	logits    float64 // bytes per token and word of the vocabulary
	gather    float64 // of the 16-bit weights, held by each card when sharded
	fixed     float64 // GB per card
	unpack    float64 // GB per card more where weights are 4-bit
}

// stacks as measured peaks show them; see the sources of the rows. Without
// checkpointing a layer keeps about 42 bytes per token and hidden unit.
func stackOf(engine string, sharded bool) stack {
	switch {
	case strings.HasPrefix(engine, "litgpt"):
		return stack{rank: 8, adapter: 16, full: 16, four: .5625, perHidden: 60, perLayer: 38, logits: 12, fixed: .1, unpack: .4}
	case engine == "torchtune":
		return stack{rank: 8, adapter: 16, full: 2.3, four: .53, perHidden: 60, perLayer: 2, logits: 4, gather: .06, fixed: .4}
	case engine == "unsloth":
		// As its published context limits show, which grow by 4719 and 2415
		// tokens per GiB for 8B and 70B from 7.37 and 42.99 GiB on.
		return stack{rank: 16, adapter: 6, full: 12, four: .55, perHidden: 54.3, fixed: .9}
	case engine == "hf-peft-fa2" && sharded:
		return stack{rank: 64, adapter: 16, full: 16, four: .5625, perHidden: 60, perLayer: 2, logits: 12, gather: .1, fixed: .5, unpack: 1.5}
	case strings.HasPrefix(engine, "hf-peft"):
		return stack{rank: 64, adapter: 16, full: 16, four: .5625, perHidden: 60, perLayer: 2, logits: 12, fixed: .8, unpack: 1.5}
	case strings.HasPrefix(engine, "nemo"):
		return stack{rank: 16, adapter: 16, full: 12, four: .5625, perHidden: 30, perLayer: 2, logits: 6, fixed: 1}
	}
	return stack{rank: 16, adapter: 16, full: 12, four: .5625, perHidden: 60, perLayer: 2, logits: 6, fixed: .8}
}

// weightsGB of a model in a precision. Embedding and head stay at 16 bit where
// weights are quantised, except in the mixed formats of llama.cpp, whose bytes
// per weight are averages over the whole file.
func weightsGB(m *Model, p precision) float64 {
	if m.WeightsGB > 0 {
		return m.WeightsGB
	}
	file := strings.HasPrefix(p.name, "q") || strings.HasPrefix(p.name, "iq") || p.name == "mxfp4"
	if p.bytes >= 2 || file || !m.Kind.tokens() {
		return m.Params * p.bytes
	}
	e := m.embedding()
	return (m.Params-e)*p.bytes + 2*e
}

// adapterParams is the number of low-rank parameters over all linear layers,
// in 1e9.
func adapterParams(m *Model, rank float64) float64 {
	kv := m.KVHeads * m.HeadDim
	width := m.Width
	if width == 0 {
		width = 3.5 * m.Hidden
	}
	d := m.Hidden
	perLayer := (d + d) + 2*(d+kv) + (d + d) + 3*(d+width)
	return rank * m.Layers * perLayer / 1e9
}

// contextGB is what a process holds on each card beside tensors: driver,
// kernels, communication.
func contextGB(engine string) float64 {
	if layered(engine) {
		return .3
	}
	return .5
}

// need is the memory of work on n cards: what it takes as asked, what it takes
// at least (one sequence at a time), and the share above which it is tight.
type need struct {
	asked, least float64 // GB over all cards, contexts included
	context      float64 // part of both that tools which measure tensors do not see
	tight        float64
	parts        []Term
}

func (s *situation) need(n, rank float64, explain bool) need {
	m := s.model
	context := n * contextGB(s.engine)
	note := func(terms ...Term) []Term {
		if !explain {
			return nil
		}
		return append(terms, Term{"driver and kernels", context})
	}
	switch s.regime {
	case decoding, prefilling, serving:
		weights := weightsGB(m, s.precision)
		one := m.cacheBytes(s.in+s.out) / 1e9
		// The buffers of the longest chunk that is read at once.
		chunk := math.Min(math.Max(s.in, 1), 2048)
		if layered(s.engine) {
			chunk = math.Min(chunk, 512)
		}
		buffers := (chunk*m.Hidden*24 + 4*m.Vocab*math.Min(chunk, 64)) / 1e9
		return need{asked: weights + one*math.Max(1, s.batch) + buffers + context, least: weights + one + buffers + context, context: context, tight: tightServing,
			parts: note(Term{"weights", weights}, Term{"cache", one * math.Max(1, s.batch)}, Term{"buffers", buffers})}
	case training:
		return s.trainingNeed(n, rank, context, note)
	}
	gb := m.Params * s.precision.bytes
	images := math.Max(1, s.batch)
	if s.batch == 0 {
		images = 8
	}
	// A network keeps roughly one 16-bit value per 20 to 30 multiply-adds.
	each := s.gflops() / 2 / 25 * 2
	if m.Kind == Diffusion {
		each = 2 * (s.pixelsOr(m.Pixels) / 1024) * (s.pixelsOr(m.Pixels) / 1024)
	}
	state := gb
	if s.regime == imageTraining {
		state = 16 * m.Params
	} else {
		each *= .15
	}
	return need{asked: state + images/n*each*n + context, least: state*n + each*n + context, context: context, tight: tightTrain,
		parts: note(Term{"weights and optimizer", state}, Term{"activations", images * each})}
}

func (s *situation) pixelsOr(x float64) float64 {
	if s.pixels > 0 {
		return s.pixels
	}
	return math.Max(x, 64)
}

func (s *situation) trainingNeed(n, rank, context float64, note func(...Term) []Term) need {
	m := s.model
	k := stackOf(s.engine, n > 1)
	if rank == 0 {
		rank = k.rank
	}
	sequence := s.in
	if sequence == 0 {
		sequence = 2048
	}
	var state, adapters float64
	switch s.method {
	case "qlora":
		e := m.embedding()
		state = (m.Params-e)*k.four + 2*e
		adapters = k.adapter * adapterParams(m, rank)
		// Peaks of 4-bit runs start higher and grow more slowly: the frozen
		// layers are unpacked one at a time, and logits are not kept twice.
		k.logits *= .5
		k.fixed += k.unpack
		k.gather *= .25
	case "lora":
		state = m.Params * math.Min(2, math.Max(1, s.precision.bytes))
		adapters = k.adapter * adapterParams(m, rank)
	default:
		state = k.full * m.Params
	}
	if n > 1 && k.gather > 0 {
		state += n * k.gather * 2 * m.Params
	}
	// A batch is stated for all cards or for one; at least one sequence per
	// card stays in flight, the rest is accumulated.
	perCard := 1.0
	if !pretraining(s.engine) && s.batch > 0 {
		perCard = s.batch
		if strings.HasPrefix(s.engine, "nemo") {
			perCard = 1
		}
	}
	split := 1.0 // cards over which one sequence is split
	if n > 1 && pretraining(s.engine) {
		split = math.Min(n, 8)
	}
	tokens := sequence * perCard * n / split
	layers := k.perLayer
	if s.engine == "llm-foundry-fsdp" {
		layers = 2 // counted with checkpoints: the least that runs
	}
	work := tokens * (layers*m.Layers*m.Hidden + k.perHidden*m.Hidden + k.logits*m.Vocab) / 1e9
	fixed := k.fixed * n
	total := state + adapters + work + fixed + context
	return need{asked: total, least: total, context: context, tight: tightTrain,
		parts: note(Term{"weights, gradients and optimizer", state}, Term{"adapters", adapters}, Term{"activations and logits", work}, Term{"buffers", fixed})}
}

// pretraining says that an engine splits sequences and states over all cards.
func pretraining(engine string) bool {
	return strings.HasPrefix(engine, "llm-foundry") || strings.HasPrefix(engine, "torchtitan") || strings.HasPrefix(engine, "nemo")
}

// fit compares work with cards.
func (s *situation) fit(h *hardware, rank float64, explain bool) Fit {
	want := s.need(h.count, rank, explain)
	have := usableGB(h)
	f := Fit{Verdict: FitsWell, NeedGB: want.asked, HaveGB: have, Parts: want.parts}
	switch {
	case want.least > have:
		f.Verdict = NoFit
		f.NeedGB = want.least
	case want.asked > want.tight*have:
		f.Verdict = Tight
		// What does not fit at once waits: the need is what is there.
		f.NeedGB = math.Min(want.asked, have)
	}
	return f
}
