package spot

import (
	"math"

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
