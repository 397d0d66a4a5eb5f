package plan

import (
	"math"
	"strconv"
	"time"

	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Document is a plan as JSON: money in decimal strings, hours and rates as
// numbers, what is unknown as null.
type Document struct {
	Job          string                `json:"job"`
	AsOf         time.Time             `json:"as_of"`
	Currency     string                `json:"currency"`
	Options      []OptionDocument      `json:"options"`
	Alternatives []AlternativeDocument `json:"alternatives"`
	Refused      []RefusalDocument     `json:"refused"`
	Advice       string                `json:"advice"`
}

// OfferDocument is what a plan shows of an offer.
type OfferDocument struct {
	ID           string        `json:"id"`
	Provider     string        `json:"provider"`
	Class        offer.Class   `json:"class"`
	Region       string        `json:"region"`
	Country      string        `json:"country"`
	InstanceType string        `json:"instance_type"`
	GPU          string        `json:"gpu"`
	GPUCount     int           `json:"gpu_count"`
	Terms        offer.Terms   `json:"terms"`
	PriceHour    *money.Amount `json:"price_hour"`
	Currency     string        `json:"currency"`
	Source       string        `json:"source"`
	AsOf         offer.Date    `json:"as_of"`
}

// OptionDocument is one option.
type OptionDocument struct {
	Rank  int           `json:"rank"`
	Offer OfferDocument `json:"offer"`
	Nodes int           `json:"nodes"`
	Fit   struct {
		Verdict string   `json:"verdict"`
		NeedGB  *float64 `json:"need_gb"`
		HaveGB  *float64 `json:"have_gb"`
	} `json:"fit"`
	Hours struct {
		P10      float64  `json:"p10"`
		P50      float64  `json:"p50"`
		P90      float64  `json:"p90"`
		Expected float64  `json:"expected"`
		Evidence Evidence `json:"evidence"`
		Basis    string   `json:"basis"`
	} `json:"hours"`
	BilledHours float64 `json:"billed_hours"`
	WallHours   struct {
		P10      float64 `json:"p10"`
		P50      float64 `json:"p50"`
		P90      float64 `json:"p90"`
		Expected float64 `json:"expected"`
	} `json:"wall_hours"`
	Attempts float64 `json:"attempts"`
	Cost     struct {
		Expected money.Amount            `json:"expected"`
		P10      money.Amount            `json:"p10"`
		P50      money.Amount            `json:"p50"`
		P90      money.Amount            `json:"p90"`
		Marginal *money.Amount           `json:"marginal"`
		Parts    map[string]money.Amount `json:"parts"`
	} `json:"cost"`
	EnergyKWh       *float64            `json:"energy_kwh"`
	CO2Kg           *float64            `json:"co2_kg"`
	WorkPerDollar   *float64            `json:"work_per_dollar"`
	WorkUnit        string              `json:"work_unit,omitempty"`
	LateProbability *float64            `json:"late_probability"`
	SpotPolicy      *SpotPolicyDocument `json:"spot_policy"`
	Pareto          bool                `json:"pareto"`
	Warnings        []string            `json:"warnings"`
}

// SpotPolicyDocument is how spot with a deadline is used.
type SpotPolicyDocument struct {
	OnDemandOffer     string       `json:"on_demand_offer"`
	OnDemandPriceHour money.Amount `json:"on_demand_price_hour"` // of all machines, in the plan's currency
	OnDemandHours     float64      `json:"on_demand_hours"`
	SpotHours         float64      `json:"spot_hours"`
	Changeovers       float64      `json:"changeovers"`
}

// AlternativeDocument is one alternative.
type AlternativeDocument struct {
	Kind   string       `json:"kind"`
	Name   string       `json:"name"`
	Cost   money.Amount `json:"cost"`
	Note   string       `json:"note"`
	Source string       `json:"source"`
	AsOf   offer.Date   `json:"as_of"`
}

// RefusalDocument is one refused offer.
type RefusalDocument struct {
	Offer  OfferDocument `json:"offer"`
	Kind   RefusalKind   `json:"kind"`
	Reason string        `json:"reason"`
}

// Document makes the JSON of a plan with at most top options; 0 means all.
func (p *Plan) Document(top int) Document {
	d := Document{Job: p.Job.Name, AsOf: p.AsOf.UTC(), Currency: p.Currency, Advice: p.Advice(),
		Options: []OptionDocument{}, Alternatives: []AlternativeDocument{}, Refused: []RefusalDocument{}}
	for i := range p.Options {
		if top > 0 && i == top {
			break
		}
		d.Options = append(d.Options, p.Options[i].document())
	}
	for _, a := range p.Alternatives {
		d.Alternatives = append(d.Alternatives, AlternativeDocument(a))
	}
	for i := range p.Refused {
		r := &p.Refused[i]
		d.Refused = append(d.Refused, RefusalDocument{offerDocument(r.Offer), r.Kind, r.Reason()})
	}
	return d
}

func offerDocument(o *offer.Offer) OfferDocument {
	d := OfferDocument{ID: o.ID, Provider: o.Provider, Class: o.Class, Region: o.Region, Country: o.Country,
		InstanceType: o.InstanceType, GPU: o.GPUName(), GPUCount: o.GPUCount, Terms: o.Terms, Currency: o.Currency, Source: o.Source, AsOf: o.AsOf}
	if o.Prices.Compute != nil {
		d.PriceHour = &o.Prices.Compute.Amount
	}
	return d
}

func (o *Option) document() OptionDocument {
	d := OptionDocument{Rank: o.Rank, Offer: offerDocument(o.Offer), Nodes: o.Nodes, Pareto: o.Pareto, Warnings: o.Warnings(), Attempts: number(o.Sum.Attempts)}
	known := func(x float64, ok bool) *float64 {
		if !ok {
			return nil
		}
		x = number(x)
		return &x
	}
	w := o.Work
	d.Fit.Verdict = w.Fit.Verdict
	d.Fit.NeedGB, d.Fit.HaveGB = known(w.Fit.NeedGB, w.Fit.NeedGB > 0), known(w.Fit.HaveGB, w.Fit.HaveGB > 0)
	d.Hours.P10, d.Hours.P50, d.Hours.P90, d.Hours.Expected = number(w.Hours.P10), number(w.Hours.P50), number(w.Hours.P90), number(w.Hours.Expected)
	d.Hours.Evidence, d.Hours.Basis = w.Evidence, w.Basis
	d.BilledHours = number(o.Sum.Billed)
	d.WallHours.P10, d.WallHours.P50, d.WallHours.P90, d.WallHours.Expected = number(o.WallP10), number(o.WallP50), number(o.WallP90), number(o.Sum.Wall)
	d.Cost.Expected, d.Cost.P10, d.Cost.P50, d.Cost.P90 = o.Sum.Cost, o.CostP10, o.CostP50, o.CostP90
	if o.MarginalKnown {
		d.Cost.Marginal = &o.Marginal
	}
	d.Cost.Parts = make(map[string]money.Amount, numParts)
	for _, p := range Parts() {
		d.Cost.Parts[p.String()] = o.Sum.Parts[p]
	}
	d.EnergyKWh, d.CO2Kg = known(o.Energy, o.Energy > 0), known(o.CO2, o.CO2 >= 0)
	d.WorkPerDollar, d.WorkUnit = known(o.WorkPerDollar, o.WorkPerDollar > 0), w.Unit
	d.LateProbability = known(o.Late, o.Late >= 0)
	if p := o.Policy; p != nil {
		d.SpotPolicy = &SpotPolicyDocument{p.OnDemand.ID, p.OnDemandPrice, number(p.OnDemandHours), number(p.SpotHours), number(p.Changeovers)}
	}
	return d
}

// number drops the noise of arithmetic: nine significant digits.
func number(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	v, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 9, 64), 64)
	return v
}
