package spot

import (
	"fmt"
	"math"
	"slices"

	"github.com/destajo/destajo/fault"
)

// Zoned is the state of one zone of a live job.
type Zoned struct {
	Name   string
	Zone          // now
	Before []bool // availability seen until now at the job's gap, oldest first, the present one left out
}

// Situation is the state of a live job, in seconds and prices per hour.
type Situation struct {
	Mode       Mode    // after a preemption
	Here       string  // the zone of a job on spot
	Remaining  float64 // useful seconds left
	Changeover float64 // seconds of a running changeover left
	Left       float64 // seconds to the deadline
	Restart    float64 // changeover: paid, without progress, at every move into spot or on-demand
	Gap        float64 // seconds to the next decision
	OnDemand   float64
	Zones      []Zoned
}

// Decision is what to do next, with the reason in words.
type Decision struct {
	Mode   Mode
	Zone   string // of spot
	Reason string
	Cost   float64 // expected until the job is done; NaN where nothing was weighed
}

// Decide is what the running system asks: the decision that the simulator
// scores, for a live job. It takes some tens of milliseconds, less as the
// deadline comes nearer.
func (o *Ours) Decide(s Situation) (Decision, error) {
	if err := s.check(); err != nil {
		return Decision{}, err
	}
	v := View{Mode: s.Mode, Remaining: s.Remaining, Changeover: s.Changeover, Left: s.Left, Here: -1, To: -1}
	w := newZoneWatch(&o.climate, s.Gap, len(s.Zones))
	if len(s.Zones) > 0 {
		up := make([]bool, len(s.Zones))
		for i := range len(s.Zones[0].Before) + 1 {
			for z := range s.Zones {
				up[z] = s.Zones[z].Available
				if i < len(s.Zones[z].Before) {
					up[z] = s.Zones[z].Before[i]
				}
			}
			w.see(up)
		}
	}
	for z := range s.Zones {
		v.Zones = append(v.Zones, s.Zones[z].Zone)
		if s.Mode == Spot && s.Zones[z].Name == s.Here {
			v.Here = z
		}
	}
	if v.To = v.Here; v.To < 0 {
		v.To = v.cheapest()
	}
	v.Available, v.SpotPrice = v.To >= 0, min(v.price(v.To), s.OnDemand) // without zones there is only on-demand
	j := Job{Work: s.Remaining + s.Changeover, Deadline: s.Left, Restart: s.Restart, Gap: s.Gap, OnDemand: s.OnDemand, Spot: v.SpotPrice}
	if m, must := forced(j, v); must {
		return s.decision(v, m, whyForced(j, v), math.NaN()), nil
	}
	p := newProgram(j, w.refuge(), &o.climate, coarse(), false)
	if v.Here < 0 && v.To >= 0 && len(v.Zones) > 1 {
		v.To = w.best(p, v)
		v.SpotPrice = v.Zones[v.To].Price
	}
	costs := p.choices(v, w.of(v))
	m := cheapest(costs, v.Mode)
	return s.decision(v, m, why(v, m, costs), costs[m]), nil
}

func (s *Situation) check() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, format, args...).Hint("give times in seconds and prices per hour, above 0")
	}
	switch {
	case !(s.Remaining > 0) || !(s.Gap > 0) || !(s.Restart >= 0) || !(s.Changeover >= 0):
		return bad("%v s of work left, %v s of changeover left, %v s for another, a decision every %v s", s.Remaining, s.Changeover, s.Restart, s.Gap)
	case !(s.OnDemand > 0):
		return bad("an on-demand price of %v", s.OnDemand)
	case math.IsNaN(s.Left) || s.Left/s.Gap > 20_000:
		return bad("%v s to the deadline", s.Left)
	case s.Mode == Spot && !slices.ContainsFunc(s.Zones, func(z Zoned) bool { return z.Name == s.Here && z.Available }):
		return bad("a job on spot in %q, where there is none", s.Here)
	}
	for _, z := range s.Zones {
		if !(z.Price > 0) {
			return bad("a spot price of %v in %q", z.Price, z.Name)
		}
		if len(z.Before) != len(s.Zones[0].Before) {
			return bad("%d samples of %q before now, %d of %q", len(z.Before), z.Name, len(s.Zones[0].Before), s.Zones[0].Name)
		}
	}
	return nil
}

func (s *Situation) decision(v View, m Mode, reason string, cost float64) Decision {
	d := Decision{Mode: m, Reason: reason, Cost: cost}
	if m == Spot {
		d.Zone = s.Zones[v.To].Name
	}
	return d
}

func whyForced(j Job, v View) string {
	switch {
	case v.Mode == Spot:
		return "spot is there and no time is left for a changeover: stay until it is gone"
	case v.SpotPrice >= j.OnDemand:
		return "spot is not cheaper than on-demand"
	}
	return "no time is left to wait for spot or to change"
}

// why says what was weighed: the cost of the choice and that of the next best.
func why(v View, m Mode, costs [3]float64) string {
	name := func(to Mode) string {
		switch to {
		case Idle:
			return "waiting for spot"
		case v.Mode:
			return "staying on " + to.String()
		}
		return "going to " + to.String()
	}
	text := fmt.Sprintf("%s is expected to cost %.2f until the job is done", name(m), costs[m])
	if m == OnDemand && !v.Available {
		text = "spot is not there; " + text
	}
	other, least := m, math.Inf(1)
	for to, c := range costs {
		if Mode(to) != m && c < least {
			other, least = Mode(to), c
		}
	}
	if least > never/1e6 {
		return text + "; nothing else is in time"
	}
	return fmt.Sprintf("%s, %s %.2f", text, name(other), least)
}
