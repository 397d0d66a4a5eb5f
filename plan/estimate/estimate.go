// Package estimate says whether work on a neural network fits a GPU and how
// fast it runs there, with an honest range. It is a roofline formula (what the
// card must read and compute) times what measured rows have taught: a Gaussian
// process over categories (card, engine, model, precision) and sizes, whose
// error was measured on whole (card, model) groups left out.
//
//	job, err := estimate.New().Prepare(estimate.Finetune{Model: m, Method: "qlora", Tokens: 1e7})
//	e, err := job.On(card, 1, gpu.Partition{})
//
// A prepared job is judged on any number of cards; one estimate takes
// microseconds. Everything is pure: the same input gives the same answer.
package estimate

import (
	"math"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// Quantiles of an uncertain number. Expected is the mean.
type Quantiles struct{ P10, P50, P90, Expected float64 }

// Estimator judges jobs. Its zero value knows the published measurements.
type Estimator struct {
	base    *base
	own     []Row
	effects map[placed]Effect
}

// New makes an estimator from the embedded measurements and rows of the
// user's own, which count as the best evidence. Own rows that cannot be used
// (unknown card, model or metric) are left out; Check tells why.
func New(own ...Row) *Estimator {
	e := &Estimator{base: embedded()}
	for i := range own {
		if own[i].rated() && Check(&own[i]) == nil {
			e.own = append(e.own, own[i])
		}
	}
	e.effects = effectsOf(e.own)
	return e
}

// Using makes an estimator from a fit instead of the embedded one.
func Using(c *Coefficients) (*Estimator, error) {
	b, err := newBase(c)
	if err != nil {
		return nil, err
	}
	return &Estimator{base: b}, nil
}

// Check says why a measured row cannot be used, or nil.
func Check(r *Row) error {
	_, _, err := ofRow(r)
	return err
}

// Job is a piece of work ready to be judged on cards. It may be used by
// several goroutines.
type Job struct {
	work  Work
	parts []part
	count float64 // units of work in all
	unit  string
	rank  float64 // of adapters; 0: the stack's
	shape *situation
	own   []observation

	provider string // see At
	effects  map[placed]Effect
}

// part is a share of a job that one regime describes: a stream reads its
// input in one and writes its output in another.
type part struct {
	situation situation
	prepared  *prepared
	units     float64 // of the job, in the regime's units, for one unit of the job
	scale     float64 // units of the job for one of the regime's rate
}

// Estimate is how fast a job runs on cards, and whether it fits.
type Estimate struct {
	Rate     Quantiles // units per second on all cards
	Hours    Quantiles // of the whole job
	Unit     string    // token, image
	Evidence Evidence
	Fit      Fit
	Weights  float64 // GB that a start must load
}

// On judges the job on some cards of one machine. Cards whose speed is not
// known are a fault of the kind NothingFits; work that does not fit is no
// fault: the verdict says so, and the rate is what it would be.
func (j *Job) On(card *gpu.Model, count int, cut gpu.Partition) (Estimate, error) {
	h, known := newHardware(card, count, cut)
	if !known {
		return Estimate{}, fault.New(fault.NothingFits, "the speed of %s is not known", card.Name).Hint("state hours, or add a measured rate for it")
	}
	e := Estimate{Unit: j.unit, Weights: weightsGB(j.shape.model, j.shape.precision)}
	e.Fit = j.shape.fit(&h, j.rank, false)
	seconds := 0.0 // for one unit of the job
	var lo, hi, shift float64
	longest, level := 0.0, Specification // the evidence of the part that takes most of the time
	for i := range j.parts {
		p := &j.parts[i]
		s := &p.situation
		base, x := roofline(s, &h, nil)
		v := p.prepared.sight(&h)
		t := p.units / (math.Exp(base+p.prepared.mean(v, x)) * p.scale)
		of := p.prepared.evidence(v)
		a, b := p.prepared.range80(of)
		seconds += t
		lo += t * a
		hi += t * b
		if t > longest {
			longest, level = t, of
		}
	}
	lo, hi = lo/seconds, hi/seconds
	e.Evidence = level
	if len(j.own) > 0 {
		move, narrow, own := j.corrected(&h, level)
		shift = move
		lo, hi = lo*narrow, hi*narrow
		if weaker(level, own) {
			e.Evidence = own
		}
	}
	rate := math.Exp(shift) / seconds
	e.Rate = Quantiles{P10: rate * math.Exp(lo), P50: rate, P90: rate * math.Exp(hi), Expected: rate * mean(lo, hi)}
	hours := j.count / rate / 3600
	e.Hours = Quantiles{P10: hours * math.Exp(-hi), P50: hours, P90: hours * math.Exp(-lo), Expected: hours * mean(-hi, -lo)}
	if j.provider != "" {
		f := j.Effect(j.provider, card).Factor
		e.Rate, e.Hours = e.Rate.times(f), e.Hours.times(1/f)
	}
	return e, nil
}

// mean is the mean over the median of a skewed lognormal with these 10 and
// 90 % quantiles, in logarithms.
func mean(lo, hi float64) float64 {
	const z = 1.2815515655446004
	a, b := -lo/z, hi/z
	half := func(s float64) float64 { // E[exp(s|Z|)] over one side
		return math.Exp(s*s/2) * (1 + math.Erf(s/math.Sqrt2)) / 2
	}
	return half(b) + math.Exp(a*a/2)*(1-math.Erf(a/math.Sqrt2))/2
}

func weaker(a, b Evidence) bool { return rank(a) < rank(b) }

func rank(e Evidence) int {
	for i, k := range kinships {
		if k == e {
			return i
		}
	}
	return 0
}

// Units is the amount of the job's work in the unit of its rate.
func (j *Job) Units() float64 { return j.count }
