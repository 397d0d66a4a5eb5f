package spot

import "math"

// Mode is what a job is on.
type Mode int8

// The modes.
const (
	Idle Mode = iota
	Spot
	OnDemand
)

// String names the mode.
func (m Mode) String() string { return [...]string{"idle", "spot", "on-demand"}[m] }

// Job is what has to be done: times in seconds, prices per hour.
type Job struct {
	Work     float64 // useful seconds
	Deadline float64 // from the start
	Restart  float64 // changeover: paid, without progress, at every move into spot or on-demand
	Gap      float64 // seconds between decisions
	OnDemand float64
	Spot     float64
}

// View is all that a policy sees when it decides for a tick: values of the
// present and never the trace.
type View struct {
	Tick       int
	Available  bool    // of spot, for the whole tick, in any zone; on spot: in the zone of the job
	SpotPrice  float64 // now, where the job is or would go
	Zones      []Zone  // of each zone; valid until the decision is made
	Here       int     // the zone of a job on spot; else -1
	To         int     // the zone in which spot is or would be; -1 where there is none
	Mode       Mode    // after a preemption at the border
	Remaining  float64 // useful seconds left
	Changeover float64 // seconds of a running changeover left
	Left       float64 // seconds to the deadline
	Lifetime   float64 // seconds that spot stays from now; only for policies that cheat, else 0
}

// Zone is what is seen of spot in one zone.
type Zone struct {
	Available bool
	Price     float64
}

// Policy makes the decisions of one job after another.
type Policy interface {
	Name() string
	// Start begins a job. The samples before it, oldest first for each zone, are
	// what a control plane has seen of them; they may be none.
	Start(j Job, before [][]bool) Run
}

// Run decides for one job, tick by tick.
type Run interface{ Decide(v View) Mode }

// chooser is a run that chooses the zone to go to; others go to the cheapest.
type chooser interface{ choose(v View) int }

// Billing says how the last tick is paid.
type Billing int

// The billings.
const (
	ByTick   Billing = iota // every started tick whole
	BySecond                // the last one up to the end
)

// Outcome is what became of one job.
type Outcome struct {
	Cost        float64
	End         float64 // seconds from the start
	Late        bool
	OnDemandH   float64 // hours paid
	SpotH       float64
	Changeovers int
	Modes       []Mode    // of each tick, when a history is kept
	Progress    []float64 // useful seconds done before each tick
}

// Settings are the options of a simulation.
type Settings struct {
	Billing Billing
	Guard   bool // on-demand is forced when it would otherwise be too late
	Keep    bool // the history, for a plot
}

// Simulate runs one job of a policy on a piece of a trace that begins at a
// sample. Availability holds for a whole tick, is known when the tick is
// decided, and a preemption happens at its border; work done until then is
// kept. Beyond the end of the trace there is no spot. With several zones a job
// that goes to spot goes to one of them and stays there; what is taken from it
// costs a changeover wherever it goes on.
func Simulate(t *Trace, start int, j Job, p Policy, s Settings) Outcome {
	_, cheats := p.(cheater)
	zones := t.zones()
	before := make([][]bool, len(zones))
	for z := range zones {
		before[z] = zones[z].Available[:min(start, len(zones[z].Available))]
	}
	run := p.Start(j, before)
	picks, _ := run.(chooser)
	var o Outcome
	rem, oh, mode, here := j.Work, 0.0, Idle, -1
	price := j.Spot // of the tick before
	seen := make([]Zone, len(zones))
	limit := int(math.Ceil(j.Deadline/j.Gap))*3 + 1000
	for tick := 0; ; tick++ {
		if tick > 0 { // (a) account for the tick before
			done, x := false, 0.0
			if mode != Idle {
				x = math.Min(j.Gap, oh)
				oh -= x
				done = j.Gap-x >= rem
				paid := j.Gap
				if done && s.Billing == BySecond {
					paid = x + rem
				}
				o.pay(mode, price, j.OnDemand, paid/3600)
			}
			if done {
				o.End = float64(tick-1)*j.Gap + x + rem
				o.Late = o.End > j.Deadline+1e-6
				return o
			}
			if mode != Idle {
				rem -= j.Gap - x
			}
		}
		if tick > limit { // a policy that never ends
			o.End, o.Late = math.Inf(1), true
			return o
		}
		at := start + tick
		if mode == Spot && !zones[here].upAt(at) { // (b)
			mode, oh, here = Idle, 0, -1
		}
		v := View{Tick: tick, Mode: mode, Remaining: rem, Changeover: oh, Left: j.Deadline - float64(tick)*j.Gap, Here: here, Zones: seen}
		for z, place := range zones {
			v.Zones[z] = Zone{place.upAt(at), place.priceAt(at, j.Spot)}
		}
		to := v.Here
		if to < 0 {
			to = v.cheapest()
			if picks != nil && to >= 0 {
				to = picks.choose(v)
			}
		}
		v.To, v.Available, v.SpotPrice = to, to >= 0, v.price(to)
		if cheats && to >= 0 {
			v.Lifetime = lifetime(zones[to], at) * j.Gap
		}
		next := run.Decide(v) // (c)
		if s.Guard {
			next = guard(j, v, next)
		}
		if next == Spot && !v.Available { // (d)
			next = Idle
		}
		if next != mode && next != Idle { // (e)
			oh = j.Restart
			o.Changeovers++
		}
		if next == Idle {
			oh = 0
		}
		mode, price, here = next, v.SpotPrice, -1
		if mode == Spot {
			here = to
		}
		if s.Keep {
			o.Modes = append(o.Modes, mode)
			o.Progress = append(o.Progress, j.Work-rem)
		}
	}
}

// cheapest is the available zone with the least price, -1 for none.
func (v *View) cheapest() int {
	best := -1
	for z, zone := range v.Zones {
		if zone.Available && (best < 0 || zone.Price < v.Zones[best].Price) {
			best = z
		}
	}
	return best
}

// price is that of a zone, or the least of all for no zone.
func (v *View) price(to int) float64 {
	if to >= 0 {
		return v.Zones[to].Price
	}
	least := math.Inf(1)
	for _, z := range v.Zones {
		least = math.Min(least, z.Price)
	}
	return least
}

// pay adds the cost of hours on a mode.
func (o *Outcome) pay(m Mode, spot, onDemand, hours float64) {
	if m == Spot {
		o.Cost += spot * hours
		o.SpotH += hours
		return
	}
	o.Cost += onDemand * hours
	o.OnDemandH += hours
}

// lifetime is for how many ticks spot stays from a sample on.
func lifetime(t *Trace, at int) float64 {
	n := 0
	for at+n < len(t.Available) && t.Available[at+n] {
		n++
	}
	return float64(n)
}

// guard forces a job onto on-demand at the last tick from which it is still
// in time; a job that runs on spot may stay until it is preempted.
func guard(j Job, v View, wanted Mode) Mode {
	if !lastCall(j, v) {
		return wanted
	}
	if v.Mode == Spot && v.Changeover == 0 {
		return Spot
	}
	return OnDemand
}

// lastCall says whether waiting for another tick would be too late.
func lastCall(j Job, v View) bool {
	need := math.Ceil((v.Remaining+j.Restart)/j.Gap-1e-9) * j.Gap
	return need >= math.Floor(v.Left/j.Gap+1e-9)*j.Gap
}

// cheater marks policies that see the lifetime of the next spot instance.
type cheater interface{ cheats() }
