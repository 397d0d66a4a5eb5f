// Package fake is a provider that follows a script: it sells machines, takes
// them away, loses answers, leaks, lies and bills, all as a seed has it. It
// lives in a folder, not in a process: control planes that are killed find it
// as they left it, and what it charges is compared with what they wrote down.
// Its machines are agents on this host, or imaginary ones for thousands at once.
package fake

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/node"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/offer"
)

// Name of the backend, and of the provider where the script names none.
const Name = "fake"

// Config is what the backend needs to know.
type Config struct {
	Folder string           // with script.json
	Exe    string           // destajo, for agents that are processes
	Now    func() time.Time // nil: time.Now
}

// Backend is the provider, as one process sees it.
type Backend struct {
	c      Config
	script *Script

	lock    sync.Mutex
	journal *journal
	timer   *time.Timer // for what happens by itself
	closed  bool
	sims    *simulations
}

var _ backend.Backend = (*Backend)(nil)

// New opens the provider of a folder.
func New(c Config) (*Backend, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	folder, err := filepath.Abs(c.Folder)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the fake provider's folder")
	}
	c.Folder = folder
	s, err := read(c.Folder)
	if err != nil {
		return nil, err
	}
	j, err := openJournal(c.Folder)
	if err != nil {
		return nil, err
	}
	b := &Backend{c: c, script: s, journal: j}
	if s.Agents == simulated {
		b.sims = newSimulations()
	}
	return b, nil
}

// Name is fake.
func (b *Backend) Name() string { return Name }

// Capabilities follow the script.
func (b *Backend) Capabilities() backend.Capabilities {
	f := &b.script.Faults
	c := backend.Capabilities{Multiple: true, StopsBilling: true, ListLag: time.Duration(f.ListLag), LaunchTimeout: 10 * time.Second}
	if f.Hides > 0 {
		c.ListLag = max(c.ListLag, f.hideFor())
	}
	for _, o := range b.script.Offers {
		c.LaunchTimeout = max(c.LaunchTimeout, 3*time.Duration(o.Boot))
		if o.Terms == offer.Spot && (c.SpotNotice == 0 || time.Duration(o.Notice) < c.SpotNotice) {
			c.SpotNotice = time.Duration(o.Notice)
		}
		if o.ReclaimStops {
			c.StopsBilling = false
		}
	}
	return c
}

// Offers are those of the script.
func (b *Backend) Offers(context.Context) ([]backend.Offer, error) {
	day := offer.Date(b.c.Now().UTC().Format("2006-01-02"))
	out := make([]backend.Offer, len(b.script.Offers))
	for i := range b.script.Offers {
		out[i] = b.script.Offers[i].offer(day)
	}
	return out, nil
}

// Launch makes a machine, and draws its fate.
func (b *Backend) Launch(ctx context.Context, r backend.Request) (backend.Found, error) {
	var found backend.Found
	if err := node.CheckTag(r.Tag); err != nil {
		return found, err
	}
	err := b.call(ctx, "launch", r.Tag, func(now time.Time) error {
		j, s := b.journal, b.script
		if m := j.machines[r.Tag]; m != nil {
			if !m.gone.IsZero() || !m.ended.IsZero() {
				return fault.New(fault.Invalid, "the machine %s was ended; its tag starts no other", r.Tag)
			}
			found = b.found(m, now)
			return nil
		}
		sale := s.sale(r.Offer.Config)
		if sale == nil {
			return fault.New(fault.Invalid, "there is no offer %q", r.Offer.Config).Hint("the script of the fake provider has no such offer any more")
		}
		n := fmt.Sprint(j.tried[sale.ID])
		if j.tried[sale.ID] < sale.RefuseFirst || s.draw("capacity", sale.ID, n) < sale.NoCapacity || sale.Capacity > 0 && j.live(sale.ID) >= sale.Capacity {
			if err := j.add(event{At: now, What: "refused", Op: sale.ID}); err != nil {
				return err
			}
			return fault.New(fault.NothingFits, "no capacity for %s in %s", sale.InstanceType, cmp.Or(sale.Region, "any region"))
		}
		m := &instance{Tag: r.Tag, Plane: r.Plane, Sale: sale.ID, Price: sale.PriceHour, Made: now, Boots: now.Add(time.Duration(sale.Boot))}
		s.fate(m, sale)
		if err := j.add(event{At: now, What: "made", Tag: r.Tag, Made: m}); err != nil {
			return err
		}
		if err := b.settle(now); err != nil {
			return err
		}
		found = b.found(m, now)
		return nil
	})
	if err != nil {
		return backend.Found{}, err
	}
	return found, nil
}

// List gives what the provider says there is, which is not always the truth.
func (b *Backend) List(ctx context.Context, plane string) ([]backend.Found, error) {
	var out []backend.Found
	err := b.call(ctx, "list", plane, func(now time.Time) error {
		f := &b.script.Faults
		for _, m := range b.journal.living {
			if m.Plane == plane {
				if err := b.look(m, now); err != nil {
					return err
				}
			}
		}
		for _, m := range b.journal.living {
			switch {
			case m.Plane != plane:
			case now.Sub(m.Made) < time.Duration(f.ListLag), !m.HideAt.IsZero() && !now.Before(m.HideAt) && now.Before(m.HideTo):
			case !m.gone.IsZero() && (!m.ended.IsZero() || now.Sub(m.gone) >= time.Duration(f.LiesRunning)):
			default:
				out = append(out, b.found(m, now))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// End asks for the end of a machine. Some ends are taken and forgotten.
func (b *Backend) End(ctx context.Context, tag, _ string) error {
	return b.call(ctx, "end", tag, func(now time.Time) error {
		m := b.journal.machines[tag]
		if m == nil || !m.gone.IsZero() || !m.ended.IsZero() {
			return nil
		}
		if err := b.journal.add(event{At: now, What: "end", Tag: tag}); err != nil {
			return err
		}
		return b.settle(now)
	})
}

// Dial reaches the agent of a machine by its handle.
func (b *Backend) Dial(ctx context.Context, m *machine.Machine) (net.Conn, error) {
	i, err := b.agent(m.Handle)
	switch {
	case err != nil:
		return nil, err
	case b.sims != nil:
		return b.sims.dial(ctx, i.sim)
	}
	return b.keeper(i).Dial(ctx, i.Tag)
}

// Close stops what happens by itself in this process. Machines go on.
func (b *Backend) Close() error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.sims != nil {
		b.sims.close(b.journal)
	}
	return b.journal.file.Close()
}

// agent finds the machine of a handle, when its agent may answer.
func (b *Backend) agent(handle string) (*instance, error) {
	unlock, err := b.enter()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.settle(b.c.Now()); err != nil {
		return nil, err
	}
	m := b.journal.machines[strings.TrimPrefix(handle, "i-")]
	if m == nil || m.handle() != handle {
		return nil, fault.New(fault.NotFound, "there is no machine %q", handle)
	}
	if !m.started || m.cut {
		return nil, fault.New(fault.Unreachable, "nothing answers at %s", handle)
	}
	return m, nil
}

// call carries a call out, or loses it, or its answer.
func (b *Backend) call(ctx context.Context, op, about string, do func(now time.Time) error) error {
	unlock, err := b.enter()
	if err != nil {
		return err
	}
	defer unlock()
	if err := ctx.Err(); err != nil {
		return fault.Wrap(fault.Unreachable, err, "the provider was not asked")
	}
	now, j, f := b.c.Now(), b.journal, &b.script.Faults
	if f.RateLimit > 0 && len(j.calls) >= f.RateLimit && now.Sub(j.calls[len(j.calls)-f.RateLimit]) < time.Second {
		return fault.New(fault.Unreachable, "too many requests: the provider takes %d in a second", f.RateLimit)
	}
	faulty := f.LostCalls > 0 || f.FailedCalls > 0
	if faulty || f.RateLimit > 0 {
		if err := j.add(event{At: now, What: "call", Op: op, Tag: about}); err != nil {
			return err
		}
	}
	if faulty && b.script.draw("failed", op, about, j.callNumber()) < f.FailedCalls {
		return fault.New(fault.Unreachable, "the provider does not answer")
	}
	if err := b.settle(now); err != nil {
		return err
	}
	if err := do(now); err != nil {
		return err
	}
	if faulty && b.script.draw("lost", op, about, j.callNumber()) < f.LostCalls {
		return fault.New(fault.Unreachable, "the provider's answer was lost")
	}
	return nil
}

// enter takes the provider, for this process and among all.
func (b *Backend) enter() (func(), error) {
	b.lock.Lock()
	if b.closed {
		b.lock.Unlock()
		return nil, fault.New(fault.Conflict, "the fake provider is closed")
	}
	unlock, err := b.journal.lock()
	if err != nil {
		b.lock.Unlock()
		return nil, err
	}
	return func() { unlock(); b.lock.Unlock() }, nil
}

// fate draws what will happen to a machine.
func (s *Script) fate(m *instance, sale *Sale) {
	if d, ok := s.wait(sale.ReclaimsPerHour, "reclaim", m.Tag); ok {
		m.Reclaim = m.Boots.Add(d)
	}
	if after := m.Boots.Add(time.Duration(sale.ReclaimAfter)); sale.ReclaimAfter > 0 && (m.Reclaim.IsZero() || after.Before(m.Reclaim)) {
		m.Reclaim = after
	}
	if !m.Reclaim.IsZero() && sale.Notice > 0 {
		m.Notice = m.Reclaim.Add(-time.Duration(sale.Notice))
	}
	if d, ok := s.wait(sale.DeathsPerHour, "death", m.Tag); ok {
		m.Dies = m.Boots.Add(d)
	}
	if sale.NeverBoots {
		m.Dies = m.Boots
	}
	f := &s.Faults
	if s.draw("leak", m.Tag) < f.Leaks {
		m.Swallow = max(1, f.LeakEnds)
	}
	if s.draw("hide", m.Tag) < f.Hides {
		m.HideAt = m.Boots.Add(time.Duration(s.draw("hide at", m.Tag) * float64(time.Minute)))
		m.HideTo = m.HideAt.Add(f.hideFor())
	}
}

func (f *Faults) hideFor() time.Duration {
	if f.HideFor == 0 {
		return 2 * time.Second
	}
	return time.Duration(f.HideFor)
}

// settle lets happen what is due: boots, reclaims, deaths, ends. What is done
// to an agent is done first and written down after it, so that it is done again
// when this process dies in between.
func (b *Backend) settle(now time.Time) error {
	var next time.Time
	due := func(t time.Time) bool {
		switch {
		case t.IsZero():
			return false
		case !t.After(now):
			return true
		case next.IsZero() || t.Before(next):
			next = t
		}
		return false
	}
	for _, m := range b.journal.living {
		if !m.gone.IsZero() {
			if !m.cut {
				if err := b.cut(m); err != nil {
					return err
				}
			}
			continue
		}
		sale := b.script.sale(m.Sale)
		if sale == nil {
			sale = &Sale{} // taken out of the script meanwhile: it ends at once
		}
		dead := due(m.Dies) || !m.off.IsZero() || !m.ended.IsZero()
		reclaimed := due(m.Reclaim)
		switch {
		case dead || reclaimed:
			if !m.cut {
				if err := b.cut(m); err != nil {
					return err
				}
			}
		case !m.started && due(m.Boots):
			if err := b.boot(m, sale); err != nil {
				return err
			}
		}
		var e event
		switch {
		case !m.ended.IsZero() && due(m.ended.Add(time.Duration(sale.Ending))):
			e = event{At: m.ended.Add(time.Duration(sale.Ending)), What: "gone", Tag: m.Tag, Why: "ended"}
		case !m.ended.IsZero() || !reclaimed || !m.off.IsZero():
			continue
		case sale.ReclaimStops:
			e = event{At: m.Reclaim, What: "off", Tag: m.Tag, Why: "reclaimed"}
		default:
			e = event{At: m.Reclaim, What: "gone", Tag: m.Tag, Why: "reclaimed"}
		}
		if err := b.journal.add(e); err != nil {
			return err
		}
	}
	b.journal.forget(now.Add(-time.Duration(b.script.Faults.LiesRunning)))
	if b.timer != nil {
		b.timer.Stop()
	}
	if !next.IsZero() {
		b.timer = time.AfterFunc(next.Sub(now), func() {
			if unlock, err := b.enter(); err == nil {
				_ = b.settle(b.c.Now()) // the next call meets what fails here
				unlock()
			}
		})
	}
	return nil
}

// boot starts the agent of a machine.
func (b *Backend) boot(m *instance, sale *Sale) error {
	if b.sims != nil {
		m.sim, m.started = b.sims.start(m, sale, b.script), true
		return nil
	}
	if err := writeGPUs(b.tools(m), m.Tag, sale); err != nil {
		return err
	}
	_, err := b.keeper(m).Start(m.Tag, m.Plane)
	switch fault.KindOf(err) {
	case "":
		m.started = true
	case fault.Invalid: // it was ended by another process, which wrote nothing
		m.started, m.cut = true, true
	default:
		return err
	}
	return nil
}

// look finds out whether the agent of a machine ended by itself, which powers
// the machine off.
func (b *Backend) look(m *instance, now time.Time) error {
	if b.sims != nil || !m.started || m.cut || !m.off.IsZero() || !m.gone.IsZero() {
		return nil
	}
	there, err := b.keeper(m).List(m.Plane)
	if err != nil || len(there) > 0 {
		return err
	}
	return b.journal.add(event{At: now, What: "off", Tag: m.Tag, Why: "its agent powered it off"})
}

// cut ends the agent of a machine without a word to it.
func (b *Backend) cut(m *instance) error {
	if b.sims != nil {
		if m.sim != nil {
			b.sims.cut(m.sim)
		}
		m.cut = true
		return nil
	}
	if err := b.keeper(m).Cut(m.Tag); err != nil {
		return err
	}
	m.cut = true
	if !m.gone.IsZero() || !m.ended.IsZero() {
		_ = os.RemoveAll(b.folder(m)) // what is left of it is found by the next one
	}
	return nil
}

func (b *Backend) found(m *instance, now time.Time) backend.Found {
	f := backend.Found{Tag: m.Tag, Handle: m.handle(), State: backend.Running, Words: "ACTIVE"}
	switch lie := time.Duration(b.script.Faults.LiesRunning); {
	case !m.ended.IsZero():
		f.Words = "TERMINATING"
	case !m.off.IsZero() && now.Sub(m.off) >= lie:
		f.State, f.Words = backend.Stopped, "STOPPED"
	case now.Before(m.Boots):
		f.State, f.Words = backend.Pending, "PROVISIONING"
	}
	if !m.Notice.IsZero() && !now.Before(m.Notice) {
		f.Notice = m.Reclaim
	}
	return f
}

func (m *instance) handle() string { return "i-" + m.Tag }

func (b *Backend) folder(m *instance) string { return filepath.Join(b.c.Folder, "agents", m.Tag) }

func (b *Backend) tools(m *instance) string { return filepath.Join(b.folder(m), "bin") }

// keeper keeps the agent of one machine: each has a root of its own, as it
// would have a host of its own.
func (b *Backend) keeper(m *instance) node.Keeper {
	k := node.Keeper{Root: b.folder(m), Exe: b.c.Exe}
	if _, err := os.Stat(b.tools(m)); err == nil {
		k.Env = []string{"PATH=" + b.tools(m) + string(os.PathListSeparator) + os.Getenv("PATH")}
	}
	return k
}

// Tags lists the machines that the provider has and bills, sorted, whatever it
// says in a list.
func (b *Backend) Tags() ([]string, error) {
	unlock, err := b.enter()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.settle(b.c.Now()); err != nil {
		return nil, err
	}
	var out []string
	for _, m := range b.journal.living {
		if m.gone.IsZero() {
			out = append(out, m.Tag)
		}
	}
	slices.Sort(out)
	return out, nil
}
