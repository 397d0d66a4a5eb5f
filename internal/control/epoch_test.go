package control_test

import (
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// TestRestoredState begins a new epoch while a job runs: its machine is put
// aside and never ended by itself, until a person adopts it.
func TestRestoredState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil)}})
	w.run()
	w.submit("name: long\nrun: sleep 600\nresources: {gpus: H100}\n")
	m := w.machine(machine.Ready)
	if err := w.AdoptMachine(t.Context(), tenant.Local(), m.ID); fault.KindOf(err) != fault.Conflict {
		t.Errorf("a machine that is not quarantined is adopted: %v", err)
	}
	w.stop()
	if _, err := w.store.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.run()
	if q := w.machine(machine.Quarantined); q.ID != m.ID {
		t.Fatalf("machine %s is quarantined, not %s", q.ID, m.ID)
	}
	time.Sleep(300 * time.Millisecond)
	if bill, err := fake.Bill(w.folder, time.Now()); err != nil || len(bill) == 0 || !bill[0].Gone.IsZero() {
		t.Fatalf("a quarantined machine was ended: %+v %v", bill, err)
	}
	if err := w.AdoptMachine(t.Context(), tenant.Local(), m.ID); err != nil {
		t.Fatal(err)
	}
	jobs, err := w.store.Jobs(t.Context(), record.JobFilter{Live: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(t.Context(), tenant.Local(), []int64{jobs[0].ID}, ""); err != nil {
		t.Fatal(err)
	}
	if got := w.ended(jobs); got[0].State != job.Stopped {
		t.Errorf("the job is %s: %s", got[0].State, got[0].Reason)
	}
	w.quiet()
}

// machine waits for one in a state.
func (w *world) machine(state machine.State) *machine.Machine {
	w.t.Helper()
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		all, err := w.store.Machines(w.t.Context(), tenant.DefaultProject, false)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range all {
			if m.State == state {
				return m
			}
		}
	}
	w.t.Fatalf("no machine became %s", state)
	return nil
}
