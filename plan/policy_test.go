package plan_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

const deadlineJob = `name: j
resources: {gpus: H100, disk: 100GB}
data: {upload: 50GB}
checkpoint: {write: 1m}
startup: %vm
work: {hours: {H100: %v}}
limits: {deadline: %vm}
`

// drawTwins makes a spot offer and the on-demand offer that takes over from it.
func drawTwins(t *rapid.T) (spot, demand *offer.Offer) {
	m, _ := gpu.ByID("h100-sxm")
	demand = &offer.Offer{ID: "demand", Provider: "p", Class: offer.Neocloud, Terms: offer.OnDemand, Currency: "USD", GPU: m, GPUCount: 1, AsOf: "2026-11-01"}
	demand.Prices.Compute = &offer.Price{Amount: money.Amount(rapid.Int64Range(50, 900).Draw(t, "on-demand")) * 12_345_678}
	demand.Prices.Egress = &offer.Price{Amount: 90_000_000}
	demand.Prices.DiskRunning = &offer.Price{Amount: 100_000_000}
	x := *demand
	spot = &x
	spot.ID, spot.Terms = "spot", offer.Spot
	spot.Prices.Compute = &offer.Price{Amount: money.Amount(rapid.Int64Range(10, 1000).Draw(t, "spot")) * 12_345_678}
	spot.InterruptionsPerHour = offer.Some(rapid.Float64Range(0, 3).Draw(t, "lost"))
	spot.RecoveriesPerHour = offer.Some(rapid.Float64Range(0.1, 3).Draw(t, "back"))
	return spot, demand
}

func TestSpotPolicyStaysBetweenSpotAndOnDemand(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spot, demand := drawTwins(t)
		startup, hours := rapid.IntRange(0, 30).Draw(t, "startup"), rapid.Float64Range(0.5, 60).Draw(t, "hours")
		minutes := 60*hours*rapid.Float64Range(1, 3).Draw(t, "deadline") + float64(startup) + 2
		rank := func(minutes float64) map[string]*plan.Option {
			j, err := job.Parse("j.yml", fmt.Appendf(nil, deadlineJob, startup, hours, int(minutes)))
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Rank(plan.Input{Job: j, Offers: []*offer.Offer{spot, demand}, Now: now, Currency: "USD"})
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]*plan.Option{}
			for _, o := range p.Options {
				out[o.Offer.ID] = o
			}
			if len(out) != 2 {
				t.Fatalf("%+v", p.Refused)
			}
			return out
		}
		options := rank(minutes)
		o, twin := options["spot"], options["demand"]
		p := o.Policy
		if p == nil || twin.Policy != nil || p.OnDemand != demand || o.Late != 0 || o.Sum.Wall > minutes/60 || o.WallP90 > minutes/60 {
			t.Fatalf("policy %+v, late %v after %v h, p90 %v h", p, o.Late, o.Sum.Wall, o.WallP90)
		}
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
		// Waiting costs the disk longer; what the policy weighs are the machines.
		machines := func(o *plan.Option) float64 {
			return (o.Sum.Cost - o.Sum.Parts[plan.Disk] - o.Sum.Parts[plan.Upload]).Float()
		}
		least := min(o.Price, p.OnDemandPrice).Float() * (hours + float64(startup)/60)
		if c := machines(o); c > machines(twin)*(1+1e-9) || c < least*(1-1e-6) {
			t.Fatalf("costs %v, on-demand alone %v, spot alone %v", c, machines(twin), least)
		}
		if o.CostP10 > o.CostP50 || o.CostP50 > o.CostP90 || o.WallP10 > o.WallP90 {
			t.Fatalf("p10 %s, p50 %s, p90 %s", o.CostP10, o.CostP50, o.CostP90)
		}
		if spot.Prices.Compute.Amount >= demand.Prices.Compute.Amount && (p.SpotHours != 0 || o.Sum.Cost != twin.Sum.Cost) {
			t.Fatalf("%v h on spot that is dearer, cost %s, not %s", p.SpotHours, o.Sum.Cost, twin.Sum.Cost)
		}
		later := rank(minutes * rapid.Float64Range(1, 2).Draw(t, "later"))["spot"]
		if machines(later) > 1.08*machines(o) {
			t.Fatalf("%v with more time, %v with less", machines(later), machines(o))
		}
	})
}

// TestSpotPolicyCountsEveryAttempt rounds each attempt by half an increment.
func TestSpotPolicyCountsEveryAttempt(t *testing.T) {
	t.Parallel()
	offers := textOffers(t, "demand gpu=H100-SXM price=3\nspot gpu=H100-SXM price=1 terms=spot lambda=0.5 recoveries=1\n")
	j := mustJob(t, fmt.Sprintf(deadlineJob, 10, 20, 1800))
	cost := func() *plan.Option {
		p, err := plan.Rank(plan.Input{Job: j, Offers: offers, Now: now})
		if err != nil || len(p.Options) != 2 || p.Options[0].Offer.ID != "spot" {
			t.Fatalf("%+v, %v", p, err)
		}
		return p.Options[0]
	}
	plain := cost()
	offers[1].Billing.Increment = offer.Some(10 * time.Minute)
	rounded := cost()
	if far := rounded.Sum.Billed - plain.Sum.Billed - rounded.Sum.Attempts/12; far > 1e-9 || far < -1e-9 || rounded.Sum.Parts[plan.Rounding] <= 0 {
		t.Errorf("%v h billed, %v h without an increment, %v attempts", rounded.Sum.Billed, plain.Sum.Billed, rounded.Sum.Attempts)
	}
	d := plain.Policy
	if doc := (&plan.Plan{Job: j, Options: []*plan.Option{plain}}).Document(0).Options[0].SpotPolicy; doc == nil || doc.OnDemandOffer != "demand" ||
		doc.OnDemandPriceHour != 3*money.Unit || doc.SpotHours == 0 || d.SpotHours+d.OnDemandHours < 20 {
		t.Errorf("%+v, %+v", doc, d)
	}
}
