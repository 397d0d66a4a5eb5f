package machine

import (
	"strconv"
	"strings"
	"time"
)

// AttemptState is where an attempt stands.
type AttemptState string

// The states.
const (
	Assigned AttemptState = "assigned" // its machines are chosen; they boot, or take files in, or it waits for a slot
	Started  AttemptState = "running"  // its command runs on every machine
	Leaving  AttemptState = "stopping" // it was told to stop
	Over     AttemptState = "ended"
)

// Cause is why an attempt ended.
type Cause string

// The causes.
const (
	Exited      Cause = "exited"      // its command ended; the exit code says how
	Cancelled   Cause = "cancelled"   // someone stopped the job
	Limit       Cause = "limit"       // cost, duration, deadline or idle limit
	Interrupted Cause = "interrupted" // the provider took the machine, or announced it
	Lost        Cause = "lost"        // the machine is gone, or silent beyond its dead-man time
	NoMachine   Cause = "no machine"  // none of its machines came up
	NotStarted  Cause = "not started" // the machine could not start it: image, disk, files, devices
	Moved       Cause = "moved"       // the policy moves the job to other terms
	DeadMan     Cause = "dead man"    // the node heard nothing from the control plane
)

// Attempt is one try of a job: its row is its state.
type Attempt struct {
	ID      string // AttemptID of the job and the number
	Version int64
	Job     int64
	Number  int // from 1
	Project string
	Member  string

	State   AttemptState
	Cause   Cause
	Reason  string
	Tasks   []Task // one a machine, in the order of ranks
	Needs   Needs
	Stop    string // why it is to stop; empty: it is not
	Grace   time.Duration
	Made    time.Time
	Started time.Time // the command ran on all machines
	Ended   time.Time
	Billed  time.Time     // until then usage is recorded
	Useful  time.Duration // running, as the nodes measured it
	Kept    time.Duration // of it, before the newest checkpoint that is here
}

// AttemptID names the number-th attempt of a job.
func AttemptID(job int64, number int) string {
	return strconv.FormatInt(job, 10) + "-" + strconv.Itoa(number)
}

// TaskID names the part of an attempt on one machine.
func TaskID(attempt string, rank int) string { return attempt + "." + strconv.Itoa(rank) }

// ShareOf is the part of its machine's cost that a task of the attempt bears.
func (a *Attempt) ShareOf(t *Task) float64 {
	if t.Share > 0 {
		return t.Share
	}
	return a.Needs.Share
}

// Needs are what each machine of an attempt must give it.
type Needs struct {
	CPUs      float64 `json:"cpus"`
	Memory    int64   `json:"memory_bytes"`
	GPUs      int     `json:"gpus"`
	GPU       string  `json:"gpu"`       // id of the model; empty: any
	Partition string  `json:"partition"` // MIG profile; empty: whole cards
	Share     float64 `json:"share"`     // of the machine, by which its cost is divided: 0 to 1
}

// Task is the part of an attempt on one machine, as its agent reported it last.
type Task struct {
	Rank    int           `json:"rank"`
	Machine string        `json:"machine"`
	Share   float64       `json:"share,omitzero"` // of its machine, where that is not the attempt's
	State   TaskState     `json:"state"`
	Cause   Cause         `json:"cause,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	Exit    int           `json:"exit"`
	Signal  string        `json:"signal,omitempty"`
	Held    time.Time     `json:"held,omitzero"` // it got its slot; times are of the control plane's clock
	Started time.Time     `json:"started,omitzero"`
	Ended   time.Time     `json:"ended,omitzero"`
	Ran     time.Duration `json:"ran,omitzero"`
	Log     int64         `json:"log"`     // bytes written on the node
	Shipped int64         `json:"shipped"` // of them, kept by the control plane
	Healthy bool          `json:"healthy"`
	Outputs bool          `json:"outputs"` // it left files that are to be brought back
	Fetched bool          `json:"fetched"` // outputs and checkpoint are here
	Devices []string      `json:"devices,omitempty"`
	Joules  float64       `json:"joules,omitempty"` // energy of its GPUs, measured; 0 unknown
	Notice  time.Time     `json:"notice,omitzero"`  // an interruption was announced
}

// Words say how a task ended.
func (t *Task) Words() string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != "":
		return "ended by signal " + t.Signal
	case t.Exit != 0:
		return "exit code " + strconv.Itoa(t.Exit)
	}
	return "ended well"
}

// TaskState is where a task stands on its node.
type TaskState string

// The states. A node knows a task from TaskQueued on.
const (
	TaskNew       TaskState = ""          // the node does not know it yet
	TaskQueued    TaskState = "queued"    // waits for a slot
	TaskPreparing TaskState = "preparing" // files, image, setup
	TaskPrepared  TaskState = "prepared"  // of a gang: waits for the word to go
	TaskRunning   TaskState = "running"
	TaskStopping  TaskState = "stopping"
	TaskEnded     TaskState = "ended"
)

// ParseTask reads a task's id.
func ParseTask(id string) (attempt string, rank int, ok bool) {
	attempt, text, ok := strings.Cut(id, ".")
	if !ok {
		return "", 0, false
	}
	rank, err := strconv.Atoi(text)
	return attempt, rank, err == nil && rank >= 0
}
