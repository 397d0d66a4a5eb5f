package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
)

// Demand is how many GPUs are needed: some all the time, more at peaks.
type Demand struct {
	Base      float64 // GPUs in use all hours
	Peak      float64 // GPUs more, in the peak hours
	PeakHours float64 // of a month
}

// Useful is the GPU hours in use in a month.
func (d Demand) Useful() float64 { return d.Base*money.MonthHours + d.Peak*d.PeakHours }

// Hardware is what owning one GPU costs. Money is in the currency of the rents.
type Hardware struct {
	Price        money.Amount // of one GPU with its share of server and network
	Residual     float64      // share of the price at the end of its life
	LifeMonths   float64
	Watts        float64 // of one GPU with its share of the server
	PUE          float64
	PowerPrice   money.Amount // per kWh
	HostingMonth money.Amount // per GPU
	StaffMonth   money.Amount // per GPU
}

// Rents are the best prices of one GPU hour; 0 is unknown.
type Rents struct {
	OnDemand, Spot, Reserved money.Amount
	ReservedMonths           int
	SpotShare                float64 // of the hours that may run on spot
	SpotStretch              float64 // running hours for a useful hour on spot
	TokensMonth              money.Amount
	TokensName               string
}

// Strategy is one way to meet the demand.
type Strategy struct {
	Name    string
	Month   money.Amount
	Total   money.Amount // over the horizon
	PerHour money.Amount // per useful GPU hour
	Note    string
}

// RentBuy is the comparison of strategies.
type RentBuy struct {
	Strategies        []Strategy // cheapest first
	Useful            float64    // GPU hours in a month
	OwnFixedMonth     money.Amount
	OwnRunningHour    money.Amount
	BreakEvenUse      float64 // utilisation above which owning a GPU beats renting it; +Inf: never
	BreakEvenMonth    float64 // month in which buying the base has paid; +Inf: never
	ReservedBreakEven float64 // utilisation above which a reservation beats on-demand; 0 unknown
}

// RentOrBuy compares renting, reserving, mixing with spot, owning and buying
// tokens for a demand over a number of months.
//
// Owning a GPU costs, per useful hour at a utilisation u of its 730 hours a
// month, (price-residual)/(life*u) + W*PUE*kWh + (hosting+staff)/(730*u).
func RentOrBuy(d Demand, h Hardware, r Rents, months float64) (*RentBuy, error) {
	switch {
	case !(d.Base >= 0) || !(d.Peak >= 0) || !(d.PeakHours >= 0) || d.PeakHours > money.MonthHours || d.Base > 1e6 || d.Peak > 1e6:
		return nil, fault.New(fault.Invalid, "a demand of %v GPUs and %v more for %v hours a month", d.Base, d.Peak, d.PeakHours).Hint("give numbers from 0; a month has 730 hours")
	case d.Useful() == 0:
		return nil, fault.New(fault.Invalid, "no demand").Hint("give --base, or --peak with --peak-hours")
	case !(h.Residual >= 0) || h.Residual >= 1 || !(h.LifeMonths >= 1) || h.LifeMonths > 240 || !(h.PUE >= 1) || h.PUE > 5 || !(h.Watts >= 0) || h.Watts > 1e5:
		return nil, fault.New(fault.Invalid, "the hardware's residual, life, power or PUE makes no sense").Hint("residual from 0 below 1, life from 1 to 240 months, PUE from 1")
	case !(months >= 1) || months > 240:
		return nil, fault.New(fault.Invalid, "a horizon of %v months", months).Hint("give --months from 1 to 240")
	case !(r.SpotShare >= 0) || r.SpotShare > 1 || !(r.SpotStretch >= 1):
		return nil, fault.New(fault.Invalid, "a spot share of %v with %v running hours a useful hour", r.SpotShare, r.SpotStretch).Hint("the share lies between 0 and 1, the stretch is 1 or more")
	}
	b := &RentBuy{Useful: d.Useful(), BreakEvenUse: math.Inf(1), BreakEvenMonth: math.Inf(1)}
	times := func(a money.Amount, x float64) money.Amount {
		p, err := a.Times(x)
		if err != nil {
			return math.MaxInt64
		}
		return p
	}
	b.OwnFixedMonth = times(h.Price, (1-h.Residual)/h.LifeMonths) + h.HostingMonth + h.StaffMonth
	b.OwnRunningHour = times(h.PowerPrice, h.Watts/1000*h.PUE)
	base, peak := d.Base*money.MonthHours, d.Peak*d.PeakHours
	add := func(name, note string, month money.Amount) {
		if month <= 0 || month == math.MaxInt64 {
			return
		}
		b.Strategies = append(b.Strategies, Strategy{Name: name, Note: note, Month: month, Total: times(month, months), PerHour: times(month, 1/b.Useful)})
	}
	flexible := r.OnDemand
	if flexible > 0 {
		add("rent on demand", "nothing is committed", times(flexible, base+peak))
	}
	if r.Spot > 0 && flexible > 0 && r.SpotShare > 0 {
		add("spot mix", fmt.Sprintf("%.0f %% of the hours on spot, %.2f running hours for a useful one", 100*r.SpotShare, r.SpotStretch),
			times(r.Spot, (base+peak)*r.SpotShare*r.SpotStretch)+times(flexible, (base+peak)*(1-r.SpotShare)))
	}
	if r.Reserved > 0 && (flexible > 0 || peak == 0) && base > 0 {
		add(map[bool]string{true: "reserve the base, rent the rest", false: "reserve"}[peak > 0], fmt.Sprintf("committed for %d months", r.ReservedMonths), times(r.Reserved, base)+times(flexible, peak))
		b.ReservedBreakEven = 0
		if flexible > 0 {
			b.ReservedBreakEven = r.Reserved.Float() / flexible.Float()
		}
	}
	if h.Price > 0 {
		if base > 0 && (flexible > 0 || peak == 0) {
			add(map[bool]string{true: "own the base, rent the rest", false: "own"}[peak > 0], "", times(b.OwnFixedMonth, d.Base)+times(b.OwnRunningHour, base)+times(flexible, peak))
		}
		if d.Peak > 0 {
			add("own everything", "the GPUs for peaks stand idle between them", times(b.OwnFixedMonth, d.Base+d.Peak)+times(b.OwnRunningHour, base+peak))
		}
	}
	if r.TokensMonth > 0 {
		add("tokens from an API", r.TokensName, r.TokensMonth)
	}
	slices.SortStableFunc(b.Strategies, func(x, y Strategy) int { return cmp.Compare(x.Month, y.Month) })
	if flexible == 0 || h.Price == 0 {
		b.BreakEvenUse, b.BreakEvenMonth = math.NaN(), math.NaN()
	} else if margin := flexible.Float() - b.OwnRunningHour.Float(); margin > 0 {
		b.BreakEvenUse = b.OwnFixedMonth.Float() / (money.MonthHours * margin)
		saved := margin*money.MonthHours - h.HostingMonth.Float() - h.StaffMonth.Float()
		if saved > 0 {
			b.BreakEvenMonth = h.Price.Float() / saved
		}
	}
	return b, nil
}

// Advice says what a person would say of the comparison.
func (b *RentBuy) Advice(currency string) string {
	if len(b.Strategies) == 0 {
		return "No price is known for any way."
	}
	best := b.Strategies[0]
	s := fmt.Sprintf("Least: %s, %s %s a month.", best.Name, best.Month.Fixed(2), currency)
	if len(b.Strategies) > 1 {
		next := b.Strategies[1]
		s += fmt.Sprintf(" Next: %s, %s %s more.", next.Name, (next.Month - best.Month).Fixed(2), currency)
	}
	switch {
	case math.IsNaN(b.BreakEvenUse):
		s += " Whether owning pays cannot be told: a price is unknown."
	case math.IsInf(b.BreakEvenUse, 1):
		s += " Owning never pays at this rent."
	case b.BreakEvenUse > 1:
		s += fmt.Sprintf(" Owning never pays: it would need %.0f %% utilisation.", 100*b.BreakEvenUse)
	default:
		s += fmt.Sprintf(" A GPU of your own pays above %.0f %% utilisation", 100*b.BreakEvenUse)
		if !math.IsInf(b.BreakEvenMonth, 1) {
			s += fmt.Sprintf(", and in full use its price is back in month %.0f", math.Ceil(b.BreakEvenMonth))
		}
		s += "."
	}
	return s
}
