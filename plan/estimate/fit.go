package estimate

import (
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
)

// Report is what a fit says about itself, on rows that were each predicted
// from a fit without them.
type Report struct {
	Groups  Result            // ten folds of whole (card, model) groups
	Cards   map[string]Result // by workload and metric: cards never seen
	Sources map[string]Result // by source: nothing of that source was seen
}

// folds of the cross-validation by groups.
const folds = 10

// Learn fits from measured rows, starting from the covariances of settings:
// the weights of all rows, the spread of the error by evidence, and how far a
// calibration on one card carries to others. Rows without a rate are kept for
// the memory check. date (YYYY-MM-DD) is written into the result.
//
// All cross-validation is exact: the prediction of rows left out follows from
// the inverse of the covariance of all rows.
func Learn(rows []Row, settings *Coefficients, date string) (*Coefficients, *Report, error) {
	out := &Coefficients{Date: date, Rows: len(rows), Regimes: map[string]*covariance{}, rows: slices.Clone(rows), weights: make([]float64, len(rows))}
	for r := range regimes {
		v, ok := settings.Regimes[r.String()]
		if !ok {
			return nil, nil, fault.New(fault.Internal, "settings lack %s", r)
		}
		c := *v
		out.Regimes[r.String()] = &c
	}
	b, err := newBase(out)
	if err != nil {
		return nil, nil, err
	}
	at := map[*Row]int{}
	for i := range out.rows {
		at[&out.rows[i]] = i
	}
	var groups, sources []tested
	cards := map[string][]tested{}
	for r, l := range b.learnt {
		if len(l.points) == 0 {
			return nil, nil, fault.New(fault.Invalid, "no rows to fit %s on", regime(r)).Hint("a fit needs rows of every kind of work; add yours to the published ones")
		}
		v, err := l.validate()
		if err != nil {
			return nil, nil, err
		}
		for i := range l.points {
			out.weights[at[l.points[i].row]] = round(v.weights[i])
		}
		l.spread(v)
		groups = append(groups, l.tested(v.folded, v.group)...)
		sources = append(sources, l.tested(v.bySource, v.source)...)
		for _, t := range l.tested(v.byCard, v.card) {
			key := t.row.Workload
			if regime(r) == serving {
				key += " in batches"
			}
			cards[key] = append(cards[key], t)
		}
	}
	rep := &Report{Groups: summarize(groups), Cards: map[string]Result{}, Sources: map[string]Result{}}
	for k, t := range cards {
		rep.Cards[k] = summarize(t)
	}
	split := map[string][]tested{}
	for _, t := range sources {
		split[sourceName(t.row.Source)] = append(split[sourceName(t.row.Source)], t)
	}
	for k, t := range split {
		rep.Sources[k] = summarize(t)
	}
	return out, rep, nil
}

// round keeps seven digits, so that a fit can be compared as text.
func round(x float64) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow(10, 6-math.Floor(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}

// sourceName is the repository or site of a source, without its release.
func sourceName(s string) string {
	if i := strings.Index(s, "llmfit"); i >= 0 {
		return "AlexsJones/llmfit"
	}
	s = strings.TrimPrefix(s, "github:")
	if i := strings.IndexAny(s, "@ "); i >= 0 {
		s = s[:i]
	}
	parts := strings.SplitN(s, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// validation is a fit of one regime with the errors, log(measured/estimate),
// that each point has when more and more of what is like it is left out.
type validation struct {
	weights  []float64
	alone    []float64 // only the point left out
	grouped  []float64 // its (card, model)
	folded   []float64 // its fold of groups
	byCard   []float64
	byArch   []float64
	bySource []float64

	group, fold, card, arch, source []int
	inverse                         [][]float64
}

// labels numbers the points by a key.
func (l *learnt) labels(key func(*point) string) []int {
	ids := map[string]int{}
	out := make([]int, len(l.points))
	for i := range l.points {
		k := key(&l.points[i])
		id, ok := ids[k]
		if !ok {
			id = len(ids)
			ids[k] = id
		}
		out[i] = id
	}
	return out
}

// Group is the (card, model family) pair of a row, by which rows are left out.
func (r *Row) Group() string { return groupOf(r) }

func groupOf(r *Row) string {
	card, _ := r.card()
	m, _ := r.network()
	if card == nil || m == nil {
		return r.GPU + "|" + r.Model
	}
	return card.ID + "|" + m.family
}

// matrix is the covariance of all points with the noise of measurement.
func (l *learnt) matrix() [][]float64 {
	alike := square(len(l.cards))
	for i := range l.cards {
		for j := range l.cards {
			alike[i][j] = l.nearness(&l.cards[i], &l.cards[j])
		}
	}
	k := square(len(l.points))
	for i := range l.points {
		for j := range i + 1 {
			a, b := &l.points[i], &l.points[j]
			k[i][j] = l.covar(a, b, alike[a.card][b.card])
			k[j][i] = k[i][j]
		}
		k[i][i] += l.covariance.Noise
	}
	return k
}

func (l *learnt) validate() (*validation, error) {
	n := len(l.points)
	k := l.matrix()
	if !inverse(k) {
		return nil, fault.New(fault.Internal, "the covariance is not positive definite").Hint("raise the noise of this regime")
	}
	v := &validation{inverse: k, weights: make([]float64, n)}
	y := make([]float64, n)
	for i := range y {
		y[i] = l.points[i].y
	}
	for i := range k {
		v.weights[i] = dot(k[i], y)
	}
	v.group = l.labels(func(p *point) string { return groupOf(p.row) })
	v.fold = l.labels(func(p *point) string { return foldOf(groupOf(p.row)) })
	v.card = l.labels(func(p *point) string { return p.row.GPU })
	v.arch = l.labels(func(p *point) string { return architecture(l.cards[p.card].card) })
	v.source = l.labels(func(p *point) string { return sourceName(p.row.Source) })
	each := make([]int, n)
	for i := range each {
		each[i] = i
	}
	v.alone = v.without(each)
	v.grouped = v.without(v.group)
	v.folded = v.without(v.fold)
	v.byCard = v.without(v.card)
	v.byArch = v.without(v.arch)
	v.bySource = v.without(v.source)
	return v, nil
}

// foldOf puts a group into one of the folds, the same in every run.
func foldOf(group string) string {
	h := fnv.New32a()
	h.Write([]byte(group))
	return string(rune('a' + h.Sum32()%folds))
}

// without gives each point's error when all points of its label are left out:
// with C the block of the inverse for those points and w their weights, the
// errors are C^-1 w.
func (v *validation) without(label []int) []float64 {
	members := map[int][]int{}
	for i, x := range label {
		members[x] = append(members[x], i)
	}
	out := make([]float64, len(label))
	for _, m := range members {
		block := square(len(m))
		e := make([]float64, len(m))
		for a, i := range m {
			for b, j := range m[:a+1] {
				block[a][b] = v.inverse[i][j]
			}
			e[a] = v.weights[i]
		}
		if !cholesky(block) {
			continue
		}
		solve(block, e)
		for a, i := range m {
			out[i] = e[a]
		}
	}
	return out
}

// tested is a row with its error when it was predicted unseen.
type tested struct {
	row     *Row
	group   string
	err     float64 // log(measured/estimate)
	covered bool
}

// tested pairs the points with their errors. Whether an interval covers is
// judged with the interval of the evidence that was left.
func (l *learnt) tested(errs []float64, label []int) []tested {
	out := make([]tested, len(l.points))
	for i := range l.points {
		p := &l.points[i]
		e := l.evidenceWithout(i, label)
		lo, hi := l.interval(e, engineFamily(knownEngine(p.row.Engine)), l.stackWithout(i, label))
		out[i] = tested{row: p.row, group: groupOf(p.row), err: errs[i], covered: errs[i] >= lo && errs[i] <= hi}
	}
	return out
}

// evidenceWithout is the evidence for a point from those of other labels.
func (l *learnt) evidenceWithout(at int, label []int) Evidence {
	best := 0
	for i := range l.points {
		if label[i] != label[at] {
			best = max(best, kinship(equal(&l.points[i].class, &l.points[at].class)))
		}
	}
	return kinships[best]
}

// stackWithout says whether points of other labels have the point's engine.
func (l *learnt) stackWithout(at int, label []int) bool {
	for i := range l.points {
		if label[i] != label[at] && l.points[i].class[ofEngineFamily] == l.points[at].class[ofEngineFamily] {
			return true
		}
	}
	return false
}

// spread sets the error's quantiles by evidence, and by evidence and engine
// where there are enough rows. Groups left out stand for the same card with
// another model; cards and architectures left out for the weaker evidence.
func (l *learnt) spread(v *validation) {
	pools := map[string][]float64{}
	put := func(errs []float64, label []int, only ...Evidence) {
		for i := range l.points {
			e := l.evidenceWithout(i, label)
			if slices.Contains(only, e) {
				pools[string(e)] = append(pools[string(e)], errs[i])
				key := string(e) + "/" + engineFamily(knownEngine(l.points[i].row.Engine))
				pools[key] = append(pools[key], errs[i])
			}
		}
	}
	each := make([]int, len(l.points))
	for i := range each {
		each[i] = i
	}
	put(v.alone, each, MeasuredHere)
	put(v.folded, v.group, SameGPUStack, SameGPU)
	put(v.byCard, v.card, SameArchitecture)
	put(v.byArch, v.arch, Specification)
	for i := range l.points {
		if !l.stackWithout(i, v.source) {
			pools[newStack] = append(pools[newStack], v.bySource[i])
		}
	}
	l.covariance.Spread = map[string][]float64{}
	widest := [2]float64{-.02, .02}
	narrower := map[string][2]float64{} // by engine, at the evidence before
	for _, e := range []Evidence{MeasuredHere, SameGPUStack, SameGPU, SameArchitecture, Specification} {
		if errs := pools[string(e)]; len(errs) >= 20 {
			slices.Sort(errs)
			q := [2]float64{quantile(errs, .1), quantile(errs, .9)}
			// Less evidence never gives a narrower range.
			widest = [2]float64{math.Min(widest[0], q[0]), math.Max(widest[1], q[1])}
		} else if e != MeasuredHere {
			widest = [2]float64{widest[0] * 1.3, widest[1] * 1.3}
		}
		l.covariance.Spread[string(e)] = []float64{round(widest[0]), round(widest[1])}
		for key, errs := range pools {
			if !strings.HasPrefix(key, string(e)+"/") || len(errs) < 40 {
				continue
			}
			slices.Sort(errs)
			// An engine's own quantiles are drawn towards those of all.
			w := float64(len(errs)) / float64(len(errs)+40)
			own := [2]float64{w*quantile(errs, .1) + (1-w)*widest[0], w*quantile(errs, .9) + (1-w)*widest[1]}
			engine := strings.TrimPrefix(key, string(e)+"/")
			if before, ok := narrower[engine]; ok {
				own = [2]float64{math.Min(own[0], before[0]), math.Max(own[1], before[1])}
			}
			narrower[engine] = own
			l.covariance.Spread[key] = []float64{round(math.Min(-.02, own[0])), round(math.Max(.02, own[1]))}
		}
	}
	if errs := pools[newStack]; len(errs) >= 20 {
		slices.Sort(errs)
		widest = [2]float64{math.Min(widest[0], quantile(errs, .1)), math.Max(widest[1], quantile(errs, .9))}
	}
	l.covariance.Spread[newStack] = []float64{round(math.Max(-2, widest[0])), round(math.Min(2, widest[1]))}
	l.carry(v)
}

// carry learns how much of the error on one card the same job shares on
// another, over all pairs of one source, from errors with that source left
// out: like a user's own setting, it was never seen.
func (l *learnt) carry(v *validation) {
	byJob := map[string][]int{}
	for i := range l.points {
		r := l.points[i].row
		m, _ := r.network()
		key := strings.Join([]string{sourceName(r.Source), m.family, r.Precision, r.Engine, string(r.Metric), fmtFloat(r.Batch), fmtFloat(r.In), fmtFloat(r.Out)}, "|")
		byJob[key] = append(byJob[key], i)
	}
	limit := func(x float64) float64 { return math.Max(-.7, math.Min(.7, x)) }
	var xy, xx, n float64
	for _, job := range byJob {
		for _, i := range job {
			for _, j := range job {
				if l.points[i].card != l.points[j].card {
					a, b := limit(v.bySource[i]), limit(v.bySource[j])
					w := 1 / float64(len(job))
					xy += w * a * b
					xx += w * a * a
					n += w
				}
			}
		}
	}
	share := 0.5
	if n >= 5 && xx > 0 {
		share = math.Max(.2, math.Min(.95, (xy+.5*.02*5)/(xx+.02*5)))
	}
	l.covariance.Carry = round(share)
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
