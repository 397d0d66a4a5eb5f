package plan

import (
	"strings"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan/estimate"
)

// startup sets S and Sb of a meter: the hours from the request to useful
// work, and those of them that the provider bills.
//
// A stated start-up counts whole unless billing starts later. Otherwise the
// time to a running machine comes from the offer, and image, weights and data
// come over its network.
func (r *ranker) startup(o *offer.Offer, opt *Option, m *meter) {
	late := o.Billing.Starts == offer.AtRunning || o.Billing.Starts == offer.AtJob
	if s := r.job.Startup; s != nil {
		m.startup = s.Hours()
		if !late {
			m.billed = m.startup
		}
		return
	}
	boot := assumedStartup
	if o.Startup.Known {
		boot = o.Startup.Value.Hours()
	} else {
		opt.flags |= flagAssumedStartup
	}
	image := 0.0
	if r.job.Image != "" {
		image = assumedImageGB
	}
	start := estimate.Start{ImageGB: image, WeightsGB: opt.Work.WeightsGB, DataGB: r.job.Data.Download.GB(),
		DownloadMbps: o.DownloadMbps.Or(0), Compiles: compiles(r.job.Work)}
	if image+start.WeightsGB+start.DataGB > 0 && !o.DownloadMbps.Known {
		opt.flags |= flagAssumedNetwork
	}
	fetch := start.AfterBoot() / 3600
	m.startup = boot + fetch
	switch o.Billing.Starts {
	case offer.AtJob:
		m.billed = 0
	case offer.AtRunning:
		m.billed = fetch
	case offer.AtBoot:
		// Allocation is the smaller part of the way to a running machine; which
		// part is not published, so half of it is counted.
		m.billed = boot/2 + fetch
	default:
		m.billed = m.startup
	}
}

// compiles says whether the engine of the work compiles before it serves.
func compiles(w *job.Work) bool {
	if g := w.Generate; g != nil {
		return strings.HasPrefix(strings.ToLower(g.Engine), "vllm")
	}
	return false
}
