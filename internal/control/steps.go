package control

import (
	"fmt"
	"strings"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// Step is one thing that is due. Its words are for people and tests.
type Step interface {
	fmt.Stringer
	apply(*draft)
}

// Say tells why a job waits.
type Say struct {
	Job    int64
	Reason string
}

// Try starts an attempt: on machines that are there, or on new ones.
type Try struct {
	Job       int64
	Candidate *Candidate
	Machines  []string     // one for each rank; those that are not there are asked for
	On        []*Candidate // of each rank, where the machines are of several offers; nil: all of Candidate's
}

// Begin says that an attempt's command runs on all its machines.
type Begin struct{ Attempt string }

// StopAttempt tells an attempt to stop.
type StopAttempt struct {
	Attempt string
	Cause   machine.Cause
	Reason  string
	Grace   time.Duration
}

// EndAttempt writes down how an attempt ended; the job ends with it or waits
// for another one.
type EndAttempt struct {
	Attempt string
	Cause   machine.Cause
	Reason  string
	Exit    int
}

// Finish ends a job that has no attempt.
type Finish struct {
	Job    int64
	State  job.State
	Reason string
}

// EndMachine decides the end of a machine.
type EndMachine struct {
	Machine string
	Reason  string
	Failed  bool // it did not come up: its place is tried last for a while
}

// Record writes down what attempts and machines used until now.
type Record struct {
	Attempt string // or
	Machine string // that is gone: what remains is idle time
	To      time.Time
}

// Quarantine puts a machine of another epoch aside.
type Quarantine struct{ Machine string }

// carry applies steps to a snapshot and gives the rows to be written.
func carry(s *Snapshot, steps []Step, now time.Time) *record.Changes {
	d := newDraft(s, now)
	for _, x := range steps {
		x.apply(d)
	}
	return d.changes()
}

func (x Say) String() string { return fmt.Sprintf("say job %d: %s", x.Job, x.Reason) }

func (x Say) apply(d *draft) { d.editJob(x.Job).Reason = x.Reason }

func (x Try) String() string {
	return fmt.Sprintf("try job %d on %s at %s", x.Job, strings.Join(x.Machines, " "), x.Candidate.Terms.OfferID)
}

func (x Try) apply(d *draft) {
	j := d.editJob(x.Job)
	c := x.Candidate
	d.secure(j, c)
	j.Attempts++
	j.State, j.Reason = job.Starting, "starting at "+c.Terms.OfferID
	if j.Estimate == nil {
		e := c.Estimate
		j.Estimate = &e
	}
	a := &machine.Attempt{ID: machine.AttemptID(j.ID, j.Attempts), Job: j.ID, Number: j.Attempts, Project: j.Project, Member: j.Member,
		State: machine.Assigned, Needs: c.Needs, Made: d.now, Billed: d.now}
	for rank, id := range x.Machines {
		t := machine.Task{Rank: rank, Machine: id}
		if x.On != nil {
			c = x.On[rank]
			t.Share = share(a.Needs.CPUs, c.Terms.VCPUs, a.Needs.GPUs, c.Terms.GPUCount)
		}
		a.Tasks = append(a.Tasks, t)
		if m := d.machine(id); m != nil {
			d.editMachine(id).Used = d.now
			continue
		}
		d.machines[id] = &machine.Machine{ID: id, Project: j.Project, Member: j.Member, Epoch: d.Plane.Epoch, Backend: c.Backend, Terms: c.Terms,
			State: machine.Intent, Asked: d.now, Used: d.now, Reason: "asked for by job " + fmt.Sprint(j.ID), Shared: c.Offer.Shared, Boot: c.Boot}
		d.event(j.Project, j.ID, id, "asked for a machine", c.Terms.OfferID)
	}
	d.attempts[a.ID] = a
	d.enter(a.ID, a)
	d.event(j.Project, j.ID, x.Machines[0], "attempt", a.ID)
}

// secure sets the job's money aside, before anything can cost.
func (d *draft) secure(j *job.Job, c *Candidate) {
	if d.hold(j.ID) == nil {
		d.holds[j.ID] = &tenant.Hold{Job: j.ID, Project: j.Project, Member: j.Member, Currency: c.Terms.Currency, Amount: c.Hold, Limit: c.Limit}
		d.more.Counters = append(d.more.Counters, record.Counter{Key: heldKey(j.Project, c.Terms.Currency), Add: int64(c.Hold)})
		return
	}
	h := d.editHold(j.ID)
	if need := h.Committed + c.Hold; h.Limit == 0 && need > h.Amount {
		d.more.Counters = append(d.more.Counters, record.Counter{Key: heldKey(j.Project, h.Currency), Add: int64(need - h.Amount)})
		h.Amount = need
	}
}

// heldKey names the counter of a project's money that is set aside and not yet
// used, spentKey that of what was used.
func heldKey(project, currency string) string  { return "held/" + project + "/" + currency }
func spentKey(project, currency string) string { return "spent/" + project + "/" + currency }

// release gives back what a job did not use.
func (d *draft) release(j *job.Job) {
	if d.hold(j.ID) == nil {
		return
	}
	h := d.editHold(j.ID)
	if !h.Released.IsZero() {
		return
	}
	h.Released = d.now
	if rest := h.Amount - h.Committed; rest != 0 {
		d.more.Counters = append(d.more.Counters, record.Counter{Key: heldKey(h.Project, h.Currency), Add: -int64(rest)})
	}
}

func (x Begin) String() string { return "begin attempt " + x.Attempt }

func (x Begin) apply(d *draft) {
	a := d.editAttempt(x.Attempt)
	a.State, a.Started = machine.Started, d.now
	d.event(a.Project, a.Job, a.Tasks[0].Machine, "running", "")
	for i := range a.Tasks {
		if t := a.Tasks[i].Started; !t.IsZero() && (i == 0 || t.After(a.Started)) {
			a.Started = t
		}
	}
	j := d.editJob(a.Job)
	j.State, j.Reason = job.Running, ""
	if j.Started.IsZero() {
		j.Started = a.Started
	}
}

func (x StopAttempt) String() string {
	return fmt.Sprintf("stop attempt %s (%s): %s", x.Attempt, x.Cause, x.Reason)
}

func (x StopAttempt) apply(d *draft) {
	a := d.editAttempt(x.Attempt)
	a.State, a.Cause, a.Stop, a.Grace = machine.Leaving, x.Cause, x.Reason, x.Grace
	j := d.editJob(a.Job)
	j.Reason = x.Reason
	if x.Cause == machine.Cancelled || x.Cause == machine.Limit {
		j.State = job.Stopping
		if j.Stop == "" {
			j.Stop = x.Reason
		}
	}
	d.event(a.Project, a.Job, "", "stopping", x.Reason)
}

func (x EndAttempt) String() string {
	return fmt.Sprintf("end attempt %s (%s, exit %d): %s", x.Attempt, x.Cause, x.Exit, x.Reason)
}

func (x EndAttempt) apply(d *draft) {
	Record{Attempt: x.Attempt, To: d.now}.apply(d)
	a := d.editAttempt(x.Attempt)
	d.leave(x.Attempt, a)
	a.State, a.Cause, a.Reason, a.Ended = machine.Over, x.Cause, x.Reason, d.now
	for i := range a.Tasks {
		t := &a.Tasks[i]
		t.State = machine.TaskEnded
		if m := d.machine(t.Machine); m != nil {
			d.editMachine(t.Machine).Used = d.now
		}
	}
	d.stored(a)
	d.learn(a, x.Cause)
	j := d.editJob(a.Job)
	j.Progress += a.Kept
	switch x.Cause {
	case machine.Exited:
		j.ExitCode = x.Exit
		if x.Exit == 0 && (j.Kind != job.Service || j.Stop == "") {
			d.finish(j, job.Done, "")
			return
		}
		j.Failures++
		if spec := d.Specification(j); j.Stop == "" && spec != nil && j.Failures <= spec.Retries {
			j.NotBefore = d.now.Add(backOff(j.Failures))
			d.again(j, fmt.Sprintf("%s; try %d of %d", x.Reason, j.Failures+1, spec.Retries+1))
			return
		}
		d.finish(j, job.Failed, x.Reason)
	case machine.Cancelled:
		d.finish(j, job.Stopped, x.Reason)
	case machine.Limit:
		if j.Kind != job.Task { // it was to run until something ends it
			d.finish(j, job.Stopped, x.Reason)
			return
		}
		d.finish(j, job.Failed, x.Reason)
	case machine.NotStarted:
		j.Unstarted++
		if j.Unstarted >= d.Settings.NotStartable {
			d.finish(j, job.Failed, x.Reason)
			return
		}
		j.NotBefore = d.now.Add(backOff(j.Unstarted))
		d.again(j, x.Reason)
	default:
		j.Missed = ""
		if m := d.machine(a.Tasks[0].Machine); m != nil && x.Cause == machine.NoMachine {
			j.Missed = m.Terms.GPU
		}
		d.again(j, x.Reason)
	}
}

// again lets a job wait for another attempt, unless it is to end.
func (d *draft) again(j *job.Job, why string) {
	if j.Stop != "" {
		d.finish(j, job.Stopped, j.Stop)
		return
	}
	j.State, j.Reason = job.Waiting, why
	d.event(j.Project, j.ID, "", "waiting again", why)
}

// backOff is how long a job waits after its n-th failure: 2 s doubling to 5 min.
func backOff(n int) time.Duration {
	return min(time.Second<<min(n, 20), 5*time.Minute)
}

// learn keeps what an attempt met at its offer.
func (d *draft) learn(a *machine.Attempt, cause machine.Cause) {
	for i := range a.Tasks {
		m := d.machine(a.Tasks[i].Machine)
		if m == nil {
			continue
		}
		spot := m.Terms.Terms == "spot"
		switch {
		case spot && (cause == machine.Interrupted || !a.Started.IsZero()):
			p := d.editPlace(m)
			if cause == machine.Interrupted { // others are taken there too: it is tried last for a while
				p.Interruptions++
				p.Failures++
				p.Failed, p.Why = d.now, "its provider took a machine"
			}
			if !a.Started.IsZero() {
				p.Hours += d.now.Sub(a.Started).Hours()
			}
		}
		if !a.Started.IsZero() && !m.Booted.IsZero() && m.Asked.Equal(a.Made) {
			p := d.editPlace(m)
			p.Startups++
			p.StartupHours += a.Started.Sub(m.Asked).Hours()
			if cause != machine.Interrupted {
				p.Failures = 0
			}
		}
	}
}

func (x Finish) String() string { return fmt.Sprintf("finish job %d %s: %s", x.Job, x.State, x.Reason) }

func (x Finish) apply(d *draft) { d.finish(d.editJob(x.Job), x.State, x.Reason) }

func (d *draft) finish(j *job.Job, s job.State, reason string) {
	j.State, j.Reason, j.Ended = s, reason, d.now
	d.release(j)
	d.event(j.Project, j.ID, "", string(s), reason)
}

func (x EndMachine) String() string { return fmt.Sprintf("end machine %s: %s", x.Machine, x.Reason) }

func (x EndMachine) apply(d *draft) {
	m := d.editMachine(x.Machine)
	m.State, m.Reason, m.Ending = machine.Ending, x.Reason, d.now
	if x.Failed {
		p := d.editPlace(m)
		if m.Asked.After(p.Failed) { // those asked for before it was known to fail say nothing new
			p.Failures++
		}
		p.Failed, p.Why = d.now, x.Reason
	}
	d.event(m.Project, 0, m.ID, "ending the machine", x.Reason)
}

func (x Quarantine) String() string { return "quarantine machine " + x.Machine }

func (x Quarantine) apply(d *draft) {
	m := d.editMachine(x.Machine)
	m.State, m.Reason = machine.Quarantined, "asked for by an earlier epoch of this state"
	d.event(m.Project, 0, m.ID, "quarantined", m.Reason)
}
