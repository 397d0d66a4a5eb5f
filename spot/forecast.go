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

// drawnWays is how many ways a forecast draws: its mean is known to a hundredth.
const drawnWays = 200

// Expect forecasts our policy for a job that has started and whose spot is
// taken away and comes back at these rates per hour, beginning with spot there.
// A changeover may count the work that a loss costs. The job's gap does not
// matter: decisions are as dense as the rates ask for, at most 400 to the
// deadline. The same input gives the same forecast, in a millisecond or two. A job
// that cannot be in time runs on on-demand from the start and ends late.
func Expect(j Job, lost, back float64) Forecast {
	slack := j.Deadline - j.Work
	if j.Spot >= j.OnDemand || !(slack >= 0) {
		w := Way{OnDemandH: j.Work / 3600, EndH: j.Work / 3600}
		return Forecast{Way: w, First: OnDemand, Drawn: []Way{w}}
	}
	// More time than this is not used: spot has come and gone often enough.
	slack = min(slack, 10*(j.Work+j.Restart+3600/max(back, 1e-6)))
	o := newOutlook(j, slack, lost, back)
	o.solve()
	f := Forecast{First: OnDemand, Drawn: make([]Way, drawnWays)}
	if o.first == onSpot {
		f.First = Spot
	}
	for i := range f.Drawn {
		w := o.scaled(o.draw(uint64(i)))
		f.Drawn[i] = w
		f.OnDemandH += w.OnDemandH / drawnWays
		f.SpotH += w.SpotH / drawnWays
		f.Changeovers += w.Changeovers / drawnWays
		f.EndH += w.EndH / drawnWays
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
	gone    float64 // probability within a step
	back    float64
	move    [4]shift // of slack, by choice
	choices [][numStates][]choice
	first   int // state in which the job begins
	seed    uint64
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
	step := min(900, 0.4*3600/max(lost+back, 1e-9))
	step = max(min(step, deadline/100), deadline/400)
	// Changeovers and steps are made of whole units where slack is short.
	unit := step / 8
	if n := math.Round(j.Restart / unit); n > 0 {
		unit = j.Restart / n
	}
	o := &outlook{job: j, step: 8 * unit}
	o.steps = int(math.Ceil(deadline/o.step - tiny))
	// Runs of steps are as long on average as the rates say.
	o.gone, o.back = min(1, lost*o.step/3600), min(1, back*o.step/3600)
	widest := max(2*o.step, slack/40)
	for s, width := 0.0, unit; s < slack-tiny; s += width {
		o.slack = append(o.slack, s)
		if s >= max(3*j.Restart, 2*o.step) {
			width = min(width*1.15, widest)
		}
	}
	o.start = len(o.slack)
	o.slack = append(o.slack, slack)
	if o.start == 0 { // a grid has two points
		o.slack = append(o.slack, unit)
	}
	none, enter := newShift(o.slack, 0), newShift(o.slack, j.Restart)
	o.move = [4]shift{wait: newShift(o.slack, o.step), stay: none, enterOD: enter, enterSpot: enter}
	return o
}

// outstanding is the work and running changeover left with n steps to go.
func (o *outlook) outstanding(n, k int) float64 { return float64(n)*o.step - o.slack[k] }

// solve finds the choices, from the deadline to now.
func (o *outlook) solve() {
	nk := len(o.slack)
	var next, now [numStates][]float64
	for s := range numStates {
		next[s], now[s] = make([]float64, nk), make([]float64, nk)
	}
	var idle, demand [2][]float64 // means after a step
	for s := range 2 {
		idle[s], demand[s] = make([]float64, nk), make([]float64, nk)
	}
	spot := make([]float64, nk)
	o.choices = make([][numStates][]choice, o.steps+1)
	at := func(v []float64, c choice, k int) float64 {
		m := &o.move[c]
		if k < m.gone {
			return never
		}
		i, f := m.point[k], float64(m.part[k])
		return v[i] + f*(v[i+1]-v[i])
	}
	od, cheap := o.job.OnDemand*o.step/3600, o.job.Spot*o.step/3600
	for n := 1; n <= o.steps; n++ {
		all := make([]choice, numStates*nk)
		for s := range numStates {
			o.choices[n][s] = all[s*nk : (s+1)*nk]
		}
		for k := range nk {
			idle[0][k] = next[idleWithout][k] + o.back*(next[idleWith][k]-next[idleWithout][k])
			idle[1][k] = next[idleWith][k] + o.gone*(next[idleWithout][k]-next[idleWith][k])
			demand[0][k] = next[demandWithout][k] + o.back*(next[demandWith][k]-next[demandWithout][k])
			demand[1][k] = next[demandWith][k] + o.gone*(next[demandWithout][k]-next[demandWith][k])
			spot[k] = next[onSpot][k] + o.gone*(next[idleWithout][k]-next[onSpot][k])
		}
		for k := range nk {
			work := o.outstanding(n, k)
			if work <= tiny {
				for s := range numStates {
					now[s][k] = 0
				}
				continue
			}
			part, first := min(1, work/o.step), min(1, (work+o.job.Restart)/o.step)
			for up := range 2 {
				// What can be done now is done, if waiting is not cheaper.
				best, c := od*first+at(demand[up], enterOD, k), enterOD
				take := func(v float64, other choice) {
					if v < best*(1-1e-9) {
						best, c = v, other
					}
				}
				if up == 1 {
					take(cheap*first+at(spot, enterSpot, k), enterSpot)
				}
				take(at(idle[up], wait, k), wait)
				now[idleWithout+up][k], o.choices[n][idleWithout+up][k] = best, c
				take(od*part+demand[up][k], stay)
				now[demandWithout+up][k], o.choices[n][demandWithout+up][k] = best, c
			}
			// Spot is not left for waiting, which would only cost a changeover later.
			best, c := cheap*part+spot[k], stay
			if v := od*first + at(demand[1], enterOD, k); v < best*(1-1e-9) {
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

// draw follows one way by chance. It keeps the slack as it is and chooses as at
// the grid's point below, so that it is in time.
func (o *outlook) draw(number uint64) Way {
	var w Way
	s, slack, changeover := o.first, o.slack[o.start], 0.0
	for n := o.steps; ; n-- {
		if float64(n)*o.step-slack <= tiny {
			w.EndH = (float64(o.steps)*o.step - slack) / 3600
			return w
		}
		k, _ := between(o.slack, slack)
		c := o.choices[n][s][k]
		with := s == idleWith || s == demandWith || s == onSpot
		if c != stay { // what is left of a changeover was for nothing, but is not paid
			slack += changeover
			changeover = 0
			s = idleWithout
			if with {
				s = idleWith
			}
		}
		switch c {
		case wait:
			slack -= o.step
		case enterOD:
			s += demandWithout
		case enterSpot:
			s = onSpot
		}
		if c == enterOD || c == enterSpot {
			w.Changeovers++
			changeover = o.job.Restart
			slack = max(0, slack-changeover)
		}
		if c != wait {
			changeover = max(0, changeover-o.step)
			paid := min(o.step, float64(n)*o.step-slack) / 3600
			if s == onSpot {
				w.SpotH += paid
			} else {
				w.OnDemandH += paid
			}
		}
		switch x := chance(number, uint64(n)); {
		case s == onSpot && x < o.gone:
			s = idleWithout
			slack += changeover
			changeover = 0
		case s != onSpot && with && x < o.gone:
			s--
		case !with && x < o.back:
			s++
		}
	}
}

// scaled corrects a way for the whole steps that the programme was solved for.
func (o *outlook) scaled(w Way) Way {
	solved := float64(o.steps)*o.step - o.slack[o.start]
	f := o.job.Work / solved
	return Way{OnDemandH: w.OnDemandH * f, SpotH: w.SpotH * f, Changeovers: w.Changeovers, EndH: w.EndH + (o.job.Work-solved)/3600}
}

// chance is a fixed number for a step of a way (the mixer of SplitMix64): chance
// here must not be chance, and other prices meet the same luck.
func chance(number, step uint64) float64 {
	x := (number<<32 | step) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}
