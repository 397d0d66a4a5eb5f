package storetest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

func liveRows(t *testing.T, open func() *store.Store) {
	s := open()
	c := &record.Changes{}
	for i, state := range job.States() {
		j := Job(int64(i + 1))
		j.State = state
		c.Jobs = append(c.Jobs, j)
	}
	for i, state := range []machine.AttemptState{machine.Assigned, machine.Started, machine.Leaving, machine.Over} {
		c.Attempts = append(c.Attempts, Attempt(1, i+1, state))
	}
	for _, state := range []machine.State{machine.Intent, machine.Booting, machine.Ready, machine.Ending, machine.Gone, machine.Quarantined} {
		m := Machine(string(state))
		m.State, m.Settled = state, state == machine.Gone
		c.Machines = append(c.Machines, m)
	}
	unsettled := Machine("unsettled") // its idle time is not in the ledger yet
	unsettled.State = machine.Gone
	c.Machines = append(c.Machines, unsettled)
	released := hold(2)
	released.Released = noon
	c.Holds = []*tenant.Hold{hold(1), released}
	removed := source("b")
	removed.Removed = true
	c.Sources = []*record.Source{source("a"), removed}
	c.Places = []*record.Place{place("o")}
	apply(t, s, c)

	d, err := s.Changed(t.Context(), 0)
	check(t, err)
	same(t, []int64{1, 2, 3, 4}, keys(d.Jobs, func(j *job.Job) int64 { return j.ID }))
	same(t, []string{"1-1", "1-2", "1-3"}, keys(d.Attempts, func(a *machine.Attempt) string { return a.ID }))
	same(t, []string{"booting", "ending", "intent", "quarantined", "ready", "unsettled"}, keys(d.Machines, func(m *machine.Machine) string { return m.ID }))
	same(t, []int64{1}, keys(d.Holds, func(h *tenant.Hold) int64 { return h.Job }))
	same(t, []string{"a"}, keys(d.Sources, func(x *record.Source) string { return x.ID }))
	same(t, []string{"o"}, keys(d.Places, func(x *record.Place) string { return x.Offer }))
}

func deltas(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	one, two := Job(1), Job(2)
	apply(t, a, &record.Changes{Jobs: []*job.Job{one, two}, Holds: []*tenant.Hold{hold(1)}, Sources: []*record.Source{source("s")}, Places: []*record.Place{place("o")}})
	d, err := b.Changed(t.Context(), 0)
	check(t, err)
	nothing, err := b.Changed(t.Context(), d.Seq)
	check(t, err)
	same(t, &record.Delta{Seq: d.Seq}, nothing)

	one.State, one.Reason = job.Done, "exit code 0"
	h := d.Holds[0]
	h.Released = noon
	x := d.Sources[0]
	x.Removed = true
	apply(t, a, &record.Changes{Jobs: []*job.Job{one}, Holds: []*tenant.Hold{h}, Sources: []*record.Source{x}})
	apply(t, a, &record.Changes{Attempts: []*machine.Attempt{Attempt(2, 1, machine.Over)}, Machines: []*machine.Machine{Machine("m")}})
	next, err := b.Changed(t.Context(), d.Seq)
	check(t, err)
	same(t, []*job.Job{one}, next.Jobs) // in its last state, though it ended
	same(t, []*tenant.Hold{h}, next.Holds)
	same(t, []*record.Source{x}, next.Sources)
	if len(next.Attempts) != 1 || len(next.Machines) != 1 || len(next.Places) != 0 || next.Seq <= d.Seq {
		t.Errorf("the delta is %+v", next)
	}
}

// deltasUnderWriters follows deltas while others write, and must end with what
// is stored: no change is missed and none comes back.
func deltasUnderWriters(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	reader := open()
	var left atomic.Int64
	left.Store(4)
	var all sync.WaitGroup
	for w := range 4 {
		s := a
		if w%2 == 1 {
			s = b
		}
		all.Go(func() {
			defer left.Add(-1)
			j := Job(int64(w + 1))
			for i := range 40 {
				j.Attempts = i
				if err := s.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{j}, Events: []tenant.Event{{Job: j.ID, What: "tried"}}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	seen := map[int64]*job.Job{}
	since := int64(0)
	for last := false; ; {
		d, err := reader.Changed(t.Context(), since)
		check(t, err)
		if d.Seq < since {
			t.Fatalf("the sequence went from %d to %d", since, d.Seq)
		}
		for _, j := range d.Jobs {
			if old := seen[j.ID]; old != nil && j.Version <= old.Version {
				t.Errorf("version %d of job %d came after %d", j.Version, j.ID, old.Version)
			}
			seen[j.ID] = j
		}
		since = d.Seq
		if last {
			break
		}
		last = left.Load() == 0
	}
	all.Wait()
	stored, err := a.Jobs(t.Context(), record.JobFilter{})
	check(t, err)
	for _, j := range stored {
		if j.Version != 40 || j.Attempts != 39 {
			t.Errorf("job %d ended at version %d with %d", j.ID, j.Version, j.Attempts)
		}
		same(t, j, seen[j.ID])
	}
}

func newest(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	version := func(s *store.Store) int64 {
		t.Helper()
		n, err := s.Version(t.Context())
		check(t, err)
		return n
	}
	before := version(a)
	same(t, before, version(b))
	for i := range int64(3) {
		apply(t, a, &record.Changes{Jobs: []*job.Job{Job(i + 1)}})
		if n := version(a); n != before+1 {
			t.Errorf("own change: %d after %d", n, before)
		}
		if n := version(b); n != before+1 {
			t.Errorf("a change by another process: %d after %d", n, before)
		}
		before++
	}
}

func counters(t *testing.T, open func() *store.Store) {
	s := open()
	add := func(n, limit int64) error {
		return s.Apply(t.Context(), 0, &record.Changes{Counters: []record.Counter{{Key: "k", Add: n, Limit: limit}}})
	}
	same(t, int64(0), counted(t, s, "k"))
	check(t, add(7, 10))
	check(t, add(3, 10))
	fails(t, "one above the limit", fault.OverLimit, add(1, 10))
	check(t, add(-4, 5)) // less passes no limit, even while it is above it
	same(t, int64(6), counted(t, s, "k"))
	check(t, add(1<<62, 0))
	fails(t, "a sum that does not fit", fault.OverLimit, add(1<<62, 0))
	fails(t, "a sum that does not fit below a limit", fault.OverLimit, add(1<<62, 1<<63-1))
	same(t, int64(6+1<<62), counted(t, s, "k"))
	check(t, s.Apply(t.Context(), 0, &record.Changes{Counters: []record.Counter{{Key: "a", Add: 1}, {Key: "a", Add: 2}, {Key: "b", Add: -1}}}))
	same(t, int64(3), counted(t, s, "a"))
	same(t, int64(-1), counted(t, s, "b"))
}

// crowd lets many add to one counter from two processes: exactly the limit is
// reached, and who was refused wrote nothing.
func crowd(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	const limit = 30
	var ok atomic.Int64
	together(10, func(i int) {
		s := a
		if i%2 == 1 {
			s = b
		}
		for n := range 6 {
			err := s.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{Job(int64(i*100 + n + 1))}, Counters: []record.Counter{{Key: "held", Add: 1, Limit: limit}}})
			switch {
			case err == nil:
				ok.Add(1)
			case fault.KindOf(err) != fault.OverLimit:
				t.Error(err)
			}
		}
	})
	jobs, err := a.Jobs(t.Context(), record.JobFilter{})
	check(t, err)
	if n := counted(t, b, "held"); n != limit || ok.Load() != limit || len(jobs) != limit {
		t.Errorf("the counter is %d, %d got in, %d jobs; want %d", n, ok.Load(), len(jobs), limit)
	}
}

func usageTwice(t *testing.T, open func() *store.Store) {
	s := open()
	u, c := Usage("1-1.0/0", 1, 0)
	apply(t, s, &record.Changes{Usage: []ledger.Usage{u}, Charges: []ledger.Charge{c}})
	first, err := s.Ledger(t.Context(), record.LedgerFilter{})
	check(t, err)
	same(t, []record.Entry{{Usage: u, Charge: c}}, first)
	other, dearer := u, c
	other.To, dearer.Amount = other.To.Add(time.Hour), 99
	apply(t, s, &record.Changes{Usage: []ledger.Usage{u, other}, Charges: []ledger.Charge{dearer, c}})
	again, err := s.Ledger(t.Context(), record.LedgerFilter{})
	check(t, err)
	same(t, first, again)
	bare, _ := Usage("1-1.0/1", 1, 1) // usage whose charge is missing is shown, not hidden
	bare.Kind, bare.Bytes = ledger.Disk, 1e12
	apply(t, s, &record.Changes{Usage: []ledger.Usage{bare}})
	all, err := s.Ledger(t.Context(), record.LedgerFilter{})
	check(t, err)
	same(t, append(first, record.Entry{Usage: bare}), all)
}

func ledgerFilters(t *testing.T, open func() *store.Store) {
	s := open()
	c := &record.Changes{}
	for id := range int64(3) {
		for minute := range 3 {
			u, charge := Usage(fmt.Sprintf("%d/%d", id, minute), id, minute)
			if id == 2 {
				u.Project = "other"
			}
			c.Usage, c.Charges = append(c.Usage, u), append(c.Charges, charge)
		}
	}
	apply(t, s, c)
	end := noon.Add(2 * time.Minute)
	many := make([]int64, 1500)
	for i := range many {
		many[i] = int64(i) + 1
	}
	for name, x := range map[string]struct {
		f    record.LedgerFilter
		want []string
	}{
		"all":      {record.LedgerFilter{}, []string{"0/0", "1/0", "2/0", "0/1", "1/1", "2/1", "0/2", "1/2", "2/2"}},
		"project":  {record.LedgerFilter{Project: "other"}, []string{"2/0", "2/1", "2/2"}},
		"jobs":     {record.LedgerFilter{Jobs: []int64{1, 5}}, []string{"1/0", "1/1", "1/2"}},
		"many":     {record.LedgerFilter{Jobs: many, From: end}, []string{"1/1", "2/1", "1/2", "2/2"}},
		"no jobs":  {record.LedgerFilter{Jobs: []int64{}}, nil},
		"machine":  {record.LedgerFilter{Machine: "machine-1", Project: tenant.DefaultProject}, []string{"1/0", "1/1", "1/2"}},
		"from, to": {record.LedgerFilter{From: end, To: end.Add(time.Minute), Project: tenant.DefaultProject}, []string{"0/1", "1/1"}},
	} {
		got, err := s.Ledger(t.Context(), x.f)
		check(t, err)
		same(t, append([]string{name}, x.want...), append([]string{name}, keys(got, func(e record.Entry) string { return e.Key })...))
	}
}

func jobFilters(t *testing.T, open func() *store.Store) {
	s := open()
	c := &record.Changes{}
	for id := range int64(9) {
		j := Job(id + 1)
		j.State = job.States()[id%7]
		j.Array = id / 3
		j.Name = []string{"a", "b", "c"}[id%3]
		if id >= 7 {
			j.Project = "other"
		}
		c.Jobs = append(c.Jobs, j)
	}
	apply(t, s, c)
	many := make([]int64, 1200)
	for i := range many {
		many[i] = int64(i) + 3
	}
	for name, x := range map[string]struct {
		f    record.JobFilter
		want []int64
	}{
		"all":              {record.JobFilter{}, []int64{9, 8, 7, 6, 5, 4, 3, 2, 1}},
		"project":          {record.JobFilter{Project: "other"}, []int64{9, 8}},
		"of another":       {record.JobFilter{Project: "other", IDs: []int64{1, 2}}, nil},
		"ids":              {record.JobFilter{IDs: []int64{2, 7, 2, 99}}, []int64{7, 2}},
		"many ids":         {record.JobFilter{IDs: many}, []int64{9, 8, 7, 6, 5, 4, 3}},
		"many with limit":  {record.JobFilter{IDs: many, Limit: 2}, []int64{9, 8}},
		"no ids":           {record.JobFilter{IDs: []int64{}}, nil},
		"array":            {record.JobFilter{Array: 1}, []int64{6, 5, 4}},
		"name":             {record.JobFilter{Name: "b", Limit: 2}, []int64{8, 5}},
		"states":           {record.JobFilter{States: []job.State{job.Done, job.Running}}, []int64{5, 3}},
		"live":             {record.JobFilter{Live: true}, []int64{9, 8, 4, 3, 2, 1}},
		"limit and before": {record.JobFilter{Limit: 2, Before: 6}, []int64{5, 4}},
	} {
		got, err := s.Jobs(t.Context(), x.f)
		check(t, err)
		if ids := keys(got, func(j *job.Job) int64 { return j.ID }); !slices.Equal(x.want, ids) {
			t.Errorf("%s: jobs %v, want %v", name, ids, x.want)
		}
	}
}

func machines(t *testing.T, open func() *store.Store) {
	s := open()
	var all []*machine.Machine
	for i, id := range []string{"x", "y", "z"} {
		m := Machine(id)
		m.Asked = noon.Add(time.Duration(i) * time.Minute)
		if id == "y" {
			m.State = machine.Gone
		}
		all = append(all, m)
	}
	foreign := Machine("foreign")
	foreign.Project = "other"
	apply(t, s, &record.Changes{Machines: append(all, foreign)})
	id := func(m *machine.Machine) string { return m.ID }
	live, err := s.Machines(t.Context(), tenant.DefaultProject, false)
	check(t, err)
	same(t, []string{"z", "x"}, keys(live, id))
	ever, err := s.Machines(t.Context(), tenant.DefaultProject, true)
	check(t, err)
	same(t, []string{"z", "y", "x"}, keys(ever, id))
	one, err := s.Machine(t.Context(), "y")
	check(t, err)
	same(t, all[1], one)
	apply(t, s, &record.Changes{Attempts: []*machine.Attempt{Attempt(4, 2, machine.Started), Attempt(4, 1, machine.Over), Attempt(5, 1, machine.Started)}})
	tries, err := s.Attempts(t.Context(), 4)
	check(t, err)
	same(t, []string{"4-1", "4-2"}, keys(tries, func(a *machine.Attempt) string { return a.ID }))
}

func events(t *testing.T, open func() *store.Store) {
	s := open()
	line := func(i int, id int64, m string) tenant.Event {
		return tenant.Event{At: noon.Add(time.Duration(i) * time.Second), Project: tenant.DefaultProject, Member: tenant.DefaultMember, Job: id, Machine: m, What: fmt.Sprint("e", i), Detail: "why"}
	}
	// The trail keeps the order of its writing, whatever the clock says.
	apply(t, s, &record.Changes{Events: []tenant.Event{line(3, 1, ""), line(1, 1, "m")}})
	apply(t, s, &record.Changes{Events: []tenant.Event{line(2, 2, "m"), line(4, 1, "")}})
	for name, x := range map[string]struct {
		f    record.EventFilter
		want []string
	}{
		"all":     {record.EventFilter{}, []string{"e3", "e1", "e2", "e4"}},
		"job":     {record.EventFilter{Job: 1}, []string{"e3", "e1", "e4"}},
		"machine": {record.EventFilter{Machine: "m"}, []string{"e1", "e2"}},
		"newest":  {record.EventFilter{Limit: 3}, []string{"e1", "e2", "e4"}},
		"other":   {record.EventFilter{Project: "other"}, nil},
	} {
		got, err := s.Events(t.Context(), x.f)
		check(t, err)
		same(t, append([]string{name}, x.want...), append([]string{name}, keys(got, func(e tenant.Event) string { return e.What })...))
		if len(got) > 0 && name == "all" {
			same(t, line(3, 1, ""), got[0])
		}
	}
}

func samples(t *testing.T, open func() *store.Store) {
	s := open()
	half, used := 50.5, int64(40e9)
	sample := func(rank int, at time.Duration) record.Sample {
		return record.Sample{Job: 1, Attempt: "1-1", Rank: rank, At: noon.Add(at), CPU: 3.5, Memory: 1e9, GPUs: []record.GPUUse{{UUID: "GPU-1", Utilization: &half, Memory: &used}}}
	}
	c := &record.Changes{Samples: []record.Sample{sample(0, time.Second), sample(1, 0), sample(0, 0), {Attempt: "1-2", At: noon}}}
	apply(t, s, c)
	apply(t, s, c) // an agent that was not heard says it again
	got, err := s.Samples(t.Context(), "1-1")
	check(t, err)
	same(t, []record.Sample{sample(0, 0), sample(1, 0), sample(0, time.Second)}, got)
}

func notThere(t *testing.T, open func() *store.Store) {
	s := open()
	_, err := s.Machine(t.Context(), "m")
	fails(t, "no machine", fault.NotFound, err)
	_, err = s.Hold(t.Context(), 1)
	fails(t, "no hold", fault.NotFound, err)
	_, err = s.Member(t.Context(), "other", tenant.DefaultMember)
	fails(t, "no member", fault.NotFound, err)
	tries, err := s.Attempts(t.Context(), 1)
	check(t, err)
	measured, err := s.Samples(t.Context(), "1-1")
	check(t, err)
	if len(tries)+len(measured) != 0 {
		t.Error("rows of nothing")
	}
}

// keys are the names of rows, in their order.
func keys[T any, K any](rows []T, key func(T) K) []K {
	var out []K
	for _, r := range rows {
		out = append(out, key(r))
	}
	return out
}
