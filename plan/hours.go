package plan

import (
	"fmt"
	"math"
	"strconv"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
)

// estimate gives the hours of the job's work on a GPU model and count. It is
// computed once for each and shared by all offers of that kind.
func (r *ranker) estimate(m *gpu.Model, count int, cut gpu.Partition) *estimated {
	key := estimateKey{m, count, cut}
	if e, ok := r.estimates[key]; ok {
		return e
	}
	e := &estimated{Estimate: Estimate{Model: m, Count: count}}
	r.estimates[key] = e
	w := r.job.Work
	switch {
	case len(w.Hours) > 0:
		r.statedHours(e, w.Hours)
	case w.Units != nil:
		r.unitHours(e, w.Units)
	default:
		r.modelHours(e, cut)
	}
	if e.Fit.Verdict == "" {
		e.Fit.Verdict = "fits"
	}
	if m != nil && e.Fit.HaveGB == 0 {
		e.Fit.HaveGB = memoryOf(m, cut) * float64(max(1, count))
	}
	share := shareOf(m, cut)
	if share < 1 && e.Evidence == Stated && !r.asksCut(cut) {
		e.Hours = Quantiles{e.Hours.P10, e.Hours.P50 / share, e.Hours.P90 / share * 1.5, e.Hours.Expected / share}
		e.Rate *= share
		e.Evidence = Specification
		e.Basis += ", scaled to the part of the card that is sold"
	}
	return e
}

// asksCut says whether the job's own requests name this partition, so that
// its stated hours are meant for it.
func (r *ranker) asksCut(cut gpu.Partition) bool {
	for i := range r.wanted {
		if r.wanted[i].Partition == cut {
			return true
		}
	}
	return false
}

// memoryOf is the memory in GB of what is sold of one card.
func memoryOf(m *gpu.Model, cut gpu.Partition) float64 {
	switch {
	case cut.Profile != "":
		if p, ok := m.Profile(cut.Profile); ok {
			return p.MemoryGB
		}
	case cut.Share > 0:
		return m.MemoryGB * cut.Share
	}
	return m.MemoryGB
}

// shareOf is the share of a card's compute that is sold.
func shareOf(m *gpu.Model, cut gpu.Partition) float64 {
	if cut.Profile != "" && m != nil {
		if p, ok := m.Profile(cut.Profile); ok && p.ComputeShare > 0 {
			return p.ComputeShare
		}
	}
	if cut.Share > 0 {
		return cut.Share
	}
	return 1
}

// A stated is one figure of the job file: hours or a rate per hour, for the
// cards and the count of its key.
type stated struct {
	key   gpu.Request
	count int
	hours float64
}

func (r *ranker) statedHours(e *estimated, hours []job.Hours) {
	all := make([]stated, len(hours))
	for i, h := range hours {
		all[i] = stated{h.Key, h.Key.Count, h.Hours}
	}
	r.fromStated(e, all)
}

func (r *ranker) unitHours(e *estimated, u *job.Units) {
	all := make([]stated, len(u.Rates))
	for i, x := range u.Rates {
		all[i] = stated{x.Key, x.Key.Count, u.Count / x.PerHour}
	}
	r.fromStated(e, all)
	if e.refusal.Kind == "" {
		e.Unit = u.Unit
		if e.Unit == "" {
			e.Unit = "unit"
		}
		e.Rate = u.Count / e.Hours.Expected
	}
}

// fromStated takes the figure that the job states for the card, the most
// particular one first; else it scales the figure of the most alike card.
func (r *ranker) fromStated(e *estimated, all []stated) {
	if e.Model == nil {
		if len(all) == 1 {
			e.Hours, e.Evidence, e.Basis = Exactly(all[0].hours), Stated, "hours stated in the job"
			return
		}
		e.refusal = Refusal{Kind: RefusedGPU, text: "the job states hours for GPUs only"}
		return
	}
	best := -1
	for i := range all {
		s := &all[i]
		if !s.key.Matches(e.Model) || s.count != 0 && s.count != e.Count {
			continue
		}
		if best < 0 || s.key.Width() < all[best].key.Width() || s.key.Width() == all[best].key.Width() && s.count > all[best].count {
			best = i
		}
	}
	if best >= 0 {
		e.Hours, e.Evidence = Exactly(all[best].hours), Stated
		e.Basis = "stated in the job for " + all[best].key.String()
		return
	}
	r.scaled(e, all)
}

// scaled carries a stated figure over to another card by the ratio of their
// dense FP16 TFLOPS and of their bandwidths: work is limited by one, the
// other or both, so the two ratios span the range and their geometric mean is
// the estimate. Another count scales linearly, at 90 % per doubling.
func (r *ranker) scaled(e *estimated, all []stated) {
	const (
		slack   = 1.3 // beyond the two ratios, for all that a specification does not say
		perTwo  = 0.9
		unequal = 8 // cards further apart than this are still scaled, the range says so
	)
	bestFar := math.Inf(1)
	for _, s := range all {
		ref := s.key.Nearest(e.Model)
		if ref == nil {
			continue
		}
		fa, fb := flops(ref), flops(e.Model)
		if fa == 0 || fb == 0 || ref.BandwidthGBs == 0 || e.Model.BandwidthGBs == 0 {
			continue
		}
		byFlops, byBandwidth := fa/fb, ref.BandwidthGBs/e.Model.BandwidthGBs
		count := max(1, s.count)
		if s.count == 0 {
			count = e.Count
		}
		many := float64(count) / float64(e.Count)
		doublings := math.Abs(math.Log2(many))
		far := math.Abs(math.Log(byFlops)) + math.Abs(math.Log(byBandwidth)) + doublings
		if ref.Vendor != e.Model.Vendor {
			far += unequal
		}
		if far >= bestFar {
			continue
		}
		bestFar = far
		lost := math.Pow(1/perTwo, doublings)
		mid := s.hours * math.Sqrt(byFlops*byBandwidth) * many
		if many > 1 {
			mid /= lost
		} else {
			mid *= lost
		}
		low := mid * math.Min(byFlops, byBandwidth) / math.Sqrt(byFlops*byBandwidth) / slack / lost
		high := mid * math.Max(byFlops, byBandwidth) / math.Sqrt(byFlops*byBandwidth) * slack * lost
		e.Hours = Quantiles{P10: low, P50: mid, P90: high, Expected: (low + 2*mid + high) / 4}
		e.Basis = fmt.Sprintf("scaled from %s by FP16 x %s and bandwidth x %s", s.key.String(), ratio(1/byFlops), ratio(1/byBandwidth))
	}
	if math.IsInf(bestFar, 1) {
		e.refusal = Refusal{Kind: RefusedGPU, text: "the job states no hours for it and its figures are unknown"}
		return
	}
	e.Evidence = Specification
}

// flops is the dense rate on matrix units, or the plain one of a card without.
func flops(m *gpu.Model) float64 {
	if m.FP16TFLOPS > 0 {
		return m.FP16TFLOPS
	}
	return m.FP32TFLOPS
}

func ratio(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }
