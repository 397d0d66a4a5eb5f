package spot

import "math"

// zoneWatch follows the zones that a job may use, and all of them as one
// place, which has spot when any has.
type zoneWatch struct {
	each   []watch
	all    watch
	second float64 // how often another zone had spot when one had, recent times weighing more
}

func newZoneWatch(c *climate, gap float64, zones int) zoneWatch {
	w := zoneWatch{all: newWatch(c.start, gap)}
	for range zones {
		w.each = append(w.each, newWatch(c.start, gap))
	}
	w.second = 1 - math.Pow(1-c.start.share, float64(zones-1))
	return w
}

// see takes in a sample of each zone.
func (w *zoneWatch) see(up []bool) {
	n := 0
	for z := range w.each {
		w.each[z].see(up[z])
		n += state(up[z])
	}
	w.all.see(n > 0)
	if n > 0 && len(w.each) > 1 {
		k := math.Exp2(-w.all.gap / moodSeconds)
		w.second *= k
		if n > 1 {
			w.second += 1 - k
		}
	}
}

// refuge is the chance that another zone has spot when one has lost it.
func (w *zoneWatch) refuge() float64 {
	if len(w.each) == 1 {
		return 0
	}
	return w.second
}

// of is what was watched of the zone that a view speaks of, or of all zones
// where none has spot.
func (w *zoneWatch) of(v View) *watch {
	if !v.Available {
		return &w.all
	}
	return &w.each[v.To]
}

// best is the zone to go to: the one in which spot costs the least until the
// job is done. A price that is not the programme's counts for as long as spot
// may be expected to stay.
func (w *zoneWatch) best(p *program, v View) int {
	to, least := -1, math.Inf(1)
	for z, zone := range v.Zones {
		if !zone.Available {
			continue
		}
		one := &w.each[z]
		stay := 1 / p.climate.hazard(true, p.grid.bucket(one.age), one.mood.x(), one.mood.y()) // hours
		v.SpotPrice = p.spot * 3600 / p.step
		cost := p.choices(v, one)[Spot] + (zone.Price-v.SpotPrice)*min(stay, v.Remaining/3600)
		if cost < least {
			to, least = z, cost
		}
	}
	return to
}
