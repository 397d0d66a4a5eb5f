// Package offer holds the noun at the heart of destajo: someone sells a
// machine with GPUs, somewhere, on some terms, at a dated price.
package offer

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
)

// Class says who sells.
type Class string

// The classes.
const (
	Hyperscaler Class = "hyperscaler"
	Neocloud    Class = "neocloud"
	Marketplace Class = "marketplace"
	Colo        Class = "colo"
	Serverless  Class = "serverless"
	Own         Class = "own"
)

// Classes lists the classes in the order in which they are shown.
func Classes() []Class {
	return []Class{Hyperscaler, Neocloud, Marketplace, Colo, Serverless, Own}
}

// Terms say how the machine is sold.
type Terms string

// The terms.
const (
	OnDemand Terms = "on-demand"
	Spot     Terms = "spot"     // can be taken away
	Reserved Terms = "reserved" // a commitment for a term
	Owned    Terms = "owned"    // already paid for
)

// AllTerms lists the terms in the order in which they are shown.
func AllTerms() []Terms { return []Terms{OnDemand, Spot, Reserved, Owned} }

// BillingStart is the moment from which the provider bills.
type BillingStart string

// The moments. The empty one is unknown and counts like a request.
const (
	AtRequest BillingStart = "request"
	AtBoot    BillingStart = "boot"
	AtRunning BillingStart = "running"
	AtJob     BillingStart = "job"
)

// Opt is a value that may be unknown. Its JSON is the value or null.
type Opt[T any] struct {
	Value T
	Known bool
}

// Some is a known value.
func Some[T any](v T) Opt[T] { return Opt[T]{Value: v, Known: true} }

// Or is the value, or another one when it is unknown.
func (o Opt[T]) Or(other T) T {
	if o.Known {
		return o.Value
	}
	return other
}

// MarshalJSON writes the value, or null when it is unknown.
func (o Opt[T]) MarshalJSON() ([]byte, error) {
	if !o.Known {
		return []byte("null"), nil
	}
	return json.Marshal(o.Value)
}

// UnmarshalJSON reads the value, or null for an unknown one.
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	*o = Opt[T]{}
	if string(b) == "null" {
		return nil
	}
	if err := json.Unmarshal(b, &o.Value); err != nil {
		return err
	}
	o.Known = true
	return nil
}

// Offer is a machine with GPUs for sale. All money is in Currency.
// A pointer that is nil and an Opt that is not Known are unknown, never 0.
type Offer struct {
	ID           string // stable over refreshes
	Provider     string // short name in lower case, such as aws
	Class        Class
	Region       string
	Zone         string
	Country      string // ISO 3166-1 alpha-2, empty when unknown
	InstanceType string

	GPU       *gpu.Model // nil only for machines without a GPU
	GPUCount  int
	Partition gpu.Partition // what of each card is sold
	VCPUs     Opt[float64]
	MemoryGB  Opt[float64] // host memory, 1e9 bytes

	Terms      Terms
	TermMonths int // of a reservation
	Currency   string
	Prices     Prices
	Billing    Billing

	DiskIncludedGB       Opt[float64]
	Startup              Opt[time.Duration] // typical, from request to running
	InterruptionsPerHour Opt[float64]       // of one machine; spot only
	InterruptionsAssumed bool               // the figure is a default of its kind, not a measurement
	RecoveriesPerHour    Opt[float64]       // per waiting hour, after an interruption
	Notice               Opt[time.Duration] // before an interruption
	Available            Opt[bool]
	Verified             Opt[bool] // the seller was checked by the marketplace
	EncryptedDisk        Opt[bool]
	Certificates         []string // such as SOC2, ISO27001
	Interconnect         string
	DownloadMbps         Opt[float64]

	Source string // of the price of compute
	AsOf   Date   // of the price of compute
	Note   string // what a reader must know, such as a conversion of currency
}

// Prices are the dated parts of what an offer costs. Nil is unknown.
type Prices struct {
	Compute     *Price // per hour of the whole machine
	Upfront     *Price // once, of a reservation
	DiskRunning *Price // per GB and month while the machine runs
	DiskStopped *Price // per GB and month while it is stopped
	Egress      *Price // per GB out to the internet
	Ingress     *Price // per GB in
	Address     *Price // per hour of a public address
	Fee         *Price // once per machine
}

// Price is one part: what a unit costs, from which source, on which day.
type Price struct {
	Amount money.Amount
	Tiers  []Tier // by monthly volume, ascending from 0; nil: Amount for all
	Source string
	AsOf   Date
}

// Tier is the price of the volume from FromGB upward, until the next tier.
type Tier struct {
	FromGB float64
	Amount money.Amount // per GB
}

// Billing says how time is counted.
type Billing struct {
	Increment   Opt[time.Duration]
	Minimum     Opt[time.Duration]
	Starts      BillingStart
	StoppedFull bool // a stopped machine is billed in full
}

// Date is a day, or a month or a year when no more is known: "2026-07-01",
// "2026-07", "2026". Dates of one length compare as text.
type Date string

// Time is the first moment of the date in UTC; false when it is none.
func (d Date) Time() (time.Time, bool) {
	if len(d) == 10 && d[4] == '-' && d[7] == '-' { // the common form, quickly
		y, ok1 := digits(d[:4])
		m, ok2 := digits(d[5:7])
		day, ok3 := digits(d[8:])
		if ok1 && ok2 && ok3 && m >= 1 && m <= 12 && day >= 1 {
			if t := time.Date(y, time.Month(m), day, 0, 0, 0, 0, time.UTC); t.Day() == day {
				return t, true
			}
		}
		return time.Time{}, false
	}
	for _, layout := range []string{"2006-01", "2006"} {
		if t, err := time.Parse(layout, string(d)); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// digits reads a number without a sign, which strconv.Atoi would let pass.
func digits(d Date) (n int, ok bool) {
	for _, c := range []byte(d) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// How long a price counts as current.
const (
	CurrentDays            = 180
	CurrentDaysMarketplace = 7
)

// Stale says whether the price of compute is older than a current price of
// its class may be, and how many days old it is. An offer without a date is stale.
func (o *Offer) Stale(now time.Time) (bool, int) {
	t, ok := o.AsOf.Time()
	if !ok {
		return true, -1
	}
	days := int(now.Sub(t).Hours() / 24)
	limit := CurrentDays
	if o.Class == Marketplace {
		limit = CurrentDaysMarketplace
	}
	return days > limit, days
}

// PerGPU is the price per hour of one GPU; false when it is unknown.
func (o *Offer) PerGPU() (money.Amount, bool) {
	if o.Prices.Compute == nil || o.GPUCount == 0 {
		return 0, false
	}
	p, err := o.Prices.Compute.Amount.MulDiv(1, int64(o.GPUCount))
	return p, err == nil
}

// GPUName is the name as shown: the model, with its partition when it is not
// the whole card.
func (o *Offer) GPUName() string {
	if o.GPU == nil {
		return "none"
	}
	if o.Partition.Whole() {
		return o.GPU.Name
	}
	return o.GPU.Name + "@" + o.Partition.String()
}

// DeriveID is the id of an offer that came without one: provider, region,
// instance type, GPU, count, terms and term, in lower case.
func (o *Offer) DeriveID() string {
	name := ""
	if o.GPU != nil {
		name = o.GPUName()
	}
	parts := []string{o.Provider, o.Region, o.InstanceType, name + "x" + strconv.Itoa(o.GPUCount), string(o.Terms)}
	if o.TermMonths > 0 {
		parts = append(parts, strconv.Itoa(o.TermMonths)+"mo")
	}
	var b strings.Builder
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('/')
		}
		for _, r := range strings.ToLower(p) {
			switch r {
			case ' ', '/', ',':
				b.WriteByte('-')
			default:
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// For is what a monthly volume in GB costs, tier by tier.
func (p *Price) For(gb float64) (money.Amount, error) {
	if p.Tiers == nil {
		return p.Amount.Times(gb)
	}
	var sum money.Amount
	for i, t := range p.Tiers {
		if gb <= t.FromGB {
			break
		}
		upTo := gb
		if i+1 < len(p.Tiers) && p.Tiers[i+1].FromGB < gb {
			upTo = p.Tiers[i+1].FromGB
		}
		part, err := t.Amount.Times(upTo - t.FromGB)
		if err != nil {
			return 0, err
		}
		if sum, err = sum.Add(part); err != nil {
			return 0, err
		}
	}
	return sum, nil
}
