package estimate

import (
	"math"
	"slices"
	"sync"
)

// candidates are the terms that a search may use, by block.
var candidates = [3][]string{
	{"", "architecture", "card", "vendor", "program", "engine", "model", "precision", "special", "card+program", "card+engine", "card+precision",
		"architecture+program", "architecture+precision", "vendor+program", "program+precision", "program+special", "model+program", "model+engine",
		"model+precision", "model+special+program", "model+architecture", "near", "near+program", "near+model", "near+precision"},
	{"", "program", "engine", "card+program", "model", "model+program", "architecture+program", "architecture+precision", "card+precision", "program+precision",
		"card+program+precision", "program+special", "near", "near+program"},
	{"", "program", "card", "card+program", "architecture", "architecture+program", "model", "model+program", "near", "near+program"},
}

// Tune searches covariances under which rows left out by (card, model) group
// and, with less weight, by card, are predicted best, beginning with settings.
// It is a walk over one number at a time with shrinking steps, in a fixed but
// mixed order. passes bounds the work; progress is told each one.
func Tune(rows []Row, settings *Coefficients, passes int, progress func(regime string, pass int, loss float64)) (*Coefficients, error) {
	c := &Coefficients{Date: settings.Date, Regimes: settings.Regimes, rows: rows, weights: make([]float64, len(rows))}
	b, err := newBase(c)
	if err != nil {
		return nil, err
	}
	out := &Coefficients{Date: settings.Date, Regimes: map[string]*covariance{}}
	for r, l := range b.learnt {
		s := newSearch(l)
		for pass := range passes {
			before := s.best
			s.pass(pass > 0)
			if progress != nil {
				progress(regime(r).String(), pass, s.best)
			}
			if before-s.best < .001 {
				if s.step *= .6; s.step < .2 {
					break
				}
			}
		}
		out.Regimes[regime(r).String()] = s.now
	}
	return out, nil
}

// search is the state of a walk over one regime.
type search struct {
	l     *learnt
	raw   []features // before scaling
	turn  int        // counts moves, for the order
	now   *covariance
	best  float64
	step  float64
	group []int
	card  []int
}

func newSearch(l *learnt) *search {
	l = l.thinned(900)
	n := len(l.points)
	s := &search{l: l, step: 1.2, now: l.covariance.copy(), raw: make([]features, n)}
	for i := range l.points {
		row := l.points[i].row
		sit, h, _ := ofRow(row)
		_, s.raw[i] = roofline(sit, h, nil)
	}
	s.group = l.labels(func(p *point) string { return groupOf(p.row) })
	s.card = l.labels(func(p *point) string { return p.row.GPU })
	s.best = s.loss(s.now)
	return s
}

// thinned keeps at most about so many points, by dropping every second one of
// the largest groups until the rest is few enough: a search inverts a matrix
// of all points some thousand times.
func (l *learnt) thinned(most int) *learnt {
	out := *l
	out.points = slices.Clone(l.points)
	for len(out.points) > most {
		label := out.labels(func(p *point) string { return groupOf(p.row) })
		size := map[int]int{}
		for _, g := range label {
			size[g]++
		}
		largest := 0
		for _, n := range size {
			largest = max(largest, n)
		}
		seen := map[int]int{}
		kept := out.points[:0]
		for i, p := range out.points {
			g := label[i]
			seen[g]++
			if size[g] <= largest/2 || seen[g]%2 == 0 {
				kept = append(kept, p)
			}
		}
		out.points = kept
	}
	return &out
}

func (c *covariance) copy() *covariance {
	d := *c
	d.Terms = make(map[string]float64, len(c.Terms))
	for k, v := range c.Terms {
		d.Terms[k] = v
	}
	return &d
}

// loss judges a covariance: the mean absolute error of rows and of groups,
// bounded so that outliers do not rule, the likelihood of the errors, half as
// much for cards left out, and a little for every term.
func (s *search) loss(c *covariance) float64 {
	t, err := c.compile()
	if err != nil {
		return math.Inf(1)
	}
	l := *s.l
	l.covariance, l.tables = c, t
	l.points = slices.Clone(s.l.points)
	for i := range l.points {
		l.points[i].x = t.scaled(s.raw[i])
	}
	k := l.matrix()
	if !inverse(k) {
		return math.Inf(1)
	}
	v := &validation{inverse: k, weights: make([]float64, len(k))}
	y := make([]float64, len(k))
	for i := range y {
		y[i] = l.points[i].y
	}
	for i := range k {
		v.weights[i] = dot(k[i], y)
	}
	var byGroup, byCard float64
	var wait sync.WaitGroup
	wait.Go(func() { byGroup = meanError(v.without(s.group), s.group, .6) })
	wait.Go(func() { byCard = meanError(v.without(s.card), s.card, 1.2) })
	wait.Wait()
	return byGroup + .15*byCard + .0004*float64(len(c.Terms))
}

// meanError is the mean over rows plus the mean over labels.
func meanError(errs []float64, label []int, limit float64) float64 {
	sums, counts := map[int]float64{}, map[int]float64{}
	rows := 0.0
	for i, e := range errs {
		// The square draws in the large errors that the limit hides.
		a := math.Min(math.Abs(e), limit) + .05*math.Log1p(e*e)
		rows += a
		sums[label[i]] += a
		counts[label[i]]++
	}
	groups := 0.0
	for k, x := range sums {
		groups += x / counts[k]
	}
	return rows/float64(len(errs)) + groups/float64(len(sums))
}

// try keeps a change when it is better.
func (s *search) try(change func(*covariance)) bool {
	c := s.now.copy()
	change(c)
	if x := s.loss(c); x < s.best-1e-5 {
		s.best, s.now = x, c
		return true
	}
	return false
}

func (s *search) pass(prune bool) {
	type move func(c *covariance, factor float64)
	var moves []move
	for block, names := range candidates {
		for _, n := range names {
			name := string(rune('0'+block)) + ":" + n
			moves = append(moves, func(c *covariance, factor float64) {
				v, ok := c.Terms[name]
				switch {
				case !ok && factor > 1:
					v = .03
				case !ok:
					v = .003
				default:
					v *= factor * factor
				}
				c.Terms[name] = math.Min(v, 30)
				if v < 1e-5 {
					delete(c.Terms, name)
				}
			})
		}
	}
	for b := range s.now.Lengths {
		for i := range s.now.Lengths[b] {
			if s.now.Lengths[b][i] > 0 {
				moves = append(moves, func(c *covariance, factor float64) { c.Lengths[b][i] *= math.Sqrt(factor) })
			}
		}
	}
	moves = append(moves,
		func(c *covariance, factor float64) { c.Near *= math.Sqrt(factor) },
		func(c *covariance, factor float64) { c.Noise = math.Max(3e-4, c.Noise*factor) })
	// A stride that shares no factor with the number of moves mixes their order.
	stride := len(moves)/3 + s.turn%7 + 1
	for gcd(stride, len(moves)) != 1 {
		stride++
	}
	for i := range moves {
		m := moves[(i*stride+s.turn)%len(moves)]
		factor := math.Exp(s.step)
		if s.turn++; s.turn%3 == 0 {
			factor = 1 / factor
		}
		if !s.try(func(c *covariance) { m(c, factor) }) {
			s.try(func(c *covariance) { m(c, 1/factor) })
		}
	}
	if prune {
		names := make([]string, 0, len(s.now.Terms))
		for n := range s.now.Terms {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			s.try(func(c *covariance) { delete(c.Terms, n) })
		}
	}
	for n, v := range s.now.Terms {
		s.now.Terms[n] = round(v)
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Neutral is where a search from nothing begins: moderate effects of every
// kind and middle lengths.
func Neutral() *Coefficients {
	c := &Coefficients{Regimes: map[string]*covariance{}}
	for r := range regimes {
		v := &covariance{Terms: map[string]float64{
			"0:": 30, "0:program": .05, "0:card": .02, "0:card+program": .02, "0:near": .2, "0:near+program": .05, "0:model": .01, "0:model+program": .01,
			"0:program+precision": .02, "0:program+special": .02, "1:program": .05, "1:card+program": .01, "1:near": .02, "2:program": .05, "2:near": .02,
		}, Near: 2, Noise: .003}
		used := map[regime][2]int{decoding: {4, 2}, prefilling: {4, 2}, serving: {4, 4}, training: {4, 2}, imageTraining: {1, 1}, imageInferring: {1, 1}}[r]
		for b, n := range used {
			for i := range n {
				v.Lengths[b][i] = 1.5
			}
		}
		c.Regimes[r.String()] = v
	}
	return c
}

// Nested judges the whole procedure: the groups are split into parts; for each
// part the covariances are searched from nothing and the fit is made on the
// other parts alone, ranges included, and then scored on the part.
func Nested(rows []Row, parts, passes int, progress func(part int, regime string, pass int, loss float64)) (Result, error) {
	var all []tested
	for part := range parts {
		var train, test []Row
		for _, r := range rows {
			if int(foldOf(groupOf(&r))[0])%parts == part {
				test = append(test, r)
			} else {
				train = append(train, r)
			}
		}
		settings, err := Tune(train, Neutral(), passes, func(regime string, pass int, loss float64) {
			if progress != nil {
				progress(part, regime, pass, loss)
			}
		})
		if err != nil {
			return Result{}, err
		}
		fitted, _, err := Learn(train, settings, "")
		if err != nil {
			return Result{}, err
		}
		e, err := Using(fitted)
		if err != nil {
			return Result{}, err
		}
		_, done := e.score(test)
		all = append(all, done...)
	}
	return summarize(all), nil
}
