package spot

import (
	"math"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
)

// rule is a policy without memory beyond what it is shown.
type rule struct {
	name   string
	decide func(j Job, v View) Mode
}

func (r rule) Name() string                { return r.name }
func (r rule) Start(j Job, _ [][]bool) Run { return ruleRun{j, r.decide} }

type ruleRun struct {
	job    Job
	decide func(Job, View) Mode
}

func (r ruleRun) Decide(v View) Mode { return r.decide(r.job, v) }

type oracleRule struct{ rule }

func (oracleRule) cheats() {}

// safe wraps a rule in the safety net of NSDI: a job that does not run on spot
// goes to on-demand while two changeovers still fit; one that does stays
// until it is preempted.
func safe(decide func(Job, View) Mode) func(Job, View) Mode {
	return func(j Job, v View) Mode {
		if m, held := net(j, v); held {
			return m
		}
		return decide(j, v)
	}
}

func net(j Job, v View) (Mode, bool) {
	if v.Mode == Spot {
		return Spot, lastCall(j, v)
	}
	need := math.Ceil((v.Remaining+2*j.Restart)/j.Gap-1e-9) * j.Gap
	return OnDemand, need >= math.Floor(v.Left/j.Gap+1e-9)*j.Gap
}

func spotOr(v View, other Mode) Mode {
	if v.Available {
		return Spot
	}
	return other
}

// ahead is progress less the line of uniform progress at a time from now, in
// useful seconds (Wu et al., Can't Be Late, NSDI 2024).
func ahead(j Job, v View, later float64) float64 {
	return j.Work - v.Remaining - (j.Deadline-v.Left+later)*j.Work/j.Deadline
}

// behind says whether progress is behind that line now.
func behind(j Job, v View) bool { return ahead(j, v, 0) < -tiny }

const tiny = 1e-6 // of a second: what arithmetic may leave

// published are the policies of others, by their rules.
var published = []Policy{
	rule{"on-demand", func(Job, View) Mode { return OnDemand }},
	rule{"greedy", safe(func(_ Job, v View) Mode { return spotOr(v, Idle) })},
	timeSliced{slices: 8},
	rule{"up-plain", safe(func(j Job, v View) Mode {
		if v.Available {
			return Spot
		}
		if behind(j, v) {
			return OnDemand
		}
		return Idle
	})},
	rule{"up", safe(upRule)},
	oracleRule{rule{"up-oracle", safe(func(j Job, v View) Mode {
		k := j.OnDemand / v.SpotPrice
		worth := k * j.Restart / (k - 1)
		switch {
		case v.Mode == Spot:
			return Spot
		case v.Mode == OnDemand && v.Available && v.Lifetime > 2*worth:
			return Spot
		case v.Mode == OnDemand:
			return OnDemand
		case v.Available && v.Lifetime > worth:
			return Spot
		case behind(j, v):
			return OnDemand
		}
		return Idle
	})}},
	// Keep the slack as a budget for later switches: on-demand in every gap of
	// a tight job, spot at once when it is back (as GEPA evolved it).
	rule{"evolved-slack", func(j Job, v View) Mode {
		slack := v.Left - v.Remaining - j.Restart
		switch {
		case slack <= 0:
			return OnDemand
		case v.Available:
			return Spot
		case v.Mode == OnDemand:
			return OnDemand
		case slack/v.Remaining >= 0.2:
			return Idle
		}
		return OnDemand
	}},
	// The same with another threshold and an earlier point of no return (as
	// LEVI evolved it).
	rule{"evolved-stay", func(j Job, v View) Mode {
		slack := v.Left - v.Remaining - j.Restart
		switch {
		case v.Left <= v.Remaining+j.Restart+j.Gap:
			if v.Mode == Spot && v.Available {
				return Spot
			}
			return OnDemand
		case v.Available:
			return Spot
		case v.Mode == OnDemand:
			return OnDemand
		case slack >= 0.1*v.Remaining+2*j.Gap:
			return Idle
		}
		return OnDemand
	}},
}

// upRule is uniform progress with hysteresis: on on-demand it stays until spot
// is there and progress lies two changeovers ahead of the line.
func upRule(j Job, v View) Mode {
	switch {
	case v.Mode == OnDemand && (!v.Available || ahead(j, v, 2*j.Restart) <= tiny):
		return OnDemand
	case v.Available:
		return Spot
	case behind(j, v):
		return OnDemand
	}
	return Idle
}

// timeSliced cuts the time into slices, each with its share of the work, and
// is greedy inside each; surplus is carried over.
type timeSliced struct{ slices int }

func (timeSliced) Name() string { return "time-sliced" }

func (p timeSliced) Start(j Job, _ [][]bool) Run {
	return ruleRun{j, safe(func(j Job, v View) Mode {
		slice := j.Deadline / float64(p.slices)
		n := int((j.Deadline - v.Left) / slice)
		part := View{Available: v.Available, Mode: v.Mode, Changeover: v.Changeover,
			Remaining: v.Remaining - j.Work*float64(p.slices-n-1)/float64(p.slices), Left: float64(n+1)*slice - (j.Deadline - v.Left)}
		if part.Remaining <= 0 {
			return spotOr(v, Idle)
		}
		if m, held := net(j, part); held {
			return m
		}
		return spotOr(v, Idle)
	})}
}

// PolicyNames lists the policies that PolicyByName knows, ours last.
func PolicyNames() []string {
	var out []string
	for _, p := range published {
		out = append(out, p.Name())
	}
	return append(out, "optimum", "destajo")
}

// PolicyByName finds a published policy. The optimum knows the trace and is
// no policy; ours is made with NewPolicy.
func PolicyByName(name string) (Policy, error) {
	i := slices.IndexFunc(published, func(p Policy) bool { return p.Name() == name })
	if i >= 0 {
		return published[i], nil
	}
	e := fault.New(fault.Invalid, "unknown policy %q", name)
	if near := fault.Nearest(name, PolicyNames()); len(near) > 0 {
		return nil, e.Hint("did you mean %s?", near[0])
	}
	return nil, e.Hint("one of %s", strings.Join(PolicyNames(), ", "))
}
