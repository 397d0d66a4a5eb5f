package spot

import "math"

// program is the finite-horizon dynamic programme of one job in one climate:
// the least expected cost to go by steps to the deadline, mode, availability
// with the age of its run, mood of the place, and slack. Slack is the time to
// the deadline less the work outstanding (a running changeover included): work
// leaves it as it is, a step of waiting uses up a step of it, a changeover its
// own length. A miss of the deadline costs endlessly much, so that who follows
// the programme is in time.
type program struct {
	climate *climate
	grid    grid
	restart float64
	step    float64     // seconds of one step
	gap     float64     // every one that is begun is paid
	refuge  float64     // probability that another zone has spot when one has lost it
	od      float64     // cost of one step
	spot    float64     //
	layers  [][]float32 // by steps to the deadline; nil where not kept
}

// fine is the grid of simulations, coarse that of a live decision, which has
// to be quick: it costs jobs less than a thousandth more.
func fine() grid   { return grid{ages: ages, x: gridX, y: gridY, exact: 60, grow: 1.03, widest: 450} }
func coarse() grid { return grid{ages: ages, x: gridX, y: gridY, exact: 30, grow: 1.1, widest: 900} }

// plain is the grid of a climate without memory.
func plain() grid {
	return grid{ages: 1, x: []float64{0}, y: []float64{0}, exact: 60, grow: 1.1, widest: 900}
}

// never is the cost of a miss. It is finite so that averages stay numbers.
const never = 1e30

// grid is on which points values are kept; between them they are interpolated.
type grid struct {
	ages   int
	x, y   []float64 // of moods
	exact  int       // points of slack that lie a unit apart, at least
	grow   float64   // of the width of slack from one point to the next
	widest float64   // seconds; more where a hundredth of all slack is more
	slack  []float64 // seconds
	moods  int
	blocks int // values of one mode and state
}

// The moods of the grid, on the scales of mood.x and mood.y: shares of spot of
// 1, 23, 76 and 99 percent; a change every 60, 2 and 0.3 hours.
var (
	gridX = []float64{-3.2, -1.07, 1.07, 3.2}
	gridY = []float64{-2.6, -0.7, 1.2}
)

// stepOf is the step for a job: of about ten minutes, but a hundred or more to
// the deadline and at most 500, each of whole gaps.
func stepOf(j Job) float64 {
	want := max(min(gridSeconds, j.Deadline/100), j.Deadline/500)
	return j.Gap * max(1, math.Round(want/j.Gap))
}

// newProgram solves a job that starts now. If all is false only what the
// decision of now needs is kept.
func newProgram(j Job, refuge float64, c *climate, g grid, all bool) *program {
	p := &program{climate: c, grid: g, refuge: refuge, restart: j.Restart, gap: j.Gap, step: stepOf(j)}
	p.od, p.spot = j.OnDemand*p.step/3600, j.Spot*p.step/3600
	p.grid.slack = slacks(j, p.step, g)
	p.grid.moods = len(g.x) * len(g.y)
	p.grid.blocks = g.ages * p.grid.moods * len(p.grid.slack)
	steps := int(math.Floor(j.Deadline/p.step+tiny)) + 1
	if !all { // the values after the first step of a job that starts now
		steps--
	}
	p.layers = make([][]float32, steps+1)
	p.layers[0] = make([]float32, 5*p.grid.blocks) // at the deadline with slack left: done
	b := newBackward(p)
	for n := 1; n <= steps; n++ {
		if !all && n > 2 { // two are needed at a time
			p.layers[n], p.layers[n-3] = p.layers[n-3], nil
		} else {
			p.layers[n] = make([]float32, 5*p.grid.blocks)
		}
		b.layer(n)
	}
	return p
}

// slacks holds each multiple of the unit that changeovers and steps are made of
// while slack is short, where it decides between in time and late, and widens
// from there.
func slacks(j Job, step float64, g grid) []float64 {
	unit := step / 10
	if d := float64(gcd(int(math.Round(step)), int(math.Round(j.Restart)))); d >= step/30 && j.Restart > 0 {
		unit = d
		for unit > step/4 {
			unit /= 2
		}
	}
	top := max(0, j.Deadline-j.Work)
	widest := max(g.widest, top/100)
	out := []float64{0}
	for width := unit; ; {
		s := out[len(out)-1]
		out = append(out, s+unit*math.Floor(width/unit+tiny))
		if s >= top {
			return out
		}
		if s >= max(3*j.Restart, 2*step) && len(out) > g.exact {
			width = max(unit, min(width*g.grow, widest))
		}
	}
}

// at is where the values of a mode, availability, age and mood begin.
func (g *grid) at(m Mode, s, age, cell int) int {
	block := s // idle 0 and 1, on-demand 2 and 3, spot, which there is only when it is there, 4
	switch m {
	case Spot:
		block = 4
	case OnDemand:
		block = 2 + s
	}
	return block*g.blocks + (age*g.moods+cell)*len(g.slack)
}

// share is a part of a value: the cell of a mood and its weight.
type share struct {
	cell   int
	weight float32
}

// spread shares a mood out over the cells around it.
func (g *grid) spread(x, y float64) [4]share {
	i, f := between(g.x, x)
	k, h := between(g.y, y)
	right, up := min(i+1, len(g.x)-1), min(k+1, len(g.y)-1)
	n := len(g.y)
	return [4]share{
		{i*n + k, float32((1 - f) * (1 - h))}, {i*n + up, float32((1 - f) * h)},
		{right*n + k, float32(f * (1 - h))}, {right*n + up, float32(f * h)},
	}
}

// between gives the point of a rising grid at or below a value, and how far the
// value lies on the way to the next. Values outside are taken as the ends.
func between(points []float64, v float64) (int, float64) {
	last := len(points) - 1
	if v <= points[0] {
		return 0, 0
	}
	if v >= points[last] {
		return last, 0
	}
	lo, hi := 0, last
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; points[mid] <= v {
			lo = mid
		} else {
			hi = mid
		}
	}
	f := (v - points[lo]) / (points[hi] - points[lo])
	if f > 1-1e-6 {
		return hi, 0
	}
	if f < 1e-6 {
		return lo, 0
	}
	return lo, f
}

// choices gives the expected cost of each next mode, for a view and what was
// watched of the place. What is late or not to be had costs never or more.
func (p *program) choices(v View, w *watch) [3]float64 {
	x, y := w.mood.x(), w.mood.y()
	change := p.climate.change(v.Available, p.grid.bucket(w.age), x, y, p.step)
	stay, turn := [4]share{{0, 1}}, [4]share{{0, 1}}
	if p.grid.moods > 1 {
		same, other := w.mood.after(v.Available, false, p.step), w.mood.after(!v.Available, true, p.step)
		stay, turn = p.grid.spread(same.x(), same.y()), p.grid.spread(other.x(), other.y())
	}
	older := p.grid.bucket(w.age + p.step)
	left := v.Left - p.step
	then := func(next Mode, cost, slack float64) float64 {
		turned := next
		if next == Spot {
			turned = Idle // preempted
		}
		cost += (1 - change) * p.value(next, v.Available, older, &stay, left, slack)
		lost := change
		if v.Available && p.refuge > 0 {
			lost = change * (1 - p.refuge)
			cost += change * p.refuge * p.value(turned, true, 0, &stay, left, slack)
		}
		return cost + lost*p.value(turned, !v.Available, 0, &turn, left, slack)
	}
	work := func(next Mode, cost float64) float64 {
		left := v.Remaining + p.restart
		if v.Mode == next {
			left = v.Remaining + v.Changeover
		}
		return then(next, cost*p.paid(left), v.Left-left)
	}
	out := [3]float64{then(Idle, 0, v.Left-v.Remaining-p.step), never, work(OnDemand, p.od)}
	if v.Available {
		out[Spot] = work(Spot, v.SpotPrice*p.step/3600)
	}
	return out
}

// paid is the part of a step that is paid with so much work left.
func (p *program) paid(work float64) float64 {
	if work >= p.step {
		return 1
	}
	return min(1, math.Ceil(work/p.gap-tiny)*p.gap/p.step)
}

func (g *grid) bucket(age float64) int { return min(bucket(age), g.ages-1) }

// value is the expected cost to go at a situation between the grid's points.
func (p *program) value(m Mode, up bool, age int, cells *[4]share, left, slack float64) float64 {
	switch {
	case slack >= left-tiny:
		return 0 // done
	case slack < -tiny:
		return never
	}
	k, f := between(p.grid.slack, slack)
	steps := left / p.step
	n := int(math.Floor(steps + tiny))
	part := max(0, steps-float64(n))
	if n >= len(p.layers)-1 {
		n, part = len(p.layers)-1, 0
	}
	sum := 0.0
	for _, c := range cells {
		if c.weight == 0 {
			continue
		}
		at := p.grid.at(m, state(up), age, c.cell) + k
		v := along(p.layers[n][at:], f)
		if part > 1e-6 {
			v += part * (along(p.layers[n+1][at:], f) - v)
		}
		sum += float64(c.weight) * v
	}
	return sum
}

func along(v []float32, f float64) float64 {
	if f == 0 {
		return float64(v[0])
	}
	return float64(v[0]) + f*(float64(v[1])-float64(v[0]))
}
