package plan

import (
	"github.com/destajo/destajo/offer"
)

// Speeds of a start, as measured by others: a host reaches 70 % of its line
// rate, an image is about twice as large when unpacked and unpacks at
// 0.25 GB/s, weights load from disk at 1 GB/s.
const (
	lineShare    = 0.7
	unpackGBs    = 0.25
	unpackGrowth = 2.0
	loadGBs      = 1.0
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
	load := image + opt.Work.WeightsGB + r.job.Data.Download.GB()
	fetch := 0.0
	if load > 0 {
		mbps := o.DownloadMbps.Or(assumedMbps)
		if !o.DownloadMbps.Known {
			opt.flags |= flagAssumedNetwork
		}
		seconds := load*8000/(mbps*lineShare) + image*unpackGrowth/unpackGBs + opt.Work.WeightsGB/loadGBs
		fetch = seconds / 3600
	}
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
