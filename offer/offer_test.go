package offer_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

func h100(t *testing.T) *gpu.Model {
	t.Helper()
	m, ok := gpu.ByID("h100-sxm")
	if !ok {
		t.Fatal("no h100-sxm in the table")
	}
	return m
}

func amount(t *testing.T, text string) money.Amount {
	t.Helper()
	a, err := money.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPriceFor(t *testing.T) {
	t.Parallel()
	flat := offer.Price{Amount: amount(t, "0.09")}
	tiered := offer.Price{Amount: amount(t, "99"), Tiers: []offer.Tier{
		{FromGB: 0, Amount: 0}, {FromGB: 100, Amount: amount(t, "0.09")}, {FromGB: 10240, Amount: amount(t, "0.085")},
	}}
	late := offer.Price{Tiers: []offer.Tier{{FromGB: 50, Amount: amount(t, "1")}}}
	tests := []struct {
		name  string
		price offer.Price
		gb    float64
		want  string
	}{
		{"flat, nothing", flat, 0, "0"},
		{"flat", flat, 100, "9"},
		{"flat, part of a GB", flat, 0.5, "0.045"},
		{"tiers, nothing", tiered, 0, "0"},
		{"tiers, in the first", tiered, 99, "0"},
		{"tiers, the boundary still costs the lower price", tiered, 100, "0"},
		{"tiers, just above the boundary", tiered, 100.5, "0.045"},
		{"tiers, in the second", tiered, 200, "9"},
		{"tiers, the last boundary", tiered, 10240, "912.6"},
		{"tiers, in the last", tiered, 10340, "921.1"},
		{"a volume below the first tier is free", late, 50, "0"},
		{"a volume above a late first tier", late, 51, "1"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := c.price.For(c.gb)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
	dear := money.Amount(math.MaxInt64)
	for name, p := range map[string]offer.Price{
		"flat":               {Amount: dear},
		"in a tier":          {Tiers: []offer.Tier{{Amount: dear}}},
		"only in their sum":  {Tiers: []offer.Tier{{Amount: dear}, {FromGB: 1, Amount: dear}}},
		"an earlier tier is": {Tiers: []offer.Tier{{Amount: dear}, {FromGB: 1.5}}},
	} {
		if got, err := p.For(2); got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("too much, %s: %v, %v", name, got, err)
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		if got, err := tiered.For(bad); got != 0 || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v GB: %v, %v", bad, got, err)
		}
	}
}

// TestTiersAreABruteForceSum walks the volume a quarter of a GB at a time and
// charges each quarter at the tier that it lies in. Amounts are multiples of
// 4 nano-units, so that nothing needs rounding.
func TestTiersAreABruteForceSum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bounds := rapid.SliceOfNDistinct(rapid.IntRange(1, 400), 0, 6, rapid.ID[int]).Draw(t, "bounds, in quarters")
		slices.Sort(bounds)
		bounds = append([]int{0}, bounds...)
		var p offer.Price
		for _, b := range bounds {
			a := money.Amount(4 * rapid.Int64Range(0, 1e9).Draw(t, "amount"))
			p.Tiers = append(p.Tiers, offer.Tier{FromGB: float64(b) / 4, Amount: a})
		}
		quarters := rapid.OneOf(rapid.IntRange(0, 500), rapid.SampledFrom(bounds),
			rapid.Map(rapid.SampledFrom(bounds), func(b int) int { return b + 1 })).Draw(t, "volume, in quarters")

		var want money.Amount
		for q := range quarters {
			tier := 0
			for tier+1 < len(bounds) && bounds[tier+1] <= q {
				tier++
			}
			want += p.Tiers[tier].Amount / 4
		}
		got, err := p.For(float64(quarters) / 4)
		if err != nil || got != want {
			t.Fatalf("%v GB cost %v, %v; want %v", float64(quarters)/4, got, err, want)
		}
	})
}

func TestDateTime(t *testing.T) {
	t.Parallel()
	good := map[offer.Date]time.Time{
		"2026-07-01": time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
		"2026-12-31": time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC),
		"2024-02-29": time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"2026-07":    time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
		"2026":       time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for d, want := range good {
		got, ok := d.Time()
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%q: %v %s", d, ok, diff)
		}
	}
	for _, bad := range []offer.Date{
		"", "2", "202", "20260", "2026-", "2026-7", "2026-007", "2026-07-", "2026-7-1", "2026-07-1", "2026-7-01", "2026-07-001",
		"2026-00", "2026-13", "2026-00-01", "2026-13-01", "2026-07-00", "2026-07-32", "2026-06-31", "2026-02-29", "1900-02-29", "2026-02-99",
		"2026/07/01", "20260701", "01-07-2026", "2026-07-01T00:00:00Z", " 2026-07-01", "2026-07-01 ",
		"2026-+7-01", "2026-07-+1", "+026-07-01", "-026-07-01", "2026--1-01", "2026-07- 1", "year-07-01", "2026-ab-01", "2026-07-ab", "today",
	} {
		if got, ok := bad.Time(); ok || !got.IsZero() {
			t.Errorf("%q is %v, %v", bad, got, ok)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		day := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, rapid.IntRange(0, 9998*365).Draw(t, "days"))
		if got, ok := offer.Date(day.Format(time.DateOnly)).Time(); !ok || !got.Equal(day) {
			t.Fatalf("%v: %v, %v", day, got, ok)
		}
		text := rapid.StringMatching(`[0-9+-]{4}-[0-9+ ]{2}-[0-9+ ]{2}`).Draw(t, "text")
		want, err := time.Parse(time.DateOnly, text)
		if got, ok := offer.Date(text).Time(); ok != (err == nil) || ok && !got.Equal(want) {
			t.Fatalf("%q: %v, %v; the standard library says %v, %v", text, got, ok, want, err)
		}
	})
}

func TestStale(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	ago := func(days int) offer.Date { return offer.Date(now.AddDate(0, 0, -days).Format(time.DateOnly)) }
	type answer struct {
		Stale bool
		Days  int
	}
	for _, class := range offer.Classes() {
		limit := offer.CurrentDays
		if class == offer.Marketplace {
			limit = offer.CurrentDaysMarketplace
		}
		tests := []struct {
			name string
			asOf offer.Date
			want answer
		}{
			{"today", ago(0), answer{false, 0}},
			{"the last current day", ago(limit), answer{false, limit}},
			{"the day after", ago(limit + 1), answer{true, limit + 1}},
			{"the day after tomorrow", ago(-2), answer{false, -1}},
			{"a month counts from its first day", "2026-11", answer{class == offer.Marketplace, 29}},
			{"a year counts from its first day", "2026", answer{true, 333}},
			{"no date", "", answer{true, -1}},
			{"a bad date", "2026-11-31", answer{true, -1}},
		}
		for _, c := range tests {
			t.Run(string(class)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				stale, days := (&offer.Offer{Class: class, AsOf: c.asOf}).Stale(now)
				if diff := cmp.Diff(c.want, answer{stale, days}); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestPerGPU(t *testing.T) {
	t.Parallel()
	priced := func(text string) offer.Prices {
		return offer.Prices{Compute: &offer.Price{Amount: amount(t, text)}}
	}
	tests := []struct {
		name  string
		offer offer.Offer
		want  string
		known bool
	}{
		{"one", offer.Offer{GPUCount: 1, Prices: priced("2.04")}, "2.04", true},
		{"eight", offer.Offer{GPUCount: 8, Prices: priced("16.32")}, "2.04", true},
		{"free", offer.Offer{GPUCount: 8, Prices: priced("0")}, "0", true},
		{"half a nano-unit to even", offer.Offer{GPUCount: 2, Prices: priced("0.000000003")}, "0.000000002", true},
		{"a third", offer.Offer{GPUCount: 3, Prices: priced("1")}, "0.333333333", true},
		{"no price", offer.Offer{GPUCount: 8}, "0", false},
		{"no GPU", offer.Offer{Prices: priced("1")}, "0", false},
		{"no count", offer.Offer{GPUCount: -1, Prices: priced("1")}, "0", false},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, known := c.offer.PerGPU()
			if known != c.known {
				t.Errorf("known is %v", known)
			}
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestGPUName(t *testing.T) {
	t.Parallel()
	card := h100(t)
	tests := []struct {
		name  string
		offer offer.Offer
		want  string
	}{
		{"none", offer.Offer{}, "none"},
		{"whole", offer.Offer{GPU: card}, "H100-SXM"},
		{"a share of 1 is whole", offer.Offer{GPU: card, Partition: gpu.Partition{Share: 1}}, "H100-SXM"},
		{"share", offer.Offer{GPU: card, Partition: gpu.Partition{Share: 0.25}}, "H100-SXM@0.25"},
		{"profile", offer.Offer{GPU: card, Partition: gpu.Partition{Profile: "1g.10gb"}}, "H100-SXM@1g.10gb"},
	}
	for _, c := range tests {
		if diff := cmp.Diff(c.want, c.offer.GPUName()); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestDeriveID(t *testing.T) {
	t.Parallel()
	base := offer.Offer{Provider: "aws", Region: "us-east-1", InstanceType: "p5.48xlarge", GPU: h100(t), GPUCount: 8, Terms: offer.OnDemand}
	variant := func(change func(*offer.Offer)) offer.Offer {
		o := base
		change(&o)
		return o
	}
	tests := []struct {
		name  string
		offer offer.Offer
		want  string
	}{
		{"all parts", base, "aws/us-east-1/p5.48xlarge/h100-sxmx8/on-demand"},
		{"provider", variant(func(o *offer.Offer) { o.Provider = "RunPod" }), "runpod/us-east-1/p5.48xlarge/h100-sxmx8/on-demand"},
		{"region", variant(func(o *offer.Offer) { o.Region = "Paris, France" }), "aws/paris--france/p5.48xlarge/h100-sxmx8/on-demand"},
		{"no region", variant(func(o *offer.Offer) { o.Region = "" }), "aws/p5.48xlarge/h100-sxmx8/on-demand"},
		{"type", variant(func(o *offer.Offer) { o.InstanceType = "8x H100/NVLink" }), "aws/us-east-1/8x-h100-nvlink/h100-sxmx8/on-demand"},
		{"count", variant(func(o *offer.Offer) { o.GPUCount = 1 }), "aws/us-east-1/p5.48xlarge/h100-sxmx1/on-demand"},
		{"partition", variant(func(o *offer.Offer) { o.Partition.Profile = "1g.10gb" }), "aws/us-east-1/p5.48xlarge/h100-sxm@1g.10gbx8/on-demand"},
		{"share", variant(func(o *offer.Offer) { o.Partition.Share = 0.5 }), "aws/us-east-1/p5.48xlarge/h100-sxm@0.5x8/on-demand"},
		{"terms", variant(func(o *offer.Offer) { o.Terms = offer.Spot }), "aws/us-east-1/p5.48xlarge/h100-sxmx8/spot"},
		{"one year", variant(func(o *offer.Offer) { o.Terms, o.TermMonths = offer.Reserved, 12 }), "aws/us-east-1/p5.48xlarge/h100-sxmx8/reserved/12mo"},
		{"three years", variant(func(o *offer.Offer) { o.Terms, o.TermMonths = offer.Reserved, 36 }), "aws/us-east-1/p5.48xlarge/h100-sxmx8/reserved/36mo"},
		{"no GPU", variant(func(o *offer.Offer) { o.GPU, o.GPUCount = nil, 0 }), "aws/us-east-1/p5.48xlarge/x0/on-demand"},
	}
	seen := map[string]string{}
	for _, c := range tests {
		got := c.offer.DeriveID()
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s share the id %s", other, c.name, got)
		}
		seen[got] = c.name
	}
}

// TestDeriveIDOutlivesARefresh changes what a refresh changes: prices, dates
// and notes.
func TestDeriveIDOutlivesARefresh(t *testing.T) {
	t.Parallel()
	models := gpu.Models()
	rapid.Check(t, func(t *rapid.T) {
		draw := func() offer.Offer {
			word := rapid.StringMatching(`[A-Za-z0-9.-]{1,12}`)
			return offer.Offer{
				Provider: word.Draw(t, "provider"), Region: word.Draw(t, "region"), InstanceType: word.Draw(t, "type"),
				GPU: rapid.SampledFrom(models).Draw(t, "GPU"), GPUCount: rapid.IntRange(1, 16).Draw(t, "count"),
				Terms: rapid.SampledFrom(offer.AllTerms()).Draw(t, "terms"), TermMonths: rapid.IntRange(0, 60).Draw(t, "months"),
			}
		}
		a, b := draw(), draw()
		id := a.DeriveID()
		if id != strings.ToLower(id) || strings.ContainsAny(id, " ,") {
			t.Fatalf("the id %q is not plain", id)
		}
		// Words are drawn without the marks that ids write as a dash.
		same := strings.EqualFold(a.Provider, b.Provider) && strings.EqualFold(a.Region, b.Region) && strings.EqualFold(a.InstanceType, b.InstanceType) &&
			a.GPU.Name == b.GPU.Name && a.GPUCount == b.GPUCount && a.Terms == b.Terms && a.TermMonths == b.TermMonths
		if (id == b.DeriveID()) != same {
			t.Fatalf("ids %q and %q for offers of which sameness is %v", id, b.DeriveID(), same)
		}
		a.Prices.Compute = &offer.Price{Amount: 1}
		a.AsOf, a.Source, a.Note, a.Available = "2026-11-30", "elsewhere", "changed", offer.Some(false)
		if diff := cmp.Diff(id, a.DeriveID()); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestOpt(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]float64{0, 7}, []float64{offer.Some(0.0).Or(7), offer.Opt[float64]{}.Or(7)}); diff != "" {
		t.Error(diff)
	}
	type measured struct {
		Memory    offer.Opt[float64]
		Startup   offer.Opt[time.Duration]
		Available offer.Opt[bool]
	}
	tests := []struct {
		value measured
		text  string
	}{
		{measured{}, `{"Memory":null,"Startup":null,"Available":null}`},
		{measured{offer.Some(0.0), offer.Some(time.Duration(0)), offer.Some(false)}, `{"Memory":0,"Startup":0,"Available":false}`},
		{measured{Memory: offer.Some(1.5), Available: offer.Some(true)}, `{"Memory":1.5,"Startup":null,"Available":true}`},
	}
	for _, c := range tests {
		b, err := json.Marshal(c.value)
		if diff := cmp.Diff(c.text, string(b)); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		got := measured{Memory: offer.Some(99.0)} // which reading must not leave behind
		if err := json.Unmarshal([]byte(c.text), &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.value, got); diff != "" {
			t.Errorf("%s: %s", c.text, diff)
		}
	}
	got := offer.Some(2.0)
	if err := json.Unmarshal([]byte(`"two"`), &got); err == nil || got.Known {
		t.Errorf("a text is the number %v, %v", got, err)
	}
}

func TestListsAreComplete(t *testing.T) {
	t.Parallel()
	classes := []offer.Class{offer.Hyperscaler, offer.Neocloud, offer.Marketplace, offer.Colo, offer.Serverless, offer.Own}
	if diff := cmp.Diff(classes, offer.Classes()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]offer.Terms{offer.OnDemand, offer.Spot, offer.Reserved, offer.Owned}, offer.AllTerms()); diff != "" {
		t.Error(diff)
	}
}
