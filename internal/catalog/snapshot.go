package catalog

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// snapshot.tsv is the embedded list of offers and history.tsv what offers cost
// on earlier days. Both are made by tools/snapshot. Cells hold no tab and no
// line break, so that reading them is cutting: a plan needs them within
// milliseconds of its start.
var (
	//go:embed snapshot.tsv
	snapshotTSV string
	//go:embed history.tsv
	historyTSV string
)

// SnapshotColumns are the columns of snapshot.tsv. Prices are in USD per hour
// of the whole machine; terms are those of package offer.
var SnapshotColumns = []string{"id", "provider", "region", "zone", "country", "instance_type", "gpu", "gpu_count", "share", "vcpus", "memory_gb",
	"terms", "term_months", "price_hour", "upfront", "interruptions_per_hour", "verified", "class", "as_of", "source", "note"}

// Snapshot gives the embedded offers, filled from their providers' cards.
func Snapshot() ([]*offer.Offer, error) {
	_, body, _ := strings.Cut(snapshotTSV, "\n")
	n := strings.Count(body, "\n")
	offers, out := make([]offer.Offer, n), make([]*offer.Offer, n)
	prices := make([]offer.Price, n)
	var card *Card
	for i := range n {
		var line string
		line, body, _ = strings.Cut(body, "\n")
		var f [21]string
		for c := range f {
			f[c], line, _ = strings.Cut(line, "\t")
		}
		o, p := &offers[i], &prices[i]
		out[i] = o
		o.ID, o.Provider, o.Region, o.Zone, o.Country, o.InstanceType = f[0], f[1], f[2], f[3], f[4], f[5]
		m, ok := gpu.ByID(f[6])
		amount, err := money.Parse(f[13])
		if !ok || err != nil {
			return nil, fault.New(fault.Internal, "the embedded snapshot is broken at offer %s", o.ID)
		}
		o.GPU = m
		o.GPUCount, _ = strconv.Atoi(f[7])
		if f[8] != "" {
			o.Partition.Share, _ = strconv.ParseFloat(f[8], 64)
		}
		o.VCPUs, o.MemoryGB = optional(f[9]), optional(f[10])
		o.Terms, o.Currency = offer.Terms(f[11]), "USD"
		if f[12] != "" {
			o.TermMonths, _ = strconv.Atoi(f[12])
		}
		o.AsOf, o.Source, o.Note = offer.Date(f[18]), f[19], f[20]
		p.Amount, p.Source, p.AsOf = amount, o.Source, o.AsOf
		o.Prices.Compute = p
		if f[14] != "" {
			up, err := money.Parse(f[14])
			if err != nil {
				return nil, fault.New(fault.Internal, "the embedded snapshot is broken at offer %s", o.ID)
			}
			o.Prices.Upfront = &offer.Price{Amount: up, Source: o.Source, AsOf: o.AsOf}
		}
		if f[15] != "" {
			o.InterruptionsPerHour, o.InterruptionsAssumed = optional(f[15]), true
		}
		if f[16] != "" {
			o.Verified = offer.Some(f[16] == "true")
		}
		if card == nil || card.ID != o.Provider {
			if card, ok = CardOf(o.Provider); !ok {
				return nil, fault.New(fault.Internal, "the embedded snapshot has offers of %s, which has no card", o.Provider)
			}
		}
		o.Class = card.Class
		if f[17] != "" {
			o.Class = offer.Class(f[17])
		}
		card.fill(o)
	}
	return out, nil
}

func optional(s string) offer.Opt[float64] {
	if s == "" {
		return offer.Opt[float64]{}
	}
	x, err := strconv.ParseFloat(s, 64)
	return offer.Opt[float64]{Value: x, Known: err == nil}
}

// Observation is what an offer cost on a day.
type Observation struct {
	ID     string
	Price  money.Amount
	AsOf   offer.Date
	Source string
}

// snapshotHistory gives the embedded earlier prices.
func snapshotHistory() []Observation {
	var out []Observation
	for line := range strings.Lines(historyTSV) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 || f[0] == "id" {
			continue
		}
		out = append(out, Observation{ID: f[0], Price: embeddedAmount(f[1]), AsOf: offer.Date(f[2]), Source: f[3]})
	}
	return out
}
