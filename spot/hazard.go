package spot

import (
	"math"
	"slices"

	"github.com/destajo/destajo/fault"
)

// Hazard is a belief about how often a machine is taken away: a Gamma
// distribution over the rate per running hour, updated by what own launches
// meet (Gamma-Poisson).
type Hazard struct {
	Interruptions float64 // seen, the prior's included
	Hours         float64 // of running, the prior's included
	Assumed       bool    // nothing of it was observed
}

// PriorHours is how many running hours a default counts for.
const PriorHours = 5

// Default gives the rates per hour of loss while running and of recovery while
// waiting that are assumed of a machine of which nothing is known: the order
// of magnitude of the V100 probes of AWS in 2022 (skypilot-org/spot-traces,
// 221da1a), for single cards and for whole nodes of eight. Of H100-class spot
// nothing is public.
func Default(gpus int) (lost, back float64) {
	if gpus >= 8 {
		return 1.5, 0.8
	}
	return 0.3, 1
}

// Assume is the belief from a default rate per hour alone.
func Assume(rate float64) Hazard {
	return Hazard{Interruptions: rate * PriorHours, Hours: PriorHours, Assumed: true}
}

// Observe takes in what a launch met.
func (h Hazard) Observe(interruptions int, hours float64) Hazard {
	if interruptions < 0 || !(hours >= 0) {
		return h
	}
	return Hazard{Interruptions: h.Interruptions + float64(interruptions), Hours: h.Hours + hours, Assumed: h.Assumed && interruptions == 0 && hours == 0}
}

// Rate is the expected number of interruptions per running hour.
func (h Hazard) Rate() float64 {
	if h.Hours <= 0 {
		return 0
	}
	return h.Interruptions / h.Hours
}

// FromMonthlyBand reads the share of machines that a provider reclaims in a
// month as a rate per hour of one that always runs: -ln(1-share)/720. Measured
// traces are two to three orders of magnitude worse, so it serves to rank
// offers of one provider only, and is marked as assumed.
func FromMonthlyBand(share float64) (Hazard, error) {
	if !(share >= 0) || share >= 1 {
		return Hazard{}, fault.New(fault.Invalid, "a share of %v", share).Hint("give a number from 0 below 1")
	}
	return Assume(-math.Log1p(-share) / 720), nil
}

// FromHourlyBand reads the chance of an eviction within the next hour.
func FromHourlyBand(chance float64) (Hazard, error) {
	if !(chance >= 0) || chance >= 1 {
		return Hazard{}, fault.New(fault.Invalid, "a chance of %v", chance).Hint("give a number from 0 below 1")
	}
	return Assume(-math.Log1p(-chance)), nil
}

// Forecast is what our policy is expected to do with a job under constant
// rates of interruption and recovery.
type Forecast struct {
	Cost        float64 // expected, of all hours that are paid
	OnDemandH   float64
	SpotH       float64
	Changeovers float64
	EndH        float64 // expected, from the start
	CostP10     float64
	CostP90     float64
}

// forecastRuns is over how many drawn traces a forecast averages.
const forecastRuns = 64

// Expect plays our policy on traces of a place whose spot is taken away and
// comes back at these rates per hour, beginning with spot there. The traces
// are drawn by a fixed sequence, so the same input gives the same forecast. The
// job's gap is made longer where there would be more than 400 decisions: it
// takes less than ten milliseconds. A job that cannot be in time ends late.
func Expect(j Job, lost, back float64) Forecast {
	j.Gap = max(j.Gap, j.Deadline/400)
	p := newSteady(lost, back)
	up, gone := -math.Expm1(-back*j.Gap/3600), -math.Expm1(-lost*j.Gap/3600)
	seed := uint64(88172645463325252)
	draw := func() float64 { // xorshift: chance here must not be chance
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		return float64(seed>>11) / (1 << 53)
	}
	ticks := int(math.Ceil(j.Deadline/j.Gap)) + 2
	var f Forecast
	costs := make([]float64, forecastRuns)
	for i := range costs {
		t := &Trace{Gap: j.Gap, Available: make([]bool, ticks)}
		there := true
		for k := range ticks {
			t.Available[k] = there
			if x := draw(); there && x < gone || !there && x < up {
				there = !there
			}
		}
		o := Simulate(t, 0, j, p, Settings{Billing: BySecond})
		costs[i] = o.Cost
		f.Cost += o.Cost / forecastRuns
		f.OnDemandH += o.OnDemandH / forecastRuns
		f.SpotH += o.SpotH / forecastRuns
		f.Changeovers += float64(o.Changeovers) / forecastRuns
		f.EndH += o.End / 3600 / forecastRuns
	}
	slices.Sort(costs)
	f.CostP10, f.CostP90 = costs[forecastRuns/10], costs[forecastRuns-1-forecastRuns/10]
	return f
}
