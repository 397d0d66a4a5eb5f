package estimate

import (
	"math"
	"slices"
	"strconv"

	"github.com/destajo/destajo/fault"
)

// Result is the estimator's score on measured rows.
type Result struct {
	Overall   Score            `json:"overall"`
	Workloads map[string]Score `json:"workloads"`
	Memory    MemoryScore      `json:"memory"`
	Seen      int              `json:"seen"` // rows that the coefficients were fitted on: their errors say little
}

// Score is the error on the rows of one workload. Errors are absolute and
// relative, |estimate/measured - 1|. A group is a (card, model family) pair and
// counts by its median.
type Score struct {
	Rows        int            `json:"rows"`
	Groups      int            `json:"groups"`
	RowMedian   float64        `json:"row_median"`
	RowP90      float64        `json:"row_p90"`
	GroupMedian float64        `json:"group_median"`
	GroupP90    float64        `json:"group_p90"`
	Coverage80  float64        `json:"coverage80"` // share of rows inside their 80 % range
	Unestimated int            `json:"unestimated"`
	Reasons     map[string]int `json:"unestimated_reasons,omitempty"`
}

// MemoryScore is how the memory estimate does: on rows with a peak, and on
// rows that ran or ran out of memory.
type MemoryScore struct {
	Rows                int     `json:"rows"`
	MedianInference     float64 `json:"median_inference"`
	MedianFinetune      float64 `json:"median_finetune"`
	P90                 float64 `json:"p90"`
	Ran                 int     `json:"ran"`
	OutOfMemory         int     `json:"out_of_memory"`
	FitsWrong           int     `json:"fits_wrong"`    // said fits, was out of memory
	RefusedWrong        int     `json:"refused_wrong"` // said no, ran
	RefusedWrongPercent float64 `json:"refused_wrong_percent"`
}

// summarize scores tested rows by workload.
func summarize(all []tested) Result {
	res := Result{Workloads: map[string]Score{}, Overall: scoreOf(all)}
	by := map[string][]tested{}
	for _, t := range all {
		by[t.row.Workload] = append(by[t.row.Workload], t)
	}
	for k, t := range by {
		res.Workloads[k] = scoreOf(t)
	}
	return res
}

func scoreOf(all []tested) Score {
	s := Score{Rows: len(all)}
	if len(all) == 0 {
		return s
	}
	rows := make([]float64, len(all))
	groups := map[string][]float64{}
	covered := 0
	for i, t := range all {
		rows[i] = math.Abs(math.Expm1(-t.err))
		groups[t.group] = append(groups[t.group], rows[i])
		if t.covered {
			covered++
		}
	}
	slices.Sort(rows)
	var medians []float64
	for _, g := range groups {
		slices.Sort(g)
		medians = append(medians, quantile(g, .5))
	}
	slices.Sort(medians)
	s.Groups = len(medians)
	s.RowMedian, s.RowP90 = digits(quantile(rows, .5)), digits(quantile(rows, .9))
	s.GroupMedian, s.GroupP90 = digits(quantile(medians, .5)), digits(quantile(medians, .9))
	s.Coverage80 = digits(float64(covered) / float64(len(all)))
	return s
}

func digits(x float64) float64 { return math.Round(x*1e4) / 1e4 }

func fmtFloat(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// Score judges the estimator on measured rows. It never fits on them: the
// coefficients stay as they are, also where rows of the file are among the
// published ones that those were fitted on (see Seen).
func (e *Estimator) Score(rows []Row) Result {
	res, _ := e.score(rows)
	return res
}

func (e *Estimator) score(rows []Row) (Result, []tested) {
	b := e.base
	if b == nil {
		b = embedded()
	}
	seen := map[string]bool{}
	for i := range b.rows {
		seen[b.rows[i].key()] = true
	}
	var done []tested
	missing := map[string]map[string]int{"": {}}
	known := 0
	memory := memoryTally{}
	for i := range rows {
		r := &rows[i]
		if r.Metric == spilled {
			continue // partly on the processor: not a figure of the card
		}
		s, h, err := ofRow(r)
		if r.Metric == Peak || r.Metric == Fits {
			if err == nil {
				memory.add(r, s, h)
			}
			continue
		}
		if err == nil && r.Value <= 0 {
			err = fault.New(fault.Invalid, "the rate is 0")
		}
		if err != nil {
			if missing[r.Workload] == nil {
				missing[r.Workload] = map[string]int{}
			}
			missing[r.Workload][err.Error()]++
			missing[""][err.Error()]++
			continue
		}
		if seen[r.key()] {
			known++
		}
		p := b.learnt[s.regime].prepare(s)
		base, x := roofline(s, h, nil)
		v := p.sight(h)
		mean := p.mean(v, x)
		lo, hi := p.range80(p.evidence(v))
		t := tested{row: r, group: groupOf(r), err: math.Log(r.Value) - base - mean}
		t.covered = t.err >= lo && t.err <= hi
		done = append(done, t)
		if s.regime != imageInferring && s.regime != imageTraining {
			memory.ran(s, h)
		}
	}
	res := summarize(done)
	res.Seen = known
	res.Overall.lacks(missing[""])
	for w, m := range missing {
		if w != "" {
			s := res.Workloads[w]
			s.lacks(m)
			res.Workloads[w] = s
		}
	}
	res.Memory = memory.score()
	return res, done
}

func (s *Score) lacks(reasons map[string]int) {
	for _, n := range reasons {
		s.Unestimated += n
	}
	if len(reasons) > 0 {
		s.Reasons = reasons
	}
}

// key tells rows apart.
func (r *Row) key() string {
	return groupOf(r) + "|" + r.Precision + "|" + r.Engine + "|" + string(r.Metric) + "|" + fmtFloat(r.Batch) + "|" + fmtFloat(r.In) + "|" + fmtFloat(r.Out) + "|" + strconv.Itoa(r.Count) + "|" + fmtFloat(r.Value)
}

// memoryTally gathers what rows say about memory.
type memoryTally struct {
	inference, finetune         []float64
	runs, oom, fitsWrong, noRan int
}

// add counts a row of memory: a peak, or whether it fit.
func (t *memoryTally) add(r *Row, s *situation, h *hardware) {
	if r.Metric == Fits {
		v := s.fit(h, 0, false).Verdict
		if r.Value > 0 {
			t.ran(s, h)
			return
		}
		t.oom++
		if v == FitsWell {
			t.fitsWrong++
		}
		return
	}
	t.ran(s, h)
	want := s.need(h.count, 0, false)
	e := math.Abs((want.asked-want.context)/h.count/r.perCard().Value - 1)
	if s.regime == training {
		t.finetune = append(t.finetune, e)
	} else {
		t.inference = append(t.inference, e)
	}
}

func (t *memoryTally) ran(s *situation, h *hardware) {
	t.runs++
	if s.fit(h, 0, false).Verdict == NoFit {
		t.noRan++
	}
}

func (t *memoryTally) score() MemoryScore {
	all := append(slices.Clone(t.inference), t.finetune...)
	m := MemoryScore{Rows: len(all), Ran: t.runs, OutOfMemory: t.oom, FitsWrong: t.fitsWrong, RefusedWrong: t.noRan}
	at := func(x []float64, q float64) float64 {
		if len(x) == 0 {
			return 0
		}
		slices.Sort(x)
		return digits(quantile(x, q))
	}
	m.MedianInference, m.MedianFinetune, m.P90 = at(t.inference, .5), at(t.finetune, .5), at(all, .9)
	if t.runs > 0 {
		m.RefusedWrongPercent = digits(100 * float64(t.noRan) / float64(t.runs))
	}
	return m
}
