// Package storetest is the suite that every store passes: what each method of
// the state promises, tried on fresh states that are opened once or several
// times.
package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// Run tries everything. Fresh makes a new empty state and gives the function
// that opens it: every call of that is as good as another process. The suite
// does not close what it opened; fresh registers that with tb.Cleanup.
func Run(t *testing.T, fresh func(tb testing.TB) (open func() *store.Store)) {
	for name, test := range map[string]func(*testing.T, func() *store.Store){
		"a new state":              newState,
		"epochs":                   epochs,
		"job numbers":              numbers,
		"rows come back":           rowsComeBack,
		"versions":                 versions,
		"all or nothing":           allOrNothing,
		"sources come again":       sourcesAgain,
		"leases":                   leases,
		"old tokens":               oldTokens,
		"live rows":                liveRows,
		"deltas":                   deltas,
		"deltas under writers":     deltasUnderWriters,
		"the number of the change": newest,
		"counters":                 counters,
		"counters in a crowd":      crowd,
		"usage twice":              usageTwice,
		"ledger filters":           ledgerFilters,
		"job filters":              jobFilters,
		"machines":                 machines,
		"events":                   events,
		"samples":                  samples,
		"what is not there":        notThere,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fresh(t))
		})
	}
}

func newState(t *testing.T, open func() *store.Store) {
	s := open()
	p, err := s.Plane(t.Context())
	check(t, err)
	if len(p.ID) < 16 || p.Epoch != 1 {
		t.Errorf("a new plane is %+v", p)
	}
	again, err := open().Plane(t.Context())
	check(t, err)
	same(t, p, again)
	m, err := s.Member(t.Context(), tenant.DefaultProject, tenant.DefaultMember)
	check(t, err)
	if m.Role != tenant.Owner || m.Made.IsZero() {
		t.Errorf("the first member is %+v", m)
	}
	d, err := s.Changed(t.Context(), 0)
	check(t, err)
	same(t, &record.Delta{}, d)
}

func epochs(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	n, err := a.NewEpoch(t.Context())
	check(t, err)
	p, err := b.Plane(t.Context()) // the other process must not act in the old epoch
	check(t, err)
	if n != 2 || p.Epoch != 2 {
		t.Errorf("epoch %d, the other process sees %d", n, p.Epoch)
	}
}

func numbers(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	var mu sync.Mutex
	seen := map[int64]bool{}
	together(8, func(i int) {
		s := a
		if i%2 == 1 {
			s = b
		}
		for n := range 10 {
			first, err := s.NextJobs(t.Context(), n+1)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			for id := first; id <= first+int64(n); id++ {
				if seen[id] || id < 1 {
					t.Errorf("job %d was given twice", id)
				}
				seen[id] = true
			}
			mu.Unlock()
		}
	})
	for id := range int64(len(seen)) {
		if !seen[id+1] {
			t.Errorf("job %d was left out", id+1)
		}
	}
	if _, err := a.NextJobs(t.Context(), 0); err == nil {
		t.Error("no numbers were given without an error")
	}
}

func rowsComeBack(t *testing.T, open func() *store.Store) {
	s := open()
	odd := Job(2)
	odd.Name, odd.Text, odd.Reason = "naïve 名前 \x01 \u2028 <&>\"\\", "run: echo \"\t\\n\"\n", "' OR 1=1 --"
	odd.Env = map[string]string{"EMPTY": "", "LINES": "a\nb"}
	odd.After, odd.Priority, odd.Stop, odd.Deadline, odd.NotBefore = []int64{1}, -3, "someone", noon.Add(time.Hour), noon.Add(time.Minute)
	odd.Started, odd.Ended, odd.Attempts, odd.Failures, odd.Unstarted, odd.Progress, odd.ExitCode = noon.Add(time.Second), noon.Add(2*time.Second), 3, 1, 1, 90*time.Second+1, 137
	bare := &job.Job{ID: 3, Project: tenant.DefaultProject, Member: tenant.DefaultMember, State: job.Running}
	released := hold(2)
	released.Released = noon
	c := &record.Changes{Jobs: []*job.Job{Job(1), odd, bare}, Attempts: []*machine.Attempt{Attempt(1, 1, machine.Started)}, Machines: []*machine.Machine{Machine("m")},
		Holds: []*tenant.Hold{hold(1), released}, Places: []*record.Place{place("offer")}, Sources: []*record.Source{source("ssh://gpu1")}}
	apply(t, s, c)
	d, err := open().Changed(t.Context(), 0)
	check(t, err)
	same(t, &record.Delta{Seq: d.Seq, Jobs: c.Jobs, Attempts: c.Attempts, Machines: c.Machines, Holds: c.Holds[:1], Places: c.Places, Sources: c.Sources}, d)
	h, err := s.Hold(t.Context(), 2)
	check(t, err)
	same(t, released, h)
	if c.Jobs[0].Version != 1 || c.Sources[0].Version != 1 || c.Holds[1].Version != 1 {
		t.Error("new rows do not carry version 1")
	}
}

func versions(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	all := func() *record.Changes {
		return &record.Changes{Jobs: []*job.Job{Job(1)}, Attempts: []*machine.Attempt{Attempt(1, 1, machine.Assigned)}, Machines: []*machine.Machine{Machine("m")},
			Holds: []*tenant.Hold{hold(1)}, Places: []*record.Place{place("o")}, Sources: []*record.Source{source("s")}}
	}
	apply(t, a, all())
	parts := map[string]func(*record.Changes) *record.Changes{
		"job":     func(c *record.Changes) *record.Changes { return &record.Changes{Jobs: c.Jobs} },
		"attempt": func(c *record.Changes) *record.Changes { return &record.Changes{Attempts: c.Attempts} },
		"machine": func(c *record.Changes) *record.Changes { return &record.Changes{Machines: c.Machines} },
		"hold":    func(c *record.Changes) *record.Changes { return &record.Changes{Holds: c.Holds} },
		"place":   func(c *record.Changes) *record.Changes { return &record.Changes{Places: c.Places} },
		"source":  func(c *record.Changes) *record.Changes { return &record.Changes{Sources: c.Sources} },
	}
	for name, part := range parts {
		fails(t, "a second new "+name, fault.Conflict, b.Apply(t.Context(), 0, part(all())))
		read := func() *record.Changes {
			d, err := a.Changed(t.Context(), 0)
			check(t, err)
			return part(&record.Changes{Jobs: d.Jobs, Attempts: d.Attempts, Machines: d.Machines, Holds: d.Holds, Places: d.Places, Sources: d.Sources})
		}
		first, second := read(), read()
		apply(t, a, first)
		before := read()
		fails(t, "an old "+name, fault.Conflict, b.Apply(t.Context(), 0, second))
		same(t, before, read())
		apply(t, b, first) // it carries its new version
	}
	fails(t, "a job that is not there", fault.Conflict, a.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{{ID: 77, Version: 1}}}))
}

func allOrNothing(t *testing.T, open func() *store.Store) {
	s := open()
	apply(t, s, &record.Changes{Jobs: []*job.Job{Job(1)}})
	seq, err := s.Version(t.Context())
	check(t, err)
	u, charge := Usage("1-1.0/0", 1, 0)
	c := &record.Changes{Jobs: []*job.Job{Job(2), Job(1)}, Attempts: []*machine.Attempt{Attempt(2, 1, machine.Assigned)}, Machines: []*machine.Machine{Machine("m")}, Holds: []*tenant.Hold{hold(2)},
		Counters: []record.Counter{{Key: "k", Add: 5}}, Usage: []ledger.Usage{u}, Charges: []ledger.Charge{charge}, Events: []tenant.Event{{What: "submitted"}}, Samples: []record.Sample{{Attempt: "2-1"}}}
	fails(t, "a change with one old row", fault.Conflict, s.Apply(t.Context(), 0, c))
	c.Jobs = c.Jobs[:1]
	c.Counters = append(c.Counters, record.Counter{Key: "l", Add: 2, Limit: 1})
	fails(t, "a change beyond a limit", fault.OverLimit, s.Apply(t.Context(), 0, c))
	if c.Jobs[0].Version != 0 {
		t.Error("a row of a change that failed got a version")
	}
	d, err := s.Changed(t.Context(), 0)
	check(t, err)
	if len(d.Jobs) != 1 || len(d.Attempts)+len(d.Machines)+len(d.Holds) != 0 || d.Seq != seq {
		t.Errorf("half a change was written: %+v", d)
	}
	entries, err := s.Ledger(t.Context(), record.LedgerFilter{})
	check(t, err)
	trail, err := s.Events(t.Context(), record.EventFilter{})
	check(t, err)
	measured, err := s.Samples(t.Context(), "2-1")
	check(t, err)
	k, err := s.Counter(t.Context(), "k")
	check(t, err)
	if len(entries)+len(trail)+len(measured)+int(k) != 0 {
		t.Error("half a change was written")
	}
}

func sourcesAgain(t *testing.T, open func() *store.Store) {
	s := open()
	x := source("ssh://gpu1")
	apply(t, s, &record.Changes{Sources: []*record.Source{x}})
	x.Removed = true
	apply(t, s, &record.Changes{Sources: []*record.Source{x}})
	y := source("ssh://gpu1")
	y.Config = "{}"
	apply(t, s, &record.Changes{Sources: []*record.Source{y}})
	if y.Version <= x.Version {
		t.Errorf("a source that comes again has version %d after %d", y.Version, x.Version)
	}
	d, err := s.Changed(t.Context(), 0)
	check(t, err)
	same(t, []*record.Source{y}, d.Sources)
	apply(t, s, &record.Changes{Sources: []*record.Source{y}})
	fails(t, "the removed source", fault.Conflict, s.Apply(t.Context(), 0, &record.Changes{Sources: []*record.Source{x}}))
}

func leases(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	take := func(s *store.Store, holder string, at time.Time, want bool) record.Lease {
		t.Helper()
		l, mine, err := s.Acquire(t.Context(), holder, at, 3*time.Second)
		check(t, err)
		if mine != want {
			t.Errorf("%s at %v: mine is %v, want %v", holder, at.Sub(noon), mine, want)
		}
		return l
	}
	first := take(a, "a", noon, true)
	same(t, record.Lease{Holder: "a", Token: 1, Expires: noon.Add(3 * time.Second)}, first)
	same(t, first, take(b, "b", noon.Add(time.Second), false))
	renewed := take(a, "a", noon.Add(2*time.Second), true)
	same(t, record.Lease{Holder: "a", Token: 1, Expires: noon.Add(5 * time.Second)}, renewed)
	take(b, "b", noon.Add(5*time.Second-time.Microsecond), false)
	if l := take(b, "b", noon.Add(5*time.Second), true); l.Token != 2 {
		t.Errorf("the second holder has token %d", l.Token)
	}
	take(a, "a", noon.Add(6*time.Second), false)
	check(t, a.Release(t.Context(), renewed)) // it lost it: no matter
	take(a, "a", noon.Add(6*time.Second), false)
	check(t, b.Release(t.Context(), record.Lease{Holder: "b", Token: 2}))
	if l := take(a, "a", noon.Add(6*time.Second), true); l.Token != 3 {
		t.Errorf("the third holder has token %d", l.Token)
	}
	if l := take(b, "b", noon.Add(-48*time.Hour), true); l.Token != 4 { // the clock was set back by days
		t.Errorf("the fourth holder has token %d", l.Token)
	}

	var won atomic.Int64
	late := noon.Add(time.Hour)
	together(8, func(i int) {
		s := a
		if i%2 == 1 {
			s = b
		}
		if _, mine, err := s.Acquire(t.Context(), fmt.Sprint("p", i), late, time.Second); err != nil {
			t.Error(err)
		} else if mine {
			won.Add(1)
		}
	})
	if won.Load() != 1 {
		t.Errorf("%d got the lease together", won.Load())
	}
}

func oldTokens(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	la, _, err := a.Acquire(t.Context(), "a", noon, time.Second)
	check(t, err)
	check(t, a.Apply(t.Context(), la.Token, &record.Changes{Jobs: []*job.Job{Job(1)}}))
	lb, mine, err := b.Acquire(t.Context(), "b", noon.Add(time.Minute), time.Second)
	check(t, err)
	if !mine {
		t.Fatal("an expired lease cannot be taken")
	}
	fails(t, "an old token", fault.Conflict, a.Apply(t.Context(), la.Token, &record.Changes{Jobs: []*job.Job{Job(2)}}))
	fails(t, "a token of nobody", fault.Conflict, a.Apply(t.Context(), lb.Token+1, &record.Changes{Jobs: []*job.Job{Job(2)}}))
	check(t, b.Apply(t.Context(), lb.Token, &record.Changes{Jobs: []*job.Job{Job(2)}}))
	apply(t, a, &record.Changes{Jobs: []*job.Job{Job(3)}}) // without the lease: a submission
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func apply(t testing.TB, s *store.Store, c *record.Changes) {
	t.Helper()
	check(t, s.Apply(t.Context(), 0, c))
}

// fails wants a fault of a kind, with words that say what to do.
func fails(t testing.TB, what string, kind fault.Kind, err error) {
	t.Helper()
	var e *fault.Error
	switch {
	case err == nil:
		t.Errorf("%s: no error", what)
	case !errors.As(err, &e) || e.Kind != kind:
		t.Errorf("%s: %v, want the kind %s", what, err, kind)
	case e.Next == "":
		t.Errorf("%s: %v says nothing of what to do next", what, err)
	}
}

func same(t testing.TB, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// together runs n functions at once.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// counted is what a counter says.
func counted(t testing.TB, s *store.Store, key string) int64 {
	t.Helper()
	n, err := s.Counter(t.Context(), key)
	check(t, err)
	return n
}
