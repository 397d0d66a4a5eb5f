package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// Store keeps the rows. Package store implements it; its conformance suite
// says exactly what each method does.
type Store interface {
	Plane(ctx context.Context) (record.Plane, error)
	NextJobs(ctx context.Context, n int) (first int64, err error)
	Acquire(ctx context.Context, holder string, now time.Time, ttl time.Duration) (record.Lease, bool, error)
	Release(ctx context.Context, l record.Lease) error
	Holder(ctx context.Context) (record.Lease, error)
	Apply(ctx context.Context, token int64, c *record.Changes) error
	Changed(ctx context.Context, since int64) (*record.Delta, error)
	Version(ctx context.Context) (int64, error)
	Jobs(ctx context.Context, f record.JobFilter) ([]*job.Job, error)
	Attempts(ctx context.Context, job int64) ([]*machine.Attempt, error)
	Machines(ctx context.Context, project string, all bool) ([]*machine.Machine, error)
	Machine(ctx context.Context, id string) (*machine.Machine, error)
	Hold(ctx context.Context, job int64) (*tenant.Hold, error)
	Ledger(ctx context.Context, f record.LedgerFilter) ([]record.Entry, error)
	Events(ctx context.Context, f record.EventFilter) ([]tenant.Event, error)
	Samples(ctx context.Context, attempt string) ([]record.Sample, error)
}

var _ = ledger.Usage{} // rows of record.Entry

// The loop's own times.
const (
	leaseTTL   = 3 * time.Second
	renewEvery = time.Second
	pollEvery  = 5 * time.Millisecond // for changes by other processes; costs microseconds
	idlePoll   = 50 * time.Millisecond
	tickEvery  = 500 * time.Millisecond
	busyPass   = 20 * time.Millisecond
)

// Loop makes the world follow the rows. One process at a time acts.
type Loop struct {
	Store    Store
	Backends func(context.Context) (map[string]backend.Backend, error) // by name; called again when sources change
	Files    Files
	Chooser  *Chooser
	Settings Settings
	Holder   string // names this process, with its start
	Now      func() time.Time
	Log      *slog.Logger
	Poke     <-chan struct{} // rows were changed by this process: look at once; nil: they are looked at soon anyway
	Finished func(Finished)  // told of every attempt that ended well; nil: nobody is

	lease      record.Lease
	renewed    time.Time
	until      atomic.Int64 // the lease lasts, in unix nanoseconds
	refused    int          // passes in a row that the store refused
	snap       *Snapshot
	seq        int64
	keepers    map[string]*keeper
	inbox      *inbox
	plane      string // of the snapshot, for those who may not look at it
	epoch      int64
	background sync.WaitGroup
	pruned     time.Time
	backends   map[string]backend.Backend
	lists      map[string]*lister
	sources    map[string]*record.Source
	saved      map[string]time.Time // when a machine's last answer was written down
	busy       map[int64]bool       // choices being made
	advising   map[int64]bool
	advisedIn  map[int64]job.State // the state of a job when the policy was asked last
}

// Run acts until ctx ends: whenever no other process does. Whatever goes wrong,
// such as a full disk, is said in the log, and it begins anew: the machines must
// not be left alone.
func (l *Loop) Run(ctx context.Context) error {
	said := ""
	for ctx.Err() == nil {
		err := l.once(ctx)
		if err == nil || ctx.Err() != nil {
			said = ""
			continue
		}
		if fault.KindOf(err) != fault.Conflict && err.Error() != said {
			said = err.Error()
			l.Log.Error("the control loop begins anew", "err", inWords(err))
		}
		sleep(ctx, time.Second)
	}
	return nil
}

// once takes the lease when it is free, and acts as long as it is held.
func (l *Loop) once(ctx context.Context) error {
	plane, err := l.Store.Plane(ctx)
	if err != nil {
		return err
	}
	lease, mine, err := l.Store.Acquire(ctx, l.Holder, l.Now(), leaseTTL)
	if err != nil {
		return err
	}
	if !mine {
		sleep(ctx, idlePoll)
		return nil
	}
	l.lease, l.renewed = lease, l.Now()
	return l.lead(ctx, plane)
}

func (l *Loop) hold(lease record.Lease, now time.Time) {
	l.lease, l.renewed = lease, now
	l.until.Store(now.Add(leaseTTL).UnixNano())
}

// holds says that the lease has not run out. The store and the agents refuse
// what a process wants that has lost it; files have nobody who refuses.
func (l *Loop) holds() bool { return l.Now().UnixNano() < l.until.Load() }

// lead acts while the lease is held.
func (l *Loop) lead(ctx context.Context, plane record.Plane) error {
	ctx, cancel := context.WithCancel(ctx)
	l.inbox, l.keepers, l.saved, l.busy = newInbox(), map[string]*keeper{}, map[string]time.Time{}, map[int64]bool{}
	l.advising, l.advisedIn = map[int64]bool{}, map[int64]job.State{}
	l.lists, l.sources = map[string]*lister{}, map[string]*record.Source{}
	l.seq, l.plane, l.epoch = 0, plane.ID, plane.Epoch
	l.snap = &Snapshot{Plane: plane, Settings: l.Settings, Jobs: map[int64]*job.Job{}, Ended: map[int64]job.State{}, Attempts: map[string]*machine.Attempt{},
		Machines: map[string]*machine.Machine{}, Holds: map[int64]*tenant.Hold{}, Places: map[string]*record.Place{}, Specs: map[int64]*job.Spec{},
		Choices: map[int64]*Choice{}, Advice: map[int64]Advice{}}
	defer func() {
		cancel()
		for _, k := range l.keepers {
			<-k.done
		}
		for _, x := range l.lists {
			<-x.done
		}
		l.background.Wait()
		for _, b := range l.backends {
			_ = b.Close()
		}
		l.backends = nil
		release, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = l.Store.Release(release, l.lease)
	}()
	if err := l.pull(ctx); err != nil {
		return err
	}
	if err := l.connect(ctx); err != nil {
		return err
	}
	for {
		began := time.Now()
		if err := l.pass(ctx); err != nil {
			return err
		}
		took := time.Since(began)
		l.Log.Debug("pass", "took", took)
		if took > busyPass { // with very many machines news come all the time: half of the time is enough
			sleep(ctx, took)
		}
		if err := l.wait(ctx); err != nil {
			return err
		}
	}
}

// wait sleeps until something is due, and gathers nothing.
func (l *Loop) wait(ctx context.Context) error {
	due := time.NewTimer(min(max(l.Settings.Linger, 20*time.Millisecond), tickEvery))
	defer due.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.inbox.bell:
			return nil
		case <-l.Poke:
			return nil
		case <-due.C:
			return nil
		case <-poll.C:
			n, err := l.Store.Version(ctx)
			if err != nil {
				return err
			}
			if n > l.seq {
				return nil
			}
		}
	}
}

// pass is one turn: read what changed, take in what was seen, decide, write,
// and tell the keepers.
func (l *Loop) pass(ctx context.Context) error {
	now := l.Now()
	if now.Sub(l.renewed) >= renewEvery || now.Before(l.renewed) {
		lease, mine, err := l.Store.Acquire(ctx, l.Holder, now, leaseTTL)
		if err != nil {
			return err
		}
		if !mine || lease.Token != l.lease.Token {
			return fault.New(fault.Conflict, "another process acts on this state")
		}
		l.hold(lease, now)
	}
	if err := l.pull(ctx); err != nil {
		return err
	}
	l.prune(now)
	l.chooseWhatWaits(ctx, now)
	l.advise(now)
	d := newDraft(l.snap, now)
	seen := l.inbox.empty()
	for _, s := range seen {
		l.take(d, s)
	}
	decided := &decision{draft: d}
	decided.run()
	for _, s := range decided.steps {
		l.Log.Debug("step", "step", s)
	}
	if c := d.changes(); !c.Empty() {
		err := l.Store.Apply(ctx, l.lease.Token, c)
		switch fault.KindOf(err) {
		case "":
		case fault.OverLimit: // money that other submissions took in the meantime
			l.Log.Warn("over a limit", "err", err)
			l.again(seen)
			return l.hesitate(ctx)
		default:
			if fault.KindOf(err) == fault.Conflict { // another process changed a row: decide anew
				l.again(seen)
				if again := l.pull(ctx); again != nil {
					return again
				}
				return nil
			}
			return err
		}
		l.refused = 0
		l.learned(d, decided.steps)
		l.adopt(c)
		if c.Seq == l.seq+1 { // nobody else wrote in between: these rows need not be read again
			l.seq = c.Seq
		}
	}
	l.instruct(ctx)
	return nil
}

// again keeps what was seen for the next pass: keepers say things once. What
// contradicts the rows every time is dropped in the end, lest nothing else is
// written down.
func (l *Loop) again(seen []Step) {
	if l.refused++; l.refused < 5 {
		l.inbox.back(seen)
	}
	clear(l.saved)
}

func (l *Loop) hesitate(ctx context.Context) error {
	sleep(ctx, time.Second)
	return ctx.Err()
}

// take lets an observation change the draft. What only says that a machine
// still answers is remembered, and written down now and then.
func (l *Loop) take(d *draft, s Step) {
	switch x := s.(type) {
	case reported:
		x.save = l.saves(x.machine, x.heard)
		if m := l.snap.Machines[x.machine]; m != nil {
			row := *m
			row.Heard, row.Said = x.heard, x.said
			l.snap.Machines[x.machine] = &row
		}
		x.apply(d)
	case unanswered:
		if m := l.snap.Machines[x.machine]; m != nil {
			row := *m
			row.Said = x.said
			l.snap.Machines[x.machine] = &row
		}
		if l.saves(x.machine, x.said) {
			x.apply(d)
		}
	case chosen:
		l.busy = map[int64]bool{}
		for id, c := range x.choices {
			l.snap.Choices[id] = c
		}
	case advised:
		delete(l.advising, x.job)
		l.snap.Advice[x.job] = x.advice
	case sampled:
		for i := range x.samples {
			if a := d.attempt(x.samples[i].Attempt); a != nil {
				x.samples[i].Project, x.samples[i].Member = a.Project, a.Member
			}
		}
		d.more.Samples = append(d.more.Samples, x.samples...)
	default:
		s.apply(d)
	}
}

// saves says whether the last word to or from a machine is to be written down
// again. How old what the rows say of it may be must be well within
// Settings.Margin: who takes over knows nothing else.
func (l *Loop) saves(id string, at time.Time) bool {
	if at.Sub(l.saved[id]) < min(10*time.Second, l.Settings.Margin/4) {
		return false
	}
	l.saved[id] = at
	return true
}

// pull reads what changed since the last time.
func (l *Loop) pull(ctx context.Context) error {
	delta, err := l.Store.Changed(ctx, l.seq)
	if err != nil {
		return err
	}
	l.seq = delta.Seq
	c := record.Changes{Jobs: delta.Jobs, Attempts: delta.Attempts, Machines: delta.Machines, Holds: delta.Holds, Places: delta.Places}
	l.adopt(&c)
	if err := l.complete(ctx, delta.Jobs); err != nil {
		return err
	}
	for _, s := range delta.Sources {
		old := l.sources[s.ID]
		l.sources[s.ID] = s
		if old != nil && old.Version == s.Version {
			continue
		}
		if l.backends != nil {
			if err := l.connect(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// adopt takes rows into the snapshot, newer ones over older ones.
func (l *Loop) adopt(c *record.Changes) {
	s := l.snap
	for _, j := range c.Jobs {
		if old := s.Jobs[j.ID]; old != nil && old.Version > j.Version {
			continue
		}
		if j.State.Ended() {
			s.Ended[j.ID] = j.State
			delete(s.Jobs, j.ID)
			delete(s.Advice, j.ID)
			continue
		}
		s.Jobs[j.ID] = j
	}
	for _, a := range c.Attempts {
		if old := s.Attempts[a.ID]; old != nil && old.Version > a.Version {
			continue
		}
		if a.State == machine.Over {
			delete(s.Attempts, a.ID)
			continue
		}
		s.Attempts[a.ID] = a
	}
	for _, m := range c.Machines {
		old := s.Machines[m.ID]
		if old != nil && old.Version > m.Version {
			continue
		}
		if m.State == machine.Gone && m.Settled {
			delete(s.Machines, m.ID)
			continue
		}
		if old != nil && old.Spoke().After(m.Spoke()) {
			row := *m
			row.Heard, row.Said = old.Heard, old.Said
			m = &row
		}
		s.Machines[m.ID] = m
	}
	for _, h := range c.Holds {
		if !h.Released.IsZero() {
			delete(s.Holds, h.Job)
			continue
		}
		s.Holds[h.Job] = h
	}
	for _, p := range c.Places {
		s.Places[p.Offer] = p
	}
}

// complete reads what jobs refer to: the file of an array's first job, and the
// states of ended jobs for which others wait.
func (l *Loop) complete(ctx context.Context, jobs []*job.Job) error {
	for _, j := range jobs {
		if j.State.Ended() {
			continue
		}
		if err := l.specify(ctx, j); err != nil {
			return err
		}
		for _, id := range j.After {
			if _, known := l.snap.Ended[id]; known || l.snap.Jobs[id] != nil {
				continue
			}
			before, err := l.Store.Jobs(ctx, record.JobFilter{IDs: []int64{id}})
			if err != nil {
				return err
			}
			l.snap.Ended[id] = job.Failed // one that is not there never ends well
			for _, b := range before {
				l.snap.Ended[id] = b.State
			}
		}
	}
	return nil
}

// specify reads the file of a job, once for an array.
func (l *Loop) specify(ctx context.Context, j *job.Job) error {
	id := specOf(j)
	if l.snap.Specs[id] != nil {
		return nil
	}
	text := j.Text
	if j.ID != id {
		first, err := l.Store.Jobs(ctx, record.JobFilter{IDs: []int64{id}})
		if err != nil {
			return err
		}
		for _, f := range first {
			text = f.Text
		}
	}
	spec, err := job.Parse(j.Name+".yml", []byte(text))
	if err != nil { // it was read when it was submitted; another version may think otherwise
		l.snap.Choices[id] = &Choice{Fatal: true, Why: "its file can no longer be read: " + err.Error()}
		spec = &job.Spec{Name: j.Name}
	}
	l.snap.Specs[id] = spec
	return nil
}

// connect opens the backends anew.
func (l *Loop) connect(ctx context.Context) error {
	all, err := l.Backends(ctx)
	if err != nil {
		return err
	}
	l.backends = all
	for name, b := range all {
		if x := l.lists[name]; x != nil {
			x.backend.Store(&b)
			continue
		}
		x := newLister(l, name, b)
		l.lists[name] = x
		go x.run(ctx)
	}
	l.snap.Choices = map[int64]*Choice{}
	return nil
}

// instruct gives every keeper its orders, and starts and ends keepers.
func (l *Loop) instruct(ctx context.Context) {
	s := l.snap
	on := map[string][]*machine.Attempt{}
	for _, a := range inOrder(s.Attempts) {
		for i := range a.Tasks {
			on[a.Tasks[i].Machine] = append(on[a.Tasks[i].Machine], a)
		}
	}
	rows := maps.Clone(s.Machines)
	for _, x := range l.lists {
		x.rows.Store(&rows)
	}
	for id, m := range s.Machines {
		if m.State == machine.Gone || m.State == machine.Quarantined {
			continue
		}
		k := l.keepers[id]
		if k == nil {
			b := l.backends[m.Backend]
			if b == nil {
				continue // a source that was removed, or is not configured here
			}
			k = newKeeper(l, m, b)
			l.keepers[id] = k
			k.order(l.orders(m, on[id]))
			var life context.Context
			life, k.stop = context.WithCancel(ctx)
			go k.run(life)
			continue
		}
		if l.outdated(k.orders.Load(), m, on[id]) {
			k.order(l.orders(m, on[id]))
		}
	}
	for id, k := range l.keepers {
		if m := s.Machines[id]; m == nil || m.State == machine.Gone || m.State == machine.Quarantined {
			k.stop()
			select {
			case <-k.done:
				delete(l.keepers, id)
			default:
			}
		}
	}
}

// prune drops what ended jobs left in memory, once a minute.
func (l *Loop) prune(now time.Time) {
	if now.Sub(l.pruned) < time.Minute && !now.Before(l.pruned) {
		return
	}
	l.pruned = now
	live, awaited := map[int64]bool{}, map[int64]bool{}
	for _, j := range l.snap.Jobs {
		live[specOf(j)] = true
		for _, id := range j.After {
			awaited[id] = true
		}
	}
	maps.DeleteFunc(l.snap.Specs, func(id int64, _ *job.Spec) bool { return !live[id] })
	maps.DeleteFunc(l.snap.Choices, func(id int64, _ *Choice) bool { return !live[id] })
	maps.DeleteFunc(l.snap.Ended, func(id int64, _ job.State) bool { return !awaited[id] })
	maps.DeleteFunc(l.advisedIn, func(id int64, _ job.State) bool { return l.snap.Jobs[id] == nil })
	maps.DeleteFunc(l.saved, func(id string, _ time.Time) bool { return l.snap.Machines[id] == nil })
}

// outdated says whether a keeper's orders are no longer what the rows say. Rows
// are never changed in place, so the same rows are the same orders; only what a
// gang must know depends on other machines too.
func (l *Loop) outdated(o *orders, m *machine.Machine, attempts []*machine.Attempt) bool {
	if o.machine.Version != m.Version || len(o.attempts) != len(attempts) {
		return true
	}
	for i, a := range attempts {
		if o.attempts[i] != a || len(a.Tasks) > 1 {
			return true
		}
	}
	return false
}

// Finished is an attempt that ended well, from which estimates can learn.
type Finished struct {
	Job     *job.Job
	Spec    *job.Spec
	Attempt *machine.Attempt
	Machine *machine.Machine // of rank 0
}

// learned tells of the attempts that ended well in a pass.
func (l *Loop) learned(d *draft, steps []Step) {
	if l.Finished == nil {
		return
	}
	for _, s := range steps {
		x, ok := s.(EndAttempt)
		if !ok || x.Cause != machine.Exited || x.Exit != 0 {
			continue
		}
		a := d.attempt(x.Attempt)
		f := Finished{Job: d.job(a.Job), Attempt: a, Machine: d.machine(a.Tasks[0].Machine)}
		if f.Spec = l.snap.Specs[specOf(f.Job)]; f.Spec != nil && f.Machine != nil {
			l.background.Go(func() { l.Finished(f) })
		}
	}
}

// inbox is what keepers saw and no pass has taken in yet.
type inbox struct {
	mu    sync.Mutex
	steps []Step
	bell  chan struct{}
}

func newInbox() *inbox { return &inbox{bell: make(chan struct{}, 1)} }

// put hands an observation to the next pass.
func (b *inbox) put(s ...Step) {
	b.mu.Lock()
	b.steps = append(b.steps, s...)
	b.mu.Unlock()
	select {
	case b.bell <- struct{}{}:
	default:
	}
}

// back takes observations back that could not be written down, before all that
// came since.
func (b *inbox) back(s []Step) {
	later := b.empty()
	b.put(append(s, later...)...)
}

func (b *inbox) empty() []Step {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.steps
	b.steps = nil
	return out
}

// tag is what names a machine at its backend, for ever.
func (l *Loop) tag(id string) string { return l.plane + "-" + id }

func sleep(ctx context.Context, t time.Duration) {
	x := time.NewTimer(t)
	defer x.Stop()
	select {
	case <-ctx.Done():
	case <-x.C:
	}
}

// epochOf reads the epoch from a machine's id: "m12.1" is of the first.
func epochOf(id string) int64 {
	var n int64 = 1
	if strings.HasPrefix(id, "e") {
		_, _ = fmt.Sscanf(id, "e%dm", &n)
	}
	return n
}
