package catalog_test

import (
	"os"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

// BenchmarkRankSpotDeadline plans jobs with a deadline over the snapshot: the
// example, and one of uncertain hours and start-ups that any card can do.
func BenchmarkRankSpotDeadline(b *testing.B) {
	example, err := os.ReadFile("../../examples/spot-deadline.yml")
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{"example": string(example), "any card": anyCard} {
		b.Run(name, func(b *testing.B) { rankSpotDeadline(b, text) })
	}
}

const anyCard = `name: any-card
image: pytorch
work: {finetune: {model: llama-3.1-8b, method: qlora, tokens: 200M, sequence: 1k}}
data: {download: 50GB}
checkpoint: {}
limits: {deadline: 3d}
`

func rankSpotDeadline(b *testing.B, text string) {
	j, err := job.Parse("job.yml", []byte(text))
	if err != nil {
		b.Fatal(err)
	}
	offers, err := catalog.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	exchange, err := catalog.Exchange()
	if err != nil {
		b.Fatal(err)
	}
	in := plan.Input{Job: j, Offers: offers, Now: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), Currency: "USD", Exchange: exchange, World: catalog.World()}
	policies := 0
	for b.Loop() {
		p, err := plan.Rank(in)
		if err != nil {
			b.Fatal(err)
		}
		policies = 0
		for _, o := range p.Options {
			if o.Offer.Terms == offer.Spot && o.Policy != nil {
				policies++
			}
		}
	}
	if policies == 0 {
		b.Error("no spot offer is priced by the policy")
	}
	b.ReportMetric(float64(policies), "policies")
}
