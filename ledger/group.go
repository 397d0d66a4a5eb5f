package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

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
// Different currencies are never added. Days are those of the end, in UTC.
func Group(usage []Usage, charges []Charge, by string) ([]Sum, error) {
	var key func(*Usage) string
	switch by {
	case "job":
		key = func(u *Usage) string {
			if u.Job == 0 {
				return "idle"
			}
			return strconv.FormatInt(u.Job, 10)
		}
	case "machine":
		key = func(u *Usage) string { return u.Machine }
	case "provider":
		key = func(u *Usage) string { return u.Provider }
	case "day":
		key = func(u *Usage) string { return u.To.UTC().Format("2006-01-02") }
	case "member":
		key = func(u *Usage) string { return u.Member }
	case "kind":
		key = func(u *Usage) string { return string(u.Kind) }
	default:
		return nil, fault.New(fault.Invalid, "cannot group by %q", by).Hint("--by takes job, machine, provider, day, member or kind")
	}
	type id struct{ key, currency string }
	groups := map[id]*Sum{}
	for i := range usage {
		u, c := &usage[i], &charges[i]
		g := groups[id{key(u), c.Currency}]
		if g == nil {
			g = &Sum{Key: key(u), Currency: c.Currency, Parts: map[Kind]money.Amount{}}
			groups[id{g.Key, c.Currency}] = g
		}
		if u.Kind != Disk && u.Kind != Egress {
			g.Hours += u.Hours() * float64(u.Share) / Whole
		}
		if !c.Known {
			g.Unknown++
			continue
		}
		g.Amount += c.Amount
		g.Parts[u.Kind] += c.Amount
		g.Assumed = g.Assumed || c.Assumed
	}
	out := make([]Sum, 0, len(groups))
	for _, g := range slices.Collect(maps.Values(groups)) {
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

// natural compares numbers as numbers.
func natural(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// Bill is what a machine that is gone must come to.
type Bill struct {
	Machine string
	Cost    money.Amount
}

// Check finds what is wrong with a ledger: usage without a charge, a moment of
// an attempt that is charged twice, shares that pass the machine, and machines
// whose charges are not what they cost. An empty list is a balanced ledger.
func Check(usage []Usage, charges []Charge, bills []Bill) []string {
	var out []string
	total := map[string]money.Amount{}
	type span struct {
		u *Usage
		k string
	}
	spans := map[string][]span{}
	for i := range usage {
		u, c := &usage[i], &charges[i]
		if c.Key != u.Key {
			out = append(out, "usage "+u.Key+" has no charge")
			continue
		}
		if u.Kind == Disk || u.Kind == Egress {
			continue
		}
		total[u.Machine] += c.Amount
		if u.Kind != Idle {
			spans[u.Machine] = append(spans[u.Machine], span{u, u.Attempt})
		}
		if c.Amount < 0 {
			out = append(out, "usage "+u.Key+" has a negative charge")
		}
	}
	for _, m := range slices.Sorted(maps.Keys(spans)) {
		all := spans[m]
		slices.SortFunc(all, func(a, b span) int { return cmp.Or(a.u.From.Compare(b.u.From), a.u.To.Compare(b.u.To)) })
		last := map[string]*Usage{}
		for _, s := range all {
			if p := last[s.k]; p != nil && s.u.From.Before(p.To) {
				out = append(out, "attempt "+s.k+" is charged twice on "+m+" before "+p.To.UTC().Format("15:04:05.000000"))
			}
			last[s.k] = s.u
		}
		for i, s := range all { // at each beginning, what holds the machine then
			if s.u.From.Equal(s.u.To) {
				continue
			}
			share := int64(0)
			for j := 0; j <= i; j++ {
				if o := all[j].u; !o.From.After(s.u.From) && o.To.After(s.u.From) {
					share += o.Share
				}
			}
			if share > Whole {
				out = append(out, "more than the whole of "+m+" is charged at "+s.u.From.UTC().Format("15:04:05.000000"))
			}
		}
	}
	for _, b := range bills {
		if total[b.Machine] != b.Cost {
			out = append(out, "machine "+b.Machine+" costs "+b.Cost.String()+", its charges come to "+total[b.Machine].String())
		}
	}
	return out
}
