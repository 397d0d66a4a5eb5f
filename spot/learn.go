package spot

import "math"

// learn fits a climate to traces by maximum likelihood, from a prior that
// counts for a few changes: with little history the prior stays.
func learn(traces []Trace, prior *climate) climate {
	out := *prior
	thin := make([]Trace, len(traces))
	for i, t := range traces {
		n := thinning(t.Gap)
		thin[i].Gap = t.Gap * float64(n)
		for at := 0; at < len(t.Available); at += n {
			thin[i].Available = append(thin[i].Available, t.Available[at])
		}
	}
	out.start = usualMood(thin, prior.start)
	for s := range 2 {
		out.fit(exposures(thin, s, out.start), s, prior)
	}
	return out
}

// usualMood is the mean share and rate of traces; the prior counts for a day.
func usualMood(traces []Trace, prior mood) mood {
	const weight = 24.0
	hours, up, changes := weight, prior.share*weight, prior.rate*weight
	for _, t := range traces {
		for i, u := range t.Available {
			hours += t.Gap / 3600
			if u {
				up += t.Gap / 3600
			}
			if i > 0 && u != t.Available[i-1] {
				changes++
			}
		}
	}
	return mood{up / hours, changes / hours}
}

// exposure is one sample in a state, at risk of change before the next.
type exposure struct {
	age         int
	x, y, hours float64
	changed     bool
}

// exposures lists the samples of a state. The age of a trace's first run is
// unknown, so that run is left out.
func exposures(traces []Trace, s int, start mood) []exposure {
	var out []exposure
	for _, t := range traces {
		w, known := newWatch(start, t.Gap), false
		for i, up := range t.Available {
			known = known || i > 0 && up != w.last
			w.see(up)
			if known && i+1 < len(t.Available) && state(up) == s {
				out = append(out, exposure{bucket(w.age), w.mood.x(), w.mood.y(), t.Gap / 3600, t.Available[i+1] != up})
			}
		}
	}
	return out
}

const (
	terms       = ages + 2 // of a log hazard: by age, share, rate
	priorWeight = 3.0      // changes that each term of the prior counts for
)

// fit maximises the likelihood of the changes of one state, with a quadratic
// prior, by Newton's method with the expected information.
func (c *climate) fit(seen []exposure, s int, prior *climate) {
	var from [terms]float64
	copy(from[:], prior.base[s][:])
	from[ages], from[ages+1] = prior.share[s], prior.rate[s]
	w := from
	for range 40 {
		var slope [terms]float64
		var info [terms][terms]float64
		for _, e := range seen {
			mu := e.hours * math.Exp(min(3, w[e.age]+w[ages]*e.x+w[ages+1]*e.y))
			p := -math.Expm1(-mu)
			score, weight := -mu, mu*mu*(1-p)/p
			if e.changed {
				score = mu * (1 - p) / p
			}
			f, at := [3]float64{1, e.x, e.y}, [3]int{e.age, ages, ages + 1}
			for i := range f {
				slope[at[i]] += score * f[i]
				for k := range f {
					info[at[i]][at[k]] += weight * f[i] * f[k]
				}
			}
		}
		for i := range w {
			slope[i] -= priorWeight * (w[i] - from[i])
			info[i][i] += priorWeight
		}
		far := 0.0
		for i, step := range solve(info, slope) {
			w[i] += max(-1, min(1, step))
			far = max(far, math.Abs(step))
		}
		if far < 1e-9 {
			break
		}
	}
	copy(c.base[s][:], w[:ages])
	c.share[s], c.rate[s] = w[ages], w[ages+1]
}

// solve gives the solution of a positive definite system by elimination.
func solve(a [terms][terms]float64, b [terms]float64) [terms]float64 {
	for i := range b {
		for k := i + 1; k < terms; k++ {
			f := a[k][i] / a[i][i]
			for l := i; l < terms; l++ {
				a[k][l] -= f * a[i][l]
			}
			b[k] -= f * b[i]
		}
	}
	for i := terms - 1; i >= 0; i-- {
		for k := i + 1; k < terms; k++ {
			b[i] -= a[i][k] * b[k]
		}
		b[i] /= a[i][i]
	}
	return b
}
