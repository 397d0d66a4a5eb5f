// Package record says how the state is read and changed: the rows are nouns of
// the lower floors, a Delta is the rows that changed since a moment, and Changes
// are rows that change together, in one transaction or not at all.
package record

import (
	"time"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// Plane is what the state says of itself.
type Plane struct {
	ID    string // random, made with the state; part of every machine's tag
	Epoch int64  // raised when the state was restored from a copy
}

// Delta is every live row that changed after a moment, and the moment itself.
// Rows that ended since are in it too, in their last state.
type Delta struct {
	Seq      int64
	Jobs     []*job.Job
	Attempts []*machine.Attempt
	Machines []*machine.Machine
	Holds    []*tenant.Hold
	Places   []*Place
	Sources  []*Source
}

// Place is what own launches met at one offer: failures that put it last for a
// while, start-up times, interruptions over running hours.
type Place struct {
	Project       string
	Member        string // whose launch met it first
	Offer         string // id
	Version       int64
	Failed        time.Time // last failed launch
	Failures      int       // in a row
	Why           string
	Interruptions int
	Hours         float64 // running, on spot
	Startups      int     // measured
	StartupHours  float64 // sum of them
}

// Source is a configured source of machines: an SSH host, a provider account.
type Source struct {
	ID      string // such as ssh://user@host
	Version int64
	Project string
	Member  string // who added it
	Backend string
	Config  string // JSON, of the backend
	Removed bool
	Made    time.Time
}

// Changes change together. A row with Version 0 is new; any other is written
// only over the version it was read at, else nothing at all is written and the
// fault is a conflict. The store raises versions and sequence.
type Changes struct {
	Jobs     []*job.Job
	Attempts []*machine.Attempt
	Machines []*machine.Machine
	Holds    []*tenant.Hold
	Places   []*Place
	Sources  []*Source
	Counters []Counter
	Usage    []ledger.Usage  // a key that is there already stays as it is
	Charges  []ledger.Charge // likewise
	Events   []tenant.Event
	Samples  []Sample

	Seq int64 // of the change, set by the store when it is written
}

// Empty says whether nothing changes.
func (c *Changes) Empty() bool {
	return len(c.Jobs)+len(c.Attempts)+len(c.Machines)+len(c.Holds)+len(c.Places)+len(c.Sources)+len(c.Counters)+len(c.Usage)+len(c.Charges)+len(c.Events)+len(c.Samples) == 0
}

// Counter adds to a counter row and fails the whole change with the kind
// OverLimit when the sum would pass the limit.
type Counter struct {
	Key   string // such as held/default/USD
	Add   int64
	Limit int64 // 0: none
}

// Sample is what an agent measured of one task at a moment.
type Sample struct {
	Project string `json:",omitempty"`
	Member  string `json:",omitempty"`
	Job     int64
	Attempt string
	Rank    int
	At      time.Time
	CPU     float64  // cores in use
	Memory  int64    // bytes of the task's processes
	GPUs    []GPUUse // one a device that the task holds
}

// GPUUse is how much one device did. Nil is what the driver does not say.
type GPUUse struct {
	UUID        string   `json:"uuid"`
	Utilization *float64 `json:"utilization_percent"`
	Memory      *int64   `json:"memory_bytes"`
	Watts       *float64 `json:"power_watts"`
	Celsius     *float64 `json:"temperature_c"`
}

// Lease is the right to act on the state, until it expires. Its token grows
// with every new holder; the store refuses changes under an older one.
type Lease struct {
	Holder  string
	Token   int64
	Expires time.Time
}

// JobFilter chooses jobs; zero values choose all.
type JobFilter struct {
	Project string
	IDs     []int64
	Array   int64 // members of this array
	Name    string
	States  []job.State
	Live    bool  // not ended only
	Limit   int   // newest first when set
	Before  int64 // ids below; 0: any
}

// LedgerFilter chooses usage with its charges; zero values choose all.
type LedgerFilter struct {
	Project  string
	Jobs     []int64
	Machine  string
	From, To time.Time // of the usage's end
}

// Entry is a usage with its charge.
type Entry struct {
	ledger.Usage
	Charge ledger.Charge
}

// EventFilter chooses lines of the trail, oldest first.
type EventFilter struct {
	Project string
	Job     int64
	Machine string
	Limit   int
}
