package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/plan"
	"github.com/destajo/destajo/tenant"
)

// world is a state with a fake provider whose agents are simulated.
type world struct {
	*control.Service
	t      testing.TB
	store  *store.Store
	folder string
	stop   func()
}

func newWorld(t testing.TB, script fake.Script) *world {
	t.Helper()
	dir := t.TempDir()
	script.Agents = "simulated"
	folder := filepath.Join(dir, "fake")
	if err := fake.Write(folder, script); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	provider, err := fake.New(fake.Config{Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	settings := control.DefaultSettings()
	settings.Linger, settings.Grace, settings.Sweep, settings.AbsentFor = 50*time.Millisecond, time.Second, 200*time.Millisecond, 100*time.Millisecond
	w := &world{t: t, store: s, folder: folder}
	w.Service = &control.Service{Store: s, Files: control.Files{Dir: dir}, Settings: settings, Now: time.Now,
		Backends: func(context.Context) (map[string]backend.Backend, error) {
			return map[string]backend.Backend{fake.Name: unclosed{provider}}, nil
		},
		Chooser: &control.Chooser{World: func() (plan.World, error) { return plan.World{}, nil }, Exchange: func() (money.Exchange, error) { return money.Exchange{}, nil }, Currency: "USD"}}
	t.Cleanup(func() { _ = provider.Close() })
	return w
}

// unclosed is a backend that outlives one loop.
type unclosed struct{ backend.Backend }

func (unclosed) Close() error { return nil }

// run starts the loop.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	level := slog.LevelWarn
	if os.Getenv("DEBUG") != "" {
		level = slog.LevelDebug
	}
	l := &control.Loop{Store: w.Store, Backends: w.Backends, Files: w.Files, Chooser: w.Chooser, Settings: w.Settings, Holder: fmt.Sprint("test", time.Now().UnixNano()),
		Now: time.Now, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
	go func() { done <- l.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the loop ended with %v", err)
		}
		w.stop = func() {}
	}
	w.t.Cleanup(func() { w.stop() })
}

func (w *world) submit(text string) []*job.Job {
	w.t.Helper()
	p, err := w.Submit(context.Background(), tenant.Local(), control.Submission{File: "job.yml", Text: text})
	if err != nil {
		w.t.Fatal(err)
	}
	return p.Jobs
}

// ended waits until jobs have ended and gives them.
func (w *world) ended(jobs []*job.Job) []*job.Job {
	w.t.Helper()
	var ids []int64
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		now, err := w.store.Jobs(context.Background(), record.JobFilter{IDs: ids})
		if err != nil {
			w.t.Fatal(err)
		}
		over := true
		for _, j := range now {
			over = over && j.State.Ended()
		}
		if over {
			return now
		}
		if time.Now().After(until) {
			for _, j := range now {
				w.t.Logf("job %d is %s: %s", j.ID, j.State, j.Reason)
			}
			w.t.Fatal("the jobs did not end")
		}
	}
}

// quiet waits until no machine is left, and checks the ledger.
func (w *world) quiet() {
	w.t.Helper()
	ctx := context.Background()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		d, err := w.store.Changed(ctx, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(d.Machines)+len(d.Attempts)+len(d.Holds) == 0 {
			break
		}
		if time.Now().After(until) {
			for _, m := range d.Machines {
				w.t.Logf("machine %s is %s: %s %s", m.ID, m.State, m.Reason, m.EndFail)
			}
			w.t.Fatalf("%d machines, %d attempts and %d holds are left", len(d.Machines), len(d.Attempts), len(d.Holds))
		}
	}
	entries, err := w.store.Ledger(ctx, record.LedgerFilter{})
	if err != nil {
		w.t.Fatal(err)
	}
	var usage []ledger.Usage
	var charges []ledger.Charge
	for _, e := range entries {
		usage, charges = append(usage, e.Usage), append(charges, e.Charge)
	}
	machines, err := w.store.Machines(ctx, tenant.DefaultProject, true)
	if err != nil {
		w.t.Fatal(err)
	}
	var bills []ledger.Bill
	for _, m := range machines {
		if m.State != machine.Gone {
			w.t.Errorf("machine %s is %s", m.ID, m.State)
		}
		bills = append(bills, ledger.Bill{Machine: m.ID, Cost: ledger.MachineCost(m.Terms.PriceHour, m.BilledFrom(), m.Gone, m.Terms.Increment, m.Terms.Minimum)})
	}
	for _, x := range ledger.Check(usage, charges, bills) {
		w.t.Error(x)
	}
}

func sale(id string, price string, more func(*fake.Sale)) fake.Sale {
	p, _ := money.Parse(price)
	s := fake.Sale{ID: id, GPU: "H100-SXM", GPUs: 1, VCPUs: 8, MemoryGB: 100, PriceHour: p}
	if more != nil {
		more(&s)
	}
	return s
}

const gpuJob = "name: a\nrun: sleep 0.05\nresources: {gpus: H100}\nwork: {hours: {H100: 0.001}}\nstartup: 0s\n"

func TestOneJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil), sale("dear", "3", nil)}})
	w.run()
	got := w.ended(w.submit(gpuJob))
	if got[0].State != job.Done || got[0].Estimate.Offer != "cheap" {
		t.Errorf("the job is %s at %s: %s", got[0].State, got[0].Estimate.Offer, got[0].Reason)
	}
	w.quiet()
}

func TestFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("full", "2", func(s *fake.Sale) { s.NoCapacity = 1 }), sale("there", "3", nil)}})
	w.run()
	got := w.ended(w.submit(gpuJob))
	if got[0].State != job.Done || got[0].Attempts != 2 {
		t.Errorf("the job is %s after %d attempts: %s", got[0].State, got[0].Attempts, got[0].Reason)
	}
	w.quiet()
}

func TestArray(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", func(s *fake.Sale) { s.Capacity = 3; s.Boot = fake.Duration(20 * time.Millisecond) })}})
	w.run()
	for _, j := range w.ended(w.submit(gpuJob + "array: 12\n")) {
		if j.State != job.Done {
			t.Errorf("job %d is %s: %s", j.ID, j.State, j.Reason)
		}
	}
	w.quiet()
}

func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil)}})
	w.run()
	jobs := w.submit("name: long\nrun: sleep 60\nresources: {gpus: H100}\n")
	waiting := w.submit("name: next\nrun: sleep 60\nresources: {gpus: H100}\nafter: [long]\n")
	time.Sleep(100 * time.Millisecond)
	if err := w.Stop(t.Context(), tenant.Local(), []int64{jobs[0].ID}, ""); err != nil {
		t.Fatal(err)
	}
	got := w.ended(append(jobs, waiting...))
	if got[1].State != job.Stopped || got[0].State != job.Failed {
		t.Errorf("the stopped job is %s (%s), the one after it %s (%s)", got[1].State, got[1].Reason, got[0].State, got[0].Reason)
	}
	w.quiet()
}

func TestRetriesAndFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil)}})
	w.run()
	got := w.ended(w.submit("name: bad\nrun: exit 3\nresources: {gpus: H100}\nretries: 1\n"))
	if got[0].State != job.Failed || got[0].ExitCode != 3 || got[0].Attempts != 2 {
		t.Errorf("the job is %s with exit code %d after %d attempts: %s", got[0].State, got[0].ExitCode, got[0].Attempts, got[0].Reason)
	}
	w.quiet()
}

func TestCostLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("dear", "3600", nil)}}) // one dollar a second
	w.run()
	got := w.ended(w.submit("name: costly\nrun: sleep 60\nresources: {gpus: H100}\nlimits: {cost: 2 USD}\n"))
	h, err := w.store.Hold(t.Context(), got[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].State != job.Failed || h.Committed > 2*money.Unit || h.Committed < money.Unit {
		t.Errorf("the job is %s (%s), %s were used", got[0].State, got[0].Reason, h.Committed)
	}
	w.quiet()
}

func TestGang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil)}})
	w.run()
	got := w.ended(w.submit("name: gang\nrun: sleep 0.1\nresources: {gpus: H100, nodes: 3}\n"))
	attempts, err := w.store.Attempts(t.Context(), got[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].State != job.Done || len(attempts) != 1 || len(attempts[0].Tasks) != 3 {
		t.Errorf("the job is %s (%s) after %d attempts", got[0].State, got[0].Reason, len(attempts))
	}
	w.quiet()
}

func TestInterruption(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("spot", "1", func(s *fake.Sale) {
		s.Terms, s.ReclaimAfter, s.Notice, s.Capacity = "spot", fake.Duration(400*time.Millisecond), fake.Duration(300*time.Millisecond), 1
	}), sale("sure", "3", nil)}})
	w.run()
	got := w.ended(w.submit("name: moved\nrun: sleep 1\nresources: {gpus: H100}\nplace: {terms: [spot, on-demand]}\n"))
	if got[0].State != job.Done || got[0].Attempts < 2 {
		t.Errorf("the job is %s (%s) after %d attempts", got[0].State, got[0].Reason, got[0].Attempts)
	}
	w.quiet()
}

func TestFaultyProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Seed: 7, Offers: []fake.Sale{sale("a", "2", func(s *fake.Sale) { s.NoCapacity = 0.3 }), sale("b", "3", nil)},
		Faults: fake.Faults{LostCalls: 0.2, FailedCalls: 0.2, Leaks: 0.3, Hides: 0.3, HideFor: fake.Duration(50 * time.Millisecond)}})
	w.run()
	for _, j := range w.ended(w.submit(gpuJob + "array: 6\n")) {
		if j.State != job.Done {
			t.Errorf("job %d is %s: %s", j.ID, j.State, j.Reason)
		}
	}
	w.quiet()
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("cheap", "2", nil)}})
	jobs := w.submit("name: long\nrun: sleep 1\nresources: {gpus: H100}\narray: 3\n")
	for range 5 { // each leads for a short while
		w.run()
		time.Sleep(100 * time.Millisecond)
		w.stop()
	}
	w.run()
	for _, j := range w.ended(jobs) {
		if j.State != job.Done || j.Attempts != 1 {
			t.Errorf("job %d is %s after %d attempts: %s", j.ID, j.State, j.Attempts, j.Reason)
		}
	}
	w.quiet()
}

var _ = machine.Ready

// TestDeadline sends a job with a deadline where the spot policy says: to spot
// with time to spare, on demand without.
func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ deadline, want string }{{"20h", "spot"}, {"62m", "sure"}} {
		t.Run(x.deadline, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fake.Script{Offers: []fake.Sale{sale("spot", "1", func(s *fake.Sale) { s.Terms = "spot" }), sale("sure", "3", nil)}})
			w.run()
			got := w.ended(w.submit("name: d\nrun: sleep 0.2\nresources: {gpus: H100}\nwork: {hours: {H100: 1}}\nstartup: 1m\ncheckpoint: {dir: ckpt, every: 5m, write: 1s, restart: 2m}\nlimits: {deadline: " + x.deadline + "}\nplace: {terms: [spot, on-demand]}\n"))
			attempts, err := w.store.Attempts(t.Context(), got[0].ID)
			if err != nil || len(attempts) == 0 {
				t.Fatal(got[0].Reason, err)
			}
			m, err := w.store.Machine(t.Context(), attempts[0].Tasks[0].Machine)
			if err != nil {
				t.Fatal(err)
			}
			if m.Terms.OfferID != x.want || got[0].State != job.Done {
				t.Errorf("with a deadline of %s the job went to %s and is %s (%s)", x.deadline, m.Terms.OfferID, got[0].State, got[0].Reason)
			}
			w.quiet()
		})
	}
}
