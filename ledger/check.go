package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/destajo/destajo/money"
)

// Bill is what a machine that is gone must come to.
type Bill struct {
	Machine string
	Cost    money.Amount
}

// Check finds what is wrong with a ledger: usage that is there twice or has no
// charge, a moment of an attempt that is charged twice, shares that pass the
// machine, a charge below zero, and machines whose charges are not what they
// cost. Charges stand at the index of their usage. An empty list is a balanced
// ledger.
func Check(usage []Usage, charges []Charge, bills []Bill) []string {
	var out []string
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	total := map[string]money.Amount{}
	currency := map[string]string{}
	seen := map[string]bool{}
	parts := map[string][]*Usage{} // of attempts, by machine
	for i := range usage {
		u := &usage[i]
		if seen[u.Key] {
			wrong("usage %s is there twice", u.Key)
		}
		seen[u.Key] = true
		if i >= len(charges) || charges[i].Key != u.Key {
			wrong("usage %s has no charge", u.Key)
			continue
		}
		c := &charges[i]
		if c.Amount < 0 {
			wrong("usage %s has a negative charge", u.Key)
		}
		if !c.Known && c.Amount != 0 {
			wrong("usage %s has an unknown price and costs %s", u.Key, c.Amount)
		}
		if !u.timed() {
			continue
		}
		if !c.Known {
			wrong("usage %s is machine time without a known price", u.Key)
		}
		if was, ok := currency[u.Machine]; ok && was != c.Currency {
			wrong("machine %s is charged in %s and in %s", u.Machine, was, c.Currency)
		}
		currency[u.Machine] = c.Currency
		total[u.Machine] += c.Amount
		if u.Kind != Idle && u.To.After(u.From) {
			parts[u.Machine] = append(parts[u.Machine], u)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(parts)) {
		twice(parts[m], wrong)
		crowded(parts[m], wrong)
	}
	for _, b := range bills {
		if total[b.Machine] != b.Cost {
			wrong("machine %s costs %s, its charges come to %s", b.Machine, b.Cost, total[b.Machine])
		}
	}
	return out
}

// timed says whether the usage is time of a machine.
func (u *Usage) timed() bool { return u.Kind != Disk && u.Kind != Egress }

// clock is how moments are shown.
const clock = "15:04:05.000000000"

// twice finds moments of one attempt that two parts on one machine hold.
func twice(parts []*Usage, wrong func(string, ...any)) {
	slices.SortStableFunc(parts, func(a, b *Usage) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	last := map[string]*Usage{} // the part of an attempt that ends last
	for _, u := range parts {
		p := last[u.Attempt]
		if p != nil && u.From.Before(p.To) {
			wrong("attempt %s is charged twice on %s from %s: %s and %s", u.Attempt, u.Machine, u.From.UTC().Format(clock), p.Key, u.Key)
		}
		if p == nil || u.To.After(p.To) {
			last[u.Attempt] = u
		}
	}
}

// crowded finds moments at which the shares of a machine pass the whole.
func crowded(parts []*Usage, wrong func(string, ...any)) {
	type edge struct {
		at    time.Time
		share int64 // that begins, or below zero that ends
	}
	var edges []edge
	for _, u := range parts {
		edges = append(edges, edge{u.From, u.Share}, edge{u.To, -u.Share})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.share, b.share)) }) // ends first
	held, over := int64(0), false
	for _, e := range edges {
		held += e.share
		if held > Whole && !over {
			wrong("more than the whole of %s is charged from %s", parts[0].Machine, e.at.UTC().Format(clock))
		}
		over = held > Whole
	}
}
