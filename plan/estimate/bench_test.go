package estimate

import (
	"testing"

	"github.com/destajo/destajo/gpu"
)

func BenchmarkOn(b *testing.B) {
	m, err := FindModel("llama-3.1-8b")
	if err != nil {
		b.Fatal(err)
	}
	card, _ := gpu.ByID("h100-sxm")
	e := New()
	for name, w := range map[string]Work{
		"serve":    Generate{Model: m, Precision: "fp16", Concurrency: 64, InputTokens: 1e6, OutputTokens: 1e6, Context: 2048},
		"stream":   Generate{Model: m, Precision: "q4_k_m", Concurrency: 1, InputTokens: 1e6, OutputTokens: 1e6, Context: 2048},
		"finetune": Finetune{Model: m, Method: "lora", Tokens: 1e7},
	} {
		j, err := e.Prepare(w)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := j.On(card, 1, gpu.Partition{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/prepare", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Prepare(w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
