package plan_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

var update = flag.Bool("update", false, "rewrite the expected plans in testdata")

var now = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// TestPlans runs the planner's tests that are written as text: a list of
// offers, a job, and the plan that they must give.
func TestPlans(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.test")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".test"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := strings.Split("\n"+string(data), "\n-- ")
			section := map[string]string{}
			for _, p := range parts[1:] {
				name, text, _ := strings.Cut(p, " --\n")
				section[name] = text
			}
			got := runText(t, section)
			if *update {
				kept, _, _ := strings.Cut(string(data), "-- plan --\n")
				if err := os.WriteFile(file, []byte(kept+"-- plan --\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.TrimSpace(section["plan"]), strings.TrimSpace(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// runText plans the job of a text test and shows the plan as text.
func runText(t *testing.T, section map[string]string) string {
	t.Helper()
	j, err := job.Parse("job.yml", []byte(section["job"]))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Rank(plan.Input{Job: j, Offers: textOffers(t, section["offers"]), Now: now, Currency: "USD", World: world()})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var b strings.Builder
	for _, o := range p.Options {
		fmt.Fprintf(&b, "%d %s cost %s wall %.4gh billed %.4gh %s", o.Rank, o.Offer.ID, o.Sum.Cost, o.Sum.Wall, o.Sum.Billed, o.Work.Evidence)
		if o.Pareto {
			b.WriteString(" pareto")
		}
		if o.Late >= 0 {
			fmt.Fprintf(&b, " late %.2f", o.Late)
		}
		b.WriteString("\n ")
		for _, part := range plan.Parts() {
			if x := o.Sum.Parts[part]; x != 0 {
				fmt.Fprintf(&b, " %s %s", part, x)
			}
		}
		b.WriteByte('\n')
		if p := o.Policy; p != nil {
			fmt.Fprintf(&b, "  %.4g h on spot, %.4g h on %s at %s, %.3g changeovers, p10 %s p90 %s\n", p.SpotHours, p.OnDemandHours, p.OnDemand.ID, p.OnDemandPrice, p.Changeovers, o.CostP10, o.CostP90)
		}
		for _, w := range o.Warnings() {
			fmt.Fprintf(&b, "  ! %s\n", w)
		}
	}
	for _, a := range p.Alternatives {
		fmt.Fprintf(&b, "instead %s %s %s\n", a.Kind, a.Name, a.Cost)
	}
	for _, r := range p.Refused {
		fmt.Fprintf(&b, "refused %s %s: %s\n", r.Offer.ID, r.Kind, r.Reason())
	}
	return b.String()
}

func world() plan.World {
	return plan.World{
		Transfer: func(fp, _, tp, _ string) *offer.Price {
			if fp == "aws" {
				return &offer.Price{Amount: 90_000_000}
			}
			return nil
		},
		GridGrams:  func(c string) (float64, bool) { return 400, c == "DE" },
		PowerPrice: func(c string) (money.Amount, bool) { return 200_000_000, c == "DE" },
		Tokens:     []plan.TokenPrice{{Provider: "api", Model: "Llama-3.1-8B-Instruct", Input: 20_000_000, Output: 50_000_000, AsOf: "2026-08-01"}},
	}
}

// textOffers reads offers as lines of key=value; the first word is the id.
func textOffers(t testing.TB, text string) []*offer.Offer {
	t.Helper()
	var out []*offer.Offer
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		o := &offer.Offer{ID: words[0], Provider: "p", Class: offer.Neocloud, Terms: offer.OnDemand, Currency: "USD", GPUCount: 1, AsOf: "2026-11-01"}
		amount := func(s string) *offer.Price {
			a, err := money.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			return &offer.Price{Amount: a}
		}
		number := func(s string) offer.Opt[float64] {
			var x float64
			if _, err := fmt.Sscan(s, &x); err != nil {
				t.Fatal(err)
			}
			return offer.Some(x)
		}
		length := func(s string) offer.Opt[time.Duration] {
			d, err := time.ParseDuration(s)
			if err != nil {
				t.Fatal(err)
			}
			return offer.Some(d)
		}
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			switch k {
			case "gpu":
				name, count, _ := strings.Cut(v, ":")
				m, err := gpu.Resolve(name, 0, "")
				if err != nil {
					t.Fatal(err)
				}
				o.GPU = m
				if count != "" {
					o.GPUCount = int(number(count).Value)
				}
			case "price":
				o.Prices.Compute = amount(v)
			case "disk":
				o.Prices.DiskRunning = amount(v)
			case "stopped":
				o.Prices.DiskStopped = amount(v)
			case "egress":
				o.Prices.Egress = amount(v)
			case "ingress":
				o.Prices.Ingress = amount(v)
			case "fee":
				o.Prices.Fee = amount(v)
			case "address":
				o.Prices.Address = amount(v)
			case "terms":
				o.Terms = offer.Terms(v)
			case "class":
				o.Class = offer.Class(v)
			case "provider":
				o.Provider = v
			case "region":
				o.Region = v
			case "country":
				o.Country = v
			case "increment":
				o.Billing.Increment = length(v)
			case "minimum":
				o.Billing.Minimum = length(v)
			case "starts":
				o.Billing.Starts = offer.BillingStart(v)
			case "startup":
				o.Startup = length(v)
			case "lambda":
				o.InterruptionsPerHour = number(v)
			case "recoveries":
				o.RecoveriesPerHour = number(v)
			case "cpus":
				o.VCPUs = number(v)
			case "memory":
				o.MemoryGB = number(v)
			case "mbps":
				o.DownloadMbps = number(v)
			case "available":
				o.Available = offer.Some(v == "true")
			case "verified":
				o.Verified = offer.Some(v == "true")
			case "share":
				o.Partition.Share = number(v).Value
			case "as_of":
				o.AsOf = offer.Date(v)
			default:
				t.Fatalf("unknown word %q", w)
			}
		}
		out = append(out, o)
	}
	return out
}

func mustJob(t testing.TB, text string) *job.Spec {
	t.Helper()
	j, err := job.Parse("job.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// drawOffer makes any offer of an RTX 4090.
func drawOffer(t *rapid.T, i int) *offer.Offer {
	m, _ := gpu.ByID("rtx-4090")
	cents := func(name string, most int64) money.Amount {
		return money.Amount(rapid.Int64Range(1, most).Draw(t, name)) * 1_234_567
	}
	o := &offer.Offer{ID: fmt.Sprintf("o%d", i), Provider: "p", Class: offer.Neocloud, Terms: offer.OnDemand, Currency: "USD", GPU: m, GPUCount: 1, AsOf: "2026-11-01"}
	o.Prices.Compute = &offer.Price{Amount: cents("price", 9000)}
	if rapid.Bool().Draw(t, "spot") {
		o.Terms = offer.Spot
		o.InterruptionsPerHour = offer.Some(rapid.Float64Range(1e-6, 0.4).Draw(t, "lambda"))
	}
	if rapid.Bool().Draw(t, "disk") {
		o.Prices.DiskRunning = &offer.Price{Amount: cents("disk price", 300)}
		o.Prices.DiskStopped = &offer.Price{Amount: cents("stopped price", 300)}
	}
	if rapid.Bool().Draw(t, "egress") {
		o.Prices.Egress = &offer.Price{Tiers: []offer.Tier{{FromGB: 0, Amount: 0}, {FromGB: 100, Amount: cents("egress price", 100)}}}
	}
	if rapid.Bool().Draw(t, "billing") {
		o.Billing.Increment = offer.Some(time.Duration(rapid.IntRange(1, 3600).Draw(t, "increment")) * time.Second)
		o.Billing.Minimum = offer.Some(time.Duration(rapid.IntRange(0, 7200).Draw(t, "minimum")) * time.Second)
	}
	o.Billing.Starts = rapid.SampledFrom([]offer.BillingStart{"", "request", "boot", "running", "job"}).Draw(t, "starts")
	o.Startup = offer.Some(time.Duration(rapid.IntRange(0, 1800).Draw(t, "startup")) * time.Second)
	return o
}

const propertyJob = `name: j
resources: {gpus: RTX4090, disk: 100GB}
data: {download: 20GB, upload: 150GB, keep: 40GB, keep_for: 1mo}
checkpoint: {every: 30m, write: 1m}
work: {hours: {RTX4090: %v}}
`

func rankOne(t *rapid.T, hours float64, o *offer.Offer) *plan.Plan {
	j, err := job.Parse("j.yml", fmt.Appendf(nil, propertyJob, hours))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Rank(plan.Input{Job: j, Offers: []*offer.Offer{o}, Now: now, Currency: "USD"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPartsSumToTheCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rankOne(t, rapid.Float64Range(0.01, 200).Draw(t, "hours"), drawOffer(t, 0))
		for _, o := range p.Options {
			var sum money.Amount
			for _, part := range plan.Parts() {
				if x := o.Sum.Parts[part]; x < 0 {
					t.Fatalf("%s is %s", part, x)
				}
				sum += o.Sum.Parts[part]
			}
			if sum != o.Sum.Cost {
				t.Fatalf("parts sum to %s, cost is %s", sum, o.Sum.Cost)
			}
		}
	})
}

func TestMoreWorkAndDearerHoursNeverCostLess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := drawOffer(t, 0)
		h := rapid.Float64Range(0.01, 20).Draw(t, "hours")
		more := h * rapid.Float64Range(1, 3).Draw(t, "factor")
		a, b := rankOne(t, h, o), rankOne(t, more, o)
		if len(a.Options) == 1 && len(b.Options) == 1 && b.Options[0].Sum.Cost < a.Options[0].Sum.Cost {
			t.Fatalf("%v h cost %s, %v h cost %s", h, a.Options[0].Sum.Cost, more, b.Options[0].Sum.Cost)
		}
		dearer := *o
		dearer.Prices.Compute = &offer.Price{Amount: o.Prices.Compute.Amount + money.Amount(rapid.Int64Range(0, 1e9).Draw(t, "more"))}
		if c := rankOne(t, h, &dearer); len(a.Options) == 1 && c.Options[0].Sum.Cost < a.Options[0].Sum.Cost {
			t.Fatalf("dearer per hour and cheaper in all: %s < %s", c.Options[0].Sum.Cost, a.Options[0].Sum.Cost)
		}
	})
}

func TestUnknownPriceNeverRanks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := drawOffer(t, 0)
		o.Prices.Compute = nil
		p := rankOne(t, 1, o)
		if len(p.Options) != 0 || len(p.Refused) != 1 || p.Refused[0].Kind != plan.RefusedUnknownPrice {
			t.Fatalf("%d options, %v", len(p.Options), p.Refused)
		}
	})
}

func TestOrderOfOffersDoesNotMatter(t *testing.T) {
	t.Parallel()
	j := mustJob(t, fmt.Sprintf(propertyJob, 3))
	rapid.Check(t, func(t *rapid.T) {
		var offers []*offer.Offer
		for i := range rapid.IntRange(1, 12).Draw(t, "offers") {
			offers = append(offers, drawOffer(t, i))
		}
		shuffled := rapid.Permutation(offers).Draw(t, "order")
		ids := func(all []*offer.Offer) (out []string) {
			p, err := plan.Rank(plan.Input{Job: j, Offers: all, Now: now, Currency: "USD"})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range p.Options {
				out = append(out, fmt.Sprint(o.Offer.ID, o.Sum.Cost, o.Pareto))
			}
			for _, r := range p.Refused {
				out = append(out, r.Offer.ID+r.Reason())
			}
			return out
		}
		if diff := cmp.Diff(ids(offers), ids(shuffled)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestRareInterruptionsMeetOnDemand(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := drawOffer(t, 0)
		o.Billing.Increment = offer.Opt[time.Duration]{}
		o.Billing.Minimum = offer.Opt[time.Duration]{}
		o.Terms = offer.Spot
		o.InterruptionsPerHour = offer.Some(1e-9)
		h := rapid.Float64Range(0.1, 100).Draw(t, "hours")
		a := rankOne(t, h, o).Options[0]
		b := *o
		b.Terms = offer.OnDemand
		c := rankOne(t, h, &b).Options[0]
		if far := math.Abs(a.Sum.Cost.Float() - c.Sum.Cost.Float()); far > 1e-5*c.Sum.Cost.Float() {
			t.Fatalf("spot %s, on-demand %s", a.Sum.Cost, c.Sum.Cost)
		}
	})
}

// TestExpectedCostUnderInterruptions plays the job on a machine that is taken
// away at exponential times, many times, and compares the mean of what is
// billed with the expectation, rounding to the increment included.
func TestExpectedCostUnderInterruptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ hours, lambda, every, write, restart, increment float64 }{
		{10, 0.3, 0.5, 1.0 / 60, 0.1, 1.0 / 60},
		{5, 1.0, 0.25, 1.0 / 60, 0.2, 0.1},
		{20, 0.05, 2, 0.05, 0.3, 0.25},
	} {
		m, _ := gpu.ByID("rtx-4090")
		hour := func(h float64) time.Duration { return time.Duration(h * float64(time.Hour)) }
		o := &offer.Offer{ID: "s", Terms: offer.Spot, GPU: m, GPUCount: 1, Currency: "USD", Prices: offer.Prices{Compute: &offer.Price{Amount: money.Unit}},
			InterruptionsPerHour: offer.Some(c.lambda), Billing: offer.Billing{Increment: offer.Some(hour(c.increment))}}
		every, write, restart, startup := hour(c.every), hour(c.write), hour(c.restart), hour(c.restart)
		j := mustJob(t, fmt.Sprintf("name: j\nresources: {gpus: RTX4090}\nwork: {hours: {RTX4090: %v}}\n", c.hours))
		j.Startup, j.Checkpoint = &startup, &job.Checkpoint{Every: &every, Write: &write, Restart: &restart}
		p, err := plan.Rank(plan.Input{Job: j, Offers: []*offer.Offer{o}, Now: now})
		if err != nil || len(p.Options) != 1 {
			t.Fatalf("%v, %v", p, err)
		}
		want := p.Options[0].Sum.Billed
		r := rand.New(rand.NewPCG(1, 2))
		const runs = 20_000
		sum := 0.0
		for range runs {
			sum += play(r, c.hours, c.lambda, c.every, c.write, c.restart, c.increment)
		}
		if got := sum / runs; math.Abs(got-want) > 0.02*want {
			t.Errorf("%+v: played %.3f h, expected %.3f h", c, got, want)
		}
	}
}

// play runs a job once and gives the hours billed: each attempt starts with a
// restart and is rounded up to the increment when it ends.
func play(r *rand.Rand, hours, lambda, every, write, restart, increment float64) float64 {
	billed, done := 0.0, 0.0
	for {
		life := r.ExpFloat64() / lambda
		attempt := restart
		// The first start-up is not interrupted in the formula: it is Sb.
		if billed == 0 {
			life += restart
		}
		for done < hours && attempt < life {
			segment := math.Min(every, hours-done) + write*math.Min(every, hours-done)/every
			if attempt+segment > life {
				attempt = life
				break
			}
			attempt += segment
			done += math.Min(every, hours-done)
		}
		attempt = math.Min(attempt, math.Max(life, restart))
		if done < hours {
			attempt = life
		}
		billed += math.Ceil(attempt/increment) * increment
		if done >= hours {
			return billed
		}
	}
}

func TestBadWork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"run: x": "does not say how much work",
		"work: {train: {model: lama, tokens: 1B}}":                                "unknown model",
		"work: {generate: {model: llama-3.1-8b, output_tokens: 1M, context: 1G}}": "is more than",
		"work: {images: {model: llama-3.1-8b, mode: infer, images: 5}}":           "is not known",
		"work: {hours: {H100: 1}}\nlimits: {cost: 5 XXX}":                         "exchange rate",
	} {
		_, err := plan.Rank(plan.Input{Job: mustJob(t, text), Now: now})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s); want %q", text, err, fault.HintOf(err), want)
		}
	}
}

func TestDocumentHasEveryPart(t *testing.T) {
	t.Parallel()
	offers := textOffers(t, "a gpu=RTX4090 price=0.5\nb gpu=MI300X price=1\n")
	p, err := plan.Rank(plan.Input{Job: mustJob(t, "work: {hours: {RTX4090: 2}}\nstartup: 0s"), Offers: offers, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	d := p.Document(0)
	if len(d.Options) != 1 || len(d.Options[0].Cost.Parts) != len(plan.Parts()) || len(d.Refused) != 1 || d.Refused[0].Kind != plan.RefusedVendor {
		t.Errorf("%+v", d)
	}
	if d.Options[0].Cost.Expected != money.Unit {
		t.Errorf("cost %s", d.Options[0].Cost.Expected)
	}
}

func manyOffers(n int) []*offer.Offer {
	var cards []*gpu.Model
	for _, id := range []string{"rtx-4090", "h100-sxm", "a100-sxm-80", "l4", "mi300x"} {
		m, _ := gpu.ByID(id)
		cards = append(cards, m)
	}
	out := make([]*offer.Offer, n)
	for i := range out {
		o := &offer.Offer{ID: fmt.Sprintf("offer-%d", i), Provider: "p", Class: offer.Neocloud, Terms: offer.OnDemand, Currency: "USD", GPU: cards[i%len(cards)],
			GPUCount: 1 + i%8, AsOf: "2026-11-01", Prices: offer.Prices{Compute: &offer.Price{Amount: money.Amount(1+i%977) * 10_000_000}}}
		if i%3 == 0 {
			o.Terms, o.InterruptionsPerHour = offer.Spot, offer.Some(0.1)
		}
		out[i] = o
	}
	return out
}

func BenchmarkRank(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			offers := manyOffers(n)
			j := mustJob(b, "work: {hours: {RTX4090: 6, H100: 1.2, A100-80GB: 2.5}}\ncheckpoint: {every: 15m, write: 1m}\n")
			b.ReportAllocs()
			for b.Loop() {
				p, err := plan.Rank(plan.Input{Job: j, Offers: offers, Now: now})
				if err != nil || len(p.Options) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}
