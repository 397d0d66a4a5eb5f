package spot

import "math"

// Optimum is the least cost that anyone could reach who knows the trace: an
// exact dynamic programme over tick, mode and outstanding work, in units of
// the greatest common divisor of gap, changeover and work. Every started tick
// is paid whole. It is a lower bound of every policy.
func Optimum(t *Trace, start int, j Job) float64 {
	unit := gcd(gcd(int(math.Round(j.Gap)), int(math.Round(j.Restart))), int(math.Round(j.Work)))
	g, d, c := int(math.Round(j.Gap))/unit, int(math.Round(j.Restart))/unit, int(math.Round(j.Work))/unit
	ticks := int(math.Floor(j.Deadline/j.Gap + 1e-9))
	most := ticks*g + d
	inf := math.Inf(1)
	next, now := [3][]float64{}, [3][]float64{}
	for m := range next {
		next[m], now[m] = make([]float64, most+1), make([]float64, most+1)
		for w := 1; w <= most; w++ {
			next[m][w] = inf
		}
	}
	at := func(a []float64, w int) float64 {
		switch {
		case w <= 0:
			return 0
		case w > most:
			return inf
		}
		return a[w]
	}
	for tick := ticks - 1; tick >= 0; tick-- {
		up := start+tick < len(t.Available) && t.Available[start+tick]
		od := j.OnDemand * j.Gap / 3600
		sp := t.priceAt(start+tick, j.Spot) * j.Gap / 3600
		for w := 1; w <= most; w++ {
			idle := next[Idle][w]
			enterOD, enterSpot := od+at(next[OnDemand], w+d-g), inf
			if up {
				enterSpot = sp + at(next[Spot], w+d-g)
			}
			now[Idle][w] = math.Min(idle, math.Min(enterOD, enterSpot))
			now[OnDemand][w] = math.Min(idle, math.Min(od+at(next[OnDemand], w-g), enterSpot))
			now[Spot][w] = math.Min(idle, enterOD)
			if up {
				now[Spot][w] = math.Min(now[Spot][w], sp+at(next[Spot], w-g))
			}
		}
		next, now = now, next
	}
	return next[Idle][c]
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return max(a, 1)
}
