package estimate

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/gpu"
)

// Explanation shows where an estimate comes from.
type Explanation struct {
	Estimate Estimate
	Provider *Effect // of the job's provider; nil without one
	Parts    []Explained
}

// Explained is one part of a job: reading the input and writing the output of
// a stream are two, everything else is one.
type Explained struct {
	Regime  string  // decode, prefill, serve, train, image_train, image_infer
	Formula Formula // the roofline
	Learnt  float64 // factor on the formula's rate
	Factors []Term  // of Learnt, by what was compared; their product is Learnt
	Nearest []Neighbour
}

// Neighbour is a measured row that an estimate leans on.
type Neighbour struct {
	Row   Row
	Alike float64 // 1 for the same situation
	Ratio float64 // measured over formula
}

// Explain gives the terms of the formula, the learnt factors and the nearest
// measured rows of an estimate.
func (j *Job) Explain(card *gpu.Model, count int, cut gpu.Partition) (Explanation, error) {
	e, err := j.On(card, count, cut)
	if err != nil {
		return Explanation{}, err
	}
	h, _ := newHardware(card, count, cut)
	out := Explanation{Estimate: e}
	if j.provider != "" {
		its := j.Effect(j.provider, card)
		out.Provider = &its
	}
	out.Estimate.Fit = j.shape.fit(&h, j.rank, true)
	for i := range j.parts {
		p := &j.parts[i]
		x := Explained{Regime: p.situation.regime.String()}
		_, f := roofline(&p.situation, &h, &x.Formula)
		x.Factors, x.Nearest = p.prepared.explain(&p.situation, &h, f)
		x.Learnt = math.Exp(p.prepared.mean(p.prepared.sight(&h), f))
		out.Parts = append(out.Parts, x)
	}
	return out, nil
}

func (p *prepared) explain(s *situation, h *hardware, x features) (factors []Term, nearest []Neighbour) {
	q := point{class: p.classify(s, h.card, false), x: p.scaled(x)}
	c := p.cardPoint(h, q.class)
	names := make([]string, 0, len(p.covariance.Terms))
	for n := range p.covariance.Terms {
		names = append(names, n)
	}
	slices.Sort(names)
	sums := map[string]float64{}
	self := p.covar(&q, &q, 1)
	alike := make([]float64, len(p.cards))
	for i := range p.cards {
		alike[i] = p.nearness(&c, &p.cards[i])
	}
	parts := make([]*tables, len(names))
	for i, n := range names {
		one := *p.covariance
		one.Terms = map[string]float64{n: p.covariance.Terms[n]}
		parts[i], _ = one.compile()
	}
	for i := range p.points {
		o := &p.points[i]
		mask := equal(&q.class, &o.class)
		for t, n := range names {
			sums[said(n)] += o.weight * parts[t].between(mask, alike[o.card], &q.x, &o.x)
		}
		k := p.covar(&q, o, alike[o.card])
		nearest = append(nearest, Neighbour{Row: *o.row, Alike: k / math.Sqrt(self*p.covar(o, o, 1)), Ratio: math.Exp(o.y)})
	}
	for n, v := range sums {
		factors = append(factors, Term{n, math.Exp(v)})
	}
	slices.SortFunc(factors, func(a, b Term) int {
		return cmp.Or(cmp.Compare(math.Abs(math.Log(b.Value)), math.Abs(math.Log(a.Value))), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(nearest, func(a, b Neighbour) int { return cmp.Compare(b.Alike, a.Alike) })
	return factors, nearest[:min(5, len(nearest))]
}

// said puts the name of a term into words.
func said(term string) string {
	block, rest, _ := strings.Cut(term, ":")
	words := strings.ReplaceAll(strings.ReplaceAll(rest, "near", "like cards"), "+", " and ")
	if words == "" {
		words = "all"
	}
	switch block {
	case "1":
		return words + ", at this size"
	case "2":
		return words + ", at this balance"
	}
	return words
}

// Variant is a change of a job that lets it fit.
type Variant struct {
	Change string // in words, such as "4-bit weights"
	Job    *Job
	Count  int // cards
}

// Variants gives the nearest changes under which a job that does not fit on
// some cards fits them: smaller weights, QLoRA, a shorter context, more cards.
// The least change comes first; none is left when nothing helps.
func (e *Estimator) Variants(j *Job, card *gpu.Model, count int, cut gpu.Partition) []Variant {
	var out []Variant
	fits := func(change string, w Work, n int) bool {
		k, err := e.Prepare(w)
		if err != nil {
			return false
		}
		got, err := k.On(card, n, cut)
		if err != nil || got.Fit.Verdict == NoFit {
			return false
		}
		out = append(out, Variant{Change: change, Job: k, Count: n})
		return true
	}
	shorter := func(from int, with func(tokens int) Work) {
		for n := from / 2; n >= 256; n /= 2 {
			if fits("at most "+strconv.Itoa(n)+" tokens at once", with(n), count) {
				return
			}
		}
	}
	switch w := j.work.(type) {
	case Generate:
		file := w.Model.WeightsGB > 0 || strings.HasPrefix(j.shape.precision.name, "q")
		for _, p := range []string{"fp8", "int4"} {
			if precisions[p].bytes < j.shape.precision.bytes && !file && (p != "fp8" || card.FP8TFLOPS > 0) {
				fits(map[string]string{"fp8": "8-bit weights (fp8)", "int4": "4-bit weights"}[p], w.in(p), count)
			}
		}
		if file && j.shape.precision.bytes > .62 {
			fits("4-bit weights (Q4_K_M)", w.in("q4_k_m"), count)
		}
		shorter(int(j.shape.in+j.shape.out), func(n int) Work { v := w; v.Context = n; return v })
	case Finetune:
		if j.shape.method == "full" {
			v := w
			v.Method = "lora"
			fits("LoRA instead of all weights", v, count)
		}
		if j.shape.method != "qlora" {
			v := w
			v.Method = "qlora"
			if !fits("QLoRA (4-bit weights)", v, count) {
				shorter(int(j.shape.in), func(n int) Work { u := v; u.Sequence = n; return u })
			}
		}
		shorter(int(j.shape.in), func(n int) Work { v := w; v.Sequence = n; return v })
	case Train:
		shorter(int(j.shape.in), func(n int) Work { v := w; v.Sequence = n; return v })
	}
	if j.shape.splits() {
		for n := 2 * count; n <= 64; n *= 2 {
			if fits(strconv.Itoa(n)+" cards", j.work, n) {
				break
			}
		}
	}
	return out
}

// splits says that several cards can share one copy of the work.
func (s *situation) splits() bool {
	return s.regime < imageTraining
}
