package money

import (
	"math"
	"math/big"
	"slices"

	"github.com/destajo/destajo/fault"
)

// ExchangeRate is what one unit of a currency was worth on a day.
type ExchangeRate struct {
	Currency   string  // ISO 4217, such as EUR
	USDPerUnit float64 // US dollars for one unit
	Date       string  // the day or month of the rate, as its source gives it
	Source     string
}

// Exchange is a table of dated rates with one rate per currency. The dollar
// needs no entry.
type Exchange struct{ rates map[string]ExchangeRate }

// NewExchange makes a table; of several rates of one currency the last wins.
// It fails on a rate that is not a positive number.
func NewExchange(rates []ExchangeRate) (Exchange, error) {
	x := Exchange{rates: make(map[string]ExchangeRate, len(rates))}
	for _, r := range rates {
		if !(r.USDPerUnit > 0) || math.IsInf(r.USDPerUnit, 0) {
			return Exchange{}, fault.New(fault.Invalid, "the exchange rate of %s is %v", r.Currency, r.USDPerUnit).
				Hint("give US dollars for one unit, a positive number")
		}
		x.rates[r.Currency] = r
	}
	return x, nil
}

// Currencies lists the known codes in order, USD among them.
func (x Exchange) Currencies() []string {
	out := []string{"USD"}
	for c := range x.rates {
		if c != "USD" {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// Rate gives the rate of a currency.
func (x Exchange) Rate(currency string) (ExchangeRate, bool) {
	if r, ok := x.rates[currency]; ok {
		return r, true
	}
	return ExchangeRate{Currency: "USD", USDPerUnit: 1}, currency == "USD"
}

// Convert turns an amount of one currency into another over the dollar,
// rounded half to even once. It fails on a currency without a rate.
func (x Exchange) Convert(a Amount, from, to string) (Amount, error) {
	if from == to {
		return a, nil
	}
	f, ok := x.Rate(from)
	if !ok {
		return 0, x.unknown(from)
	}
	t, ok := x.Rate(to)
	if !ok {
		return 0, x.unknown(to)
	}
	r := new(big.Rat).SetFloat64(f.USDPerUnit)
	r.Quo(r, new(big.Rat).SetFloat64(t.USDPerUnit))
	r.Mul(r, new(big.Rat).SetInt64(int64(a)))
	return roundRat(r)
}

func (x Exchange) unknown(code string) error {
	return fault.New(fault.Invalid, "no exchange rate for the currency %q", code).
		Hint("give a rate table with --rates, or one of the known currencies")
}
