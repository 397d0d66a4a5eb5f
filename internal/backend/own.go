package backend

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

// What is assumed of an own machine where nothing is known. Each stands in the
// source of the price that it led to.
const (
	wattsPerCPU = 5.0   // of a busy core with its share of the machine
	usdPerCPU   = 100.0 // purchase of a machine without GPUs, by core
	usdPerGPUGB = 100.0 // purchase of a card that the table of purchases lacks, by GB of its memory
	lifeMonths  = 48.0
	residual    = 0.1
	pue         = 1.0 // a room without cooling of its own; power of fans is in the watts
)

// OwnCosts is what is known of the costs of own machines, in USD.
type OwnCosts struct {
	PowerPrice  money.Amount // per kWh; 0 unknown: 0.25 is assumed
	PowerSource string
	// Buy is what a card costs new or used, by its id.
	Buy func(gpuID string) (price money.Amount, source string, ok bool)
}

// OwnPrice is the price of one hour of an own machine in USD. It is what its
// owner stated, else it is derived as plan.RentOrBuy does for hardware that is
// always on: its share of the purchase, and its power at full load. A derived
// price is assumed; its source says from what.
func OwnPrice(host machine.Host, stated *money.Amount, c OwnCosts) (price money.Amount, assumed bool, source string) {
	if stated != nil {
		return *stated, false, "stated by the owner"
	}
	power, powerSource := c.PowerPrice, c.PowerSource
	if power == 0 {
		power, powerSource = money.FromUnits(1)/4, "assumed"
	}
	var why []string
	cores := float64(max(1, host.CPUs))
	buy, _ := money.FromFloat(usdPerCPU * cores)
	watts := wattsPerCPU * cores
	why = append(why, fmt.Sprintf("%v cores at %v W and %v USD", cores, wattsPerCPU, usdPerCPU))
	for _, d := range host.Devices {
		cost, w, text := card(d, c)
		buy, watts, why = buy+cost, watts+w, append(why, text)
	}
	rb, err := plan.RentOrBuy(plan.Demand{Base: 1}, plan.Hardware{Price: buy, Residual: residual, LifeMonths: lifeMonths, Watts: math.Min(watts, 1e5), PUE: pue, PowerPrice: power},
		plan.Rents{SpotStretch: 1}, lifeMonths)
	if err != nil { // the figures above are within its bounds
		return 0, true, "underivable: " + err.Error()
	}
	fixed, err := rb.OwnFixedMonth.MulDiv(1, money.MonthHours)
	if err != nil {
		return 0, true, "underivable: " + err.Error()
	}
	return (fixed + rb.OwnRunningHour).RoundTo(money.Unit / 1e6), true,
		fmt.Sprintf("derived: %s; %v months, %v %% left; power %s USD/kWh (%s)", strings.Join(dedupe(why), ", "), lifeMonths, 100*residual, power, powerSource)
}

// card is the purchase in USD and the power in W of one device.
func card(d machine.Device, c OwnCosts) (money.Amount, float64, string) {
	m, ok := gpu.ByID(d.GPU)
	gb, watts, name := 16.0, 250.0, d.Model
	switch {
	case ok:
		gb, watts, name = m.MemoryGB, m.Watts, m.Name
	case d.MemoryBytes != nil:
		gb = float64(*d.MemoryBytes) / 1e9
	}
	if ok && c.Buy != nil {
		if p, source, known := c.Buy(m.ID); known {
			return p, watts, fmt.Sprintf("%s for %s USD (%s) at %v W", name, p, source, watts)
		}
	}
	p, err := money.FromFloat(usdPerGPUGB * gb)
	if err != nil {
		p = 0
	}
	return p, watts, fmt.Sprintf("%s for %s USD (%v USD/GB assumed) at %v W", name, p, usdPerGPUGB, watts)
}

// dedupe folds equal neighbours: eight cards are one line with a count.
func dedupe(words []string) []string {
	var out []string
	for i := 0; i < len(words); {
		n := 1
		for i+n < len(words) && words[i+n] == words[i] {
			n++
		}
		if n > 1 {
			out = append(out, fmt.Sprintf("%d x %s", n, words[i]))
		} else {
			out = append(out, words[i])
		}
		i += n
	}
	return out
}

// OwnOffer is the offer of an own machine. Its GPU is the model of which it has
// most; cards that the table does not know are in the note only.
func OwnOffer(provider, name string, host machine.Host, price money.Amount, assumed bool, source string, asOf offer.Date) Offer {
	o := &offer.Offer{ID: provider + "/" + slug(name), Provider: provider, Class: offer.Own, InstanceType: name, Terms: offer.Owned, Currency: "USD",
		Prices:  offer.Prices{Compute: &offer.Price{Amount: price, Source: source, AsOf: asOf}},
		Billing: offer.Billing{Starts: offer.AtRunning}, Source: source, AsOf: asOf, Available: offer.Some(true),
		Startup: offer.Some(time.Second)} // it is there: only the agent starts
	// What leaves an own machine, and its disk, is in its price.
	free := &offer.Price{Source: "own machine: in the price of an hour", AsOf: asOf}
	o.Prices.DiskRunning, o.Prices.DiskStopped, o.Prices.Egress, o.Prices.Ingress, o.Prices.Address, o.Prices.Fee = free, free, free, free, free, free
	o.Billing.Increment, o.Billing.Minimum = offer.Some(time.Duration(0)), offer.Some(time.Duration(0))
	if host.CPUs > 0 {
		o.VCPUs = offer.Some(float64(host.CPUs))
	}
	if host.MemoryBytes > 0 {
		o.MemoryGB = offer.Some(float64(host.MemoryBytes) / 1e9)
	}
	if host.DiskFree > 0 {
		o.DiskIncludedGB = offer.Some(float64(host.DiskFree) / 1e9)
	}
	counts, unknown := map[string]int{}, []string(nil)
	for _, d := range host.Devices {
		if m, ok := gpu.ByID(d.GPU); ok {
			if counts[m.ID]++; counts[m.ID] > o.GPUCount {
				o.GPU, o.GPUCount = m, counts[m.ID]
			}
		} else {
			unknown = append(unknown, d.Model)
		}
	}
	switch {
	case len(unknown) > 0:
		o.Note = "cards that the table does not know: " + strings.Join(dedupe(unknown), ", ")
	case len(counts) > 1:
		o.Note = fmt.Sprintf("%d models of cards; %s is the one of which it has most", len(counts), o.GPU.Name)
	}
	return Offer{Offer: o, Host: &host, Shared: true, PriceAssumed: assumed}
}

// slug makes a name a part of an id.
func slug(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
}
