package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

type rentOptions struct {
	base, peak, peakHours, months                      float64
	residual, life, watts, pue, spotShare, spotStretch float64
	price, power, hosting, staff, rent, spot, reserved string
	country, model, file                               string
	tokensIn, tokensOut                                float64
	countries, providers                               []string
}

func (a *app) rentOrBuyCommand() *cobra.Command {
	var o rentOptions
	c := &cobra.Command{
		Use:     "rent-or-buy GPU",
		GroupID: "decide",
		Short:   "Compare renting, reserving, spot, owning and API tokens for a demand",
		Long: `Compare the ways to meet a demand that lasts: a base of GPUs in use all the
time and peaks on top. Rents are the cheapest GPU hours of the catalogue; every
assumption is shown with its source and can be set.`,
		Example: "  destajo rent-or-buy H100-SXM --base 4 --peak 4 --peak-hours 100\n  destajo rent-or-buy RTX4090 --base 2 --price 1700 --power 0.25",
		Args:    exactly(1, "one GPU"),
		RunE:    func(c *cobra.Command, args []string) error { return a.rentOrBuy(c, args[0], o) },
	}
	f := c.Flags()
	f.Float64Var(&o.base, "base", 1, "GPUs in use all the time")
	f.Float64Var(&o.peak, "peak", 0, "GPUs more at peaks")
	f.Float64Var(&o.peakHours, "peak-hours", 0, "hours of peaks in a month")
	f.Float64Var(&o.months, "months", 36, "months to compare over")
	f.StringVar(&o.price, "price", "", "purchase price of one GPU with its share of the server, in USD (default: published)")
	f.Float64Var(&o.residual, "residual", 0.30, "share of the price left at the end")
	f.Float64Var(&o.life, "life", 48, "months of use")
	f.Float64Var(&o.watts, "watts", 0, "power of one GPU with its share of the server (default: 1.8 x the board's)")
	f.Float64Var(&o.pue, "pue", 1.54, "power of the site over power of the servers")
	f.StringVar(&o.power, "power", "", "price of a kWh in USD (default: of the country)")
	f.StringVar(&o.country, "power-country", "DE", "country of the own hardware")
	f.StringVar(&o.hosting, "hosting", "", "hosting of one GPU per month in USD (default: 200 USD per kW)")
	f.StringVar(&o.staff, "staff", "0", "staff for one GPU per month in USD")
	f.StringVar(&o.rent, "rent", "", "on-demand price of a GPU hour in USD (default: cheapest offer)")
	f.StringVar(&o.spot, "spot", "", "spot price of a GPU hour in USD (default: cheapest offer)")
	f.StringVar(&o.reserved, "reserved", "", "reserved price of a GPU hour in USD (default: cheapest offer)")
	f.Float64Var(&o.spotShare, "spot-share", 0.7, "share of the hours that may run on spot")
	f.Float64Var(&o.spotStretch, "spot-stretch", 1.2, "running hours for a useful hour on spot")
	f.StringVar(&o.model, "model", "", "model whose tokens could come from an API")
	f.Float64Var(&o.tokensIn, "tokens-in", 0, "tokens read in a month")
	f.Float64Var(&o.tokensOut, "tokens-out", 0, "tokens written in a month")
	f.StringVar(&o.file, "offers", "", "use only the offers of this file")
	f.StringSliceVar(&o.countries, "country", nil, "rent only in these countries")
	f.StringSliceVar(&o.providers, "provider", nil, "rent only from these providers")
	return c
}

// assumption is one figure with where it comes from and how to set it.
type assumption struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Unit   string `json:"unit"`
	Source string `json:"source"`
	Flag   string `json:"flag"`
}

func (a *app) rentOrBuy(c *cobra.Command, name string, o rentOptions) error {
	request, err := gpu.ParseRequest(name)
	if err != nil {
		return err
	}
	var facts []assumption
	note := func(name, value, unit, source, flag string) {
		if c.Flags().Changed(flag) {
			source = "given"
		}
		facts = append(facts, assumption{name, value, unit, source, "--" + flag})
	}
	amount := func(flag, text string) (money.Amount, error) {
		x, err := money.Parse(text)
		if err == nil && x < 0 {
			err = fault.New(fault.Invalid, "%s is negative", text)
		}
		if err != nil {
			return 0, fault.Wrap(fault.Invalid, err, "--%s", flag).Hint("write an amount in USD, such as 1.25")
		}
		return x, nil
	}
	rents, err := a.rents(request, o, amount, note)
	if err != nil {
		return err
	}
	hardware, err := hardwareOf(request, o, amount, note)
	if err != nil {
		return err
	}
	num := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	note("spot share", num(o.spotShare), "of hours", "assumed", "spot-share")
	note("spot stretch", num(o.spotStretch), "running per useful hour", "assumed", "spot-stretch")
	result, err := plan.RentOrBuy(plan.Demand{Base: o.base, Peak: o.peak, PeakHours: o.peakHours}, hardware, rents, o.months)
	if err != nil {
		return err
	}
	if len(result.Strategies) == 0 {
		return fault.New(fault.NothingFits, "neither a rent nor a purchase price of %s is known", request).Hint("give them with --rent and --price")
	}
	return a.showRentBuy(request, result, facts, o)
}

// rents finds the cheapest GPU hours of the catalogue, where none are given.
func (a *app) rents(request gpu.Request, o rentOptions, amount func(string, string) (money.Amount, error), note func(name, value, unit, source, flag string)) (plan.Rents, error) {
	r := plan.Rents{SpotShare: o.spotShare, SpotStretch: o.spotStretch}
	keep, err := offerFilter(nil, offerOptions{countries: o.countries, providers: o.providers})
	if err != nil {
		return r, err
	}
	offers, err := a.offers(o.file)
	if err != nil {
		return r, err
	}
	exchange, err := catalog.Exchange()
	if err != nil {
		return r, err
	}
	cheapest := func(terms offer.Terms) (best *offer.Offer, price money.Amount) {
		for _, x := range offers {
			p, ok := x.PerGPU()
			if !ok || x.Terms != terms || !request.Matches(x.GPU) || float64(x.GPUCount) > math.Max(1, o.base+o.peak) || !x.Partition.Whole() || !keep(x) || x.Available.Known && !x.Available.Value {
				continue
			}
			if up := x.Prices.Upfront; up != nil && x.TermMonths > 0 {
				if share, err := up.Amount.MulDiv(1, int64(x.TermMonths*money.MonthHours*max(1, x.GPUCount))); err == nil {
					p += share
				}
			}
			if p, err = exchange.Convert(p, x.Currency, "USD"); err == nil && (best == nil || p < price) {
				best, price = x, p
			}
		}
		return best, price
	}
	for _, t := range []struct {
		terms offer.Terms
		given string
		flag  string
		into  *money.Amount
	}{{offer.OnDemand, o.rent, "rent", &r.OnDemand}, {offer.Spot, o.spot, "spot", &r.Spot}, {offer.Reserved, o.reserved, "reserved", &r.Reserved}} {
		if t.given != "" {
			if *t.into, err = amount(t.flag, t.given); err != nil {
				return r, err
			}
			note(string(t.terms)+" GPU hour", t.into.String(), "USD", "given", t.flag)
			continue
		}
		x, p := cheapest(t.terms)
		if x == nil {
			note(string(t.terms)+" GPU hour", "unknown", "USD", "no such offer", t.flag)
			continue
		}
		*t.into = p
		if t.terms == offer.Reserved {
			r.ReservedMonths = x.TermMonths
		}
		note(string(t.terms)+" GPU hour", p.String(), "USD", fmt.Sprintf("cheapest: %s, %s", x.ID, orUnknown(string(x.AsOf))), t.flag)
	}
	if o.model != "" {
		var best money.Amount
		for _, t := range catalog.Tokens() {
			if !plan.SameModel(o.model, t.Model) {
				continue
			}
			in, err1 := t.Input.Times(o.tokensIn / 1e6)
			out, err2 := t.Output.Times(o.tokensOut / 1e6)
			if err1 != nil || err2 != nil || in+out == 0 {
				continue
			}
			if best == 0 || in+out < best {
				best = in + out
				r.TokensMonth, r.TokensName = best, t.Provider+" "+t.Model
			}
		}
		if best == 0 {
			return r, fault.New(fault.Invalid, "no API price of model %q, or no tokens", o.model).Hint("give --tokens-in and --tokens-out, and a model such as llama-3.3-70b-instruct")
		}
		note("API tokens", r.TokensMonth.String(), "USD/month from "+r.TokensName, "cheapest", "model")
	}
	return r, nil
}

// hardwareOf gathers what owning one GPU costs.
func hardwareOf(request gpu.Request, o rentOptions, amount func(string, string) (money.Amount, error), note func(name, value, unit, source, flag string)) (plan.Hardware, error) {
	h := plan.Hardware{Residual: o.residual, LifeMonths: o.life, Watts: o.watts, PUE: o.pue}
	var err error
	num := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	if o.price != "" {
		if h.Price, err = amount("price", o.price); err != nil {
			return h, err
		}
		note("purchase price", h.Price.String(), "USD", "given", "price")
	} else if p, source, ok := purchaseOf(request); ok {
		h.Price = p
		note("purchase price", p.Fixed(0), "USD per GPU", source, "price")
	} else {
		note("purchase price", "unknown", "USD per GPU", "none published in the data", "price")
	}
	board := 0.0
	for _, m := range request.Models() {
		board = max(board, m.Watts)
	}
	if h.Watts == 0 {
		h.Watts = 1.8 * board
	}
	note("power", num(h.Watts), "W per GPU", "1.8 x board power: HGX server maximum per summed GPU power, 2026", "watts")
	note("residual", num(h.Residual), "of the price", "H100 after 3 years, published resale range 0.25-0.35, 2026-01", "residual")
	note("life", num(h.LifeMonths), "months", "depreciation of GPU clouds, 4 to 6 years, 2025", "life")
	note("PUE", num(h.PUE), "", "industry survey, 2025", "pue")
	if o.power != "" {
		if h.PowerPrice, err = amount("power", o.power); err != nil {
			return h, err
		}
		note("electricity", h.PowerPrice.String(), "USD/kWh", "given", "power")
	} else {
		p, ok := catalog.PowerPrice(strings.ToUpper(o.country))
		if !ok {
			return h, fault.New(fault.Invalid, "no price of electricity in %q is known", o.country).Hint("give --power, the price of a kWh in USD")
		}
		h.PowerPrice = p
		note("electricity", p.String(), "USD/kWh", "large customers in "+strings.ToUpper(o.country), "power")
	}
	if o.hosting != "" {
		if h.HostingMonth, err = amount("hosting", o.hosting); err != nil {
			return h, err
		}
	} else {
		h.HostingMonth, _ = money.FromUnits(200).Times(h.Watts / 1000)
	}
	note("hosting", h.HostingMonth.Fixed(2), "USD per GPU and month", "200 USD per kW and month, guides to GPU hosting, 2026", "hosting")
	if h.StaffMonth, err = amount("staff", o.staff); err != nil {
		return h, err
	}
	note("staff", h.StaffMonth.String(), "USD per GPU and month", "left out unless given", "staff")
	return h, nil
}

// purchaseOf finds a published price of one GPU: of whole servers first, which
// hold all that a GPU needs, then of cards.
func purchaseOf(request gpu.Request) (money.Amount, string, bool) {
	all := catalog.Purchases()
	slices.SortStableFunc(all, func(a, b catalog.Purchase) int { return strings.Compare(b.Kind, a.Kind) })
	for _, p := range all {
		m, ok := gpu.ByID(p.GPU)
		if !ok || !request.Matches(m) || !strings.HasPrefix(p.Condition, "new") || p.Count == 0 {
			continue
		}
		each, err := p.Price.MulDiv(1, int64(p.Count))
		if err == nil {
			return each, fmt.Sprintf("%s, %s, %s (%s)", p.Kind, p.Condition, p.Date, p.Source), true
		}
	}
	return 0, "", false
}

func (a *app) showRentBuy(request gpu.Request, b *plan.RentBuy, facts []assumption, o rentOptions) error {
	type row struct {
		Name    string       `json:"name"`
		Month   money.Amount `json:"month"`
		Total   money.Amount `json:"total"`
		PerHour money.Amount `json:"per_useful_gpu_hour"`
		Note    string       `json:"note"`
	}
	finite := func(x float64) *float64 {
		if math.IsInf(x, 0) || math.IsNaN(x) || x == 0 {
			return nil
		}
		return &x
	}
	var data struct {
		GPU         string  `json:"gpu"`
		Currency    string  `json:"currency"`
		UsefulHours float64 `json:"useful_gpu_hours_month"`
		Months      float64 `json:"months"`
		Strategies  []row   `json:"strategies"`
		BreakEven   struct {
			Utilisation         *float64 `json:"utilisation"`
			Month               *float64 `json:"month"`
			ReservedUtilisation *float64 `json:"reserved_utilisation"`
		} `json:"break_even"`
		Assumptions []assumption `json:"assumptions"`
		Advice      string       `json:"advice"`
	}
	data.GPU, data.Currency, data.UsefulHours, data.Months = request.String(), "USD", b.Useful, o.months
	data.BreakEven.Utilisation, data.BreakEven.Month, data.BreakEven.ReservedUtilisation = finite(b.BreakEvenUse), finite(b.BreakEvenMonth), finite(b.ReservedBreakEven)
	data.Assumptions, data.Advice = facts, b.Advice("USD")
	l := listing{header: []string{"STRATEGY", "USD/MONTH", fmt.Sprintf("USD IN %.0f MO", o.months), "PER USEFUL H", "NOTE"}, right: map[int]bool{1: true, 2: true, 3: true}, shrink: 4}
	for _, s := range b.Strategies {
		data.Strategies = append(data.Strategies, row(s))
		l.rows = append(l.rows, []string{s.Name, s.Month.Fixed(2), s.Total.Fixed(2), s.PerHour.Fixed(3), s.Note})
	}
	l.foot = append(l.foot, "Assumptions:")
	for _, f := range facts {
		l.foot = append(l.foot, fmt.Sprintf("  %s: %s %s (%s; %s)", f.Name, f.Value, f.Unit, f.Source, f.Flag))
	}
	l.foot = append(l.foot, "", data.Advice)
	return a.print(l, data)
}
