// Package money counts exactly. An Amount is a whole number of nano-units
// (1e-9 of a currency unit), a price is an Amount per something, and a product
// of a price and a quantity is rounded half to even once, at the nano-unit.
package money

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
)

// Unit is one whole currency unit in nano-units.
const Unit = 1_000_000_000

// MonthHours is the length of a month in hours, as all providers' monthly
// prices are spread here: 730.
const MonthHours = 730

// Month is MonthHours as a duration.
const Month = MonthHours * time.Hour

// Amount is money in nano-units of a currency whose code travels beside it.
// It holds at most about 9.2 thousand million units.
type Amount int64

// FromUnits makes an Amount of whole currency units.
func FromUnits(units int64) Amount { return Amount(units * Unit) }

// FromFloat rounds a number of currency units to the nearest nano-unit.
// It fails on NaN, infinities and what does not fit.
func FromFloat(units float64) (Amount, error) {
	n := math.RoundToEven(units * Unit)
	if math.IsNaN(n) || n >= math.MaxInt64 || n <= math.MinInt64 {
		return 0, fault.New(fault.Invalid, "%v is not an amount of money", units)
	}
	return Amount(n), nil
}

// Parse reads a decimal number of currency units: digits, at most one point,
// at most one leading minus. Separators, currency signs, exponents and more
// than 9 decimals that are not zero after rounding are handled so: the first
// three are errors, further decimals are rounded half to even.
func Parse(text string) (Amount, error) {
	digits := strings.TrimPrefix(text, "-")
	whole, part, point := strings.Cut(digits, ".")
	if whole == "" && part == "" || point && part == "" || len(whole) > 10 || len(part) > 40 || !decimal(whole) || !decimal(part) {
		return 0, badAmount(text)
	}
	if len(part) > 9 {
		return parseLong(text)
	}
	var n uint64
	if whole != "" {
		n, _ = strconv.ParseUint(whole, 10, 64)
	}
	n *= Unit
	scale := uint64(Unit)
	for _, c := range []byte(part) {
		scale /= 10
		n += uint64(c-'0') * scale
	}
	a, ok := signed(text[0] == '-', n)
	if !ok {
		return 0, badAmount(text)
	}
	return a, nil
}

// parseLong reads a number with more decimals than an Amount holds.
func parseLong(text string) (Amount, error) {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, badAmount(text)
	}
	r.Mul(r, new(big.Rat).SetInt64(Unit))
	return roundRat(r)
}

func badAmount(text string) error {
	shown := text
	if len(shown) > 40 {
		shown = shown[:40] + "…"
	}
	e := fault.New(fault.Invalid, "%q is not an amount of money", shown)
	switch {
	case strings.ContainsAny(text, "$€£¥₹"):
		return e.Hint("write the number alone; the currency has a field of its own")
	case strings.Contains(text, ","):
		return e.Hint("write a point for decimals and no separators, as in 1234.56")
	}
	return e.Hint("write digits with at most one point, as in 1.25")
}

func decimal(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// String gives the shortest exact decimal: "2.04", "0", "-1.5".
func (a Amount) String() string {
	return spell(a < 0, a.size())
}

func spell(negative bool, n uint64) string {
	var b [24]byte
	out := b[:0]
	if negative {
		out = append(out, '-')
	}
	out = strconv.AppendUint(out, n/Unit, 10)
	if part := n % Unit; part != 0 {
		out = append(out, '.')
		digits := strconv.FormatUint(part+Unit, 10)[1:]
		out = append(out, strings.TrimRight(digits, "0")...)
	}
	return string(out)
}

// Fixed rounds half to even to a number of decimals (0 to 9) and shows them all.
func (a Amount) Fixed(decimals int) string {
	step := uint64(1)
	for range 9 - decimals {
		step *= 10
	}
	n := roundTo(a.size(), step)
	whole, part, _ := strings.Cut(spell(a < 0 && n > 0, n), ".")
	if decimals == 0 {
		return whole
	}
	return whole + "." + part + strings.Repeat("0", decimals-len(part))
}

// RoundTo rounds half to even to a multiple of step, which must be positive.
// Where that multiple does not fit an Amount, it is the last one that does.
func (a Amount) RoundTo(step Amount) Amount {
	n := roundTo(a.size(), uint64(step))
	r, ok := signed(a < 0, n)
	if !ok {
		r, _ = signed(a < 0, n-uint64(step))
	}
	return r
}

// Float gives the amount in currency units, for ratios and charts only.
func (a Amount) Float() float64 { return float64(a) / Unit }

// MarshalJSON writes a decimal string, as money is in all our JSON.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(`"` + a.String() + `"`), nil }

// UnmarshalJSON reads a decimal string.
func (a *Amount) UnmarshalJSON(b []byte) error {
	s, err := strconv.Unquote(string(b))
	if err != nil {
		return fault.New(fault.Invalid, "money is written as a string in JSON, not as %s", b)
	}
	*a, err = Parse(s)
	return err
}

// MulDiv is a*num/den, rounded half to even, for num >= 0 and den > 0.
// It fails when the result does not fit.
func (a Amount) MulDiv(num, den int64) (Amount, error) {
	if num < 0 || den <= 0 {
		return 0, fault.New(fault.Internal, "money: %d/%d is no share", num, den)
	}
	d := uint64(den)
	hi, lo := bits.Mul64(a.size(), uint64(num))
	if hi >= d {
		return 0, errTooMuch
	}
	q, r := bits.Div64(hi, lo, d)
	if r > d-r || r == d-r && q&1 == 1 {
		q++
	}
	p, ok := signed(a < 0, q)
	if !ok {
		return 0, errTooMuch
	}
	return p, nil
}

var errTooMuch error = fault.New(fault.Invalid, "an amount of money is beyond 9.2 thousand million").
	Hint("look for a price or a quantity with too many digits")

// For is what a price per hour comes to over a time, exactly.
func (a Amount) For(d time.Duration) (Amount, error) { return a.MulDiv(int64(d), int64(time.Hour)) }

// Times is a price times a quantity that is not a whole number, exactly as
// the float states it (its binary value), rounded half to even once.
func (a Amount) Times(quantity float64) (Amount, error) {
	if quantity == math.Trunc(quantity) && math.Abs(quantity) < 1<<53 && quantity >= 0 {
		return a.MulDiv(int64(quantity), 1)
	}
	if math.IsNaN(quantity) || math.IsInf(quantity, 0) {
		return 0, fault.New(fault.Invalid, "%v is no quantity", quantity)
	}
	r := new(big.Rat).SetFloat64(quantity)
	r.Mul(r, new(big.Rat).SetInt64(int64(a)))
	return roundRat(r)
}

// Add is a+b; it fails on overflow.
func (a Amount) Add(b Amount) (Amount, error) {
	s := a + b
	if (s > a) != (b > 0) && b != 0 {
		return 0, errTooMuch
	}
	return s, nil
}

// size is the amount without its sign, which fits for the least Amount too.
func (a Amount) size() uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// signed is n with its sign; false when that is no Amount.
func signed(negative bool, n uint64) (Amount, bool) {
	if negative {
		return Amount(-n), n <= 1<<63
	}
	return Amount(n), n <= math.MaxInt64
}

// roundTo rounds half to even to a multiple of step, for n and step up to 1<<63.
func roundTo(n, step uint64) uint64 {
	q, r := n/step, n%step
	if r > step-r || r == step-r && q&1 == 1 {
		q++
	}
	return q * step
}

// roundRat rounds half to even to a whole number of nano-units.
func roundRat(r *big.Rat) (Amount, error) {
	num, den := new(big.Int).Set(r.Num()), r.Denom()
	q, m := new(big.Int).DivMod(num, den, new(big.Int))
	switch m.Lsh(m, 1).Cmp(den) {
	case 1:
		q.Add(q, big.NewInt(1))
	case 0:
		if q.Bit(0) == 1 {
			q.Add(q, big.NewInt(1))
		}
	}
	if !q.IsInt64() {
		return 0, errTooMuch
	}
	return Amount(q.Int64()), nil
}
