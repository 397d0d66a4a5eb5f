package ledger

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
)

// Ways lists by what entries can be grouped.
func Ways() []string { return []string{"job", "machine", "provider", "day", "member", "kind"} }

// Sum is what some entries come to, in one currency.
type Sum struct {
	Key      string // of the group
	Currency string
	Amount   money.Amount
	Hours    float64 // machine hours, each by its share
	Unknown  int     // parts whose price is not known: they are not in Amount
	Assumed  bool    // a price of it was derived, not stated
	Parts    map[Kind]money.Amount
}

// Group sums usage with its charges, which stand at the same index, by a way.
// Different currencies are never added. Usage that passes midnight, in UTC, is
// divided between its days. The dearest group is first; days are in order.
func Group(usage []Usage, charges []Charge, by string) ([]Sum, error) {
	key, ok := keys[by]
	if !ok && by != "day" {
		return nil, fault.New(fault.Invalid, "cannot group by %q", by).Hint("--by takes job, machine, provider, day, member or kind")
	}
	type id struct{ key, currency string }
	groups := map[id]*Sum{}
	add := func(key string, u *Usage, c *Charge) {
		g := groups[id{key, c.Currency}]
		if g == nil {
			g = &Sum{Key: key, Currency: c.Currency, Parts: map[Kind]money.Amount{}}
			groups[id{key, c.Currency}] = g
		}
		if u.timed() {
			g.Hours += u.Hours() * float64(u.Share) / Whole
		}
		if !c.Known {
			g.Unknown++
			return
		}
		g.Amount += c.Amount
		g.Parts[u.Kind] += c.Amount
		g.Assumed = g.Assumed || c.Assumed
	}
	for i := range usage {
		if by == "day" {
			days(usage[i], charges[i], add)
		} else {
			add(key(&usage[i]), &usage[i], &charges[i])
		}
	}
	out := make([]Sum, 0, len(groups))
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Sum) int {
		if by == "day" {
			return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Currency, b.Currency))
		}
		return cmp.Or(-cmp.Compare(a.Amount, b.Amount), natural(a.Key, b.Key), cmp.Compare(a.Currency, b.Currency))
	})
	return out, nil
}

// keys give the group of a usage by each way but the day.
var keys = map[string]func(*Usage) string{
	"job": func(u *Usage) string {
		if u.Job == 0 {
			return "idle"
		}
		return strconv.FormatInt(u.Job, 10)
	},
	"machine":  func(u *Usage) string { return u.Machine },
	"provider": func(u *Usage) string { return u.Provider },
	"member":   func(u *Usage) string { return u.Member },
	"kind":     func(u *Usage) string { return string(u.Kind) },
}

// days divides one usage at each midnight. Its amount grows evenly with time
// and is rounded down at each, so that the days add up to it.
func days(u Usage, c Charge, add func(day string, u *Usage, c *Charge)) {
	if u.From.IsZero() || u.From.After(u.To) {
		u.From = u.To
	}
	from, whole, length := u.From, c.Amount, u.To.Sub(u.From)
	given := money.Amount(0)
	for {
		at := u.From.UTC()
		midnight := time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, time.UTC)
		part, cost := u, c
		if part.To.After(midnight) {
			part.To = midnight
			cost.Amount = floor(int64(whole), int64(midnight.Sub(from)), 1, int64(length), 1) - given
		} else {
			cost.Amount = whole - given
		}
		add(at.Format("2006-01-02"), &part, &cost)
		given += cost.Amount
		if !u.To.After(midnight) {
			return
		}
		u.From = midnight
	}
}

// natural compares numbers as numbers.
func natural(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
