package plan

import (
	"fmt"
	"strings"

	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Advice says in a few sentences what a person would say of the plan: where
// to run, what the nearest other kind of offer trades, and when an API, a
// reservation, own hardware or less disk is better.
func (p *Plan) Advice() string {
	if len(p.Options) == 0 {
		return p.noAdvice()
	}
	best := p.Options[0]
	// What may well be late is not recommended while something else is there.
	for _, o := range p.Options {
		if o.Late <= mayBeLate {
			best = o
			break
		}
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	say("Run it on %s: %s in about %s.", best.where(), p.shown(best.Sum.Cost), hours(best.Sum.Wall))
	switch q := best.Policy; {
	case q == nil:
	case q.SpotHours == 0:
		say("It runs on on-demand from the start (%s an hour): spot would be no cheaper or too late.", p.shown(q.OnDemandPrice))
	case q.OnDemandHours < 0.01*q.SpotHours:
		say("On-demand (%s an hour) stands by, so that it is in time.", p.shown(q.OnDemandPrice))
	default:
		say("Expect %s on spot and %s on on-demand (%s an hour), so that it is in time.", hours(q.SpotHours), hours(q.OnDemandHours), p.shown(q.OnDemandPrice))
	}
	if best.flags&flagLikelyLate != 0 {
		say("Every option is likely to miss the deadline; this one with %.0f %%.", 100*best.Late)
	}
	if best.Late > 0.005 && best.flags&flagLikelyLate == 0 {
		say("It misses the deadline with %.0f %%.", 100*best.Late)
	}
	if first := p.Options[0]; first != best {
		say("%s comes first, at %s, but misses the deadline with %.0f %%.", capital(first.where()), p.shown(first.Sum.Cost), 100*first.Late)
	}
	if other := p.other(best); other != nil {
		say("%s", p.trade(best, other))
	}
	if best.Offer.Terms == offer.Spot {
		if other := p.cheapest(func(o *Option) bool { return o.Offer.Terms != offer.Spot && o.flags&flagLikelyLate == 0 }); other != nil && other.Sum.Cost >= best.Sum.Cost {
			say("It can be taken away; without that risk the least is %s on %s.", p.shown(other.Sum.Cost), other.where())
		}
	}
	if best.flags&flagDiskCostsMore != 0 {
		say("The kept disk (%s) costs more than the computing (%s): keep less, or elsewhere.", p.shown(best.Sum.Parts[KeptDisk]), p.shown(best.Sum.Parts[Compute]))
	}
	for _, a := range p.Alternatives {
		switch {
		case a.Kind == "api" && a.Cost < best.Sum.Cost:
			say("Tokens from %s would cost %s, less than any machine here.", a.Name, p.shown(a.Cost))
		case a.Kind == "reservation" && a.Cost < best.Sum.Cost:
			say("A reservation (%s, %s) would cost %s: worth it when the need lasts.", a.Name, a.Note, p.shown(a.Cost))
		default:
			continue
		}
		break
	}
	if own := p.cheapest(func(o *Option) bool { return o.Offer.Terms == offer.Owned && o.MarginalKnown }); own != nil && own.Marginal < best.Sum.Cost && own != best {
		say("Your own %s would add only %s for power.", own.Offer.GPUName(), p.shown(own.Marginal))
	}
	if used := best.Sum.Running * 30; used > 12*24 && best.Offer.Terms == offer.OnDemand && best.Sum.Cost > 20*money.Unit {
		say("If such work comes every day, look at `destajo rent-or-buy`.")
	}
	if best.flags&flagStale != 0 {
		say("The price of %s is %d days old: check it before you rely on it.", best.where(), best.ageDays)
	}
	if best.Cautions() {
		say("A part of its cost is unknown: see the warnings.")
	}
	return strings.Join(out, " ")
}

// mayBeLate is the probability of missing the deadline up to which an option
// is recommended.
const mayBeLate = 0.1

// noAdvice says why nothing fits, by the commonest reason.
func (p *Plan) noAdvice() string {
	if len(p.Refused) == 0 {
		return "There are no offers."
	}
	count := map[RefusalKind]int{}
	for _, r := range p.Refused {
		count[r.Kind]++
	}
	// What the job itself limits is what can be relaxed, so it is told before
	// the many offers of other cards and places.
	most := p.Refused[0].Kind
	for _, k := range []RefusalKind{RefusedBudget, RefusedPrice, RefusedDeadline, RefusedDuration, RefusedInterruptions, RefusedMemory,
		RefusedCPU, RefusedHostMemory, RefusedPlace, RefusedTerms, RefusedGPU, RefusedVendor} {
		if count[k] > 0 {
			most = k
			break
		}
	}
	for i := range p.Refused {
		if r := &p.Refused[i]; r.Kind == most {
			return fmt.Sprintf("Nothing fits: of %d offers %d are refused for %s (%s: %s).", len(p.Refused), count[most], most, r.Offer.ID, r.Reason())
		}
	}
	return "Nothing fits."
}

// other finds the option that a reader would weigh against the best: the next
// on another kind of GPU or of another provider.
func (p *Plan) other(best *Option) *Option {
	for i := range p.Options {
		o := p.Options[i]
		if o != best && o.Late <= mayBeLate && (o.Offer.GPU != best.Offer.GPU || o.Offer.Provider != best.Offer.Provider) {
			return o
		}
	}
	return nil
}

// trade says what another option gives and takes.
func (p *Plan) trade(best, o *Option) string {
	dearer := o.Sum.Cost - best.Sum.Cost
	sooner := best.Sum.Wall - o.Sum.Wall
	price := ""
	if o.Price > best.Price && dearer < 0 {
		price = ", though dearer per hour"
	}
	switch {
	case dearer >= 0 && sooner > best.Sum.Wall*0.02:
		return fmt.Sprintf("%s costs %s more and is %s sooner.", capital(o.where()), p.shown(dearer), hours(sooner))
	case dearer >= 0 && o.Price < best.Price:
		return fmt.Sprintf("%s is cheaper per hour (%s) but costs %s more when finished.", capital(o.where()), p.shown(o.Price), p.shown(dearer))
	case dearer >= 0:
		return fmt.Sprintf("The runner-up, %s, costs %s more.", o.where(), p.shown(dearer))
	case sooner >= 0:
		return fmt.Sprintf("%s costs %s less%s.", capital(o.where()), p.shown(-dearer), price)
	}
	return fmt.Sprintf("%s costs %s less and takes %s longer.", capital(o.where()), p.shown(-dearer), hours(-sooner))
}

func (p *Plan) cheapest(keep func(*Option) bool) *Option {
	var best *Option
	for i := range p.Options {
		if o := p.Options[i]; keep(o) && (best == nil || o.Sum.Cost < best.Sum.Cost) {
			best = o
		}
	}
	return best
}

// where names an option as a person would.
func (o *Option) where() string {
	s := ""
	if n := o.Nodes * max(1, o.Offer.GPUCount); n > 1 {
		s = fmt.Sprintf("%d x ", n)
	}
	s += o.Offer.GPUName() + " at " + o.Offer.Provider
	if o.Offer.Terms != offer.OnDemand {
		s += " (" + string(o.Offer.Terms) + ")"
	}
	return s
}

func (p *Plan) shown(a money.Amount) string { return a.Fixed(2) + " " + p.Currency }

func hours(h float64) string {
	switch {
	case h < 1.0/60:
		return fmt.Sprintf("%.0f s", h*3600)
	case h < 1:
		return fmt.Sprintf("%.0f min", h*60)
	case h < 48:
		return fmt.Sprintf("%.3g h", h)
	}
	return fmt.Sprintf("%.3g days", h/24)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
