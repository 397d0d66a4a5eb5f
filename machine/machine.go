// Package machine holds the nouns of what runs: a machine costs money from its
// intent record until its end was verified with whoever bills it, an attempt is
// one try of a job on one machine or on a gang of them, and a device is what of
// a machine an attempt holds.
package machine

import (
	"time"

	"github.com/destajo/destajo/money"
)

// State is where a machine stands. doc.go of internal/control draws the ways
// between the states.
type State string

// The states.
const (
	Intent      State = "intent"      // written down, perhaps asked for; perhaps it exists and costs
	Booting     State = "booting"     // its backend took the request; its agent has not answered yet
	Ready       State = "ready"       // its agent answers, or answered
	Ending      State = "ending"      // its end was decided; it costs until the backend says gone
	Gone        State = "gone"        // the backend says so
	Quarantined State = "quarantined" // of another epoch or of nobody: never used, never ended by itself
)

// Machine is one machine: its row is its state.
type Machine struct {
	ID      string // unique, random; with the plane's id it is the tag at the backend
	Version int64  // of the row, raised by every change
	Project string // of the job for which it was started
	Member  string
	Epoch   int64 // of the state that asked for it

	Backend string
	Terms   Terms
	Handle  string // what the backend calls it; empty until it is known
	Host    *Host  // as its agent reports; nil until it answered

	Shared bool          // attempts share it; else one at a time has it
	Boot   time.Duration // from the request until its agent must answer; 0: the default

	State      State
	Reason     string // in words: what it waits for, or why it ended
	Asked      time.Time
	Booted     time.Time     // its agent answered first
	Heard      time.Time     // its agent answered last
	Said       time.Time     // it was last told something, whether the answer came or not
	Offset     time.Duration // added to its clock gives ours
	Used       time.Time     // an attempt was on it last
	Ending     time.Time     // its end was decided
	Gone       time.Time     // its backend said so
	Charged    money.Amount  // to attempts and, when it is settled, as idle time
	Settled    bool          // what was idle of it is recorded
	LaunchFail string        // why it could not be had
	EndFail    string        // the last failure to end it
	EndTry     int           // how often that failed
	Notice     time.Time     // its provider announced to take it then; zero: it did not
}

// Live says whether the machine may cost money.
func (m *Machine) Live() bool { return m.State != Gone }

// BilledFrom is when its provider began to bill; zero: it has not. One that is
// billed while it runs counts from its agent's first answer.
func (m *Machine) BilledFrom() time.Time {
	if m.LaunchFail != "" && m.Handle == "" { // it was refused: there never was one
		return time.Time{}
	}
	switch m.Terms.Starts {
	case "running", "job":
		return m.Booted
	}
	return m.Asked
}

// Spoke is the last moment at which the agent can have heard a word.
func (m *Machine) Spoke() time.Time {
	if m.Said.After(m.Heard) {
		return m.Said
	}
	return m.Heard
}

// Capacity is what the machine has for attempts: as its agent reports, and
// before that as it was offered. Memory 0 is not counted.
func (m *Machine) Capacity() (cpus float64, memory int64, gpus int) {
	if h := m.Host; h != nil {
		gpus = len(h.Devices)
		for i := range h.Devices {
			if n := len(h.Devices[i].MIG); n > 0 {
				gpus += n - 1
			}
		}
		return float64(h.CPUs), h.MemoryBytes, gpus
	}
	return m.Terms.VCPUs, int64(m.Terms.MemoryGB * 1e9), m.Terms.GPUCount
}

// Terms are what was agreed when the machine was asked for: the offer, frozen.
// Nil prices are unknown, never zero. Prices are per hour of the whole machine.
type Terms struct {
	OfferID      string  `json:"offer_id"`
	Provider     string  `json:"provider"`
	Class        string  `json:"class"`
	Region       string  `json:"region"`
	Zone         string  `json:"zone"`
	Country      string  `json:"country"`
	InstanceType string  `json:"instance_type"`
	GPU          string  `json:"gpu"` // id of the model; empty: none
	GPUCount     int     `json:"gpu_count"`
	Partition    string  `json:"partition"`
	VCPUs        float64 `json:"vcpus"`     // 0 unknown
	MemoryGB     float64 `json:"memory_gb"` // 0 unknown
	Terms        string  `json:"terms"`     // on-demand, spot, reserved, owned

	Currency    string        `json:"currency"`
	PriceHour   money.Amount  `json:"price_hour"`
	Assumed     bool          `json:"price_assumed"` // derived, not stated by the owner
	Source      string        `json:"source"`
	AsOf        string        `json:"as_of"`
	DiskMonth   *money.Amount `json:"disk_gb_month"`
	StoppedDisk *money.Amount `json:"disk_stopped_gb_month"`
	Egress      *money.Amount `json:"egress_gb"`
	Increment   time.Duration `json:"increment"` // of billing; 0 unknown
	Minimum     time.Duration `json:"minimum"`
	Starts      string        `json:"billing_starts"` // request, boot, running, job; empty: request
	Lambda      float64       `json:"lambda"`         // interruptions per hour, as planned with

	Watts     float64  `json:"watts"`      // of all its GPUs at full load; 0 unknown
	GridGrams *float64 `json:"grid_grams"` // CO2 per kWh of its country
}

// Host is a machine as its agent sees it.
type Host struct {
	Name        string   `json:"name"`
	OS          string   `json:"os"` // GOOS/GOARCH
	Agent       string   `json:"agent"`
	CPUs        int      `json:"cpus"`
	MemoryBytes int64    `json:"memory_bytes"`
	DiskFree    int64    `json:"disk_free_bytes"`
	Address     string   `json:"address"` // by which other machines of a gang reach it
	Devices     []Device `json:"gpus"`
	Problems    []string `json:"problems"`   // what it cannot do, each with how to mend it
	Limits      string   `json:"limits"`     // cgroup2, cgroup1, rlimit, none
	Containers  string   `json:"containers"` // docker, podman, or empty
	Driver      string   `json:"driver"`
}

// Device is one GPU. Nil is what the driver does not say.
type Device struct {
	Index        int      `json:"index"`
	UUID         string   `json:"uuid"`
	Vendor       string   `json:"vendor"` // nvidia, amd
	Model        string   `json:"model"`  // the driver's own name
	GPU          string   `json:"gpu"`    // id in the table of cards; empty when it is not there
	MemoryBytes  *int64   `json:"memory_bytes"`
	SharedMemory bool     `json:"shared_memory"` // memory is the host's
	MIG          []MIG    `json:"mig"`
	PowerWatts   *float64 `json:"power_watts"`
	Utilization  *float64 `json:"utilization_percent"`
	MemoryUsed   *int64   `json:"memory_used_bytes"`
	Temperature  *float64 `json:"temperature_c"`
	Processes    []int    `json:"processes"`
}

// MIG is one instance of a divided GPU.
type MIG struct {
	UUID        string `json:"uuid"`
	Profile     string `json:"profile"`
	MemoryBytes *int64 `json:"memory_bytes"`
}

// Slots is what a machine offers to attempts and what one of them takes.
type Slots struct {
	CPUs   float64  `json:"cpus"`
	Memory int64    `json:"memory_bytes"` // 0: not counted
	GPUs   []string `json:"gpus"`         // UUIDs of devices or MIG instances
}
