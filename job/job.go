package job

import (
	"time"

	"github.com/destajo/destajo/money"
)

// State is where a job stands. doc.go of internal/control draws the ways
// between the states.
type State string

// The states.
const (
	Waiting  State = "waiting"  // for a place, a limit, another job or its back-off: Reason says which
	Starting State = "starting" // has an attempt whose command does not run yet
	Running  State = "running"
	Stopping State = "stopping" // someone or a limit ended it; its attempt has not ended yet
	Done     State = "done"
	Failed   State = "failed"
	Stopped  State = "stopped"
)

// States lists the states in the order of a job's life.
func States() []State { return []State{Waiting, Starting, Running, Stopping, Done, Failed, Stopped} }

// Ended says whether a job in this state will never run again.
func (s State) Ended() bool { return s == Done || s == Failed || s == Stopped }

// Job is one submitted job: its row is its state.
type Job struct {
	ID      int64
	Version int64 // of the row, raised by every change
	Project string
	Member  string // who submitted it

	Name   string
	Kind   Kind
	Array  int64             // id of the array's first job; 0 outside an array
	Index  int               // within the array, from 0
	Text   string            // the job file as submitted
	Env    map[string]string // variables beside those of the file
	Dir    string            // folder on the submitting machine to which outputs come back; empty: none
	Bundle string            // name of the stored copy of workdir and mounts; empty: none

	After     []int64 // jobs that must be done before
	Priority  int
	State     State
	Reason    string // in words: why it waits, or how it ended
	Stop      string // why it is to end; empty: it is not
	Submitted time.Time
	Deadline  time.Time // zero: none
	NotBefore time.Time // back-off of a retry
	Started   time.Time // first time its command ran
	Ended     time.Time
	Attempts  int
	Failures  int           // attempts that failed by their own fault, which retries count
	Unstarted int           // attempts that a machine could not start
	Missed    string        // GPU that was sought last, in vain: its like are tried first
	Progress  time.Duration // useful time of ended attempts that checkpoints kept
	ExitCode  int           // of the last attempt that ended by itself; -1 before

	Estimate *Estimate // at submission; nil when nothing was known
}

// Estimate is what the plan said of the option that was chosen.
type Estimate struct {
	Offer        string                  `json:"offer"`
	Currency     string                  `json:"currency"`
	Known        bool                    `json:"known"` // false: the work is not stated, and only the price per hour is known
	Cost         money.Amount            `json:"cost"`  // expected
	CostP90      money.Amount            `json:"cost_p90"`
	PriceHour    money.Amount            `json:"price_hour"`
	Hours        float64                 `json:"hours"` // useful, expected
	WallHours    float64                 `json:"wall_hours"`
	StartupHours float64                 `json:"startup_hours"`
	Parts        map[string]money.Amount `json:"parts,omitempty"`
	EnergyKWh    float64                 `json:"energy_kwh"` // 0 unknown
	CO2Kg        *float64                `json:"co2_kg"`     // nil unknown
	Evidence     string                  `json:"evidence"`
}
