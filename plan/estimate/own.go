package estimate

import (
	"cmp"
	"math"
	"slices"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// observation is a measured rate that corrects a job's estimates: a figure of
// the user's own, or a calibration.
type observation struct {
	card  *gpu.Model
	count float64
	err   float64 // log(measured/estimate)
	alike float64 // of its work and the job's, 1 for the same
}

// Own figures repeat within a few percent; how much less alike another count
// of the same card is.
const (
	repeat     = 0.04
	otherCount = 0.9
	most       = 16 // observations that count for one job
)

// Calibrated gives the job with its estimates rescaled by one measured rate, in
// the job's units per second, on some cards: there it is taken as measured, and
// on every other card the share of the correction that measurements show to
// carry over is applied and the range narrows.
func (j *Job) Calibrated(card *gpu.Model, count int, cut gpu.Partition, rate float64) (*Job, error) {
	if !(rate > 0) || math.IsInf(rate, 0) {
		return nil, fault.New(fault.Invalid, "a rate of %v cannot be", rate).Hint("state the measured %ss per second of the whole machine", j.unit)
	}
	plain := *j
	plain.own = nil
	e, err := plain.On(card, count, cut)
	if err != nil {
		return nil, err
	}
	c := *j
	c.own = append(slices.Clone(j.own), observation{card: card, count: float64(max(1, count)), err: math.Log(rate / e.Rate.P50), alike: 1})
	return &c, nil
}

// observe takes a measured row of the user's own into account, as far as its
// work is like the job's.
func (j *Job) observe(r *Row) {
	s, h, err := ofRow(r)
	if err != nil {
		return
	}
	for i := range j.parts {
		p := &j.parts[i]
		if p.situation.regime != s.regime {
			continue
		}
		alike := likeness(s, &p.situation)
		if alike < .05 {
			continue
		}
		base, x := roofline(s, h, nil)
		l := p.prepared.learnt
		mean := l.prepare(s).mean(l.sight(h), x)
		// What is the provider's is not the card's: see At.
		its := math.Log(j.Effect(r.Provider, h.card).Factor)
		j.own = append(j.own, observation{card: h.card, count: h.count, err: math.Log(r.Value) - base - mean - its, alike: alike})
		break
	}
	slices.SortStableFunc(j.own, func(a, b observation) int { return cmp.Compare(b.alike, a.alike) })
	j.own = j.own[:min(most, len(j.own))]
}

// likeness is how much of the estimator's error two pieces of work share.
func likeness(a, b *situation) float64 {
	k := 1.0
	if a.model.family != b.model.family {
		k *= .6
	}
	if engineFamily(a.engine) != engineFamily(b.engine) {
		k *= .4
	}
	if precisions[a.precision.name].bytes != precisions[b.precision.name].bytes {
		k *= .7
	}
	if a.method != b.method {
		k *= .7
	}
	d := 0.0
	for _, x := range [3][2]float64{{a.batch, b.batch}, {a.in, b.in}, {a.out, b.out}} {
		l := math.Log((x[0] + 1) / (x[1] + 1))
		d += l * l
	}
	return k * math.Exp(-d/8)
}

// corrected gives what the observations say of an estimate on some cards: the
// shift of its logarithm, the factor on its range, and the evidence.
//
// The errors of the estimator are taken as jointly normal; two share what
// their cards and works share. The shift is their conditional mean.
func (j *Job) corrected(h *hardware, level Evidence) (shift, narrow float64, e Evidence) {
	first := &j.parts[len(j.parts)-1]
	l := first.prepared.learnt
	carry := l.covariance.Carry
	lo, hi := first.prepared.range80(level)
	// Where published rows leave little doubt the user's machine may still
	// differ: the floor lets one measurement move the estimate almost whole.
	sigma := math.Max(.2, (hi-lo)/2.56)
	cards := func(a, b *gpu.Model, m, n float64) float64 {
		switch {
		case a != b:
			return carry
		case m != n:
			return carry + (1-carry)*otherCount
		}
		return 1
	}
	n := len(j.own)
	k := square(n)
	to := make([]float64, n)
	y := make([]float64, n)
	e = Specification
	for a := range j.own {
		o := &j.own[a]
		for b := range a {
			p := &j.own[b]
			k[a][b] = cards(o.card, p.card, o.count, p.count) * math.Min(1, math.Min(o.alike, p.alike)/math.Max(o.alike, p.alike))
		}
		k[a][a] = 1 + repeat*repeat/(sigma*sigma)
		to[a] = cards(o.card, h.card, o.count, h.count) * o.alike
		y[a] = o.err
		if o.card == h.card && o.alike > .9 && o.count == h.count {
			e = MeasuredHere
		}
	}
	w := slices.Clone(to)
	if !cholesky(k) {
		return 0, 1, e
	}
	solve(k, w)
	return dot(w, y), math.Sqrt(math.Max(.01, 1-dot(w, to))), e
}
