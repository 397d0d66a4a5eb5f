package spot

import "math"

// ageEdges bound the ages of a run of equal availability, in seconds: short
// runs end sooner than long ones, so hazards are kept by age.
var ageEdges = [...]float64{600, 1200, 3600, 10800, 28800}

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

// climate is how spot comes and goes: the hazard of change per hour as a
// product of three terms, that of the age of the present run, that of how much
// spot there was lately, and that of how often it changed lately. Places
// differ from each other, and one place from day to day, mostly in the last
// two, so one climate serves places that were never seen.
type climate struct {
	base  [2][ages]float64 // log hazard by age, for spot gone (0) and there (1)
	share [2]float64       // per unit of mood.x
	rate  [2]float64       // per unit of mood.y
	start mood             // of a place of which nothing was seen
}

// general is the climate of six us-east zones of AWS (V100, availability
// probes of 15 February to 1 April 2023, thinned to 585 s; traces of
// skypilot-org/spot-traces, commit 221da1a), fitted by learn.
var general = climate{
	base: [2][ages]float64{
		{0.75, 0.32, -0.23, -0.89, -1.00, -1.19},
		{0.75, 0.43, 0.03, -0.91, -1.18, -1.23},
	},
	share: [2]float64{0.21, -0.29},
	rate:  [2]float64{0.22, 0.37},
	start: mood{share: 0.51, rate: 0.44},
}

// steady is a climate without memory: rates of loss and of recovery per hour.
func steady(lost, back float64) climate {
	c := climate{start: mood{share: 0.5}}
	for b := range ages {
		c.base[0][b], c.base[1][b] = math.Log(max(back, 1e-9)), math.Log(max(lost, 1e-9))
	}
	return c
}

// mood is what was seen of a place lately.
type mood struct {
	share float64 // of time with spot, recent times weighing more
	rate  float64 // changes per hour, likewise
}

const (
	// moodSeconds is after how long half of what was seen is forgotten.
	moodSeconds = 12 * 3600.0
	// gridSeconds is the gap at which changes are counted, so that a place has
	// the same mood however often it is sampled.
	gridSeconds = 600.0
	// What keeps the logarithms of moods finite.
	shareFloor = 0.03
	rateFloor  = 0.06
)

// after is the mood after another span of seconds.
func (m mood) after(up, changed bool, seconds float64) mood {
	k := math.Exp2(-seconds / moodSeconds)
	out := mood{k * m.share, k * m.rate}
	if up {
		out.share += 1 - k
	}
	if changed {
		out.rate += (1 - k) * 3600 / seconds
	}
	return out
}

// x and y are the mood on the scales on which log hazards are straight lines.
func (m mood) x() float64 { return math.Log((m.share + shareFloor) / (1 + shareFloor - m.share)) }
func (m mood) y() float64 { return math.Log(m.rate + rateFloor) }

// moodAt is the mood at a point of those scales.
func moodAt(x, y float64) mood {
	e := math.Exp(x)
	share := ((1+shareFloor)*e - shareFloor) / (1 + e)
	return mood{min(1, max(0, share)), max(0, math.Exp(y)-rateFloor)}
}

// hazard is the rate of change per hour, at most e^3: samples tell no more.
func (c *climate) hazard(up bool, age int, x, y float64) float64 {
	s := state(up)
	return math.Exp(min(3, c.base[s][age]+c.share[s]*x+c.rate[s]*y))
}

// change is the probability of a change within a span of seconds.
func (c *climate) change(up bool, age int, x, y, seconds float64) float64 {
	return -math.Expm1(-c.hazard(up, age, x, y) * seconds / 3600)
}

func state(up bool) int {
	if up {
		return 1
	}
	return 0
}

// watch follows one place: its mood and the age of its present run.
type watch struct {
	mood  mood
	last  bool
	age   float64 // seconds, the present sample included
	gap   float64
	every int // samples from one count of changes to the next
	seen  int
	grid  bool // availability at the last count
}

func newWatch(start mood, gap float64) watch {
	return watch{mood: start, gap: gap, every: thinning(gap)}
}

// thinning is how many samples of a gap make about gridSeconds.
func thinning(gap float64) int { return max(1, int(math.Round(gridSeconds/gap))) }

// see takes in the next sample.
func (w *watch) see(up bool) {
	if w.seen > 0 && up != w.last {
		w.age = 0
	}
	w.age += w.gap
	w.last = up
	if w.seen%w.every == 0 {
		w.mood = w.mood.after(up, w.seen > 0 && up != w.grid, w.gap*float64(w.every))
		w.grid = up
	}
	w.seen++
}
