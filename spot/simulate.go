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
	Available  bool    // of spot, for the whole tick
	SpotPrice  float64 // now
	Mode       Mode    // after a preemption at the border
	Remaining  float64 // useful seconds left
	Changeover float64 // seconds of a running changeover left
	Left       float64 // seconds to the deadline
	Lifetime   float64 // seconds that spot stays from now; only for policies that cheat, else 0
}

// Policy makes the decisions of one job after another.
type Policy interface {
	Name() string
	// Start begins a job. The samples before it, oldest first, are what a
	// control plane has seen of the place; they may be none.
	Start(j Job, before []bool) Run
}

// Run decides for one job, tick by tick.
type Run interface{ Decide(v View) Mode }

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
	cheats  bool
}

// Simulate runs one job of a policy on a piece of a trace that begins at a
// sample. Availability holds for a whole tick, is known when the tick is
// decided, and a preemption happens at its border; work done until then is
// kept. Beyond the end of the trace there is no spot.
func Simulate(t *Trace, start int, j Job, p Policy, s Settings) Outcome {
	_, s.cheats = p.(cheater)
	run := p.Start(j, t.Available[:start])
	var o Outcome
	rem, oh, mode := j.Work, 0.0, Idle
	limit := int(math.Ceil(j.Deadline/j.Gap))*3 + 1000
	price := j.Spot
	for tick := 0; ; tick++ {
		if tick > 0 { // (a) account for the tick before
			x := 0.0
			if mode != Idle {
				x = math.Min(j.Gap, oh)
				oh -= x
			}
			work := j.Gap - x
			done := mode != Idle && work >= rem
			paid := j.Gap
			if done && s.Billing == BySecond {
				paid = x + rem
			}
			switch mode {
			case Spot:
				o.Cost += price * paid / 3600
				o.SpotH += paid / 3600
			case OnDemand:
				o.Cost += j.OnDemand * paid / 3600
				o.OnDemandH += paid / 3600
			}
			if done {
				o.End = float64(tick-1)*j.Gap + x + rem
				o.Late = o.End > j.Deadline+1e-6
				return o
			}
			if mode != Idle {
				rem -= work
			}
		}
		if tick > limit { // a policy that never ends
			o.End, o.Late = math.Inf(1), true
			return o
		}
		at := start + tick
		up := at < len(t.Available) && t.Available[at]
		price = j.Spot
		if at < len(t.Available) {
			price = t.priceAt(at, j.Spot)
		}
		if mode == Spot && !up { // (b)
			mode, oh = Idle, 0
		}
		v := View{Tick: tick, Available: up, SpotPrice: price, Mode: mode, Remaining: rem, Changeover: oh, Left: j.Deadline - float64(tick)*j.Gap}
		if s.cheats {
			v.Lifetime = lifetime(t, at) * j.Gap
		}
		next := run.Decide(v) // (c)
		if s.Guard {
			next = guard(j, v, next)
		}
		if next == Spot && !up { // (d)
			next = Idle
		}
		if next != mode && next != Idle { // (e)
			oh = j.Restart
			o.Changeovers++
		}
		if next == Idle {
			oh = 0
		}
		mode = next
		if s.Keep {
			o.Modes = append(o.Modes, mode)
			o.Progress = append(o.Progress, j.Work-rem)
		}
	}
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
