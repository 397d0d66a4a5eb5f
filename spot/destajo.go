package spot

import (
	"math"
	"sync"
)

// Ours is the policy that the system runs: a Bayesian mixture of regimes, each
// with its dynamic programme. It learns from other places and from earlier
// times of the same place, needs no tuning and is never late while on-demand
// is to be had.
type Ours struct {
	regimes []Regime
	shared  *programs
}

// memory is for how long observations of the place count: half of the weight
// is gone after so many hours.
const memory = 36.0

// programs keeps solved programmes: they depend on job and regime alone.
type programs struct {
	mu    sync.Mutex
	known map[programKey]*program
}

type programKey struct {
	job    Job
	regime Regime
}

func (s *programs) of(j Job, r *Regime) *program {
	key := programKey{j, *r}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.known[key]
	if !ok {
		p = newProgram(j, r)
		s.known[key] = p
	}
	return p
}

// NewPolicy makes our policy from the histories of other places, which may be
// none: then it starts from regimes between plentiful and rare.
func NewPolicy(histories []Trace) *Ours {
	o := &Ours{shared: &programs{known: map[programKey]*program{}}}
	o.regimes = regimesOf(histories)
	return o
}

// regimesOf makes a regime of each place of the histories, and one of all.
func regimesOf(histories []Trace) []Regime {
	var names []string
	by := map[string]counts{}
	var all counts
	for i := range histories {
		t := &histories[i]
		if _, ok := by[t.Probe]; !ok {
			names = append(names, t.Probe)
		}
		var c counts
		c.add(t.Available, t.Gap)
		by[t.Probe] = by[t.Probe].plus(c)
		all = all.plus(c)
	}
	if len(names) == 0 {
		return builtin()
	}
	shape := generalShape
	pooled := all.regime("all", shape)
	var out []Regime
	for _, n := range names {
		out = append(out, by[n].regime(n, pooled.Hazard))
	}
	return append(out, pooled)
}

// Name is the policy's name.
func (*Ours) Name() string { return "destajo" }

// Start begins a job, with what was seen of the place before.
func (o *Ours) Start(j Job, before []bool) Run {
	r := &oursRun{job: j, belief: newBelief(o.regimes, j.Gap)}
	for _, up := range before {
		r.belief.see(up)
	}
	if j.Spot < j.OnDemand {
		for i := range o.regimes {
			r.programs = append(r.programs, o.shared.of(j, &o.regimes[i]))
		}
	}
	return r
}

// oursRun is our policy on one job.
type oursRun struct {
	job      Job
	programs []*program // none when spot is not cheaper
	belief   belief
}

// Decide gives the mode for a tick.
func (r *oursRun) Decide(v View) Mode {
	r.belief.see(v.Available)
	if len(r.programs) == 0 {
		return OnDemand
	}
	if m, held := net2(r.job, v); held {
		return m
	}
	cost := r.costs(v)
	best, least := OnDemand, math.Inf(1)
	for _, m := range []Mode{Spot, Idle, OnDemand} {
		if cost[m] < least-1e-6 {
			best, least = m, cost[m]
		}
	}
	return best
}

// net2 is the last call: on-demand from the last tick at which it is in time.
func net2(j Job, v View) (Mode, bool) {
	if v.Mode == OnDemand {
		return OnDemand, math.Ceil((v.Remaining+v.Changeover+2*j.Restart)/j.Gap-1e-9)*j.Gap > math.Floor(v.Left/j.Gap+1e-9)*j.Gap && !v.Available
	}
	if !lastCall(j, v) {
		return Idle, false
	}
	if v.Mode == Spot && v.Changeover == 0 {
		return Spot, true
	}
	return OnDemand, true
}

// costs are the expected costs of the next modes under the mixture.
func (r *oursRun) costs(v View) [3]float64 {
	var sum [3]float64
	age := r.belief.age()
	for i, p := range r.programs {
		w := r.belief.weights[i]
		if w < 1e-4 {
			continue
		}
		c := p.choices(v.Tick, v.Available, age, v.Mode, v.Remaining+v.Changeover)
		for m := range sum {
			sum[m] += w * c[m]
		}
	}
	return sum
}

// belief is how likely each regime is, given what was seen, with the age of
// the present run of availability.
type belief struct {
	regimes []Regime
	gap     float64
	logs    []float64
	weights []float64
	keep    float64 // of the log-likelihood, per sample
	last    bool
	run     float64 // seconds of the present run
	seen    bool
}

func newBelief(regimes []Regime, gap float64) belief {
	b := belief{regimes: regimes, gap: gap, logs: make([]float64, len(regimes)), weights: make([]float64, len(regimes)),
		keep: math.Exp2(-gap / 3600 / memory)}
	b.weigh()
	return b
}

func (b *belief) age() int { return bucket(b.run) }

// see takes in the next sample.
func (b *belief) see(up bool) {
	if !b.seen {
		b.seen, b.last, b.run = true, up, b.gap
		return
	}
	age := b.age()
	for i := range b.regimes {
		p := b.regimes[i].change(b.last, age, b.gap)
		if up == b.last {
			p = 1 - p
		}
		b.logs[i] = b.logs[i]*b.keep + math.Log(math.Max(p, 1e-12))
	}
	if up == b.last {
		b.run += b.gap
	} else {
		b.last, b.run = up, b.gap
	}
	b.weigh()
}

// weigh makes weights of the log-likelihoods.
func (b *belief) weigh() {
	top := math.Inf(-1)
	for _, l := range b.logs {
		top = math.Max(top, l)
	}
	sum := 0.0
	for i, l := range b.logs {
		b.weights[i] = math.Exp(l - top)
		sum += b.weights[i]
	}
	for i := range b.weights {
		b.weights[i] /= sum
	}
}
