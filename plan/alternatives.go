package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// alternatives are the ways to get the work done that are no offer: tokens
// from an API for work that makes tokens, and a reservation for a service.
// The cheapest come first, at most three of a kind.
func (r *ranker) alternatives(p *Plan) []Alternative {
	out := append(r.variants(p), r.apis()...)
	if r.job.Work.Traffic != nil {
		out = append(out, r.reservations(p)...)
	}
	return out
}

// tokens gives how many tokens the work reads and writes and of which model;
// for a service in one month.
func (r *ranker) tokens() (model string, in, out float64) {
	switch w := r.job.Work; {
	case w.Generate != nil:
		return w.Generate.Model.Name, w.Generate.InputTokens, w.Generate.OutputTokens
	case w.Traffic != nil:
		requests := w.Traffic.RequestsPerDay * money.MonthHours / 24
		return w.Traffic.Model.Name, requests * w.Traffic.InputTokens, requests * w.Traffic.OutputTokens
	}
	return "", 0, 0
}

func (r *ranker) apis() []Alternative {
	model, in, out := r.tokens()
	if model == "" {
		return nil
	}
	var found []Alternative
	for _, t := range r.in.World.Tokens {
		if !SameModel(model, t.Model) {
			continue
		}
		a, err := t.Input.Times(in / 1e6)
		if err != nil {
			continue
		}
		b, err := t.Output.Times(out / 1e6)
		if err != nil {
			continue
		}
		cost, err := a.Add(b)
		if err != nil {
			continue
		}
		if cost, err = r.in.Exchange.Convert(cost, "USD", r.currency); err != nil {
			continue
		}
		found = append(found, Alternative{Kind: "api", Name: t.Provider + " " + t.Model, Cost: cost,
			Note: t.Input.String() + " USD in, " + t.Output.String() + " USD out per million tokens", Source: t.Source, AsOf: t.AsOf})
	}
	return cheapest(found)
}

func cheapest(all []Alternative) []Alternative {
	slices.SortStableFunc(all, func(a, b Alternative) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Name, b.Name))
	})
	return all[:min(3, len(all))]
}

// SameModel says whether two spellings name one model: owner, case and marks
// do not count, nor do the words that APIs add.
func SameModel(a, b string) bool { return modelKey(a) == modelKey(b) }

func modelKey(s string) string {
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		s = s[i+1:]
	}
	s = strings.ToLower(s)
	for _, word := range []string{"meta-", "-instruct", "-turbo", "-versatile", "-instant", "-it", "-hf", "-fp8"} {
		s = strings.ReplaceAll(s, word, "")
	}
	return strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || c == '.' || c == ' ' || c == ':' {
			return -1
		}
		return c
	}, s)
}

// reservations are what the machines of the service would cost in a month
// under a commitment, from the reserved offers for the same GPUs.
func (r *ranker) reservations(p *Plan) []Alternative {
	var found []Alternative
	for _, refused := range p.Refused {
		o := refused.Offer
		if refused.Kind != RefusedTerms || o.Terms != offer.Reserved || o.Prices.Compute == nil {
			continue
		}
		count, ref := r.match(o)
		if ref.Kind != "" {
			continue
		}
		e := r.estimate(o.GPU, count, o.Partition)
		if e.refusal.Kind != "" {
			continue
		}
		hour, err := r.convert(o, o.Prices.Compute.Amount)
		if err != nil {
			continue
		}
		month, err := hour.MulDiv(int64(max(1, e.Replicas))*money.MonthHours, 1)
		if err != nil {
			continue
		}
		if up := o.Prices.Upfront; up != nil && o.TermMonths > 0 {
			share, err := up.Amount.MulDiv(int64(max(1, e.Replicas)), int64(o.TermMonths))
			if err == nil {
				share, err = r.convert(o, share)
			}
			if err == nil {
				month, err = month.Add(share)
			}
			if err != nil {
				continue
			}
		}
		note := "per month"
		if o.TermMonths == 1 {
			note += ", committed for a month"
		} else if o.TermMonths > 1 {
			note += ", committed for " + strconv.Itoa(o.TermMonths) + " months"
		}
		found = append(found, Alternative{Kind: "reservation", Name: o.Provider + " " + strconv.Itoa(o.GPUCount*max(1, e.Replicas)) + "x " + o.GPUName(),
			Cost: month, Note: note, Source: o.Source, AsOf: o.AsOf})
	}
	return cheapest(found)
}
