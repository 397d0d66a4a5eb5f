package plan

import (
	"fmt"
	"strconv"

	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// RefusalKind is the one thing for which an offer cannot run a job.
type RefusalKind string

// The kinds.
const (
	RefusedMemory        RefusalKind = "memory"
	RefusedGPU           RefusalKind = "gpu"
	RefusedVendor        RefusalKind = "vendor"
	RefusedCPU           RefusalKind = "cpu"
	RefusedHostMemory    RefusalKind = "host_memory"
	RefusedDisk          RefusalKind = "disk"
	RefusedPrice         RefusalKind = "price"
	RefusedPlace         RefusalKind = "place"
	RefusedTerms         RefusalKind = "terms"
	RefusedDeadline      RefusalKind = "deadline"
	RefusedDuration      RefusalKind = "duration"
	RefusedInterruptions RefusalKind = "interruptions"
	RefusedQuota         RefusalKind = "quota"
	RefusedBudget        RefusalKind = "budget"
	RefusedUnknownPrice  RefusalKind = "unknown_price"
	RefusedStale         RefusalKind = "stale"
	RefusedUnavailable   RefusalKind = "unavailable"
)

// Refusal is an offer with the reason why it cannot run the job. The words
// are made when they are asked for: a plan refuses thousands of offers.
type Refusal struct {
	Offer *offer.Offer
	Kind  RefusalKind

	text       string
	need, have float64
	limit, ask money.Amount
	currency   string
}

// Reason gives the reason in words.
func (r *Refusal) Reason() string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	short := func(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }
	switch {
	case r.text != "":
		return r.text
	case r.Kind == RefusedMemory:
		return fmt.Sprintf("needs %s GB, has %s GB", number(round1(r.need)), number(round1(r.have)))
	case r.Kind == RefusedGPU && r.need > 0:
		return fmt.Sprintf("needs %s GPUs, has %s", number(r.need), number(r.have))
	case r.Kind == RefusedGPU:
		return r.Offer.GPU.Name + " is not among the GPUs that the job asks for"
	case r.Kind == RefusedVendor:
		return r.Offer.GPU.Vendor + " card: the job asks for another vendor"
	case r.Kind == RefusedTerms:
		return string(r.Offer.Terms) + " is not among the job's terms"
	case r.Kind == RefusedCPU:
		return fmt.Sprintf("needs %s vCPUs, has %s", number(r.need), number(r.have))
	case r.Kind == RefusedHostMemory:
		return fmt.Sprintf("needs %s GB of host memory, has %s GB", number(r.need), number(r.have))
	case r.Kind == RefusedPrice:
		return fmt.Sprintf("costs %s %s/h, the limit is %s %s/h", r.ask.Fixed(2), r.currency, r.limit.Fixed(2), r.currency)
	case r.Kind == RefusedBudget:
		return fmt.Sprintf("is expected to cost %s %s, the limit is %s %s", r.ask.Fixed(2), r.currency, r.limit.Fixed(2), r.currency)
	case r.Kind == RefusedDeadline:
		return fmt.Sprintf("takes %s h, the deadline is in %s h", short(r.need), short(r.have))
	case r.Kind == RefusedDuration:
		return fmt.Sprintf("takes %s h, the limit is %s h", short(r.need), short(r.have))
	case r.Kind == RefusedInterruptions:
		return fmt.Sprintf("with %s interruptions an hour it would run over %d times its %s useful hours", short(r.have), maxStretch, short(r.need))
	}
	return string(r.Kind)
}

func round1(x float64) float64 {
	v, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 1, 64), 64)
	return v
}

// flag marks what a reader must know about an option.
type flag uint32

const (
	flagStale flag = 1 << iota
	flagNoDate
	flagAssumedRate
	flagAssumedStartup
	flagAssumedNetwork
	flagAssumedWrite
	flagUnknownDisk
	flagUnknownKept
	flagUnknownEgress
	flagUnknownSource
	flagUnknownIngress
	flagUnknownCPU
	flagUnknownHostMemory
	flagLikelyLate
	flagConsumer
	flagMarketplace
	flagUnverified
	flagDiskCostsMore
	flagWidePrice
	flagSpareGPUs
	flagTight
	flagStoppedFull
	flagUncheckedLimit
	flagArray
	flagNoSaves
	flagNoTwin
	flagFarTwin
	numFlags = iota
)

// notes are the words of the flags that need no figure.
var notes = [numFlags]string{
	1:  "the price has no date",
	2:  "interruption rate assumed, not measured",
	3:  "start-up time assumed",
	4:  "download speed assumed (70 % of 1 Gbit/s)",
	5:  "time to write a checkpoint assumed (1 minute)",
	6:  "price of the disk unknown: not in the cost",
	7:  "price of the kept disk unknown: not in the cost",
	8:  "price of egress unknown: not in the cost",
	9:  "price of egress at the data's source unknown: not in the cost",
	10: "price of ingress unknown: not in the cost",
	11: "number of vCPUs unknown",
	12: "host memory unknown",
	13: "likely late",
	14: "consumer card: its driver licence does not allow data centres",
	15: "marketplace host: its owner can reach your data",
	16: "seller not verified",
	17: "the kept disk costs more than the computing",
	18: "the upper end of the cost is open: interruptions may make it explode",
	20: "memory is tight",
	21: "a stopped machine is billed in full: end it",
	22: "limits.cost not checked in full: a part of the cost is unknown",
	24: "without checkpoints an interruption loses the work: spot alone, without a move to on-demand",
	25: "no on-demand offer takes over from it under the job's rules: spot alone",
}

// Warnings gives what a reader must know about the option, in words.
func (o *Option) Warnings() []string {
	out := []string{}
	for i := range numFlags {
		if o.flags&(1<<i) == 0 {
			continue
		}
		switch flag(1 << i) {
		case flagStale:
			out = append(out, "price is "+strconv.Itoa(o.ageDays)+" days old")
		case flagSpareGPUs:
			out = append(out, fmt.Sprintf("pays for %d GPUs and uses %d", o.Offer.GPUCount, o.Work.Count))
		case flagArray:
			out = append(out, fmt.Sprintf("cost of one of %d equal jobs: all cost %s", o.array, (o.Sum.Cost*money.Amount(o.array)).Fixed(2)))
		case flagFarTwin:
			out = append(out, "on-demand takes over at "+o.Policy.OnDemand.Provider+": its own provider offers none")
		case flagLikelyLate:
			out = append(out, fmt.Sprintf("likely late: %.0f %%", 100*o.Late))
		default:
			if notes[i] != "" {
				out = append(out, notes[i])
			}
		}
	}
	if o.Offer.Note != "" {
		out = append(out, o.Offer.Note)
	}
	return out
}

// Cautions says whether one of the option's warnings touches the cost itself.
func (o *Option) Cautions() bool {
	return o.flags&(flagUnknownDisk|flagUnknownKept|flagUnknownEgress|flagUnknownSource|flagUnknownIngress) != 0
}
