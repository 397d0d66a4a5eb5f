package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// Decide says what is due now. It is pure: the same snapshot gives the same
// steps, and when they are carried out and nothing else happens, the next call
// says nothing.
func Decide(s *Snapshot, now time.Time) []Step {
	d := &decision{draft: newDraft(s, now)}
	d.run()
	return d.steps
}

func (d *decision) run() {
	for _, id := range slices.Sorted(maps.Keys(d.Machines)) {
		d.epoch(id)
	}
	for _, a := range inOrder(d.Attempts) {
		d.follow(a.ID)
	}
	d.jobsDue()
	for _, id := range slices.Sorted(maps.Keys(d.Machines)) {
		d.keep(id)
	}
}

// decision collects steps; each is tried at once, so that the next sees it.
type decision struct {
	*draft
	steps []Step
}

func (d *decision) do(s Step) {
	d.steps = append(d.steps, s)
	s.apply(d.draft)
}

// inOrder lists attempts by job and number.
func inOrder(all map[string]*machine.Attempt) []*machine.Attempt {
	return slices.SortedFunc(maps.Values(all), func(a, b *machine.Attempt) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Number, b.Number))
	})
}

// epoch puts machines of earlier epochs aside.
func (d *decision) epoch(id string) {
	if m := d.machine(id); m.Epoch != d.Plane.Epoch && m.State != machine.Quarantined && m.State != machine.Gone {
		d.do(Quarantine{id})
	}
}

// follow looks after one attempt.
func (d *decision) follow(id string) {
	a := d.attempt(id)
	j := d.job(a.Job)
	if j == nil { // cannot be: a job outlives its attempts
		return
	}
	v := d.view(a)
	switch {
	case v.unsafe: // a machine is silent, and its agent may still run the task
	case v.over():
		d.conclude(a, j, v)
		return
	case v.lost && !v.busy: // gone machines, and nothing runs anywhere else
		d.conclude(a, j, v)
		return
	}
	if a.State == machine.Leaving {
		return
	}
	if cause, reason := d.ending(a, j, v); reason != "" {
		if !v.known && a.State == machine.Assigned && d.untouched(a) {
			d.do(EndAttempt{Attempt: id, Cause: cause, Reason: reason})
			return
		}
		d.do(StopAttempt{Attempt: id, Cause: cause, Reason: reason, Grace: d.grace(a)})
		return
	}
	if a.State == machine.Assigned && v.running == len(a.Tasks) {
		d.do(Begin{id})
	}
	if a.State != machine.Assigned && d.now.Sub(a.Billed) >= d.Settings.AccrueEvery {
		d.do(Record{Attempt: id, To: d.now})
	}
}

// view is what the tasks of an attempt and their machines come to.
type view struct {
	running, ended, fetched, total int
	known                          bool // a node knows a task of it
	busy                           bool // a task may still be running somewhere
	lost                           bool // a machine is gone, or silent beyond its agent's dead-man time, before the task had ended
	unsafe                         bool // a machine does not answer, but its agent may not have stopped yet
	failed                         *machine.Task
	why                            string
	launch                         bool // it is lost because its machine did not come up
	notice                         time.Time
}

// over says that every task has ended and everything of it is here.
func (v *view) over() bool { return v.fetched == v.total }

func (d *decision) view(a *machine.Attempt) view {
	v := view{total: len(a.Tasks)}
	for i := range a.Tasks {
		t := &a.Tasks[i]
		m := d.machine(t.Machine)
		if t.State != machine.TaskNew {
			v.known = true
		}
		if !t.Notice.IsZero() && (v.notice.IsZero() || t.Notice.Before(v.notice)) {
			v.notice = t.Notice
		}
		switch {
		case t.State == machine.TaskEnded && (t.Fetched || !t.Outputs && d.unreachable(m)):
			v.ended++
			v.fetched++
			v.blame(t)
		case m != nil && m.State == machine.Ending && m.LaunchFail != "" && m.Booted.IsZero():
			v.lost, v.launch = true, true // nothing was ever told to it
			v.why = "machine " + t.Machine + " could not be had: " + m.LaunchFail
		case m == nil || m.State == machine.Gone:
			v.lost = true
			if v.why = "machine " + t.Machine + " is gone"; m != nil && m.Reason != "" {
				v.why += ": " + m.Reason
			}
			v.launch = v.launch || t.State == machine.TaskNew && (m == nil || m.Booted.IsZero())
		case d.silent(m):
			v.lost = true
			v.why = fmt.Sprintf("machine %s did not answer for %s, in which its agent stopped the task", t.Machine, short(d.now.Sub(m.Spoke())))
		case t.State == machine.TaskEnded:
			v.ended++
			v.blame(t)
		default:
			if t.State == machine.TaskRunning {
				v.running++
			}
			v.busy = true
		}
	}
	return v
}

// blame remembers the task that ended first of those that did not end well.
func (v *view) blame(t *machine.Task) {
	if bad(t) && (v.failed == nil || t.Ended.Before(v.failed.Ended)) {
		v.failed = t
	}
}

func bad(t *machine.Task) bool { return t.Cause != machine.Exited || t.Exit != 0 }

// unreachable says that nothing can be fetched from a machine any more.
func (d *decision) unreachable(m *machine.Machine) bool {
	return m == nil || m.State == machine.Gone || d.silent(m)
}

// silent says that the agent of a machine has heard nothing for so long that it
// has stopped its tasks by itself.
func (d *decision) silent(m *machine.Machine) bool {
	return !m.Heard.IsZero() && d.now.Sub(m.Spoke()) > d.Settings.DeadMan+d.Settings.Margin
}

// untouched says that no node can know of the attempt: all of its machines are
// its own and have not answered yet.
func (d *decision) untouched(a *machine.Attempt) bool {
	for i := range a.Tasks {
		if m := d.machine(a.Tasks[i].Machine); m != nil && (m.State == machine.Ready || !m.Booted.IsZero()) {
			return false
		}
	}
	return true
}

// ending says why a live attempt is to stop; an empty reason: it is not.
func (d *decision) ending(a *machine.Attempt, j *job.Job, v view) (machine.Cause, string) {
	spec := d.Specification(j)
	switch {
	case j.Stop != "":
		return machine.Cancelled, j.Stop
	case !j.Deadline.IsZero() && !d.now.Before(j.Deadline):
		return machine.Limit, "its deadline came: " + j.Deadline.UTC().Format(time.RFC3339)
	case v.lost && v.launch && a.State == machine.Assigned:
		return machine.NoMachine, v.why
	case v.lost:
		return machine.Lost, v.why
	case v.ended > 0 && v.ended < v.total && v.failed != nil:
		return machine.Exited, fmt.Sprintf("rank %d ended before the others: %s", v.failed.Rank, v.failed.Words())
	case !v.notice.IsZero():
		return machine.Interrupted, "the provider takes the machine at " + v.notice.UTC().Format("15:04:05") + " UTC"
	}
	for i := range a.Tasks {
		if m := d.machine(a.Tasks[i].Machine); m.State == machine.Ending || m.State == machine.Quarantined {
			if a.State == machine.Assigned {
				return machine.NoMachine, m.Reason
			}
			return machine.Lost, "machine " + m.ID + " is being ended: " + m.Reason
		}
	}
	if spec != nil && a.State == machine.Started {
		if l := spec.Limits.Duration; l != nil && d.now.Sub(a.Started) > *l+5*time.Second { // the node is to do it first
			return machine.Limit, "it ran for its limit of " + short(*l)
		}
	}
	if reason := d.overCost(a, j); reason != "" {
		return machine.Limit, reason
	}
	if x, ok := d.Advice[j.ID]; ok && a.State == machine.Started && d.moves(a, x) {
		return machine.Moved, x.Reason
	}
	return "", ""
}

// moves says that the spot policy wants the job elsewhere than it is.
func (d *decision) moves(a *machine.Attempt, x Advice) bool {
	if x.At.Before(a.Started) || x.Wait || x.Offer == "" {
		return false
	}
	m := d.machine(a.Tasks[0].Machine)
	return m != nil && m.Terms.OfferID != x.Offer && m.Terms.Terms != x.Terms
}

// grace is how long an attempt gets between notice and kill.
func (d *decision) grace(a *machine.Attempt) time.Duration {
	g := d.Settings.Grace
	for i := range a.Tasks {
		if n := a.Tasks[i].Notice; !n.IsZero() {
			g = min(g, max(n.Sub(d.now)-2*time.Second, time.Second))
		}
	}
	return g
}

// conclude ends an attempt of which nothing runs any more.
func (d *decision) conclude(a *machine.Attempt, j *job.Job, v view) {
	end := EndAttempt{Attempt: a.ID, Cause: a.Cause, Reason: a.Stop}
	f := v.failed
	switch {
	case a.State == machine.Leaving && (a.Cause != machine.Exited && a.Cause != machine.Lost || f == nil):
		if f == nil && !v.lost && a.Cause != machine.Cancelled { // it ended well before the word came
			end.Cause, end.Reason = machine.Exited, ""
		}
	case v.lost && f == nil:
		end.Cause, end.Reason = machine.Lost, v.why
		switch {
		case v.launch && !v.known:
			end.Cause = machine.NoMachine
		case !v.notice.IsZero():
			end.Cause = machine.Interrupted
		}
	case f != nil:
		end.Cause, end.Exit, end.Reason = f.Cause, f.Exit, f.Words()
		if len(a.Tasks) > 1 {
			end.Reason = fmt.Sprintf("rank %d: %s", f.Rank, end.Reason)
		}
		if end.Exit == 0 && f.Cause == machine.Exited {
			end.Exit = 1
		}
	default:
		end.Cause = machine.Exited
	}
	d.do(end)
}

// jobsDue looks after jobs without an attempt, in the order in which they may
// have what is free.
func (d *decision) jobsDue() {
	var due []*job.Job
	for id := range d.Jobs {
		j := d.job(id)
		if j.State.Ended() || len(d.byJob[id]) > 0 {
			continue
		}
		due = append(due, j)
	}
	slices.SortFunc(due, func(a, b *job.Job) int {
		return cmp.Or(-cmp.Compare(d.rank(a), d.rank(b)), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID))
	})
	placed := 0
	full := map[fullKey]string{}
	for ahead, j := range due {
		if placed < d.Settings.MaxPerPass && d.due(j, ahead, full) {
			placed++
		}
	}
}

// fullKey names a kind of job for which there is no room in this pass: members
// of one array need the same.
type fullKey struct {
	spec     int64
	priority int
}

// rank is a job's priority with its age.
func (d *decision) rank(j *job.Job) int {
	return j.Priority + int(d.now.Sub(j.Submitted)/d.Settings.AgePerPoint)
}

// due looks after one job without an attempt and says whether it was placed.
func (d *decision) due(j *job.Job, ahead int, full map[fullKey]string) bool {
	switch {
	case j.Stop != "":
		d.do(Finish{j.ID, job.Stopped, j.Stop})
		return false
	case !j.Deadline.IsZero() && !d.now.Before(j.Deadline):
		d.do(Finish{j.ID, job.Failed, "its deadline came before it was finished: " + j.Deadline.UTC().Format(time.RFC3339)})
		return false
	}
	wait := func(format string, args ...any) bool {
		if reason := fmt.Sprintf(format, args...); reason != j.Reason || j.State != job.Waiting {
			d.do(Say{j.ID, reason})
		}
		return false
	}
	for _, id := range j.After {
		if x := d.job(id); x != nil && !x.State.Ended() {
			return wait("waits for job %d (%s) to end well", id, x.Name)
		}
		if state, ok := d.Ended[id]; ok && state != job.Done || d.job(id) != nil && d.job(id).State != job.Done {
			d.do(Finish{j.ID, job.Failed, fmt.Sprintf("job %d, for which it waited, did not end well", id)})
			return false
		}
	}
	if d.now.Before(j.NotBefore) {
		return false // its reason says what happened
	}
	key := fullKey{specOf(j), j.Priority}
	if why, ok := full[key]; ok && j.Array != 0 {
		return wait("%s", why)
	}
	c := d.Choices[specOf(j)]
	switch {
	case c == nil:
		return wait("%s", Looking)
	case c.Fatal:
		d.do(Finish{j.ID, job.Failed, c.Why})
		return false
	case len(c.Candidates) == 0:
		return wait("%s", c.Why)
	}
	if x := d.Advice[j.ID]; x.Wait && len(c.Candidates) > 1 {
		return wait("%s", x.Reason)
	}
	if x := d.Advice[j.ID]; c.Mixed && !j.Deadline.IsZero() && j.Estimate != nil && j.Estimate.Known {
		if x.At.IsZero() || x.In != job.Waiting {
			return wait("asks the spot policy where to run")
		}
		if x.Wait {
			return wait("%s", x.Reason)
		}
	}
	why := ""
	ranked := d.sequence(j, c.Candidates)
	for _, candidate := range ranked {
		var machines []string
		var on []*Candidate
		var reason string
		if candidate.Offer.Shared && candidate.Nodes > 1 {
			machines, on, reason = d.spread(j, ranked, candidate)
		} else {
			machines, reason = d.room(j, candidate)
		}
		if machines != nil && d.asks(machines) {
			if rest := d.rests(candidate); rest != "" {
				machines, reason = nil, rest
			}
		}
		if machines != nil {
			d.do(Try{Job: j.ID, Candidate: candidate, Machines: machines, On: on})
			if on == nil {
				d.taken(candidate, machines)
			}
			for i, c := range on {
				d.taken(c, machines[i:i+1])
			}
			return true
		}
		if why == "" {
			why = reason
		}
	}
	full[key] = why
	return wait("%s", why)
}

// sequence is the order in which a job tries its candidates: as ranked, but
// places that failed a short while ago last, and after a failure first what is
// like the place that failed. The spot policy's word comes before all.
func (d *decision) sequence(j *job.Job, ranked []Candidate) []*Candidate {
	out := make([]*Candidate, len(ranked))
	for i := range ranked {
		out[i] = &ranked[i]
	}
	if len(out) == 1 {
		return out
	}
	advice := d.Advice[j.ID]
	slices.SortStableFunc(out, func(a, b *Candidate) int {
		return cmp.Compare(d.demerit(a, j.Missed, advice), d.demerit(b, j.Missed, advice))
	})
	return out
}

func (d *decision) demerit(c *Candidate, missed string, advice Advice) int {
	n := 0
	if d.failing(c) {
		n += 4
	}
	if advice.Offer != "" && advice.Offer != c.Terms.OfferID {
		n += 2
	}
	if missed != "" && c.Terms.GPU != missed {
		n++
	}
	return n
}

// asks says that one of the machines is yet to be asked for.
func (d *decision) asks(machines []string) bool {
	return slices.ContainsFunc(machines, func(id string) bool { return d.machine(id) == nil })
}

// rests says why no machine is asked for at a place now: when every place is
// full, asking without a pause would only make attempts.
func (d *decision) rests(c *Candidate) string {
	p := d.place(c.Terms.OfferID)
	if p == nil || p.Failures == 0 {
		return ""
	}
	until := p.Failed.Add(min(backOff(p.Failures), time.Minute, d.Settings.Cooldown))
	if !d.now.Before(until) {
		return ""
	}
	return fmt.Sprintf("waits for %s: %s; it is asked again at %s UTC", p.Offer, p.Why, until.UTC().Format("15:04:05"))
}

// room finds machines for an attempt: some that are there, or the ids of new
// ones; or the reason why there is no room now.
func (d *decision) room(j *job.Job, c *Candidate) ([]string, string) {
	var out []string
	nodes := max(1, c.Nodes)
	there := d.at(c)
	for _, id := range there {
		if len(out) == nodes {
			break
		}
		if d.fits(d.machine(id), c, j) {
			out = append(out, id)
		}
	}
	if len(out) == nodes {
		return out, ""
	}
	if c.Offer.Shared { // one machine at most
		return d.slot(j, c, there)
	}
	for rank := len(out); rank < nodes; rank++ {
		out = append(out, newID(d.Plane.Epoch, j, rank))
	}
	return out, ""
}

// slot finds room on a machine that attempts share, or the reason why there is
// none.
func (d *decision) slot(j *job.Job, c *Candidate, there []string) ([]string, string) {
	if len(there) == 0 {
		return []string{newID(d.Plane.Epoch, j, 0)}, ""
	}
	m := d.machine(there[0])
	if m.State == machine.Ending || m.State == machine.Quarantined {
		return nil, fmt.Sprintf("waits until machine %s has ended: %s", m.ID, m.Reason)
	}
	return nil, d.occupied(m)
}

// spread finds room for a gang on several shared machines with the same GPU,
// in the order of their candidates: one rank on each.
func (d *decision) spread(j *job.Job, ranked []*Candidate, first *Candidate) ([]string, []*Candidate, string) {
	var out []string
	var on []*Candidate
	why := ""
	for _, c := range ranked {
		if !c.Offer.Shared || c.Terms.GPU != first.Terms.GPU || c.Needs.GPUs != first.Needs.GPUs || d.failing(c) {
			continue
		}
		id, reason := "", ""
		there := d.at(c)
		if len(there) > 0 && d.fits(d.machine(there[0]), first, j) {
			id = there[0]
		} else if ids, r := d.slot(j, c, there); ids != nil {
			id = newID(d.Plane.Epoch, j, len(out))
		} else {
			reason = r
		}
		if id == "" {
			if why == "" {
				why = reason
			}
			continue
		}
		out, on = append(out, id), append(on, c)
		if len(out) == first.Nodes {
			return out, on, ""
		}
	}
	return nil, nil, fmt.Sprintf("needs %d machines at once, %d have room; %s", first.Nodes, len(out), why)
}

// failing says that a place failed a short while ago.
func (d *decision) failing(c *Candidate) bool {
	p := d.place(c.Terms.OfferID)
	return p != nil && p.Failures > 0 && d.now.Sub(p.Failed) < d.Settings.Cooldown
}

// newID names the machine of a rank of the job's next attempt.
func newID(epoch int64, j *job.Job, rank int) string {
	id := "m" + strconv.FormatInt(j.ID, 10) + "." + strconv.Itoa(j.Attempts+1)
	if epoch > 1 { // a state that was restored may give a job's number a second time
		id = "e" + strconv.FormatInt(epoch, 10) + id
	}
	if rank > 0 {
		id += "." + strconv.Itoa(rank)
	}
	return id
}

// at lists the machines of a candidate's offer that an attempt may go to: of a
// shared one the machine, of others those that nobody has.
func (d *decision) at(c *Candidate) []string {
	if d.offers == nil {
		d.offers = map[string][]string{}
		for _, id := range slices.Sorted(maps.Keys(d.Machines)) {
			if m := d.machine(id); m.State != machine.Gone && (m.Shared || len(d.byMachine[id]) == 0) {
				d.offers[m.Terms.OfferID] = append(d.offers[m.Terms.OfferID], id)
			}
		}
	}
	return d.offers[c.Terms.OfferID]
}

// taken keeps the lists of at as an attempt leaves them.
func (d *decision) taken(c *Candidate, machines []string) {
	offer := c.Terms.OfferID
	if c.Offer.Shared {
		if len(d.offers[offer]) == 0 {
			d.offers[offer] = machines
		}
		return
	}
	d.offers[offer] = slices.DeleteFunc(d.offers[offer], func(id string) bool { return slices.Contains(machines, id) })
}

// fits says whether a machine has room for an attempt of the job.
func (d *decision) fits(m *machine.Machine, c *Candidate, j *job.Job) bool {
	if m.State != machine.Intent && m.State != machine.Booting && m.State != machine.Ready || m.Epoch != d.Plane.Epoch || !m.Notice.IsZero() {
		return false
	}
	if m.State == machine.Ready && d.now.Sub(m.Heard) > d.Settings.DeadMan/2 {
		return false
	}
	l := d.load[m.ID]
	if !m.Shared { // until all of an attempt is fetched, the machine is its own
		return len(d.byMachine[m.ID]) == 0
	}
	cpus, memory, gpus := m.Capacity()
	n := &c.Needs
	queue := 0.0
	if j.Array != 0 && n.GPUs == 0 { // short tasks wait on the node, so that it is never without one
		queue = float64(d.Settings.NodeQueue) * n.CPUs
	}
	return l.cpus+n.CPUs <= cpus+queue+1e-9 && (memory == 0 || l.memory+n.Memory <= memory) && l.gpus+n.GPUs <= gpus
}

// occupied says in words why a shared machine has no room.
func (d *decision) occupied(m *machine.Machine) string {
	l := d.load[m.ID]
	cpus, _, gpus := m.Capacity()
	text := fmt.Sprintf("waits for room on %s: other jobs hold its %s CPUs", m.Terms.OfferID, number(cpus))
	if gpus > 0 && l.gpus > 0 {
		text = fmt.Sprintf("waits for room on %s: other jobs hold %d of its %d GPUs", m.Terms.OfferID, l.gpus, gpus)
	}
	return text
}

// keep looks after one machine.
func (d *decision) keep(id string) {
	m := d.machine(id)
	attempts := len(d.byMachine[id])
	end := func(failed bool, format string, args ...any) {
		d.do(EndMachine{id, fmt.Sprintf(format, args...), failed})
	}
	switch m.State {
	case machine.Intent, machine.Booting:
		limit := d.Settings.BootTimeout
		if m.Boot > 0 {
			limit = m.Boot
		}
		switch {
		case m.LaunchFail != "":
			end(true, "it could not be had: %s", m.LaunchFail)
		case attempts == 0:
			end(false, "nothing needs it any more")
		case d.now.Sub(m.Asked) > limit:
			end(true, "its agent did not answer within %s", short(limit))
		}
	case machine.Ready:
		switch {
		case d.silent(m):
			end(true, "it did not answer for %s", short(d.now.Sub(m.Spoke())))
		case attempts == 0 && !m.Notice.IsZero():
			end(false, "its provider takes it")
		case attempts == 0 && d.now.Sub(m.Used) >= d.Settings.Linger:
			end(false, "idle")
		}
	case machine.Gone:
		if !m.Settled {
			d.do(Record{Machine: id, To: m.Gone})
		}
	}
}

func short(t time.Duration) string {
	if t < time.Minute {
		return t.Round(time.Second).String()
	}
	return t.Round(time.Minute).String()
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
