package fake

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Script says what the provider sells and how it fails. It is script.json in
// the provider's folder. Durations are written as "1m30s", money as "1.20", and
// what is drawn is drawn from the seed, so that a script fails in one way.
type Script struct {
	Seed int64 `json:"seed"`
	// Agents are real processes of this host, or "simulated": imaginary ones
	// within this process, whose tasks last as long as their command says.
	Agents     string   `json:"agents"`
	TaskLength Duration `json:"task_length"` // of simulated tasks that do not say; 0: one second
	Offers     []Sale   `json:"offers"`
	Faults     Faults   `json:"faults"`
}

// Sale is one offer.
type Sale struct {
	ID           string       `json:"id"`
	Provider     string       `json:"provider"` // empty: fake
	Class        offer.Class  `json:"class"`    // empty: neocloud
	Region       string       `json:"region"`
	Country      string       `json:"country"`
	InstanceType string       `json:"instance_type"`
	GPU          string       `json:"gpu"` // name of the card; empty: none
	GPUs         int          `json:"gpus"`
	VCPUs        float64      `json:"vcpus"`
	MemoryGB     float64      `json:"memory_gb"`
	Terms        offer.Terms  `json:"terms"` // empty: on-demand
	PriceHour    money.Amount `json:"price_hour"`

	Increment Duration           `json:"increment"` // of billing; 0: a second
	Minimum   Duration           `json:"minimum"`
	Starts    offer.BillingStart `json:"billing_starts"` // empty: request

	Boot            Duration      `json:"boot"`               // from the request to running
	Ending          Duration      `json:"ending"`             // from the request to gone; billed
	Capacity        int           `json:"capacity"`           // most machines at once; 0: any
	NoCapacity      float64       `json:"no_capacity"`        // share of launches that find none
	RefuseFirst     int           `json:"refuse_first"`       // launches that find none, before the first that does
	ReclaimsPerHour float64       `json:"reclaims_per_hour"`  // of a running machine
	ReclaimAfter    Duration      `json:"reclaim_after"`      // of running, surely; 0: never
	Notice          Duration      `json:"notice"`             // before it
	ReclaimStops    bool          `json:"reclaim_stops"`      // a reclaimed machine is powered off, and billed until it is ended
	NeverBoots      bool          `json:"never_boots"`        // it is made, billed, and its agent never comes
	DeathsPerHour   float64       `json:"deaths_per_hour"`    // its agent dies for good; the provider says running, and bills
	StoppedHour     *money.Amount `json:"stopped_price_hour"` // of one that is powered off; nil: the full price
}

// Faults are what goes wrong at every offer.
type Faults struct {
	LostCalls   float64  `json:"lost_calls"`   // share of calls that are carried out, but the answer is lost
	FailedCalls float64  `json:"failed_calls"` // share of calls that are not carried out
	Leaks       float64  `json:"leaks"`        // share of machines whose first end is accepted, and nothing happens
	LeakEnds    int      `json:"leak_ends"`    // how many ends such a machine swallows; 0: one
	ListLag     Duration `json:"list_lag"`     // how long a new machine is not listed
	Hides       float64  `json:"hides"`        // share of machines that a list misses once, for a while within their first minute
	HideFor     Duration `json:"hide_for"`     // 0: two seconds
	LiesRunning Duration `json:"lies_running"` // how long one that was taken is still listed as running
	RateLimit   int      `json:"rate_limit"`   // most calls in a second; 0: any
}

// Duration is one that JSON writes in words.
type Duration time.Duration

// MarshalJSON writes "1m30s".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads "1m30s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fault.New(fault.Invalid, "%s is no duration", b).Hint(`write one as "1m30s"`)
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < 0 {
		return fault.New(fault.Invalid, "%q is no duration", text).Hint(`write one as "1m30s"`)
	}
	*d = Duration(v)
	return nil
}

const simulated = "simulated"

// Write puts a script into a folder, which is made.
func Write(folder string, s Script) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		_, err = parse(data)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fault.Wrap(fault.Internal, err, "the fake provider's folder cannot be made")
	}
	path := filepath.Join(folder, "script.json")
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fault.Wrap(fault.Internal, err, "the script cannot be written")
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fault.Wrap(fault.Internal, err, "the script cannot be written")
	}
	return nil
}

func read(folder string) (*Script, error) {
	data, err := os.ReadFile(filepath.Join(folder, "script.json"))
	if err != nil {
		return nil, fault.Wrap(fault.NotFound, err, "the fake provider has no script").Hint("put a script.json into %s", folder)
	}
	return parse(data)
}

func parse(data []byte) (*Script, error) {
	var s Script
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "script.json")
	}
	if s.Agents != "" && s.Agents != "processes" && s.Agents != simulated {
		return nil, fault.New(fault.Invalid, "script.json: agents is %q", s.Agents).Hint("agents are processes or simulated")
	}
	seen := map[string]bool{}
	for i := range s.Offers {
		o := &s.Offers[i]
		if o.ID == "" || seen[o.ID] {
			return nil, fault.New(fault.Invalid, "script.json: offer %d has no id of its own", i+1)
		}
		seen[o.ID] = true
		if o.Provider == "" {
			o.Provider = Name
		}
		if o.Class == "" {
			o.Class = offer.Neocloud
		}
		if o.Terms == "" {
			o.Terms = offer.OnDemand
		}
		if o.Increment == 0 {
			o.Increment = Duration(time.Second)
		}
		if o.InstanceType == "" {
			o.InstanceType = o.ID
		}
		if o.Starts == "" {
			o.Starts = offer.AtRequest
		}
		if _, err := o.model(); err != nil {
			return nil, err
		}
		if o.PriceHour <= 0 {
			return nil, fault.New(fault.Invalid, "script.json: offer %q costs %s an hour", o.ID, o.PriceHour).Hint("give a price_hour above 0")
		}
	}
	return &s, nil
}

func (o *Sale) model() (*gpu.Model, error) {
	if o.GPU == "" {
		return nil, nil
	}
	if m, ok := gpu.ByID(o.GPU); ok {
		return m, nil
	}
	m, err := gpu.Resolve(o.GPU, 0, "")
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "script.json: offer %q", o.ID)
	}
	return m, nil
}

// offer is the sale as the planner sees it.
func (o *Sale) offer(day offer.Date) backend.Offer {
	m, _ := o.model() // parse checked it
	price := func(a money.Amount) *offer.Price {
		return &offer.Price{Amount: a, Source: "script of the fake provider", AsOf: day}
	}
	out := &offer.Offer{ID: o.ID, Provider: o.Provider, Class: o.Class, Region: o.Region, Country: o.Country, InstanceType: o.InstanceType,
		GPU: m, GPUCount: o.GPUs, Terms: o.Terms, Currency: "USD", Source: "script of the fake provider", AsOf: day,
		Prices:  offer.Prices{Compute: price(o.PriceHour), DiskRunning: price(0), DiskStopped: price(0), Egress: price(0), Ingress: price(0), Address: price(0), Fee: price(0)},
		Billing: offer.Billing{Increment: offer.Some(time.Duration(o.Increment)), Minimum: offer.Some(time.Duration(o.Minimum)), Starts: o.Starts, StoppedFull: o.StoppedHour == nil},
		Startup: offer.Some(time.Duration(o.Boot)), DiskIncludedGB: offer.Some(100.0), Available: offer.Some(true)}
	if m != nil && o.GPUs == 0 {
		out.GPUCount = 1
	}
	if o.VCPUs > 0 {
		out.VCPUs = offer.Some(o.VCPUs)
	}
	if o.MemoryGB > 0 {
		out.MemoryGB = offer.Some(o.MemoryGB)
	}
	if o.Terms == offer.Spot {
		out.InterruptionsPerHour, out.Notice = offer.Some(o.ReclaimsPerHour), offer.Some(time.Duration(o.Notice))
	}
	return backend.Offer{Offer: out, Config: o.ID}
}

// draw is a number from 0 below 1 that depends on nothing but the seed and
// what it is drawn for. It is spread well enough for rare faults.
func (s *Script) draw(words ...string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(words, "\x00")))
	x := h.Sum64() ^ uint64(s.Seed)*0x9e3779b97f4a7c15
	// The finaliser of splitmix64.
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// wait is a time until something that happens at a rate; false: never.
func (s *Script) wait(perHour float64, words ...string) (time.Duration, bool) {
	if !(perHour > 0) {
		return 0, false
	}
	h := -math.Log(1-s.draw(words...)) / perHour
	if h > 1e5 {
		return 0, false
	}
	return time.Duration(h * float64(time.Hour)), true
}
