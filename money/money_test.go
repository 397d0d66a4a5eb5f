package money_test

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
)

const (
	most  = money.Amount(math.MaxInt64)
	least = money.Amount(math.MinInt64)
)

// halfEven rounds as the package promises to, by another way than the code:
// floor(r + 1/2), less one where that was a tie and came out odd.
func halfEven(r *big.Rat) *big.Int {
	up := new(big.Rat).Add(r, big.NewRat(1, 2))
	q := new(big.Int).Div(up.Num(), up.Denom()) // Euclidean: the floor, as the denominator is positive
	if up.IsInt() && q.Bit(0) == 1 {
		q.Sub(q, big.NewInt(1))
	}
	return q
}

// rat is an amount in nano-units.
func rat(a money.Amount) *big.Rat { return new(big.Rat).SetInt64(int64(a)) }

// agree compares a result with the exact one: the same amount, or a fault
// where it does not fit.
func agree(t *rapid.T, exact *big.Rat, got money.Amount, err error) {
	t.Helper()
	want := halfEven(exact)
	switch {
	case !want.IsInt64():
		if fault.KindOf(err) != fault.Invalid || fault.HintOf(err) == "" {
			t.Fatalf("got %v, %v (%s) for %v, which does not fit", got, err, fault.HintOf(err), want)
		}
	case err != nil:
		t.Fatalf("%v for %v", err, want)
	case int64(got) != want.Int64():
		t.Fatalf("got %d, want %v", int64(got), want)
	}
}

// amounts draws from the whole range, with its ends and small amounts often.
func amounts() *rapid.Generator[money.Amount] {
	return rapid.Custom(func(t *rapid.T) money.Amount {
		return money.Amount(rapid.OneOf(
			rapid.Int64(), rapid.Int64Range(-1000, 1000), rapid.Int64Range(-1e13, 1e13),
			rapid.Int64Range(math.MinInt64, math.MinInt64+2), rapid.Int64Range(math.MaxInt64-2, math.MaxInt64),
		).Draw(t, "nano"))
	})
}

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want money.Amount
	}{
		{"0", 0}, {"-0", 0}, {"0.0", 0}, {"1", money.Unit}, {"-1", -money.Unit},
		{"2.04", 2_040_000_000}, {"0.1", 100_000_000}, {".5", 500_000_000}, {"-.5", -500_000_000},
		{"007.5", 7_500_000_000}, {"0010.0000000000", 10 * money.Unit}, {"1.500", 1_500_000_000},
		{"0.000000001", 1}, {"-0.000000001", -1}, {"1234567.890123456", 1_234_567_890_123_456},
		// More than 9 decimals: half to even, and only a true half is a tie.
		{"0.0000000004", 0}, {"0.0000000005", 0}, {"0.0000000015", 2}, {"0.0000000025", 2}, {"0.0000000035", 4},
		{"0.00000000050000000001", 1}, {"0.0000000024999999", 2}, {"1.9999999999", 2 * money.Unit},
		{"-0.0000000005", 0}, {"-0.0000000015", -2}, {"-0.0000000025", -2}, {"-0.0000000026", -3}, {"-.0000000015", -2},
		{"1." + strings.Repeat("0", 40), money.Unit},
		// The ends.
		{"9223372036.854775807", most}, {"-9223372036.854775807", -most}, {"-9223372036.854775808", least},
		{"9223372036.8547758074", most}, {"-9223372036.8547758085", least},
	}
	for _, c := range tests {
		got, err := money.Parse(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
		if diff := cmp.Diff(int64(c.want), int64(got)); diff != "" {
			t.Errorf("%q: %s", c.text, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	plain := "write digits with at most one point, as in 1.25"
	sign := "write the number alone; the currency has a field of its own"
	comma := "write a point for decimals and no separators, as in 1234.56"
	tooMuch := "look for a price or a quantity with too many digits"
	tests := []struct{ text, hint string }{
		{"", plain}, {".", plain}, {"1.", plain}, {"-", plain}, {"-.", plain}, {"--1", plain}, {"+1", plain}, {"1-", plain},
		{"1e3", plain}, {"NaN", plain}, {"Inf", plain}, {"0x10", plain}, {"1_000", plain}, {"1/2", plain}, {"1.2.3", plain},
		{" 1", plain}, {"1 ", plain}, {"1.-5", plain}, {"١", plain}, {"1.00000000000e3", plain}, {"abc", plain},
		{"$1", sign}, {"1€", sign}, {"£1,000", sign}, {"1,5", comma}, {"1,234.56", comma},
		{"9223372036.854775808", plain}, {"-9223372036.854775809", plain}, {"9999999999", plain}, {"10000000000", plain},
		{strings.Repeat("9", 100), plain}, {"1." + strings.Repeat("0", 41), plain},
		{"9223372036.8547758075", tooMuch}, {"-9223372036.8547758086", tooMuch},
	}
	for _, c := range tests {
		got, err := money.Parse(c.text)
		if got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
		if diff := cmp.Diff(c.hint, fault.HintOf(err)); diff != "" {
			t.Errorf("%q: %s", c.text, diff)
		}
	}
	if _, err := money.Parse(strings.Repeat("9", 1000)); len(err.Error()) > 100 {
		t.Errorf("a long text is shown whole: %v", err)
	}
}

var number = regexp.MustCompile(`^-?([0-9]+|[0-9]*\.[0-9]+)$`)

// checkParse holds Parse against a regular expression and exact fractions.
func checkParse(t interface {
	Helper()
	Fatalf(string, ...any)
}, text string) {
	t.Helper()
	var want *big.Int // nil: text is not a number
	if number.MatchString(text) {
		exact, _ := new(big.Rat).SetString(text)
		want = halfEven(exact.Mul(exact, big.NewRat(money.Unit, 1)))
	}
	got, err := money.Parse(text)
	if err != nil {
		if got != 0 || fault.KindOf(err) != fault.Invalid || fault.HintOf(err) == "" {
			t.Fatalf("%q: %v, %v, hint %q", text, got, err, fault.HintOf(err))
		}
		if want != nil && want.IsInt64() && len(text) <= 10 { // longer ones may have too many digits
			t.Fatalf("%q: %v", text, err)
		}
		return
	}
	if want == nil || want.Cmp(big.NewInt(int64(got))) != 0 {
		t.Fatalf("%q is read as %d, want %v", text, int64(got), want)
	}
	if again, err := money.Parse(got.String()); err != nil || again != got {
		t.Fatalf("%q is shown as %q and read as %v, %v", text, got, again, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"2.04", "-.0000000015", "-9223372036.854775808", "1e3", "$1,000.00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) { checkParse(t, text) })
}

func TestParseIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		checkParse(t, rapid.StringMatching(`-?[0-9]{0,11}(\.[0-9]{0,20}5?0{0,20})?`).Draw(t, "text"))
	})
}

func TestString(t *testing.T) {
	t.Parallel()
	tests := []struct {
		amount money.Amount
		want   string
	}{
		{0, "0"}, {1, "0.000000001"}, {-1, "-0.000000001"}, {2_040_000_000, "2.04"}, {-1_500_000_000, "-1.5"},
		{money.FromUnits(100), "100"}, {10_000_000, "0.01"}, {most, "9223372036.854775807"}, {least, "-9223372036.854775808"},
	}
	for _, c := range tests {
		if diff := cmp.Diff(c.want, c.amount.String()); diff != "" {
			t.Error(diff)
		}
	}
}

var shortest = regexp.MustCompile(`^(0|-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?)$`)

func TestStringRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := amounts().Draw(t, "amount")
		got, err := money.Parse(a.String())
		if err != nil || got != a {
			t.Fatalf("%d is shown as %q and read as %d, %v", int64(a), a, int64(got), err)
		}
		if s := a.String(); !shortest.MatchString(s) || s == "-0" {
			t.Fatalf("%q is not the shortest form", s)
		}
	})
}

func TestFixed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		amount   string
		decimals int
		want     string
	}{
		{"0", 2, "0.00"}, {"0", 0, "0"}, {"2", 2, "2.00"}, {"2.04", 3, "2.040"}, {"2.04", 9, "2.040000000"},
		{"0.5", 0, "0"}, {"1.5", 0, "2"}, {"2.5", 0, "2"}, {"-0.5", 0, "0"}, {"-1.5", 0, "-2"}, {"-2.5", 0, "-2"},
		{"0.125", 2, "0.12"}, {"0.135", 2, "0.14"}, {"-0.125", 2, "-0.12"}, {"-0.135", 2, "-0.14"},
		{"0.125000001", 2, "0.13"}, {"-0.125000001", 2, "-0.13"}, {"9.999", 2, "10.00"}, {"-0.004", 2, "0.00"},
		{"9223372036.854775807", 0, "9223372037"}, {"-9223372036.854775808", 0, "-9223372037"},
		{"9223372036.854775807", 9, "9223372036.854775807"}, {"-9223372036.854775808", 9, "-9223372036.854775808"},
	}
	for _, c := range tests {
		a, err := money.Parse(c.amount)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, a.Fixed(c.decimals)); diff != "" {
			t.Errorf("%s to %d decimals: %s", c.amount, c.decimals, diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, decimals := amounts().Draw(t, "amount"), rapid.IntRange(0, 9).Draw(t, "decimals")
		step := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(9-decimals)), nil))
		steps := new(big.Rat).SetInt(halfEven(new(big.Rat).Quo(rat(a), step)))
		units := steps.Mul(steps, step).Quo(steps, big.NewRat(money.Unit, 1))
		if diff := cmp.Diff(units.FloatString(decimals), a.Fixed(decimals)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestRoundTo(t *testing.T) {
	t.Parallel()
	tests := []struct{ amount, step, want money.Amount }{
		{0, 10, 0}, {4, 10, 0}, {5, 10, 0}, {6, 10, 10}, {14, 10, 10}, {15, 10, 20}, {25, 10, 20}, {26, 10, 30}, {7, 1, 7},
		{-4, 10, 0}, {-5, 10, 0}, {-6, 10, -10}, {-14, 10, -10}, {-15, 10, -20}, {-25, 10, -20}, {-26, 10, -30}, {-7, 1, -7},
		{3, 3, 3}, {4, 3, 3}, {5, 3, 6}, {-4, 3, -3}, {-5, 3, -6},
		{most, 1, most}, {least, 1, least}, {least, 2, least}, {5, most, 0}, {most, most, most}, {most - 1, most, most}, {least, most, -most},
		{most, 10, most - 7}, {most, money.Unit, money.FromUnits(9223372036)}, {least, money.Unit, money.FromUnits(-9223372036)},
	}
	for _, c := range tests {
		if diff := cmp.Diff(int64(c.want), int64(c.amount.RoundTo(c.step))); diff != "" {
			t.Errorf("%d to %d: %s", int64(c.amount), int64(c.step), diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := amounts().Draw(t, "amount")
		step := rapid.OneOf(rapid.Int64Range(1, 100), rapid.Int64Range(1, math.MaxInt64)).Draw(t, "step")
		want := halfEven(new(big.Rat).Quo(rat(a), big.NewRat(step, 1)))
		want.Mul(want, big.NewInt(step))
		if !want.IsInt64() { // then the last multiple that fits
			want.Sub(want, big.NewInt(int64(want.Sign())*step))
		}
		if got := a.RoundTo(money.Amount(step)); int64(got) != want.Int64() {
			t.Fatalf("got %d, want %v", int64(got), want)
		}
	})
}

func TestFromFloat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		units float64
		want  money.Amount
	}{{0, 0}, {2.04, 2_040_000_000}, {-0.1, -100_000_000}, {5e-10, 0}, {1.5e-9, 2}, {1e9, money.FromUnits(1e9)}} {
		got, err := money.FromFloat(c.units)
		if err != nil || got != c.want {
			t.Errorf("%v: %v, %v; want %v", c.units, got, err, c.want)
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e10, -1e10, math.MaxFloat64} {
		if got, err := money.FromFloat(bad); got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v: %v, %v", bad, got, err)
		}
	}
	if got := money.Amount(2_500_000_000).Float(); got != 2.5 {
		t.Errorf("2.5 is the float %v", got)
	}
}

func TestMulDiv(t *testing.T) {
	t.Parallel()
	tests := []struct {
		amount   money.Amount
		num, den int64
		want     money.Amount
	}{
		{7, 0, 1, 0}, {10, 1, 4, 2}, {14, 1, 4, 4}, {-10, 1, 4, -2}, {-14, 1, 4, -4}, {-11, 1, 4, -3}, {-1, 1, 2, 0}, {-3, 1, 2, -2},
		{most, math.MaxInt64, math.MaxInt64, most}, {least, 1, 1, least}, {least, math.MaxInt64, math.MaxInt64, least}, {least, 1, 2, least / 2},
	}
	for _, c := range tests {
		got, err := c.amount.MulDiv(c.num, c.den)
		if err != nil || got != c.want {
			t.Errorf("%d*%d/%d = %d, %v; want %d", int64(c.amount), c.num, c.den, int64(got), err, int64(c.want))
		}
	}
	for _, c := range []struct{ num, den int64 }{{-1, 1}, {1, 0}, {1, -1}, {0, 0}} {
		if got, err := money.Amount(1).MulDiv(c.num, c.den); got != 0 || fault.KindOf(err) != fault.Internal {
			t.Errorf("%d/%d: %v, %v", c.num, c.den, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := amounts().Draw(t, "amount")
		factor := func(low int64) *rapid.Generator[int64] {
			return rapid.OneOf(rapid.Int64Range(low, 100), rapid.Int64Range(low, math.MaxInt64), rapid.Just(int64(math.MaxInt64)))
		}
		num, den := factor(0).Draw(t, "num"), factor(1).Draw(t, "den")
		got, err := a.MulDiv(num, den)
		agree(t, new(big.Rat).Mul(rat(a), big.NewRat(num, den)), got, err)
	})
}

func TestFor(t *testing.T) {
	t.Parallel()
	tests := []struct {
		price money.Amount
		time  time.Duration
		want  string
	}{
		{2 * money.Unit, time.Hour, "2"}, {2 * money.Unit, 90 * time.Minute, "3"}, {money.Unit, 0, "0"},
		{money.Unit, time.Second, "0.000277778"}, {money.Unit, money.Month, "730"}, {-money.Unit, 30 * time.Minute, "-0.5"},
		{1, 30 * time.Minute, "0"}, {3, 30 * time.Minute, "0.000000002"},
	}
	for _, c := range tests {
		got, err := c.price.For(c.time)
		if diff := cmp.Diff(c.want, got.String()); err != nil || diff != "" {
			t.Errorf("%v for %v: %v %s", c.price, c.time, err, diff)
		}
	}
	if got, err := most.For(2 * time.Hour); got != 0 || fault.KindOf(err) != fault.Invalid {
		t.Errorf("too much: %v, %v", got, err)
	}
	if got, err := money.Amount(1).For(-time.Hour); got != 0 || err == nil {
		t.Errorf("a time before: %v, %v", got, err)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, 1e19} {
		if got, err := money.Amount(1).Times(bad); got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("times %v: %v, %v", bad, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := amounts().Draw(t, "amount")
		q := rapid.OneOf(
			rapid.Float64Range(-1e12, 1e12), rapid.Float64Range(0, 1000), rapid.Float64Range(-math.MaxFloat64, math.MaxFloat64),
			rapid.Map(rapid.Int64Range(-1<<54, 1<<54), func(n int64) float64 { return float64(n) }),
			rapid.Map(rapid.Int64Range(-1000, 1000), func(n int64) float64 { return float64(n) / 8 }),
		).Draw(t, "quantity")
		got, err := a.Times(q)
		agree(t, new(big.Rat).Mul(rat(a), new(big.Rat).SetFloat64(q)), got, err)
	})
}

func TestAdd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b money.Amount }{{most, 1}, {1, most}, {most, most}, {least, -1}, {-1, least}, {least, least}} {
		if got, err := c.a.Add(c.b); got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v + %v: %v, %v", c.a, c.b, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := amounts().Draw(t, "a"), amounts().Draw(t, "b")
		got, err := a.Add(b)
		agree(t, new(big.Rat).Add(rat(a), rat(b)), got, err)
	})
}

func TestJSON(t *testing.T) {
	t.Parallel()
	type priced struct {
		Price money.Amount
		Limit *money.Amount
	}
	b, err := json.Marshal(priced{Price: 2_040_000_000})
	if diff := cmp.Diff(`{"Price":"2.04","Limit":null}`, string(b)); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{`1.5`, `null`, `""`, `"$1"`, `"1e3"`, `{}`, `true`} {
		var a money.Amount
		if err := json.Unmarshal([]byte(bad), &a); a != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s is read as %v, %v", bad, a, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		limit := amounts().Draw(t, "limit")
		want := priced{amounts().Draw(t, "price"), &limit}
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got priced
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestExchange(t *testing.T) {
	t.Parallel()
	euro := money.ExchangeRate{Currency: "EUR", USDPerUnit: 1.25, Date: "2026-07-01", Source: "a bank"}
	x, err := money.NewExchange([]money.ExchangeRate{{Currency: "EUR", USDPerUnit: 9}, euro, {Currency: "JPY", USDPerUnit: 0.0078125}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"EUR", "JPY", "USD"}, x.Currencies()); diff != "" {
		t.Error(diff)
	}
	if got, ok := x.Rate("EUR"); !ok || got != euro {
		t.Errorf("the last rate does not win: %v, %v", got, ok)
	}
	if got, ok := x.Rate("USD"); !ok || got.USDPerUnit != 1 {
		t.Errorf("a dollar is %v, %v", got, ok)
	}
	if _, ok := x.Rate("XXX"); ok {
		t.Error("XXX has a rate")
	}
	tests := []struct{ amount, from, to, want string }{
		{"2", "EUR", "USD", "2.5"}, {"2.5", "USD", "EUR", "2"}, {"-2", "EUR", "USD", "-2.5"}, {"1", "EUR", "JPY", "160"},
		{"1.000000001", "EUR", "EUR", "1.000000001"}, {"1.000000001", "XXX", "XXX", "1.000000001"},
		{"0.000000002", "EUR", "USD", "0.000000002"}, {"0.000000006", "EUR", "USD", "0.000000008"}, // 2.5 and 7.5 nano
	}
	for _, c := range tests {
		a, err := money.Parse(c.amount)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Convert(a, c.from, c.to)
		if diff := cmp.Diff(c.want, got.String()); err != nil || diff != "" {
			t.Errorf("%s %s in %s: %v %s", c.amount, c.from, c.to, err, diff)
		}
	}
	for _, c := range [][2]string{{"XXX", "EUR"}, {"EUR", "XXX"}, {"USD", ""}, {"eur", "USD"}} {
		if got, err := x.Convert(money.Unit, c[0], c[1]); got != 0 || fault.KindOf(err) != fault.Invalid || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, %v", c, got, err)
		}
	}
	if got, err := x.Convert(most, "EUR", "JPY"); got != 0 || fault.KindOf(err) != fault.Invalid {
		t.Errorf("too much: %v, %v", got, err)
	}
	var none money.Exchange
	if diff := cmp.Diff([]string{"USD"}, none.Currencies()); diff != "" {
		t.Error(diff)
	}
	if _, err := none.Convert(1, "EUR", "USD"); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an empty table: %v", err)
	}
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := money.NewExchange([]money.ExchangeRate{euro, {Currency: "JPY", USDPerUnit: bad}})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "JPY") || fault.HintOf(err) == "" {
			t.Errorf("the rate %v: %v", bad, err)
		}
	}
}

func TestExchangeThereAndBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.Float64Range(0.005, 4)
		dear, cheap := rates.Draw(t, "dear"), rates.Draw(t, "cheap")
		if dear < cheap {
			dear, cheap = cheap, dear
		}
		x, err := money.NewExchange([]money.ExchangeRate{{Currency: "AAA", USDPerUnit: dear}, {Currency: "BBB", USDPerUnit: cheap}})
		if err != nil {
			t.Fatal(err)
		}
		a := money.Amount(rapid.Int64Range(-1e15, 1e15).Draw(t, "amount"))
		there, err := x.Convert(a, "AAA", "BBB")
		ratio := new(big.Rat).Quo(new(big.Rat).SetFloat64(dear), new(big.Rat).SetFloat64(cheap))
		agree(t, ratio.Mul(ratio, rat(a)), there, err)
		// A nano-unit of the cheaper currency is the smaller, so that only the
		// way back rounds visibly.
		back, err := x.Convert(there, "BBB", "AAA")
		if err != nil || back < a-1 || back > a+1 {
			t.Fatalf("%v AAA are %v BBB are %v AAA, %v", a, there, back, err)
		}
	})
}
