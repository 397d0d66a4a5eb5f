package spot

import (
	"cmp"
	"math"
	"slices"
)

// Forecast is what our policy is expected to do with a job under constant
// rates of interruption and recovery.
type Forecast struct {
	Way         // the mean
	First Mode  // spot or on-demand, on which the job begins
	Drawn []Way // a sample, the cheapest first
}

// Way is how a job comes to its end: the hours that are paid, without the
// first start, and those from there to the end.
type Way struct {
	OnDemandH   float64
	SpotH       float64
	Changeovers float64
	EndH        float64
}

// Cost is that of the hours at prices per hour.
func (w Way) Cost(onDemand, spot float64) float64 { return w.OnDemandH*onDemand + w.SpotH*spot }

// drawnWays is how many ways a forecast draws: a prime, see luck. The mean of a
// forecast is off by about a hundredth.
const drawnWays = 97

// Expect forecasts our policy for a job that has started and whose spot is
// taken away and comes back at these rates per hour, beginning with spot there.
// A changeover may count the work that a loss costs. The job's gap does not
// matter: decisions are as dense as the rates ask for, at most 400 to the
// deadline. The same input gives the same forecast, in about half a millisecond. A job
// that cannot be in time runs on on-demand from the start and ends late.
func Expect(j Job, lost, back float64) Forecast {
	slack := j.Deadline - j.Work
	only := Way{OnDemandH: j.Work / 3600, EndH: j.Work / 3600}
	alone := Forecast{Way: only, First: OnDemand, Drawn: []Way{only}}
	if j.Spot >= j.OnDemand || !(slack >= 0) {
		return alone
	}
	// More is hardly used: with it the work is done on spot alone, nearly always.
	// Steps have to stay short beside the work.
	losses := lost * j.Work / 3600 * math.Exp(min(5, lost*j.Restart/3600))
	slack = min(slack, 100*(j.Work+j.Restart), (losses+6*math.Sqrt(losses+1))*(j.Restart+3600/max(back, 1e-9)))
	o := newOutlook(j, slack, lost, back)
	o.solve()
	f := Forecast{First: OnDemand, Drawn: make([]Way, drawnWays)}
	if o.first == onSpot {
		f.First = Spot
	}
	for i := range f.Drawn {
		w := o.draw(i)
		f.Drawn[i] = w
		f.OnDemandH += w.OnDemandH / drawnWays
		f.SpotH += w.SpotH / drawnWays
		f.Changeovers += w.Changeovers / drawnWays
		f.EndH += w.EndH / drawnWays
	}
	if f.Cost(j.OnDemand, j.Spot) > only.Cost(j.OnDemand, j.Spot) { // they cost the same but for what the grid leaves
		return alone
	}
	slices.SortFunc(f.Drawn, func(a, b Way) int { return cmp.Compare(a.Cost(j.OnDemand, j.Spot), b.Cost(j.OnDemand, j.Spot)) })
	return f
}

// outlook is the programme of a job in a climate without memory, small enough
// to know the choice in every state. A state is what the job is on and whether
// spot is there, with a slack of the grid.
type outlook struct {
	job     Job
	step    float64 // seconds
	steps   int     // to the deadline
	slack   []float64
	start   int     // point of the slack
	lost    float64 // rates per hour
	found   float64
	gone    float64 // probabilities within a step
	back    float64
	waiting shift // of slack
	change  shift
	choices [][numStates][]choice
	first   int // state in which the job begins
}

// The states of an outlook.
const (
	idleWithout = iota
	idleWith
	demandWithout
	demandWith
	onSpot
	numStates
)

// choice is what is done for a step.
type choice uint8

const (
	wait    choice = iota
	stay           // on what the job is on
	enterOD        // after a changeover
	enterSpot
)

func newOutlook(j Job, slack, lost, back float64) *outlook {
	deadline := j.Work + slack
	step := min(1200, 0.5*3600/max(lost+back, 1e-9))
	step = max(min(step, deadline/100), deadline/400)
	// Changeovers and steps are made of whole units where slack is short.
	unit := step / 8
	if n := math.Round(j.Restart / unit); n > 0 {
		unit = j.Restart / n
	}
	o := &outlook{job: j, step: 8 * unit, lost: lost, found: back}
	o.steps = int(math.Ceil(deadline/o.step - tiny))
	// Runs of steps are as long on average as the rates say.
	o.gone, o.back = min(1, lost*o.step/3600), min(1, back*o.step/3600)
	widest := max(2*o.step, slack/25)
	for s, width := 0.0, unit; s < slack-tiny; s += width {
		o.slack = append(o.slack, s)
		if s >= max(3*j.Restart, 2*o.step) {
			width = min(width*1.25, widest)
		}
	}
	o.start = len(o.slack)
	o.slack = append(o.slack, slack)
	if o.start == 0 { // a grid has two points
		o.slack = append(o.slack, unit)
	}
	o.waiting, o.change = newShift(o.slack, o.step), newShift(o.slack, j.Restart)
	return o
}

// solve finds the choices, from the deadline to now.
func (o *outlook) solve() {
	nk := len(o.slack)
	rows := func() []float64 { return make([]float64, nk) }
	var next, now [numStates][]float64
	for s := range numStates {
		next[s], now[s] = rows(), rows()
	}
	// Expected values after a step, by whether spot was there: as they are where the
	// mode stays, and after what waiting or a changeover takes off the slack.
	demand, spot := [2][]float64{rows(), rows()}, rows()
	waited, entered, enteredSpot := [2][]float64{rows(), rows()}, [2][]float64{rows(), rows()}, rows()
	mean := rows()
	o.choices = make([][numStates][]choice, o.steps+1)
	all := make([]choice, o.steps*int(numStates)*nk)
	od, cheap := o.job.OnDemand*o.step/3600, o.job.Spot*o.step/3600
	for n := 1; n <= o.steps; n++ {
		average(mean, next[idleWithout], next[idleWith], o.back)
		o.waiting.take(waited[0], mean)
		average(mean, next[idleWith], next[idleWithout], o.gone)
		o.waiting.take(waited[1], mean)
		average(demand[0], next[demandWithout], next[demandWith], o.back)
		o.change.take(entered[0], demand[0])
		average(demand[1], next[demandWith], next[demandWithout], o.gone)
		o.change.take(entered[1], demand[1])
		average(spot, next[onSpot], next[idleWithout], o.gone)
		o.change.take(enteredSpot, spot)
		for s := range numStates {
			o.choices[n][s], all = all[:nk:nk], all[nk:]
		}
		for k := range nk {
			work := float64(n)*o.step - o.slack[k]
			if work <= tiny { // done, with all slacks that are longer
				for s := range numStates {
					clear(now[s][k:])
				}
				break
			}
			part, first := min(1, work/o.step), min(1, (work+o.job.Restart)/o.step)
			for up := range 2 {
				// What can be done now is done, if waiting is not cheaper.
				best, c := od*first+entered[up][k], enterOD
				if v := cheap*first + enteredSpot[k]; up == 1 && v < best*less {
					best, c = v, enterSpot
				}
				if v := waited[up][k]; v < best*less {
					best, c = v, wait
				}
				now[idleWithout+up][k], o.choices[n][idleWithout+up][k] = best, c
				if v := od*part + demand[up][k]; v < best*less {
					best, c = v, stay
				}
				now[demandWithout+up][k], o.choices[n][demandWithout+up][k] = best, c
			}
			// Spot is not left for waiting, which would only cost a changeover later.
			best, c := cheap*part+spot[k], stay
			if v := od*first + entered[1][k]; v < best*less {
				best, c = v, enterOD
			}
			now[onSpot][k], o.choices[n][onSpot][k] = best, c
		}
		next, now = now, next
	}
	o.first = demandWith
	if next[onSpot][o.start] <= next[demandWith][o.start] {
		o.first = onSpot
	}
}

// less keeps what costs the same but for rounding from being preferred.
const less = 1 - 1e-9

// average gives the means of two rows.
func average(out, a, b []float64, part float64) {
	a, b = a[:len(out)], b[:len(out)]
	for k := range out {
		out[k] = a[k] + part*(b[k]-a[k])
	}
}

// take gives the values after something was taken off the slack.
func (s *shift) take(out, v []float64) {
	point, part := s.point[:len(out)], s.part[:len(out)]
	for k := range out {
		if k < s.gone {
			out[k] = never
			continue
		}
		i := point[k]
		out[k] = v[i] + float64(part[k])*(v[i+1]-v[i])
	}
}

// draw follows one way by chance. Spot comes and goes at any time and is met at
// once; the slack is kept as it is, and the choice is that of the grid's point
// below, so that it is in time.
func (o *outlook) draw(number int) Way {
	var w Way
	k, s, slack, changeover := o.start, o.first, o.slack[o.start], 0.0
	left, run := o.job.Work+slack, 0 // to the deadline; run: of spot there or gone
	lasts := o.lasts(number, run)
	for left-slack > tiny {
		for k > 0 && o.slack[k] > slack {
			k--
		}
		for k < o.start && o.slack[k+1] <= slack {
			k++
		}
		n := min(o.steps, max(1, int(math.Ceil(left/o.step-tiny))))
		c := o.choices[n][s][k]
		with := run%2 == 0
		if c != stay { // what is left of a changeover was for nothing, but is not paid
			slack += changeover
			changeover = 0
			s = idleWithout
			if with {
				s = idleWith
			}
		}
		if c == enterOD || c == enterSpot {
			w.Changeovers++
			changeover = o.job.Restart
			slack = max(0, slack-changeover)
			if s += demandWithout; c == enterSpot {
				s = onSpot
			}
		}
		span := left - float64(n-1)*o.step
		if c == wait {
			span = min(span, lasts)
			slack -= span
		} else {
			most := min(lasts, left-slack)
			for ; c == stay && span < most && n > 1 && o.choices[n-1][s][k] == stay; n-- {
				span += o.step
			}
			span = min(span, most)
			changeover = max(0, changeover-span)
			if s == onSpot {
				w.SpotH += span / 3600
			} else {
				w.OnDemandH += span / 3600
			}
		}
		left -= span
		if lasts -= span; lasts > tiny {
			continue
		}
		run++
		lasts = o.lasts(number, run)
		switch {
		case s == onSpot:
			s = idleWithout
			slack += changeover
			changeover = 0
		case with:
			s--
		default:
			s++
		}
	}
	w.EndH = (o.job.Work + o.slack[o.start] - left) / 3600
	return w
}

// lasts draws how many seconds a run of a way lasts: spot is there in the even
// ones. A run is not so short that there would be no end of them.
func (o *outlook) lasts(number, run int) float64 {
	rate := o.lost
	if run%2 == 1 {
		rate = o.found
	}
	if rate <= 0 {
		return math.Inf(1)
	}
	return max(-math.Log(1-luck(number, run))*3600/rate, o.step/8)
}

// luck is a fixed number from 0 below 1 for a run of a way: chance here must not be
// chance, and other prices and deadlines meet the same luck. For each run the ways
// are spread evenly, in an order of its own (a shifted lattice).
func luck(number, run int) float64 {
	x := uint64(run+1) * 0x9e3779b97f4a7c15 // the mixer of SplitMix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	order, shift := 1+int(x>>32%(drawnWays-1)), float64(x&0xffffffff)/(1<<32)
	_, u := math.Modf(float64(number*order%drawnWays)/drawnWays + shift)
	return u
}
