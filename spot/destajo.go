package spot

import (
	"math"
	"sync"
)

// Ours is the policy that the system runs: at every tick it takes the mode of
// the least expected cost, by a dynamic programme over the climate that it
// learnt. It needs no tuning and is never late while on-demand is to be had.
// It may be used by several goroutines at once.
type Ours struct {
	climate climate
	grid    grid
	mu      sync.Mutex
	known   map[solved]*program // for simulations
}

type solved struct {
	job    Job
	refuge float64
}

// NewPolicy makes our policy from the histories of other places and earlier
// times. They may be none: then it goes by the general climate.
func NewPolicy(histories []Trace) *Ours {
	return &Ours{climate: learn(histories, &general), grid: fine(), known: map[solved]*program{}}
}

// newSteady makes our policy for constant rates per hour.
func newSteady(lost, back float64) *Ours {
	return &Ours{climate: steady(lost, back), grid: plain(), known: map[solved]*program{}}
}

// Name is the policy's name.
func (*Ours) Name() string { return "destajo" }

// Start begins a job, with what was seen of its zones before.
func (o *Ours) Start(j Job, before [][]bool) Run {
	r := &oursRun{policy: o, job: j, zones: newZoneWatch(&o.climate, j.Gap, len(before))}
	for i := range len(before[0]) {
		for z := range before {
			r.up = append(r.up[:z], before[z][i])
		}
		r.zones.see(r.up)
	}
	return r
}

// program solves a job, once.
func (o *Ours) program(j Job, refuge float64) *program {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := solved{j, refuge}
	p, ok := o.known[key]
	if !ok {
		if len(o.known) == 3 { // each takes up to some 100 MB; runs keep their own
			clear(o.known)
		}
		p = newProgram(j, refuge, &o.climate, o.grid, true)
		o.known[key] = p
	}
	return p
}

// oursRun is our policy on one job.
type oursRun struct {
	policy  *Ours
	job     Job
	zones   zoneWatch
	program *program
	price   float64 // of spot, that the programme was solved for
	refuge  float64 // likewise
	ticks   int     // watched
	up      []bool
}

// look takes in what a tick shows of the zones, once.
func (r *oursRun) look(v View) {
	if r.ticks > v.Tick {
		return
	}
	r.ticks = v.Tick + 1
	r.up = r.up[:0]
	for _, z := range v.Zones {
		r.up = append(r.up, z.Available)
	}
	r.zones.see(r.up)
}

// choose gives the zone to go to.
func (r *oursRun) choose(v View) int {
	r.look(v)
	to := v.cheapest()
	v.Available, v.SpotPrice = true, v.Zones[to].Price
	if len(v.Zones) == 1 || v.SpotPrice >= r.job.OnDemand {
		return to
	}
	r.solve(v.SpotPrice)
	return r.zones.best(r.program, v)
}

// Decide gives the mode for a tick.
func (r *oursRun) Decide(v View) Mode {
	r.look(v)
	if m, must := forced(r.job, v); must {
		return m
	}
	r.solve(v.SpotPrice)
	return cheapest(r.program.choices(v, r.zones.of(v)), v.Mode)
}

// solve finds the programme to go by. It holds for one price of spot and one
// chance of refuge: another is taken when they have moved. Both are rounded so
// that jobs share programmes.
func (r *oursRun) solve(price float64) {
	refuge := r.zones.refuge()
	if r.program != nil && price == r.price && refuge == r.refuge {
		return
	}
	if r.program != nil && math.Abs(math.Log(price/r.price)) < 0.08 && math.Abs(refuge-r.refuge) < 0.2 {
		return
	}
	j := r.job
	j.Spot *= math.Exp(0.05 * math.Round(math.Log(price/j.Spot)/0.05))
	r.price, r.refuge = j.Spot, math.Round(refuge*4)/4
	r.program = r.policy.program(j, r.refuge)
}

// forced gives the mode where there is nothing to weigh: spot is not cheaper,
// or it is the last call. A job that is not on spot goes to on-demand at the
// last tick from which it is in time; one on spot with no time for another
// changeover stays until it is preempted.
func forced(j Job, v View) (Mode, bool) {
	slack := v.Left - v.Remaining - v.Changeover
	switch {
	case v.SpotPrice >= j.OnDemand && v.Mode != Spot:
		return OnDemand, true
	case v.Mode == Spot:
		return Spot, slack < j.Restart-tiny
	case v.Mode == OnDemand:
		return OnDemand, slack < 2*j.Restart-tiny
	}
	return OnDemand, slack < j.Restart+min(j.Gap, j.Restart)-tiny
}

// cheapest is the mode of the least cost. Spot is preferred when it costs as
// much as waiting but for what the grid leaves: what can be done now is done.
// It is not left for waiting, which would only cost a changeover later.
func cheapest(cost [3]float64, now Mode) Mode {
	best := OnDemand
	if now != Spot && cost[Idle] <= cost[best]+tiny {
		best = Idle
	}
	if cost[Spot] <= cost[best]*(1+1e-4) {
		best = Spot
	}
	return best
}
