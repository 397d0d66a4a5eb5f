package plan

import (
	"fmt"
	"math"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/plan/estimate"
)

// ModelWork makes the estimator's work of a job's; nil for stated hours and
// units, which need no estimate. Its mistakes are faults of the kind Invalid.
// What the user has measured counts as the best evidence.
func ModelWork(j *job.Spec, measured []Measured, own []estimate.Row) (*estimate.Job, error) {
	w := j.Work
	var ref job.Model
	switch {
	case w == nil || len(w.Hours) > 0 || w.Units != nil:
		return nil, nil
	case w.Generate != nil:
		ref = w.Generate.Model
	case w.Finetune != nil:
		ref = w.Finetune.Model
	case w.Train != nil:
		ref = w.Train.Model
	case w.Images != nil:
		ref = w.Images.Model
	case w.Traffic != nil:
		ref = w.Traffic.Model
	}
	m, err := modelOf(ref)
	if err != nil {
		return nil, err
	}
	var work estimate.Work
	switch {
	case w.Generate != nil:
		g := w.Generate
		work = estimate.Generate{Model: m, Precision: g.Precision, Engine: g.Engine, Concurrency: g.Concurrency,
			InputTokens: g.InputTokens, OutputTokens: g.OutputTokens, Context: g.Context}
	case w.Finetune != nil:
		f := w.Finetune
		work = estimate.Finetune{Model: m, Method: f.Method, Stack: f.Stack, Sequence: f.Sequence, Tokens: f.Tokens * f.Epochs}
	case w.Train != nil:
		work = estimate.Train{Model: m, Precision: w.Train.Precision, Tokens: w.Train.Tokens}
	case w.Images != nil:
		i := w.Images
		work = estimate.Images{Model: m, Mode: i.Mode, Count: i.Images * i.Epochs}
	case w.Traffic != nil:
		t := w.Traffic
		month := t.RequestsPerDay * money.MonthHours / 24
		work = estimate.Generate{Model: m, Precision: m.Format, InputTokens: month * t.InputTokens, OutputTokens: month * t.OutputTokens,
			Context: int(math.Ceil(t.InputTokens + t.OutputTokens))}
	}
	k, err := estimate.New(own...).Prepare(work)
	if err != nil {
		return nil, err
	}
	for _, c := range measured {
		card, ok := gpu.ByID(c.GPU)
		if c.Job != j.Name || !ok {
			continue
		}
		if k, err = k.Calibrated(card, c.Count, gpu.Partition{}, c.Rate); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// modelOf finds the model that a job names, or makes one of its description.
func modelOf(ref job.Model) (*estimate.Model, error) {
	d := estimate.Model{ID: ref.Name, Params: ref.Params / 1e9, Active: ref.Active / 1e9, Layers: float64(ref.Layers), Hidden: float64(ref.Hidden),
		KVHeads: float64(ref.KVHeads), HeadDim: float64(ref.HeadDim), Vocab: float64(ref.Vocab), Context: float64(ref.Context)}
	if f := ref.File; f != nil {
		d.WeightsGB, d.Format = float64(f.Weights)/1e9, f.Precision
		d.Width, d.Experts, d.Routed, d.Tied = float64(f.Width), float64(f.Experts), float64(f.Routed), f.Tied
	}
	described := ref.Params > 0 || ref.Layers > 0
	if ref.Name != "" && !described {
		return estimate.FindModel(ref.Name)
	}
	return estimate.Described(d)
}

// modelHours gives the hours of work that names a model.
func (r *ranker) modelHours(e *estimated, cut gpu.Partition) {
	if e.Model == nil {
		e.refusal = Refusal{Kind: RefusedGPU, text: "has no GPU"}
		return
	}
	got, err := r.work.On(e.Model, e.Count, cut)
	if err != nil {
		e.refusal = Refusal{Kind: RefusedGPU, text: err.Error()}
		return
	}
	e.Fit = Fit{Verdict: string(got.Fit.Verdict), NeedGB: round1(got.Fit.NeedGB), HaveGB: round1(got.Fit.HaveGB)}
	if got.Fit.Verdict == estimate.NoFit {
		e.refusal = Refusal{Kind: RefusedMemory, need: got.Fit.NeedGB, have: got.Fit.HaveGB}
		return
	}
	e.WeightsGB, e.Evidence, e.Unit = got.Weights, Evidence(got.Evidence), got.Unit
	e.Rate = got.Rate.P50 * 3600
	e.Basis = fmt.Sprintf("%.4g %ss/s (%.3g to %.3g)", got.Rate.P50, got.Unit, got.Rate.P10, got.Rate.P90)
	if t := r.job.Work.Traffic; t != nil {
		busiest := r.work.Units() / money.MonthHours / 3600 * t.Peak
		machines := math.Max(1, math.Ceil(busiest/got.Rate.P50*0.999999))
		if machines > 100_000 {
			e.refusal = Refusal{Kind: RefusedGPU, text: "it would take more than 100000 machines"}
			return
		}
		e.Replicas, e.Hours = int(machines), Exactly(money.MonthHours)
		e.Basis += fmt.Sprintf("; %d machines carry the peak of %.3g %ss/s for a month", e.Replicas, busiest, got.Unit)
		return
	}
	e.Hours = Quantiles(got.Hours).Times(1 / float64(r.nodes))
}

// at gives the hours at a provider whose machines the user's own measurements
// tell apart from others with the same card.
func (r *ranker) at(provider string, est *estimated, cut gpu.Partition) *estimated {
	if r.work == nil || est.Model == nil || est.refusal.Kind != "" {
		return est
	}
	effect := r.work.Effect(provider, est.Model)
	if effect.Rows == 0 {
		return est
	}
	there := *r
	there.work = r.work.At(provider)
	e := *est
	there.modelHours(&e, cut)
	e.Basis += "; " + effect.String()
	return &e
}

// variants are the least changes under which a job that fits nowhere fits
// somewhere, each with what it would cost there. The cheapest come first.
func (r *ranker) variants(p *Plan) []Alternative {
	if r.work == nil || len(p.Options) > 0 {
		return nil
	}
	const kinds = 12 // of cards and counts that are tried
	seen := map[estimateKey]bool{}
	least := map[string]Alternative{}
	for _, ref := range p.Refused {
		o := ref.Offer
		if ref.Kind != RefusedMemory || o.GPU == nil {
			continue
		}
		count, not := r.match(o)
		key := estimateKey{o.GPU, count, o.Partition}
		if not.Kind != "" || seen[key] || len(seen) == kinds {
			continue
		}
		seen[key] = true
		for _, v := range (&estimate.Estimator{}).Variants(r.work, o.GPU, count, o.Partition) {
			if a, ok := r.variant(v); ok {
				if old, ok := least[v.Change]; !ok || a.Cost < old.Cost {
					least[v.Change] = a
				}
			}
		}
	}
	var all []Alternative
	for _, a := range least {
		all = append(all, a)
	}
	return cheapest(all)
}

// variant finds the cheapest offer for a changed job.
func (r *ranker) variant(v estimate.Variant) (Alternative, bool) {
	c := *r
	c.work, c.least, c.estimates, c.twins = v.Job, v.Count, map[estimateKey]*estimated{}, nil
	var best Option
	for _, o := range r.in.Offers {
		var opt Option
		if ref, err := c.weigh(o, &opt); err == nil && ref.Kind == "" && (best.Offer == nil || opt.Sum.Cost < best.Sum.Cost) {
			best = opt
		}
	}
	if best.Offer == nil {
		return Alternative{}, false
	}
	return Alternative{Kind: "variant", Name: v.Change + " on " + best.where(), Cost: best.Sum.Cost, Source: best.Offer.Source, AsOf: best.Offer.AsOf,
		Note: fmt.Sprintf("needs %s GB of %s GB", trim(best.Work.Fit.NeedGB), trim(best.Work.Fit.HaveGB))}, true
}

func trim(x float64) string { return fmt.Sprintf("%.4g", x) }

// errNoWork is what a job without work lacks.
func errNoWork(j *job.Spec) error {
	return fault.New(fault.Invalid, "job %q does not say how much work it is", j.Name).
		Hint("add work: with hours, finetune, train, generate, images, units or traffic; see `destajo schema job`")
}
