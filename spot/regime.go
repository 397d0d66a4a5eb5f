package spot

import "math"

// ageEdges bound the ages of a run of equal availability, in seconds: short
// runs end sooner than long ones, so hazards are kept by age.
var ageEdges = [...]float64{600, 1200, 1800, 3600, 7200, 14400, 28800}

// ages is the number of age buckets.
const ages = len(ageEdges) + 1

// bucket is the age bucket of a run that has lasted so many seconds, the
// present sample included.
func bucket(seconds float64) int {
	for i, e := range ageEdges {
		if seconds <= e+tiny {
			return i
		}
	}
	return ages - 1
}

// Regime is how spot comes and goes somewhere: the hazard of change per hour
// by the age of the present run, for spot gone (0) and there (1).
type Regime struct {
	Name   string
	Hazard [2][ages]float64
}

// change is the probability that availability changes within a gap.
func (r *Regime) change(up bool, age int, gap float64) float64 {
	s := 0
	if up {
		s = 1
	}
	return -math.Expm1(-r.Hazard[s][age] * gap / 3600)
}

// counts are changes and hours at risk by state and age.
type counts struct{ changes, hours [2][ages]float64 }

// add counts a piece of a trace. The age of its first run is unknown, so that
// run is not counted.
func (c *counts) add(available []bool, gap float64) {
	age, known := 0.0, false
	for i := range available {
		if i > 0 && available[i] != available[i-1] {
			age, known = 0, true
		}
		age += gap
		if !known || i+1 >= len(available) {
			continue
		}
		s := 0
		if available[i] {
			s = 1
		}
		b := bucket(age)
		c.hours[s][b] += gap / 3600
		if available[i+1] != available[i] {
			c.changes[s][b]++
		}
	}
}

// plus sums counts.
func (c counts) plus(o counts) counts {
	for s := range c.hours {
		for b := range c.hours[s] {
			c.hours[s][b] += o.hours[s][b]
			c.changes[s][b] += o.changes[s][b]
		}
	}
	return c
}

// regime estimates hazards: those of each age are shrunk to the state's mean,
// scaled by how hazards fall with age in general, with the weight of a few
// changes.
func (c counts) regime(name string, shape [2][ages]float64) Regime {
	const weight = 3 // changes that the general shape counts for
	r := Regime{Name: name}
	for s := range r.Hazard {
		changes, expected := 0.5, 0.5
		for b := range c.hours[s] {
			changes += c.changes[s][b]
			expected += c.hours[s][b] * shape[s][b]
		}
		level := changes / expected
		for b := range r.Hazard[s] {
			prior := level * shape[s][b]
			r.Hazard[s][b] = (c.changes[s][b] + weight) / (c.hours[s][b] + weight/prior)
		}
	}
	return r
}

// generalShape is how the hazard of change falls with the age of a run, per
// hour: for gaps in spot and for runs of it. Fitted to the availability probes
// of nine AWS zones in February and March 2023 (V100, skypilot-org/spot-traces
// 221da1a), whose gap of 195 s resolves short runs.
var generalShape = [2][ages]float64{
	{2.6, 1.5, 1.1, 0.85, 0.60, 0.42, 0.30, 0.18},
	{2.2, 1.3, 0.90, 0.60, 0.38, 0.24, 0.14, 0.07},
}

// builtin are the regimes that a policy without history starts from: scarce,
// middling and plentiful places, as the probes of 2022 and 2023 differ.
func builtin() []Regime {
	var out []Regime
	for _, k := range []struct {
		name     string
		gone, up float64 // times the general shape
	}{
		{"plentiful", 2.0, 0.3}, {"good", 1.5, 0.6}, {"middling", 1.0, 1.0}, {"restless", 1.6, 2.5}, {"scarce", 0.6, 2.0}, {"rare", 0.3, 3.5},
	} {
		r := Regime{Name: k.name}
		for b := range ages {
			r.Hazard[0][b] = generalShape[0][b] * k.gone
			r.Hazard[1][b] = generalShape[1][b] * k.up
		}
		out = append(out, r)
	}
	return out
}
