package spot

import "math"

// Optimum is the least cost that anyone could reach who knows the trace: an
// exact dynamic programme over tick, mode (spot in each zone) and outstanding
// work, in units of the greatest common divisor of gap, changeover and work.
// Every started tick is paid whole. It is a lower bound of every policy.
func Optimum(t *Trace, start int, j Job) float64 {
	unit := gcd(gcd(int(math.Round(j.Gap)), int(math.Round(j.Restart))), int(math.Round(j.Work)))
	gap, d, c := int(math.Round(j.Gap))/unit, int(math.Round(j.Restart))/unit, int(math.Round(j.Work))/unit
	ticks := int(math.Floor(j.Deadline/j.Gap + 1e-9))
	// What is left of a tick before the deadline may still be worked.
	rest := int(math.Ceil(math.Max(0, j.Deadline-float64(ticks)*j.Gap)/float64(unit) - 1e-6))
	room := ticks*gap + rest // units of work that fit before the deadline
	if rest > 0 {
		ticks++
	}
	inf := math.Inf(1)
	zones := t.zones()
	// By mode: idle, on-demand, spot in each zone. Work beyond the room of a
	// tick costs infinitely, as does all of it at the deadline.
	next, now := make([][]float64, 2+len(zones)), make([][]float64, 2+len(zones))
	for m := range next {
		next[m], now[m] = make([]float64, room+d+1), make([]float64, room+d+1)
		for w := 1; w < len(next[m]); w++ {
			next[m][w], now[m][w] = inf, inf
		}
	}
	ends := 0 // room after the tick
	for tick := ticks - 1; tick >= 0; tick-- {
		g := gap
		if rest > 0 && tick == ticks-1 {
			g = rest
		}
		begins := ends + g
		// Only the work that can be left at this tick matters.
		for w := max(1, c-tick*gap); w <= begins; w++ {
			idle := inf
			if w <= ends {
				idle = next[0][w]
			}
			enter, stay := max(0, w+d-g), max(0, w-g)
			best := math.Min(idle, onDemand(j)+next[1][enter])
			for z, place := range zones {
				if place.upAt(start + tick) {
					best = math.Min(best, spotTick(place, start+tick, j)+next[2+z][enter])
				}
			}
			now[0][w] = best
			now[1][w] = math.Min(best, onDemand(j)+next[1][stay])
			for z, place := range zones {
				now[2+z][w] = best
				if place.upAt(start + tick) {
					now[2+z][w] = math.Min(best, spotTick(place, start+tick, j)+next[2+z][stay])
				}
			}
		}
		next, now = now, next
		ends = begins
	}
	if c > room {
		return inf
	}
	return next[0][c]
}

func onDemand(j Job) float64 { return j.OnDemand * j.Gap / 3600 }

func spotTick(t *Trace, sample int, j Job) float64 { return t.priceAt(sample, j.Spot) * j.Gap / 3600 }

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return max(a, 1)
}
