package fake_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/backendtest"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

func TestMain(m *testing.M) { backendtest.Main(m) }

func open(t testing.TB, folder string, now func() time.Time) *fake.Backend {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := fake.New(fake.Config{Folder: folder, Exe: exe, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func write(t testing.TB, s fake.Script) string {
	folder := t.TempDir()
	if err := fake.Write(folder, s); err != nil {
		t.Fatal(err)
	}
	return folder
}

var small = fake.Sale{ID: "small", VCPUs: 4, MemoryGB: 16, PriceHour: money.FromUnits(1)}

func TestSuite(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		folder := write(t, fake.Script{Offers: []fake.Sale{small}})
		return backendtest.Harness{Proc: "/proc", Open: func(t *testing.T) backend.Backend { return open(t, folder, nil) }}
	})
}

// TestSlow has machines that boot, hide, and end slowly.
func TestSlow(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		slow := small
		slow.Boot, slow.Ending = fake.Duration(100*time.Millisecond), fake.Duration(50*time.Millisecond)
		folder := write(t, fake.Script{Seed: 7, Offers: []fake.Sale{slow}, Faults: fake.Faults{Leaks: 0.5, LeakEnds: 2, ListLag: fake.Duration(30 * time.Millisecond)}})
		return backendtest.Harness{Proc: "/proc", Open: func(t *testing.T) backend.Backend { return open(t, folder, nil) }}
	})
}

func TestSimulated(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		folder := write(t, fake.Script{Agents: "simulated", Offers: []fake.Sale{small}})
		return backendtest.Harness{Open: func(t *testing.T) backend.Backend { return open(t, folder, nil) }}
	})
}

// clock is one that tests move.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func (c *clock) pass(d time.Duration) { c.t = c.t.Add(d) }

func start() *clock { return &clock{time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)} }

func launch(t *testing.T, b *fake.Backend, tag, sale string) (backend.Found, error) {
	t.Helper()
	offers, err := b.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offers {
		if o.ID == sale {
			return b.Launch(t.Context(), backend.Request{Tag: tag, Plane: "p", Offer: o})
		}
	}
	t.Fatalf("no offer %s", sale)
	return backend.Found{}, nil
}

// TestFate follows machines through what the script has for them, and to the bill.
func TestFate(t *testing.T) {
	t.Parallel()
	c := start()
	spot := fake.Sale{ID: "spot", Terms: offer.Spot, PriceHour: money.FromUnits(2), Boot: fake.Duration(time.Minute), ReclaimAfter: fake.Duration(time.Hour), Notice: fake.Duration(2 * time.Minute)}
	off := spot
	off.ID, off.ReclaimStops = "stops", true
	half := money.FromUnits(1)
	parked := off
	parked.ID, parked.StoppedHour = "parked", &half
	dead := fake.Sale{ID: "dead", PriceHour: money.FromUnits(1), NeverBoots: true, Increment: fake.Duration(time.Hour)}
	leaky := fake.Sale{ID: "leaky", PriceHour: money.FromUnits(1), Minimum: fake.Duration(10 * time.Minute), Ending: fake.Duration(time.Minute), Starts: offer.AtRunning, Boot: fake.Duration(time.Minute)}
	folder := write(t, fake.Script{Agents: "simulated", Offers: []fake.Sale{spot, off, parked, dead, leaky}, Faults: fake.Faults{Leaks: 1, LiesRunning: fake.Duration(10 * time.Second)}})
	b := open(t, folder, c.now)
	for _, id := range []string{"spot", "stops", "parked", "dead", "leaky"} {
		if _, err := launch(t, b, "m-"+id, id); err != nil {
			t.Fatal(err)
		}
	}
	look := func(want ...string) {
		t.Helper()
		list, err := b.List(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range list {
			line := f.Tag + " " + string(f.State)
			if !f.Notice.IsZero() {
				line += " until " + f.Notice.Format("15:04")
			}
			got = append(got, line)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("at %s: %s", c.t.Format("15:04:05"), d)
		}
	}
	look("m-spot pending", "m-stops pending", "m-parked pending", "m-dead running", "m-leaky pending")
	c.pass(time.Minute)
	look("m-spot running", "m-stops running", "m-parked running", "m-dead running", "m-leaky running")
	if _, err := b.Dial(t.Context(), &machine.Machine{Handle: "i-m-dead"}); fault.KindOf(err) != fault.Unreachable {
		t.Errorf("a machine that never boots answers: %v", err)
	}
	c.pass(58 * time.Minute)
	look("m-spot running until 11:01", "m-stops running until 11:01", "m-parked running until 11:01", "m-dead running", "m-leaky running")
	c.pass(2*time.Minute + 5*time.Second)
	look("m-spot running until 11:01", "m-stops running until 11:01", "m-parked running until 11:01", "m-dead running", "m-leaky running") // lies
	if _, err := b.Dial(t.Context(), &machine.Machine{Handle: "i-m-spot"}); err == nil {
		t.Error("a reclaimed machine answers")
	}
	c.pass(5 * time.Second)
	look("m-stops stopped until 11:01", "m-parked stopped until 11:01", "m-dead running", "m-leaky running")
	c.pass(time.Hour - 10*time.Second) // 12:01
	for range 2 {                      // the first end does nothing
		for _, id := range []string{"spot", "stops", "parked", "dead", "leaky"} {
			if err := b.End(t.Context(), "m-"+id, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	look("m-leaky running")
	c.pass(time.Minute)
	look()
	bill, err := fake.Bill(folder, c.t)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, l := range bill {
		got[l.Offer] = l.Cost.Fixed(4) + " " + l.Billed.String()
	}
	want := map[string]string{"spot": "2.0333 1h1m0s", "stops": "4.0333 2h1m0s", "parked": "3.0333 2h1m0s", "dead": "3.0000 3h0m0s", "leaky": "2.0167 2h1m0s"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	full, later := small, small
	full.ID, full.Capacity = "full", 2
	later.ID, later.RefuseFirst = "later", 2
	b := open(t, write(t, fake.Script{Agents: "simulated", Offers: []fake.Sale{full, later}}), nil)
	var got []string
	for i := range 4 {
		for _, id := range []string{"full", "later"} {
			_, err := launch(t, b, fmt.Sprintf("%s-%d", id, i), id)
			got = append(got, fmt.Sprintf("%s %s", id, fault.KindOf(err)))
		}
	}
	want := []string{"full ", "later nothing_fits", "full ", "later nothing_fits", "full nothing_fits", "later ", "full nothing_fits", "later "}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestFaults has calls that are lost: whatever comes back, a repeat tells the
// truth, and the same seed fails in the same way.
func TestFaults(t *testing.T) {
	t.Parallel()
	run := func() (outcomes []string) {
		folder := write(t, fake.Script{Seed: 42, Agents: "simulated", Offers: []fake.Sale{small}, Faults: fake.Faults{LostCalls: 0.2, FailedCalls: 0.2}})
		b := open(t, folder, start().now)
		for i := range 30 {
			tag := fmt.Sprintf("m-%d", i)
			for {
				_, err := launch(t, b, tag, "small")
				outcomes = append(outcomes, string(fault.KindOf(err)))
				if err == nil {
					break
				}
			}
		}
		all, err := b.Tags()
		if err != nil || len(all) != 30 {
			t.Errorf("%d machines of 30: %v", len(all), err)
		}
		return outcomes
	}
	first, second := run(), run()
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("two runs of one seed differ: %s", d)
	}
	if n := strings.Count(strings.Join(first, " "), "unreachable"); n < 5 || n > 60 {
		t.Errorf("%d of %d calls failed", n, len(first))
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	c := start()
	b := open(t, write(t, fake.Script{Agents: "simulated", Offers: []fake.Sale{small}, Faults: fake.Faults{RateLimit: 3}}), c.now)
	failed := 0
	for range 5 {
		if _, err := b.List(t.Context(), "p"); err != nil {
			failed++
		}
	}
	c.pass(time.Second)
	if _, err := b.List(t.Context(), "p"); err != nil || failed != 2 {
		t.Errorf("%d of 5 calls refused, and after a second: %v", failed, err)
	}
}

// TestCutJournal has a process that died within a line.
func TestCutJournal(t *testing.T) {
	t.Parallel()
	folder := write(t, fake.Script{Agents: "simulated", Offers: []fake.Sale{small}})
	b := open(t, folder, nil)
	if _, err := launch(t, b, "m-1", "small"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(folder, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"at":"2026-12-01T10:0`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := launch(t, b, "m-2", "small"); err != nil {
		t.Fatal(err)
	}
	if all, err := open(t, folder, nil).Tags(); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestBadScript(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{`, `{"offers":[{"id":"x"}]}`, `{"offers":[{"id":"x","price_hour":"1","gpu":"H1000"}]}`, `{"agents":"robots"}`, `{"seeds":1}`,
		`{"offers":[{"id":"x","price_hour":"1","boot":"soon"}]}`, `{"offers":[{"id":"x","price_hour":"1"},{"id":"x","price_hour":"1"}]}`} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "script.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := fake.New(fake.Config{Folder: folder}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// BenchmarkFleet launches, lists and dials 2,000 simulated machines.
func BenchmarkFleet(b *testing.B) {
	for b.Loop() {
		be := open(b, write(b, fake.Script{Agents: "simulated", Offers: []fake.Sale{small}}), nil)
		ctx := context.Background()
		offers, _ := be.Offers(ctx)
		for i := range 2000 {
			f, err := be.Launch(ctx, backend.Request{Tag: fmt.Sprintf("m-%d", i), Plane: "p", Offer: offers[0]})
			if err != nil {
				b.Fatal(err)
			}
			conn, err := be.Dial(ctx, &machine.Machine{Handle: f.Handle})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := backendtest.Hello(ctx, conn); err != nil {
				b.Fatal(err)
			}
		}
		began := time.Now()
		if l, err := be.List(ctx, "p"); err != nil || len(l) != 2000 {
			b.Fatal(len(l), err)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds()), "us/list")
	}
}
