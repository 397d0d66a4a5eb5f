package control

import (
	"fmt"
	"slices"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// The observations: what keepers saw of the world, as steps. They change rows
// before Decide looks at them.

// asked says that the backend took the request for a machine.
type asked struct {
	machine, handle string
}

// refused says that a machine could not be had.
type refused struct {
	machine, why string
}

// answered says that a machine's agent answered for the first time.
type answered struct {
	machine string
	host    machine.Host
	clock   time.Time // the node's
	at      time.Time
}

// reported is what an agent said of its tasks.
type reported struct {
	machine string
	report  *wire.Report
	said    time.Time // the question
	heard   time.Time // the answer
	save    bool      // write down that it answered
}

// unanswered says that a word may have reached a machine's agent whose answer
// did not come.
type unanswered struct {
	machine string
	said    time.Time
}

// fetched says that everything of an ended task is here.
type fetched struct {
	attempt string
	rank    int
	shipped int64 // bytes of the log
	bytes   int64 // of outputs
}

// kept says that the checkpoint of an attempt is here.
type kept struct {
	attempt string
	useful  time.Duration
}

// noticed says that the provider announced to take a machine.
type noticed struct {
	machine string
	at      time.Time
	reason  string
}

// unended says that a machine could not be ended.
type unended struct {
	machine, why string
}

// absent says that the backend no longer has a machine: it is gone.
type absent struct {
	machine string
	at      time.Time
	why     string
}

// returned says that the backend has a machine that was gone.
type returned struct{ row *machine.Machine }

// progressed tells how far a machine or a task is, in words.
type progressed struct{ machine, words string }

// stray is a machine that carries our id and is in no row, of another epoch.
type stray struct{ row *machine.Machine }

func (x asked) String() string { return "asked for machine " + x.machine }

func (x asked) apply(d *draft) {
	if m := d.machine(x.machine); m == nil || m.State == machine.Gone || m.State != machine.Intent && m.Handle == x.handle {
		return
	}
	m := d.editMachine(x.machine)
	m.Handle = x.handle
	if m.State == machine.Intent {
		m.State, m.Reason = machine.Booting, "its backend took the request"
	}
}

func (x refused) String() string { return "refused machine " + x.machine + ": " + x.why }

func (x refused) apply(d *draft) {
	m := d.machine(x.machine)
	if m == nil {
		return
	}
	switch m.State {
	case machine.Intent, machine.Booting:
	case machine.Ending: // its end was decided while it was asked for; now it is known that it never was
		if m.Handle != "" {
			return
		}
	default:
		return
	}
	d.editMachine(x.machine).LaunchFail = x.why
}

func (x answered) String() string { return "answered: machine " + x.machine }

func (x answered) apply(d *draft) {
	m := d.machine(x.machine)
	if m == nil || m.State != machine.Intent && m.State != machine.Booting {
		return
	}
	m = d.editMachine(x.machine)
	m.State, m.Reason, m.Host, m.Booted, m.Heard, m.Used = machine.Ready, "", &x.host, x.at, x.at, x.at
	m.Offset = offset(x.clock, x.at, 0)
	d.event(m.Project, 0, m.ID, "ready", fmt.Sprintf("after %s", x.at.Sub(m.Asked).Round(time.Millisecond)))
}

func (x reported) String() string { return "report of machine " + x.machine }

func (x reported) apply(d *draft) {
	m := d.machine(x.machine)
	if m == nil || m.State == machine.Gone {
		return
	}
	if x.save {
		m = d.editMachine(x.machine)
		m.Said, m.Heard = x.said, x.heard
	}
	if m.State == machine.Ready && m.Reason != "" { // the way is free again
		m = d.editMachine(x.machine)
		m.Reason = ""
	}
	off := offset(x.report.Now, x.heard, m.Offset)
	if off != m.Offset {
		m = d.editMachine(x.machine)
		m.Offset = off
	}
	for i := range x.report.Tasks {
		s := &x.report.Tasks[i]
		id, rank, ok := machine.ParseTask(s.ID)
		a := d.attempt(id)
		if !ok || a == nil || a.State == machine.Over || rank >= len(a.Tasks) || a.Tasks[rank].Machine != x.machine {
			continue
		}
		t := a.Tasks[rank]
		if merge(&t, s, off, d.now); !same(&t, &a.Tasks[rank]) {
			a = d.editAttempt(id)
			if t.State == machine.TaskEnded && a.Tasks[rank].State != machine.TaskEnded {
				d.take(x.machine, &a.Needs, -1)
				a.Useful = max(a.Useful, t.Ran)
			}
			a.Tasks[rank] = t
		}
		x.explain(d, a, s)
	}
	x.forgotten(d)
	if n := x.report.Notice; n != nil {
		noticed{x.machine, n.At.Add(off), n.Reason}.apply(d)
	}
}

// explain lets a job say what its node says: how far it is prepared, or that a
// service does not answer.
func (x reported) explain(d *draft, a *machine.Attempt, s *wire.Status) {
	j := d.job(a.Job)
	if j == nil || a.State == machine.Leaving || s.State == machine.TaskEnded || s.Detail == j.Reason {
		return
	}
	if s.Detail != "" || a.State == machine.Started && s.State == machine.TaskRunning {
		d.editJob(a.Job).Reason = s.Detail
	}
}

// complained says what is wrong with the way to a machine's agent.
type complained struct{ machine, words string }

func (x complained) String() string { return "machine " + x.machine + ": " + x.words }

func (x complained) apply(d *draft) {
	if m := d.machine(x.machine); m != nil && m.State == machine.Ready && m.Reason != x.words {
		d.editMachine(x.machine).Reason = x.words
	}
}

func (x unanswered) String() string { return "no answer of machine " + x.machine }

func (x unanswered) apply(d *draft) {
	if m := d.machine(x.machine); m != nil && m.State != machine.Gone {
		d.editMachine(x.machine).Said = x.said
	}
}

// offset is what is added to a node's clock to get ours. It stays what it was
// unless a clock jumped: times of one node then keep their order to the last
// bit, however long an answer was under way. Clocks that differ by less than
// two seconds are taken to be equal.
func offset(node, ours time.Time, was time.Duration) time.Duration {
	const jump = 2 * time.Second
	if x := ours.Sub(node); x-was > jump || was-x > jump {
		if x < jump && x > -jump {
			return 0
		}
		return x
	}
	return was
}

// forgotten ends the tasks that the node knew and no longer knows.
func (x reported) forgotten(d *draft) {
	for _, id := range d.byMachine[x.machine] {
		a := d.attempt(id)
		for rank := range a.Tasks {
			t := &a.Tasks[rank]
			if t.Machine != x.machine || t.State == machine.TaskNew || t.State == machine.TaskEnded {
				continue
			}
			name := machine.TaskID(id, rank)
			if slices.ContainsFunc(x.report.Tasks, func(s wire.Status) bool { return s.ID == name }) {
				continue
			}
			a = d.editAttempt(id)
			t = &a.Tasks[rank]
			t.State, t.Cause, t.Reason, t.Ended, t.Fetched = machine.TaskEnded, machine.Lost, "its node no longer knows it", d.now, true
			d.take(x.machine, &a.Needs, -1)
		}
	}
}

// merge brings what the node says of a task into its row.
func merge(t *machine.Task, s *wire.Status, offset time.Duration, now time.Time) {
	if t.State == machine.TaskEnded { // the end is final
		return
	}
	move := func(x time.Time) time.Time {
		if x.IsZero() {
			return x
		}
		if x = x.Add(offset); x.After(now) {
			return now
		}
		return x
	}
	if t.Held.IsZero() {
		t.Held = move(s.Held)
	}
	if t.Started.IsZero() {
		t.Started = move(s.Started)
	}
	t.State, t.Healthy, t.Devices, t.Joules = s.State, s.Healthy, s.Devices, s.Joules
	if s.State != machine.TaskEnded {
		return
	}
	t.Cause, t.Reason, t.Exit, t.Signal, t.Ended, t.Ran, t.Log = s.Cause, s.Reason, s.Exit, s.Signal, move(s.Ended), s.Ran, s.Log
	if t.Ended.Before(t.Started) { // the node's clock jumped back
		t.Ended = t.Started.Add(t.Ran)
	}
	if t.Ended.After(now) {
		t.Ended = now
	}
	t.Outputs = s.Outputs || s.Kept
	t.Fetched = t.Log == 0 && !t.Outputs
}

func same(a, b *machine.Task) bool {
	return a.State == b.State && a.Healthy == b.Healthy && a.Fetched == b.Fetched && a.Started.Equal(b.Started) && a.Held.Equal(b.Held) && slices.Equal(a.Devices, b.Devices)
}

func (x fetched) String() string { return fmt.Sprintf("fetched task %s.%d", x.attempt, x.rank) }

func (x fetched) apply(d *draft) {
	if a := d.attempt(x.attempt); a == nil || a.State == machine.Over || a.Tasks[x.rank].Fetched {
		return
	}
	a := d.editAttempt(x.attempt)
	t := &a.Tasks[x.rank]
	t.Fetched, t.Shipped = true, x.shipped
	if m := d.machine(t.Machine); m != nil && x.bytes > 0 {
		d.moved(a, t, m, x.bytes)
	}
}

func (x kept) String() string { return "kept the checkpoint of attempt " + x.attempt }

func (x kept) apply(d *draft) {
	if a := d.attempt(x.attempt); a != nil && a.State != machine.Over && x.useful > a.Kept {
		d.editAttempt(x.attempt).Kept = x.useful
	}
}

func (x noticed) String() string { return "notice for machine " + x.machine + ": " + x.reason }

func (x noticed) apply(d *draft) {
	if m := d.machine(x.machine); m == nil || m.State == machine.Gone {
		return
	} else if m.Notice.IsZero() {
		d.editMachine(x.machine).Notice = x.at
	}
	for _, id := range d.byMachine[x.machine] {
		a := d.attempt(id)
		for rank := range a.Tasks {
			if a.Tasks[rank].Machine == x.machine && a.Tasks[rank].Notice.IsZero() {
				a = d.editAttempt(id)
				a.Tasks[rank].Notice = x.at
				d.event(a.Project, a.Job, x.machine, "interruption announced", x.reason)
			}
		}
	}
}

func (x unended) String() string { return "machine " + x.machine + " did not end: " + x.why }

func (x unended) apply(d *draft) {
	if m := d.machine(x.machine); m == nil || m.State != machine.Ending {
		return
	}
	m := d.editMachine(x.machine)
	m.EndTry++
	if m.EndFail != x.why {
		m.EndFail = x.why
		d.event(m.Project, 0, m.ID, "could not be ended", x.why)
	}
}

func (x absent) String() string { return "machine " + x.machine + " is gone: " + x.why }

func (x absent) apply(d *draft) {
	m := d.machine(x.machine)
	if m == nil || m.State == machine.Gone {
		return
	}
	m = d.editMachine(x.machine)
	if m.State != machine.Ending { // taken away
		m.Reason = x.why
		if m.Terms.Terms == "spot" {
			noticed{x.machine, x.at, x.why}.apply(d)
		}
	}
	m.State, m.Gone = machine.Gone, x.at
	d.event(m.Project, 0, m.ID, "gone", x.why)
}

func (x returned) String() string { return "machine " + x.row.ID + " is there again" }

func (x returned) apply(d *draft) {
	m := *x.row
	if now := d.machine(m.ID); now != nil {
		if now.State != machine.Gone {
			return // it was said before
		}
		m = *now
	}
	m.State, m.Gone, m.Settled, m.Reason = machine.Ending, time.Time{}, false, "its backend said that it was gone, and has it again"
	d.machines[m.ID] = &m
	d.event(m.Project, 0, m.ID, "there again", m.Reason)
}

func (x progressed) String() string { return "machine " + x.machine + ": " + x.words }

func (x progressed) apply(d *draft) {
	if m := d.machine(x.machine); m != nil && (m.State == machine.Intent || m.State == machine.Booting) && m.Reason != x.words {
		d.editMachine(x.machine).Reason = x.words
	}
}

func (x stray) String() string { return "stray machine " + x.row.ID }

func (x stray) apply(d *draft) {
	if d.machine(x.row.ID) == nil {
		d.machines[x.row.ID] = x.row
		d.event(x.row.Project, 0, x.row.ID, "quarantined", x.row.Reason)
	}
}
