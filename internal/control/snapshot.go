package control

import (
	"maps"
	"slices"
	"time"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/tenant"
)

// Snapshot is all that a decision depends on. Its rows are never changed in
// place: a changed row is another value.
type Snapshot struct {
	Plane    record.Plane
	Settings Settings
	Jobs     map[int64]*job.Job          // that have not ended
	Ended    map[int64]job.State         // ended ones for which others wait
	Attempts map[string]*machine.Attempt // that have not ended
	Machines map[string]*machine.Machine // that are not gone
	Holds    map[int64]*tenant.Hold      // that are not released
	Places   map[string]*record.Place    // by offer
	Specs    map[int64]*job.Spec         // the jobs' files
	Choices  map[int64]*Choice           // where waiting jobs can go, best first
	Advice   map[int64]Advice            // what the spot policy says of jobs with a deadline
}

// Settings are the times and limits of the loop.
type Settings struct {
	Linger       time.Duration // an idle machine is kept for so long
	DeadMan      time.Duration // an agent without a word for so long stops its tasks by itself
	Margin       time.Duration // beyond DeadMan until a silent machine's tasks count as stopped: clock skew, grace and one word under way
	Grace        time.Duration // from notice to kill
	Cooldown     time.Duration // a place that failed is tried last for so long
	BootTimeout  time.Duration // from request to the agent's first answer, where the backend states none
	AccrueEvery  time.Duration // usage of running attempts is recorded so often
	AbsentFor    time.Duration // a machine that its backend stopped listing for so long is gone
	Sweep        time.Duration // backends are asked so often for all that carries our id
	DefaultHold  time.Duration // what is held, in hours of the price, for a job whose cost is unknown
	MaxPerPass   int           // steps that place jobs in one pass
	NodeQueue    int           // members of an array that may wait on a shared machine beyond its slots
	AgePerPoint  time.Duration // waiting so long counts as one point of priority
	DefaultCPUs  float64       // of a job that states none and has no GPU
	NotStartable int           // attempts that could not be started before the job fails
}

// DefaultSettings are those of a server.
func DefaultSettings() Settings {
	return Settings{
		Linger: 30 * time.Second, DeadMan: 10 * time.Minute, Margin: 2 * time.Minute, Grace: 30 * time.Second,
		Cooldown: 10 * time.Minute, BootTimeout: 20 * time.Minute, AccrueEvery: time.Minute, AbsentFor: 5 * time.Second, Sweep: time.Minute,
		DefaultHold: time.Hour, MaxPerPass: 500, NodeQueue: 8, AgePerPoint: time.Minute, DefaultCPUs: 1, NotStartable: 3,
	}
}

// Choice is where a job can go now.
type Choice struct {
	Made       time.Time
	Candidates []Candidate // best first
	Why        string      // when there is none
	Mixed      bool        // both on spot and on demand: of a job with a deadline the spot policy is asked
	Fatal      bool        // no place of any kind will do: the job fails
}

// Candidate is one way to run a job.
type Candidate struct {
	Backend  string
	Offer    backend.Offer
	Terms    machine.Terms
	Needs    machine.Needs
	Nodes    int
	Boot     time.Duration // until the place is given up; 0: the default
	Estimate job.Estimate
	Limit    money.Amount // most that the job may cost, in the terms' currency; 0: none
	Hold     money.Amount // set aside for the job, in the terms' currency
}

// Advice is what the spot policy says of a job now.
type Advice struct {
	At     time.Time
	In     job.State // of the job when the policy was asked
	Wait   bool      // for spot
	Offer  string    // to run on; empty: no opinion
	Terms  string    // of it: on-demand or spot
	Reason string
}

// Specification gives a job's file.
func (s *Snapshot) Specification(j *job.Job) *job.Spec { return s.Specs[specOf(j)] }

// specOf is the id under which a job's file is kept: arrays share one.
func specOf(j *job.Job) int64 {
	if j.Array != 0 {
		return j.Array
	}
	return j.ID
}

// draft is a snapshot in which steps are tried: rows are copied when they are
// first changed, and the copies are the changes to be written.
type draft struct {
	*Snapshot
	now      time.Time
	jobs     map[int64]*job.Job
	attempts map[string]*machine.Attempt
	machines map[string]*machine.Machine
	holds    map[int64]*tenant.Hold
	places   map[string]*record.Place
	more     record.Changes // usage, charges, counters and events

	byJob     map[int64][]string // ids of live attempts
	byMachine map[string][]string
	load      map[string]load
	offers    map[string][]string // ids of the machines of the snapshot by offer
}

// load is what live attempts take of a machine.
type load struct {
	cpus     float64
	memory   int64
	gpus     int
	share    float64
	attempts int
}

func newDraft(s *Snapshot, now time.Time) *draft {
	d := &draft{Snapshot: s, now: now, jobs: map[int64]*job.Job{}, attempts: map[string]*machine.Attempt{}, machines: map[string]*machine.Machine{},
		holds: map[int64]*tenant.Hold{}, places: map[string]*record.Place{}, byJob: map[int64][]string{}, byMachine: map[string][]string{}, load: map[string]load{}}
	for id, a := range s.Attempts {
		d.enter(id, a)
	}
	return d
}

// enter counts an attempt on its machines.
func (d *draft) enter(id string, a *machine.Attempt) {
	d.byJob[a.Job] = append(d.byJob[a.Job], id)
	for i := range a.Tasks {
		t := &a.Tasks[i]
		d.byMachine[t.Machine] = append(d.byMachine[t.Machine], id)
		if t.State != machine.TaskEnded {
			d.take(t.Machine, &a.Needs, 1)
		}
	}
}

// leave takes an attempt off its machines.
func (d *draft) leave(id string, a *machine.Attempt) {
	d.byJob[a.Job] = slices.DeleteFunc(slices.Clone(d.byJob[a.Job]), func(x string) bool { return x == id })
	for i := range a.Tasks {
		t := &a.Tasks[i]
		d.byMachine[t.Machine] = slices.DeleteFunc(slices.Clone(d.byMachine[t.Machine]), func(x string) bool { return x == id })
		if t.State != machine.TaskEnded {
			d.take(t.Machine, &a.Needs, -1)
		}
	}
}

func (d *draft) take(id string, n *machine.Needs, sign int) {
	l := d.load[id]
	f := float64(sign)
	l.cpus += f * n.CPUs
	l.memory += int64(sign) * n.Memory
	l.gpus += sign * n.GPUs
	l.share += f * n.Share
	l.attempts += sign
	d.load[id] = l
}

// job gives a row as the steps so far left it; nil when there is none.
func (d *draft) job(id int64) *job.Job {
	if j, ok := d.jobs[id]; ok {
		return j
	}
	return d.Jobs[id]
}

func (d *draft) attempt(id string) *machine.Attempt {
	if a, ok := d.attempts[id]; ok {
		return a
	}
	return d.Attempts[id]
}

func (d *draft) machine(id string) *machine.Machine {
	if m, ok := d.machines[id]; ok {
		return m
	}
	return d.Machines[id]
}

func (d *draft) hold(id int64) *tenant.Hold {
	if h, ok := d.holds[id]; ok {
		return h
	}
	return d.Holds[id]
}

func (d *draft) place(offer string) *record.Place {
	if p, ok := d.places[offer]; ok {
		return p
	}
	return d.Places[offer]
}

func (d *draft) editJob(id int64) *job.Job { return edit(d.jobs, d.Jobs, id) }

func (d *draft) editMachine(id string) *machine.Machine { return edit(d.machines, d.Machines, id) }

func (d *draft) editHold(id int64) *tenant.Hold { return edit(d.holds, d.Holds, id) }

func (d *draft) editAttempt(id string) *machine.Attempt {
	if a, ok := d.attempts[id]; ok {
		return a
	}
	a := edit(d.attempts, d.Attempts, id)
	a.Tasks = slices.Clone(a.Tasks)
	return a
}

// editPlace gives what is known of the place of a machine.
func (d *draft) editPlace(m *machine.Machine) *record.Place {
	offer := m.Terms.OfferID
	if _, ok := d.Places[offer]; !ok && d.places[offer] == nil {
		d.places[offer] = &record.Place{Project: m.Project, Member: m.Member, Offer: offer}
	}
	return edit(d.places, d.Places, offer)
}

// edit gives the copy of a row that a draft may change.
func edit[K comparable, V any](changed, base map[K]*V, id K) *V {
	if v, ok := changed[id]; ok {
		return v
	}
	v := *base[id]
	changed[id] = &v
	return &v
}

// changes are the rows to be written, in the order of their ids.
func (d *draft) changes() *record.Changes {
	c := d.more
	c.Jobs, c.Attempts, c.Machines = sorted(d.jobs), sorted(d.attempts), sorted(d.machines)
	c.Holds, c.Places = sorted(d.holds), sorted(d.places)
	return &c
}

func sorted[K interface{ ~int64 | ~string }, V any](m map[K]*V) []*V {
	out := make([]*V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

// event adds a line to the trail.
func (d *draft) event(project string, jobID int64, machineID, what, detail string) {
	d.more.Events = append(d.more.Events, tenant.Event{At: d.now, Project: project, Job: jobID, Machine: machineID, What: what, Detail: detail})
}
