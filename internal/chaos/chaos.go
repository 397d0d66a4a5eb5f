// Package chaos runs the real program against a provider that fails, kills its
// control planes and agents at random, and then counts: every job must have
// ended once and in its right state, every log must be whole, no machine and no
// process may be left, and the ledger must balance to the nano-unit.
//
// What is done is drawn from a seed; when it happens is up to the machine, so a
// seed gives the same jobs, faults and kinds of kills, and not the same run.
package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/tenant"
)

// Options say what is done.
type Options struct {
	Seed    uint64
	Kills   int           // at least so many
	Jobs    int           // at least so many rows
	Pace    time.Duration // between two kills, on average
	DeadMan time.Duration // of agents
	Margin  time.Duration // beyond it
	Short   bool          // a few kinds of jobs, and no faults that take long to be noticed
	Binary  string        // destajo
	Dir     string        // empty, for everything that is written
	Say     io.Writer     // progress
}

// Report is what came of it.
type Report struct {
	Seed                                  uint64
	Plane, Agents, Pauses                 int // kills and stops of processes
	Jobs, Done, Failed, Stopped, Attempts int
	Machines, Gone                        int
	Logs                                  int // jobs whose logs are whole
	Ours, Bill                            money.Amount
	Took                                  time.Duration
	Wrong                                 []string
	balanced                              bool
}

// String is the line of counts.
func (r *Report) String() string {
	complete, ledger := "complete", "balanced"
	if r.Logs < r.Jobs {
		complete = "INCOMPLETE"
	}
	if !r.balanced {
		ledger = "WRONG"
	}
	return fmt.Sprintf("chaos seed=%d kills=%d (plane %d, agents %d) jobs=%d done=%d failed=%d stopped=%d attempts=%d machines=%d gone=%d logs=%d %s ledger=%s",
		r.Seed, r.Plane+r.Agents, r.Plane, r.Agents, r.Jobs, r.Done, r.Failed, r.Stopped, r.Attempts, r.Machines, r.Gone, r.Logs, complete, ledger)
}

// rig is a state under attack.
type rig struct {
	Options
	home, provider, traces string
	store                  *store.Store
	plane                  string // its id
	began                  time.Time

	lock   sync.Mutex
	rand   *rand.Rand
	report Report
	procs  map[int]*process // control planes by number
}

// Run does it. The error is of the harness; what is wrong with the program is in
// the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &rig{Options: o, home: filepath.Join(o.Dir, "home"), provider: filepath.Join(o.Dir, "provider"), traces: filepath.Join(o.Dir, "traces"),
		rand: rand.New(rand.NewPCG(o.Seed, 0x5eed)), procs: map[int]*process{}, began: time.Now()}
	r.report.Seed = o.Seed
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = r.store.Close() }()
	defer r.clear()
	jobs := r.draw()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var slots, work sync.WaitGroup
	for n := range 3 {
		slots.Go(func() { r.serve(ctx, n) })
	}
	work.Go(func() { r.attack(ctx) })
	for _, j := range jobs {
		work.Go(func() { r.submit(ctx, j) })
	}
	work.Wait()
	r.say("the attack is over after %d kills", r.report.Plane+r.report.Agents)
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	cancel()
	r.endPlanes()
	slots.Wait()
	if err := r.check(context.WithoutCancel(ctx), jobs); err != nil {
		return nil, err
	}
	r.report.Took = time.Since(r.began)
	return &r.report, nil
}

func (r *rig) say(format string, args ...any) {
	fmt.Fprintf(r.Say, "%6.1fs %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *rig) wrong(format string, args ...any) {
	r.say("WRONG: "+format, args...)
	r.lock.Lock()
	defer r.lock.Unlock()
	r.report.Wrong = append(r.report.Wrong, fmt.Sprintf(format, args...))
}

// chance is a number from 0 below 1.
func (r *rig) chance() float64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.rand.Float64()
}

// between is a time from a to b.
func (r *rig) between(a, b time.Duration) time.Duration {
	return a + time.Duration(r.chance()*float64(b-a))
}

// prepare makes the state, with the fake provider as its only source.
func (r *rig) prepare(ctx context.Context) error {
	for _, dir := range []string{r.home, r.traces} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := fake.Write(r.provider, r.script()); err != nil {
		return err
	}
	s, err := store.Open(ctx, filepath.Join(r.home, "state.db"))
	if err != nil {
		return err
	}
	r.store = s
	plane, err := s.Plane(ctx)
	if err != nil {
		return err
	}
	r.plane = plane.ID
	config, err := json.Marshal(map[string]string{"folder": r.provider})
	if err != nil {
		return err
	}
	who := tenant.Local()
	return s.Apply(ctx, 0, &record.Changes{Sources: []*record.Source{
		{ID: "fake", Project: who.Project, Backend: fake.Name, Config: string(config), Made: time.Now()},
		{ID: "local", Project: who.Project, Backend: "local", Config: `{"off": true}`, Made: time.Now()},
	}})
}

// script is a provider of five machines that does all that providers do.
func (r *rig) script() fake.Script {
	price := func(text string) money.Amount { a, _ := money.Parse(text); return a } // constants
	d := func(t time.Duration) fake.Duration { return fake.Duration(t) }
	sale := func(id, region string, terms offer.Terms, hourly string, capacity int) fake.Sale {
		return fake.Sale{ID: id, Region: region, Terms: terms, PriceHour: price(hourly), VCPUs: 4, MemoryGB: 16, Capacity: capacity,
			Boot: d(200 * time.Millisecond), Ending: d(300 * time.Millisecond)}
	}
	spot := sale("fake/a/spot", "a", offer.Spot, "0.36", 2)
	spot.ReclaimsPerHour, spot.ReclaimAfter, spot.Notice, spot.NoCapacity = 0.05, d(r.between(5*time.Second, 12*time.Second)), d(3*time.Second), 0.2
	b := sale("fake/b/plain", "b", offer.OnDemand, "1.08", 2)
	b.NoCapacity, b.RefuseFirst, b.Minimum = 0.15, 1, d(10*time.Second)
	c := sale("fake/c/gpu", "c", offer.OnDemand, "1.80", 1)
	c.GPU, c.GPUs = "RTX4090", 1
	c.Boot, c.Increment = d(1500*time.Millisecond), d(time.Minute)
	offers := []fake.Sale{spot, b, c}
	if !r.Short {
		offers[1].DeathsPerHour = 60
		never := sale("fake/d/never", "d", offer.OnDemand, "0.72", 1)
		never.NeverBoots = true
		offers = append(offers, never)
	}
	faults := fake.Faults{LostCalls: 0.08, FailedCalls: 0.08, Leaks: 0.2, LeakEnds: 2, LiesRunning: d(time.Second)}
	if !r.Short {
		faults.ListLag, faults.Hides, faults.HideFor = d(400*time.Millisecond), 0.2, d(time.Second)
	}
	return fake.Script{Seed: int64(r.Seed), Agents: "processes", Offers: offers, Faults: faults}
}
