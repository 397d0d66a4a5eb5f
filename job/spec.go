// Package job holds what a user wants done: the job file, what it needs, how
// much work it is, and its limits. Parse reads and checks the file; it reports
// every mistake at once, each with line, column, cause and next step.
package job

import (
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
)

// Kind is how a job lives.
type Kind string

// The kinds.
const (
	Task     Kind = "task"     // runs to its end
	Service  Kind = "service"  // answers requests until it is stopped
	Notebook Kind = "notebook" // a person works in it until they leave
)

// Spec is one job. Absent values are zero, nil or empty.
type Spec struct {
	Version    int
	Name       string
	Kind       Kind
	Image      string
	Env        map[string]string
	Secrets    []string
	Labels     map[string]string
	Workdir    string
	Mounts     []Mount // local files that are sent along beside the workdir
	Setup      string  // runs once on a machine before the first Run there
	Run        string
	Ports      []int // that are forwarded on request; the first is where a service answers
	Health     *Health
	Restart    string // of a service: always (unless said), failure, never
	Outputs    []string
	Resources  Resources
	Work       *Work
	Startup    *time.Duration // stated, from request to useful work
	Data       Data
	Checkpoint *Checkpoint
	Limits     Limits
	Place      Place
	Array      int // 1 unless said
	After      []string
	Priority   int
	Retries    int
}

// Mount is a local file or folder and where it lies for the job.
type Mount struct{ From, To string }

// Health says how one knows that a service answers.
type Health struct {
	Port  int           // the first of Ports unless said
	Path  string        // of an HTTP GET that gives a status below 400; empty: the port takes connections
	Every time.Duration // 10 s unless said
	Start time.Duration // grace from its start until it must answer; 5 min unless said
}

// Resources are what one machine of the job must have.
type Resources struct {
	GPUs   []gpu.Request // any of them
	NoGPU  bool          // `gpus: 0`
	Nodes  int           // 1 unless said
	CPUs   float64       // least number of vCPUs; 0: any
	Memory gpu.Bytes     // least host memory; 0: any
	Disk   gpu.Bytes     // 0: what the offer includes
}

// Work is the amount to be done, in exactly one of its forms.
type Work struct {
	Hours    []Hours
	Finetune *Finetune
	Train    *Train
	Generate *Generate
	Images   *Images
	Units    *Units
	Traffic  *Traffic
}

// Hours are stated: elapsed hours of the whole job on some GPUs. A key
// without a count is for the count that resources ask for.
type Hours struct {
	Key   gpu.Request
	Hours float64
}

// Model names a model, or describes one that is not in the table.
type Model struct {
	Name    string
	Params  float64 // total parameters
	Active  float64 // parameters used per token, of a mixture of experts
	Layers  int
	Hidden  int
	KVHeads int
	HeadDim int
	Vocab   int
	Context int // longest context in tokens
	File    *ModelFile
}

// ModelFile is what the header of a model file says beyond the model's
// numbers. It has no key in a job file: Parse leaves it nil.
type ModelFile struct {
	Weights   gpu.Bytes // exact, of all tensors
	Precision string    // of most weights, such as q4_k_m
	Width     int       // of the feed-forward part, of one expert where there are experts
	Experts   int
	Routed    int  // experts that one token uses
	Tied      bool // embedding and head are one matrix
}

// Finetune is fine-tuning on tokens per epoch times epochs.
type Finetune struct {
	Model    Model
	Method   string // lora, qlora, full
	Tokens   float64
	Epochs   float64 // 1 unless said
	Sequence int     // tokens per sample; 0: default
	Stack    string  // such as peft, unsloth, torchtune
}

// Train is training from random weights.
type Train struct {
	Model     Model
	Tokens    float64
	Precision string
}

// Generate is inference in bulk.
type Generate struct {
	Model        Model
	InputTokens  float64
	OutputTokens float64
	Context      int // tokens held at once: the size of the KV cache
	Precision    string
	Engine       string
	Concurrency  int // requests at once; 0: as many as fit
}

// Images is training or inference over images.
type Images struct {
	Model  Model
	Mode   string // train, infer
	Images float64
	Epochs float64 // 1 unless said
}

// Units is anything countable, such as frames to render.
type Units struct {
	Count float64
	Unit  string
	Rates []Rate
}

// Rate is how many units an hour some GPUs do.
type Rate struct {
	Key     gpu.Request
	PerHour float64
}

// Traffic is what a service has to answer; its cost is per month.
type Traffic struct {
	Model          Model
	RequestsPerDay float64
	InputTokens    float64 // per request
	OutputTokens   float64 // per request
	Peak           float64 // busiest hour over the mean hour; 1 unless said
}

// Data is what moves in and out, and what stays.
type Data struct {
	Download gpu.Bytes
	From     string // provider:region, or internet
	Upload   gpu.Bytes
	To       string
	Keep     gpu.Bytes
	KeepFor  time.Duration
}

// Checkpoint says that the job can go on where it was interrupted.
type Checkpoint struct {
	Dir     string
	Every   *time.Duration // useful time between two; nil: chosen
	Write   *time.Duration // to write one
	Restart *time.Duration // from a new machine to useful work
}

// Limits end or forbid what goes beyond them.
type Limits struct {
	Cost     *Money
	Price    *Money // per hour, of all machines
	Duration *time.Duration
	Deadline *Deadline
	Idle     *time.Duration
	IdleOff  bool // `idle: off`
}

// Money is an amount with its currency.
type Money struct {
	Amount   money.Amount
	Currency string
}

// Deadline is a time from the submission, or a moment.
type Deadline struct {
	After time.Duration
	At    time.Time
}

// In gives the time left at now.
func (d *Deadline) In(now time.Time) time.Duration {
	if !d.At.IsZero() {
		return d.At.Sub(now)
	}
	return d.After
}

// Place says where the job may run.
type Place struct {
	Terms     []string // empty: all
	Classes   []string
	Providers []string
	Exclude   []string
	Countries []string // ISO 3166-1 alpha-2
	Regions   []string
	Verified  *bool
	Consumer  *bool
}

// Check finds what is wrong with the job at a moment: a deadline that has passed.
func (s *Spec) Check(now time.Time) error {
	if d := s.Limits.Deadline; d != nil && d.In(now) <= 0 {
		return fault.New(fault.Invalid, "the deadline of job %q was %s, now is %s", s.Name,
			d.At.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).Hint("give limits.deadline a later time, or a duration such as 24h")
	}
	return nil
}
