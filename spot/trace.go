// Package spot decides whether a job with a deadline runs on spot, on
// on-demand, or waits, so that it is never late and costs the least; and
// simulates such decisions on traces of availability, beside published
// policies. It also keeps rates of interruption. It is pure: no I/O, no clock,
// no chance; the same input gives the same result.
package spot

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
)

// Trace is the availability of spot in one place, sampled at a fixed gap.
type Trace struct {
	ID        string
	Zone      string
	Probe     string  // zone, card and number of GPUs: what "the same place" means
	Gap       float64 // seconds between samples
	Offset    int     // of sample 0 within the whole trace
	Available []bool
	Prices    []PriceChange // of spot, per hour; empty: none known
	Window    int           // of aligned windows over several zones; else 0
	Zones     []*Trace      // of places that were sampled together: see Together
}

// PriceChange is the spot price from a sample on.
type PriceChange struct {
	Sample int
	Price  float64
}

type traceLine struct {
	ID     string       `json:"id"`
	Zone   string       `json:"zone"`
	GPU    string       `json:"gpu"`
	GPUs   int          `json:"gpus"`
	Type   string       `json:"instance"`
	Gap    float64      `json:"gap_s"`
	Offset int          `json:"offset"`
	N      int          `json:"n"`
	Avail  *string      `json:"avail"`
	Count  []int        `json:"count"`
	Nodes  int          `json:"nodes"`
	Prices [][2]float64 `json:"spot_price_usd_h"`
	Window int          `json:"window"`
}

// ParseTraces reads traces in JSON lines: id, zone, gap_s and avail, a text of
// 0 and 1 for each sample; or count, the nodes alive, of which all must be.
func ParseTraces(file string, data []byte) ([]Trace, error) {
	var out []Trace
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		bad := func(format string, args ...any) error {
			return fault.New(fault.Invalid, format, args...).At(file, number, 0).Hint("a line is {\"id\": ..., \"zone\": ..., \"gap_s\": 600, \"avail\": \"1101\"}, 1 for available")
		}
		var l traceLine
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, bad("this is no JSON line of a trace: %v", err)
		}
		t := Trace{ID: l.ID, Zone: l.Zone, Gap: l.Gap, Offset: l.Offset, Window: l.Window}
		switch {
		case !(l.Gap > 0) || l.Gap > 24*3600:
			return nil, bad("a gap of %v seconds between samples", l.Gap)
		case l.Avail != nil:
			t.Available = make([]bool, len(*l.Avail))
			for i, c := range []byte(*l.Avail) {
				if c != '0' && c != '1' {
					return nil, bad("sample %d of avail is %q, neither 0 nor 1", i, string(rune(c)))
				}
				t.Available[i] = c == '1'
			}
		case l.Count != nil:
			for _, n := range l.Count {
				t.Available = append(t.Available, n >= max(1, l.Nodes))
			}
		default:
			return nil, bad("neither avail nor count")
		}
		if len(t.Available) == 0 || l.N != 0 && l.N != len(t.Available) {
			return nil, bad("%d samples, n says %d", len(t.Available), l.N)
		}
		for _, p := range l.Prices {
			if !(p[1] > 0) {
				return nil, bad("a spot price of %v", p[1])
			}
			if n := len(t.Prices); p[0] < 0 || n > 0 && int(p[0]) <= t.Prices[n-1].Sample {
				return nil, bad("a change of the spot price at sample %v, out of order", p[0])
			}
			t.Prices = append(t.Prices, PriceChange{int(p[0]), p[1]})
		}
		t.Probe = probeOf(l)
		out = append(out, t)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "the file has no traces").At(file, 0, 0).Hint("it holds one JSON object a line")
	}
	return out, nil
}

// probeOf is the part of an id that names the place, without source, window
// and offset.
func probeOf(l traceLine) string {
	p, _, _ := strings.Cut(l.ID, "@")
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		p = p[i+1:]
	}
	if p == "" {
		p = l.Zone + "_" + l.GPU
	}
	return p
}

// zones are the places that a job may use.
func (t *Trace) zones() []*Trace {
	if t.Zones == nil {
		return []*Trace{t}
	}
	return t.Zones
}

func (t *Trace) upAt(sample int) bool { return sample < len(t.Available) && t.Available[sample] }

// priceAt is the spot price at a sample, or the given one when none is known.
func (t *Trace) priceAt(sample int, other float64) float64 {
	i, found := slices.BinarySearchFunc(t.Prices, sample, func(c PriceChange, s int) int { return c.Sample - s })
	if !found {
		i--
	}
	if i < 0 {
		return other
	}
	return t.Prices[i].Price
}
