package ledger_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/money"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func amount(t *testing.T, text string) money.Amount {
	t.Helper()
	a, err := money.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTime(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		price    string
		from, to time.Duration // after the origin
		share    int64
		want     string
	}{
		"an hour":               {"2.04", 0, time.Hour, ledger.Whole, "2.04"},
		"a share":               {"2.04", 0, time.Hour, 250_000, "0.51"},
		"a second of a cent":    {"0.01", 0, time.Second, ledger.Whole, "0.000002777"},
		"the next second":       {"0.01", time.Second, 2 * time.Second, ledger.Whole, "0.000002778"},
		"a third":               {"1", 0, time.Hour, 333_333, "0.333333"},
		"nothing":               {"2", time.Hour, time.Hour, ledger.Whole, "0"},
		"free":                  {"0", 0, time.Hour, ledger.Whole, "0"},
		"before the origin":     {"2", -time.Hour, time.Hour, ledger.Whole, "2"},
		"dear and long":         {"1000", 0, 8760 * time.Hour, ledger.Whole, "8760000"},
		"more than can be held": {"9000000000", 0, 1000 * time.Hour, ledger.Whole, money.Amount(math.MaxInt64).String()},
	} {
		u := ledger.Usage{Origin: noon, From: noon.Add(x.from), To: noon.Add(x.to), Share: x.share}
		if got := u.Time(amount(t, x.price)); got != amount(t, x.want) {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
	alone := ledger.Usage{From: noon, To: noon.Add(time.Hour), Share: ledger.Whole}
	if got := alone.Time(money.Unit); got != money.Unit {
		t.Errorf("usage without an origin costs %s", got)
	}
}

func TestMachineCost(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		price              string
		time               time.Duration
		increment, minimum time.Duration
		want               string
	}{
		"by the second":         {"3.6", 90*time.Second + time.Millisecond, time.Second, 0, "0.091"},
		"just full":             {"3.6", 90 * time.Second, time.Second, 0, "0.09"},
		"by the hour":           {"2", time.Nanosecond, time.Hour, 0, "2"},
		"a minimum":             {"6", time.Second, time.Second, 10 * time.Minute, "1"},
		"a minimum, rounded up": {"6", time.Second, 15 * time.Minute, 10 * time.Minute, "1.5"},
		"above the minimum":     {"6", 20 * time.Minute, time.Minute, 10 * time.Minute, "2"},
		"exactly":               {"3.6", 1500 * time.Millisecond, 0, 0, "0.0015"},
		"never billed":          {"3.6", 0, time.Hour, time.Hour, "0"},
		"ended before":          {"3.6", -time.Second, time.Hour, time.Hour, "0"},
		"for ever":              {"0.000000001", math.MaxInt64, time.Hour, 0, "0.002562047"},
	} {
		if got := ledger.MachineCost(amount(t, x.price), noon, noon.Add(x.time), x.increment, x.minimum); got != amount(t, x.want) {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
	if got := ledger.MachineCost(money.Unit, time.Time{}, noon, time.Hour, time.Hour); got != 0 {
		t.Errorf("a machine that never was billed costs %s", got)
	}
}

func TestCharge(t *testing.T) {
	t.Parallel()
	price := amount(t, "0.10")
	tariff := ledger.Tariff{Currency: "EUR", Price: &price, Assumed: true, Source: "a list", AsOf: "2026-11-30"}
	unknown := tariff
	unknown.Price = nil
	for name, x := range map[string]struct {
		u    ledger.Usage
		t    ledger.Tariff
		want ledger.Charge
	}{
		"time":             {ledger.Usage{Key: "a", Kind: ledger.Run, Origin: noon, From: noon, To: noon.Add(time.Hour), Share: ledger.Whole}, tariff, ledger.Charge{Key: "a", Amount: price, Known: true, Currency: "EUR", Price: price, Assumed: true, Source: "a list", AsOf: "2026-11-30"}},
		"a month of disk":  {ledger.Usage{Kind: ledger.Disk, From: noon, To: noon.Add(money.Month), Bytes: 100e9}, tariff, ledger.Charge{Amount: amount(t, "10"), Known: true, Currency: "EUR", Price: price, Assumed: true, Source: "a list", AsOf: "2026-11-30"}},
		"bytes out":        {ledger.Usage{Kind: ledger.Egress, From: noon, To: noon, Bytes: 2_500_000_000}, tariff, ledger.Charge{Amount: amount(t, "0.25"), Known: true, Currency: "EUR", Price: price, Assumed: true, Source: "a list", AsOf: "2026-11-30"}},
		"unknown bytes":    {ledger.Usage{Kind: ledger.Egress, Bytes: 5e9}, unknown, ledger.Charge{Currency: "EUR", Assumed: true, Source: "a list", AsOf: "2026-11-30"}},
		"unknown disk":     {ledger.Usage{Kind: ledger.Disk, From: noon, To: noon.Add(time.Hour), Bytes: 5e9}, unknown, ledger.Charge{Currency: "EUR", Assumed: true, Source: "a list", AsOf: "2026-11-30"}},
		"free is not that": {ledger.Usage{Kind: ledger.Egress, Bytes: 5e9}, ledger.Tariff{Currency: "EUR", Price: new(money.Amount)}, ledger.Charge{Known: true, Currency: "EUR"}},
	} {
		if d := cmp.Diff(x.want, x.u.Charge(x.t)); d != "" {
			t.Errorf("%s (-want +got)\n%s", name, d)
		}
	}
}

// TestParts divides usage anywhere: the parts cost what the whole costs.
func TestParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		price := money.Amount(rapid.Int64Range(0, 500*money.Unit).Draw(t, "price"))
		u := ledger.Usage{Kind: rapid.SampledFrom([]ledger.Kind{ledger.Run, ledger.Disk}).Draw(t, "kind"), Origin: noon, From: noon, Share: rapid.Int64Range(1, ledger.Whole).Draw(t, "share"), Bytes: rapid.Int64Range(0, 1e13).Draw(t, "bytes")}
		tariff := ledger.Tariff{Price: &price}
		u.To = noon.Add(time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "length")))
		sum := money.Amount(0)
		part := u
		for range rapid.IntRange(0, 20).Draw(t, "cuts") {
			part.To = part.From.Add(time.Duration(rapid.Int64Range(0, int64(u.To.Sub(part.From))).Draw(t, "cut")))
			c := part.Charge(tariff)
			if c.Amount < 0 {
				t.Fatalf("a part costs %s", c.Amount)
			}
			sum += c.Amount
			part.From = part.To
		}
		part.To = u.To
		sum += part.Charge(tariff).Amount
		if whole := u.Charge(tariff).Amount; sum != whole {
			t.Fatalf("the parts cost %s, the whole %s", sum, whole)
		}
	})
}

// book is a ledger with what its machines must come to.
type book struct {
	usage   []ledger.Usage
	charges []ledger.Charge
	bills   []ledger.Bill
}

func (b *book) add(u ledger.Usage, c ledger.Charge) {
	b.usage, b.charges = append(b.usage, u), append(b.charges, c)
}

// drawBook draws machines whose time is shared by attempts that follow each
// other in lanes; the lanes' shares fit into the machine, and attempts leave
// gaps. Each attempt is recorded in parts.
func drawBook(t *rapid.T) *book {
	b := &book{}
	for m := range rapid.IntRange(1, 3).Draw(t, "machines") {
		price := money.Amount(rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 100*money.Unit)).Draw(t, "price"))
		tariff := ledger.Tariff{Currency: rapid.SampledFrom([]string{"USD", "EUR"}).Draw(t, "currency"), Price: &price, Assumed: rapid.Bool().Draw(t, "assumed")}
		u := ledger.Usage{Project: "p", Member: fmt.Sprint("someone-", m%2), Machine: fmt.Sprint("m", m), Provider: fmt.Sprint("provider-", m%2)}
		begin := noon.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Hour)).Draw(t, "begin")))
		end := begin.Add(time.Duration(rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, int64(60*time.Hour))).Draw(t, "life")))
		charged := money.Amount(0)
		room := int64(ledger.Whole)
		for lane := 0; room > 0 && lane < 5; lane++ {
			share := rapid.Int64Range(1, room).Draw(t, "share")
			room -= share
			at := begin
			for n := 0; n < 4 && rapid.Bool().Draw(t, "another"); n++ {
				draw := func(name string) time.Time {
					at = at.Add(time.Duration(rapid.Int64Range(0, int64(end.Sub(at))).Draw(t, name)))
					return at
				}
				x := u
				x.Job, x.Share = int64(1000*m+10*lane+n+1), share
				x.Attempt = fmt.Sprint(x.Job, "-1")
				x.Origin = draw("origin")
				x.From = x.Origin
				for i, k := range []ledger.Kind{ledger.Startup, ledger.Run, ledger.Run, ledger.Finish} {
					x.Kind, x.Key, x.To = k, fmt.Sprint(x.Attempt, "/", i), draw("to")
					c := x.Charge(tariff)
					charged += c.Amount
					b.add(x, c)
					x.From = x.To
				}
			}
		}
		cost := ledger.MachineCost(price, begin, end, time.Duration(rapid.SampledFrom([]int64{0, 1e9, 60e9, 3600e9}).Draw(t, "increment")), time.Duration(rapid.SampledFrom([]int64{0, 60e9}).Draw(t, "minimum")))
		u.Key, u.Origin, u.From, u.To = u.Machine+"/idle", begin, begin, end
		idle, c := ledger.Settle(u, tariff, cost, charged)
		if c.Amount < 0 || idle.Share < 0 || idle.Share > ledger.Whole || idle.Kind != ledger.Idle {
			t.Fatalf("%s idle of %s, share %d", c.Amount, cost, idle.Share)
		}
		b.add(idle, c)
		b.bills = append(b.bills, ledger.Bill{Machine: u.Machine, Cost: cost})
		if rapid.Bool().Draw(t, "egress") {
			u.Key, u.Kind, u.Job, u.Bytes, u.From = u.Machine+"/out", ledger.Egress, 5, 1e9, end
			if rapid.Bool().Draw(t, "unknown") {
				tariff.Price = nil
			}
			b.add(u, u.Charge(tariff))
		}
	}
	return b
}

// TestBalance: shares and idle time are what the machines cost.
func TestBalance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := drawBook(t)
		if wrong := ledger.Check(b.usage, b.charges, b.bills); len(wrong) > 0 {
			t.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}

// TestCheck breaks a balanced ledger in one place.
func TestCheck(t *testing.T) {
	t.Parallel()
	price := amount(t, "3.6")
	tariff := ledger.Tariff{Currency: "USD", Price: &price}
	fresh := func() *book {
		b := &book{}
		charged := money.Amount(0)
		for i := range 4 {
			u := ledger.Usage{Key: fmt.Sprint("u", i), Attempt: fmt.Sprint(i/2, "-1"), Job: int64(i/2 + 1), Machine: "m", Kind: ledger.Run, Origin: noon, From: noon.Add(time.Duration(i%2) * time.Minute), Share: ledger.Whole / 2}
			u.To = u.From.Add(time.Minute)
			c := u.Charge(tariff)
			charged += c.Amount
			b.add(u, c)
		}
		cost := ledger.MachineCost(price, noon, noon.Add(150*time.Second), time.Minute, 0)
		b.add(ledger.Settle(ledger.Usage{Key: "idle", Machine: "m", From: noon, To: noon.Add(150 * time.Second)}, tariff, cost, charged))
		b.bills = []ledger.Bill{{Machine: "m", Cost: cost}}
		return b
	}
	if wrong := ledger.Check(fresh().usage, fresh().charges, fresh().bills); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	for name, x := range map[string]struct {
		do   func(*book)
		want string
	}{
		"a nano more":        {func(b *book) { b.charges[1].Amount++ }, "costs 0.18, its charges come to 0.180000001"},
		"no charge":          {func(b *book) { b.charges[2] = ledger.Charge{} }, "usage u2 has no charge"},
		"too few charges":    {func(b *book) { b.charges = b.charges[:4] }, "usage idle has no charge"},
		"twice":              {func(b *book) { b.add(b.usage[0], b.charges[0]) }, "usage u0 is there twice"},
		"a moment twice":     {func(b *book) { b.usage[1].From = b.usage[1].From.Add(-time.Nanosecond) }, "attempt 0-1 is charged twice on m from 12:00:59.999999999"},
		"inside another":     {func(b *book) { b.usage[0].To = noon.Add(time.Hour); b.usage[1].To = noon.Add(70 * time.Second) }, "attempt 0-1 is charged twice"},
		"too much of it":     {func(b *book) { b.usage[3].Share++ }, "more than the whole of m is charged from 12:01:00"},
		"a negative charge":  {func(b *book) { b.charges[4].Amount = -1 }, "usage idle has a negative charge"},
		"a machine for free": {func(b *book) { b.bills = append(b.bills, ledger.Bill{Machine: "n", Cost: 1}) }, "machine n costs 0.000000001, its charges come to 0"},
		"two currencies":     {func(b *book) { b.charges[3].Currency = "EUR" }, "machine m is charged in USD and in EUR"},
		"an unknown price":   {func(b *book) { b.charges[3].Known = false }, "usage u3 has an unknown price and costs 0.03"},
	} {
		b := fresh()
		x.do(b)
		if got := strings.Join(ledger.Check(b.usage, b.charges, b.bills), "\n"); !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

// TestSettleTakesBack: an attempt that was charged beyond the end that its
// provider tells later.
func TestSettleTakesBack(t *testing.T) {
	t.Parallel()
	u, c := ledger.Settle(ledger.Usage{Key: "idle", Machine: "m"}, ledger.Tariff{Currency: "USD"}, 10, 12)
	if c.Amount != -2 || u.Share != 0 || !c.Known {
		t.Errorf("%+v %+v", u, c)
	}
}

// TestReplay: usage that is recorded again, from any part of it, has the same
// charges under the same keys.
func TestReplay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := drawBook(t)
		stored := map[string]ledger.Charge{}
		for i, c := range b.charges {
			stored[b.usage[i].Key] = c
		}
		for i := rapid.IntRange(0, len(b.usage)-1).Draw(t, "from"); i < len(b.usage); i++ {
			u, c := &b.usage[i], b.charges[i]
			if u.Kind == ledger.Idle {
				continue
			}
			tariff := ledger.Tariff{Currency: c.Currency, Assumed: c.Assumed}
			if c.Known {
				tariff.Price = &c.Price
			}
			if again := u.Charge(tariff); again != stored[u.Key] {
				t.Fatalf("%s was %+v and is %+v", u.Key, stored[u.Key], again)
			}
		}
	})
}

// TestGroup: however a ledger is grouped, each currency's sums are the same.
func TestGroup(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := drawBook(t)
		want, unknown := map[string]money.Amount{}, 0
		hours := 0.0
		for i, c := range b.charges {
			want[c.Currency] += c.Amount
			if !c.Known {
				unknown++
			}
			if u := b.usage[i]; u.Kind != ledger.Egress {
				hours += u.Hours() * float64(u.Share) / ledger.Whole
			}
		}
		for _, by := range ledger.Ways() {
			sums, err := ledger.Group(b.usage, b.charges, by)
			if err != nil {
				t.Fatal(err)
			}
			got, missing, took := map[string]money.Amount{}, 0, 0.0
			for _, s := range sums {
				got[s.Currency] += s.Amount
				missing += s.Unknown
				took += s.Hours
				parts := money.Amount(0)
				for _, p := range s.Parts {
					parts += p
				}
				if parts != s.Amount {
					t.Fatalf("by %s: the parts of %s are %s of %s", by, s.Key, parts, s.Amount)
				}
			}
			if d := cmp.Diff(want, got); d != "" || missing != unknown || math.Abs(took-hours) > 1e-6 {
				t.Fatalf("by %s: %d unknown, want %d; %v hours, want %v\n%s", by, missing, unknown, took, hours, d)
			}
		}
	})
}

func TestGroupRows(t *testing.T) {
	t.Parallel()
	one, half := amount(t, "1"), amount(t, "0.5")
	usd, eur := ledger.Tariff{Currency: "USD", Price: &one}, ledger.Tariff{Currency: "EUR", Price: &half, Assumed: true}
	b := &book{}
	put := func(u ledger.Usage, tariff ledger.Tariff) { b.add(u, u.Charge(tariff)) }
	zone := time.FixedZone("", -8*3600) // days are UTC's, wherever the usage was
	evening := time.Date(2026, 12, 1, 14, 0, 0, 0, zone)
	put(ledger.Usage{Key: "a", Job: 10, Machine: "m", Kind: ledger.Run, From: evening, To: evening.Add(6 * time.Hour), Share: ledger.Whole}, usd) // 22:00 to 04:00
	put(ledger.Usage{Key: "b", Job: 9, Machine: "n", Kind: ledger.Startup, From: noon, To: noon.Add(time.Hour), Share: ledger.Whole / 2}, eur)
	put(ledger.Usage{Key: "c", Job: 10, Machine: "m", Kind: ledger.Egress, From: noon, To: noon, Bytes: 1}, ledger.Tariff{Currency: "USD"})
	put(ledger.Usage{Key: "d", Job: 0, Machine: "m", Kind: ledger.Idle, From: noon, To: noon.Add(time.Hour), Share: ledger.Whole}, usd)
	type parts = map[ledger.Kind]money.Amount
	quarter := amount(t, "0.25")
	for by, want := range map[string][]ledger.Sum{
		"job": {
			{Key: "10", Currency: "USD", Amount: 6 * one, Hours: 6, Unknown: 1, Parts: parts{ledger.Run: 6 * one}},
			{Key: "idle", Currency: "USD", Amount: one, Hours: 1, Parts: parts{ledger.Idle: one}},
			{Key: "9", Currency: "EUR", Amount: quarter, Hours: 0.5, Assumed: true, Parts: parts{ledger.Startup: quarter}},
		},
		"day": {
			{Key: "2026-12-01", Currency: "EUR", Amount: quarter, Hours: 0.5, Assumed: true, Parts: parts{ledger.Startup: quarter}},
			{Key: "2026-12-01", Currency: "USD", Amount: 3 * one, Hours: 3, Unknown: 1, Parts: parts{ledger.Run: 2 * one, ledger.Idle: one}},
			{Key: "2026-12-02", Currency: "USD", Amount: 4 * one, Hours: 4, Parts: parts{ledger.Run: 4 * one}},
		},
	} {
		got, err := ledger.Group(b.usage, b.charges, by)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("by %s (-want +got)\n%s", by, d)
		}
	}
	if _, err := ledger.Group(nil, nil, "colour"); fault.KindOf(err) != fault.Invalid || fault.HintOf(err) == "" {
		t.Errorf("an unknown way: %v", err)
	}
}

func BenchmarkCheck(b *testing.B) {
	price := money.Amount(money.Unit)
	x := &book{}
	for i := range 20_000 {
		u := ledger.Usage{Key: fmt.Sprint(i), Attempt: fmt.Sprint(i % 50), Machine: "m", Kind: ledger.Run, Origin: noon, From: noon.Add(time.Duration(i/50) * time.Minute), Share: ledger.Whole / 50}
		u.To = u.From.Add(time.Minute)
		x.add(u, u.Charge(ledger.Tariff{Price: &price}))
	}
	for b.Loop() {
		if wrong := ledger.Check(x.usage, x.charges, nil); len(wrong) > 0 {
			b.Fatal(wrong[0])
		}
	}
}
