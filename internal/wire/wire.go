// Package wire says what the control plane and the agent of a node say to each
// other: JSON over HTTP/1.1 on any stream, a unix socket on the node or the
// standard input and output of `destajo agent connect` through SSH. The control
// plane speaks, the agent answers; nothing listens outside the node.
package wire

import (
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/machine"
)

// Version is that of this protocol. An agent refuses another one with 426 and
// its own Hello, so that the control plane can replace it.
const Version = 1

// VersionHeader carries Version in every request.
const VersionHeader = "Destajo-Wire"

// Paths of the agent.
const (
	PathHello    = "/v1/hello"    // GET: Hello
	PathSync     = "/v1/sync"     // POST Sync: Report
	PathBlob     = "/v1/blobs/"   // HEAD, PUT {name}: a file by the SHA-256 of its bytes
	PathLog      = "/v1/logs/"    // GET {task}?offset=N&max=N: bytes; header Destajo-Log-Size has the size
	PathOutputs  = "/v1/outputs/" // GET {task}: tar.gz of the outputs of an ended task; 204 when there are none
	PathKeep     = "/v1/keep/"    // GET {task}: tar.gz of checkpoint.dir as it is now; If-None-Match with the ETag of the last: 304
	PathSamples  = "/v1/samples"  // GET ?after=N: Samples
	PathShell    = "/v1/shell/"   // GET {task}?cols=N&rows=N&command=C with Upgrade: destajo-shell: frames, see shell.go
	PathForward  = "/v1/forward/" // GET {task}?port=N with Upgrade: tcp: a plain stream to that port of the task
	PathShutdown = "/v1/shutdown" // POST Shutdown: the agent stops its tasks, runs the release hook and exits
)

// Hello is who the agent is.
type Hello struct {
	Wire    int          `json:"wire"`
	Agent   string       `json:"agent"`   // version of the binary
	Machine string       `json:"machine"` // tag that it was started with
	Host    machine.Host `json:"host"`
	Now     time.Time    `json:"now"`
}

// Sync is what the control plane wants. It is idempotent: everything may be
// said again. It is also the word that keeps the dead-man switch from firing.
type Sync struct {
	Plane   string        `json:"plane"`
	Token   int64         `json:"token"`    // fencing: lower than the highest seen is refused with 409
	DeadMan time.Duration `json:"dead_man"` // without a word for so long, tasks are checkpointed and stopped and the release hook runs
	Start   []Task        `json:"start,omitempty"`
	Go      []string      `json:"go,omitempty"` // prepared tasks of a gang that may run now
	Stop    []Stop        `json:"stop,omitempty"`
	Forget  []string      `json:"forget,omitempty"` // ended tasks whose log, outputs and end are kept by the control plane: delete all of them
	Seen    int64         `json:"seen"`             // version of the last report; the agent answers when it has a newer one
	Wait    time.Duration `json:"wait"`             // or after so long
}

// Task is what to run. The agent knows it by its id for ever, until it is told
// to forget it: the same id is never started twice.
type Task struct {
	ID      string            `json:"id"` // machine.TaskID
	Job     int64             `json:"job"`
	Kind    string            `json:"kind"` // task, service, notebook
	Image   string            `json:"image,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Setup   string            `json:"setup,omitempty"`
	Run     string            `json:"run"`
	Bundle  string            `json:"bundle,omitempty"` // blob, tar.gz: unpacked into the task's folder before setup
	Mounts  []Mount           `json:"mounts,omitempty"`
	Keep    string            `json:"keep,omitempty"` // blob, tar.gz: former content of the checkpoint folder
	KeepDir string            `json:"keep_dir,omitempty"`
	Outputs []string          `json:"outputs,omitempty"`
	Ports   []int             `json:"ports,omitempty"`
	Health  *Health           `json:"health,omitempty"`
	Restart string            `json:"restart,omitempty"` // of a service: always, failure, never
	Needs   machine.Needs     `json:"needs"`
	Gang    bool              `json:"gang"` // do not run before Go names it

	Duration time.Duration `json:"duration"` // most time it may run; 0: any
	Deadline time.Time     `json:"deadline,omitzero"`
	Idle     time.Duration `json:"idle"`  // stop after so long without work on its GPUs, or CPUs, and no open shell or forward; 0: never
	Grace    time.Duration `json:"grace"` // from SIGTERM to SIGKILL
}

// Mount is a folder of the bundle that lies elsewhere for the job.
type Mount struct {
	Bundle string `json:"bundle"` // path within the bundle
	To     string `json:"to"`
}

// Health says how the agent knows that a service answers.
type Health struct {
	Port  int           `json:"port"`
	Path  string        `json:"path"`
	Every time.Duration `json:"every"`
	Start time.Duration `json:"start"`
}

// Stop ends a task: a notice (SIGTERM to its processes and the file named by
// DESTAJO_NOTICE), the grace, then SIGKILL. Stopping an unknown task makes it
// ended, so that a late Start cannot run it.
type Stop struct {
	ID     string        `json:"id"`
	Cause  machine.Cause `json:"cause"`
	Reason string        `json:"reason"`
	Grace  time.Duration `json:"grace"`
}

// Report is every task that the agent was not told to forget. Its version grows
// with the log of a running task too, at most ten times a second.
type Report struct {
	Version int64        `json:"version"` // grows with every change, over restarts of the agent too
	Now     time.Time    `json:"now"`
	Host    machine.Host `json:"host"`
	Tasks   []Status     `json:"tasks"`
	Notice  *Notice      `json:"notice,omitempty"` // the provider announced on the node that it takes the machine
}

// Notice announces an interruption.
type Notice struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// Status is one task as the agent sees it. Times are the node's clock.
type Status struct {
	ID      string            `json:"id"`
	State   machine.TaskState `json:"state"`
	Cause   machine.Cause     `json:"cause,omitempty"` // of an ended one
	Reason  string            `json:"reason,omitempty"`
	Detail  string            `json:"detail,omitempty"` // progress while preparing: "unpacking 40 MB", "pulling image 3 of 7"
	Exit    int               `json:"exit"`             // of an ended one; -1 when a signal ended it
	Signal  string            `json:"signal,omitempty"`
	Held    time.Time         `json:"held,omitzero"`    // it got its slot
	Started time.Time         `json:"started,omitzero"` // its command
	Ended   time.Time         `json:"ended,omitzero"`
	Ran     time.Duration     `json:"ran"` // of its command, by the monotonic clock where it is known
	Log     int64             `json:"log"`
	Outputs bool              `json:"outputs"` // there are some
	Kept    bool              `json:"kept"`    // the checkpoint folder has content
	Healthy bool              `json:"healthy"`
	Starts  int               `json:"starts"` // of a service
	Devices []string          `json:"devices,omitempty"`
	Joules  float64           `json:"joules,omitempty"`
	PeakMem int64             `json:"peak_memory_bytes,omitempty"`
}

// Samples is what was measured after a cursor.
type Samples struct {
	Next    int64           `json:"next"`
	Samples []record.Sample `json:"samples"`
}

// Shutdown ends the agent.
type Shutdown struct {
	Plane  string        `json:"plane"`
	Token  int64         `json:"token"`
	Reason string        `json:"reason"`
	Grace  time.Duration `json:"grace"`
}

// Refusal is the body of an answer that is not 2xx.
type Refusal struct {
	Kind    string `json:"kind"` // of package fault
	Message string `json:"message"`
	Hint    string `json:"hint"`
}
