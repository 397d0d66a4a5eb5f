package spot

import "math"

// program is the finite-horizon dynamic programme of one job under one regime:
// the least expected cost to go for every tick, availability with its age,
// mode and outstanding work. A miss of the deadline costs infinitely, so that
// following it is safe by itself.
//
// Outstanding work is useful work left and the running changeover left, in
// units. At a tick it lies between what is left when every tick before was
// worked, and what still fits before the deadline: only that band is kept.
type program struct {
	job      Job
	unit     float64 // seconds
	gap      int     // units
	restart  int     // units, rounded up
	total    int     // units of work at the start
	ticks    int
	width    int         // of the band
	values   [][]float32 // by tick: [state][mode][band]
	regime   *Regime
	spotCost float32
	odCost   float32
}

const (
	states   = 2 * ages
	maxUnits = 1200 // width of the band at most, for speed
)

var inf32 = float32(math.Inf(1))

// unitFor chooses the unit of work: a divisor of the gap that a changeover
// fills well, no finer than the band allows.
func unitFor(j Job) float64 {
	best, loss := j.Gap, math.Inf(1)
	slack := j.Deadline - j.Work + j.Restart
	for n := 1; n <= 60; n++ {
		u := j.Gap / float64(n)
		if slack/u > maxUnits && n > 1 {
			break
		}
		waste := math.Ceil(j.Restart/u-1e-9)*u - j.Restart
		// Work is rounded up to the unit once at each decision, so a coarse unit
		// costs a little too.
		if l := waste + u/10; l < loss-1e-9 {
			best, loss = u, l
		}
	}
	return best
}

func newProgram(j Job, r *Regime) *program {
	u := unitFor(j)
	p := &program{job: j, regime: r, unit: u, gap: int(math.Round(j.Gap / u)), restart: int(math.Ceil(j.Restart/u - 1e-9)),
		total: int(math.Ceil(j.Work/u - 1e-9)), ticks: int(math.Floor(j.Deadline/j.Gap + 1e-9)),
		spotCost: float32(j.Spot * j.Gap / 3600), odCost: float32(j.OnDemand * j.Gap / 3600)}
	p.width = max(1, p.ticks*p.gap-p.total+p.restart+2)
	p.solve()
	return p
}

// low is the least outstanding work at a tick.
func (p *program) low(tick int) int { return max(0, p.total-tick*p.gap) }

// high bounds the band at a tick.
func (p *program) high(tick int) int { return min(p.low(tick)+p.width, max(0, (p.ticks-tick)*p.gap)) }

// stateOf numbers availability and age.
func stateOf(up bool, age int) int {
	if up {
		return ages + age
	}
	return age
}

// solve fills the values backward from the deadline.
func (p *program) solve() {
	p.values = make([][]float32, p.ticks+1)
	w := p.width + 1
	last := make([]float32, states*3*w)
	for i := range last {
		last[i] = inf32
	}
	for s := range states * 3 {
		last[s*w] = 0 // no work left
	}
	p.values[p.ticks] = last
	var expect [3][]float32
	for m := range expect {
		expect[m] = make([]float32, w)
	}
	for tick := p.ticks - 1; tick >= 0; tick-- {
		now := make([]float32, states*3*w)
		next := p.values[tick+1]
		shift := p.low(tick) - p.low(tick+1) // between the bands
		for s := range states {
			up, age := s >= ages, s%ages
			p.expected(next, up, age, &expect)
			base := s * 3 * w
			idle, spot, od := now[base:base+w], now[base+w:base+2*w], now[base+2*w:base+3*w]
			top := p.high(tick) - p.low(tick)
			lo := p.low(tick)
			for i := range w {
				if i > top && lo+i > 0 {
					idle[i], spot[i], od[i] = inf32, inf32, inf32
					continue
				}
				if lo+i == 0 {
					idle[i], spot[i], od[i] = 0, 0, 0
					continue
				}
				// Where outstanding work lands in the next band.
				rest := look(expect[Idle], i+shift)
				enter, stay := i+shift+p.restart-p.gap, i+shift-p.gap
				if lo+i+p.restart-p.gap <= 0 {
					enter = done
				}
				if lo+i-p.gap <= 0 {
					stay = done
				}
				enterOD := p.odCost + look(expect[OnDemand], enter)
				stayOD := p.odCost + look(expect[OnDemand], stay)
				v := min(rest, enterOD)
				o := min(rest, stayOD)
				sp := v
				if up {
					enterSpot := p.spotCost + look(expect[Spot], enter)
					v = min(v, enterSpot)
					o = min(o, enterSpot)
					sp = min(sp, p.spotCost+look(expect[Spot], stay))
				}
				idle[i], spot[i], od[i] = v, sp, o
			}
		}
		p.values[tick] = now
	}
}

// done is the index of finished work.
const done = -1 << 30

func look(a []float32, i int) float32 {
	switch {
	case i == done:
		return 0
	case i < 0:
		return a[0]
	case i >= len(a):
		return inf32
	}
	return a[i]
}

// expected averages the next tick's values over availability: by mode, for the
// whole band. A job on spot that is preempted is idle.
func (p *program) expected(next []float32, up bool, age int, out *[3][]float32) {
	w := p.width + 1
	change, advance := p.moves(up, age)
	same, older, other := stateOf(up, age), stateOf(up, min(age+1, ages-1)), stateOf(!up, 0)
	for m := range Mode(3) {
		afterChange := m
		if m == Spot && up {
			afterChange = Idle
		}
		a, b, c := p.row(next, same, m, w), p.row(next, older, m, w), p.row(next, other, afterChange, w)
		o := out[m]
		for i := range w {
			o[i] = mix(change, advance, a[i], b[i], c[i])
		}
	}
}

func (p *program) row(values []float32, state int, m Mode, w int) []float32 {
	at := (state*3 + int(m)) * w
	return values[at : at+w]
}

// choices gives the expected cost of each next mode from a situation; that of
// spot is infinite when it is not there.
func (p *program) choices(tick int, up bool, age int, mode Mode, work float64) [3]float64 {
	inf := math.Inf(1)
	if tick >= p.ticks {
		return [3]float64{inf, inf, inf}
	}
	w := p.width + 1
	next := p.values[tick+1]
	change, advance := p.moves(up, age)
	same, older, other := stateOf(up, age), stateOf(up, min(age+1, ages-1)), stateOf(!up, 0)
	at := func(m Mode, left int) float64 {
		if left <= 0 {
			return 0
		}
		i := max(0, left-p.low(tick+1))
		if i >= w {
			return inf
		}
		after := m
		if m == Spot {
			after = Idle
		}
		return float64(mix(change, advance, p.row(next, same, m, w)[i], p.row(next, older, m, w)[i], p.row(next, other, after, w)[i]))
	}
	units := int(math.Ceil(work/p.unit - 1e-6))
	step := func(m Mode, price float32) float64 {
		d := p.restart
		if mode == m {
			d = 0
		}
		return float64(price) + at(m, units+d-p.gap)
	}
	out := [3]float64{at(Idle, units), inf, step(OnDemand, p.odCost)}
	if up {
		out[Spot] = step(Spot, p.spotCost)
	}
	return out
}

// moves are the probabilities that availability changes before the next tick,
// and that a run which goes on enters the next bucket of age.
func (p *program) moves(up bool, age int) (change, advance float32) {
	change = float32(p.regime.change(up, age, p.job.Gap))
	if age < ages-1 { // after the bucket's length, on average
		from := 0.0
		if age > 0 {
			from = ageEdges[age-1]
		}
		advance = float32(min(1, p.job.Gap/(ageEdges[age]-from)))
	}
	return change, advance
}

// mix averages the values of the same run, an older one and a changed one. What
// cannot happen does not count, be it infinite.
func mix(change, advance, same, older, changed float32) float32 {
	v := float32(0)
	if stay := (1 - change) * (1 - advance); stay > 0 {
		v += stay * same
	}
	if old := (1 - change) * advance; old > 0 {
		v += old * older
	}
	if change > 0 {
		v += change * changed
	}
	return v
}
