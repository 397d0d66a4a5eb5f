// Package backendtest holds what every backend must do, as tests, and a simple
// agent for them. A backend's own test file is a TestMain and a Harness.
package backendtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/offer"
)

// Harness is a backend's world for one test. What is nil cannot be done there,
// and its tests are left out.
type Harness struct {
	// Open opens the backend over the same world, as a control plane does that
	// was killed and starts again.
	Open func(*testing.T) backend.Backend
	// Proc is the folder of processes of the machines: /proc, or empty when
	// they are not processes of this host.
	Proc string
	// Cut cuts the machines off the control plane, or joins them again.
	Cut func(t *testing.T, off bool)
	// Patience is how long a state may take to show; 0: 5 s.
	Patience time.Duration
}

var counter atomic.Int64

// names gives a plane and a maker of tags that no other test uses.
func names() (plane string, tag func() string) {
	plane = fmt.Sprintf("p%d%d", os.Getpid(), counter.Add(1))
	return plane, func() string { return plane + "-m" + strconv.FormatInt(counter.Add(1), 10) }
}

// Suite holds a backend to its contract. open makes a fresh world.
func Suite(t *testing.T, open func(*testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"offers", offers}, {"launch twice", launchTwice}, {"launch at once", launchAtOnce}, {"only its plane", onlyPlane},
		{"restart", restart}, {"agent killed", agentKilled}, {"everything killed", allKilled}, {"end", end}, {"end with tasks", endWithTasks},
		{"end of another version", endStubborn}, {"ended tag", endedTag}, {"lost calls", lostCalls}, {"cut off", cutOff}, {"bad tag", badTag},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			if h.Patience == 0 {
				h.Patience = 5 * time.Second
			}
			w := &world{Harness: h, T: t}
			w.plane, w.tag = names()
			w.b = w.reopen()
			t.Cleanup(w.clean)
			test.run(t, w)
		})
	}
}

// world is a harness in use.
type world struct {
	Harness
	*testing.T
	b     backend.Backend
	plane string
	tag   func() string
}

func offers(t *testing.T, w *world) {
	all, err := w.b.Offers(w.ctx())
	if err != nil || len(all) == 0 {
		t.Fatalf("%d offers: %v", len(all), err)
	}
	ids := map[string]bool{}
	for _, o := range all {
		switch {
		case o.Offer == nil || o.ID == "" || ids[o.ID]:
			t.Errorf("an offer without an id of its own: %+v", o)
		case o.Prices.Compute == nil || o.Prices.Compute.Source == "":
			t.Errorf("%s has no price with a source", o.ID)
		case w.b.Capabilities().Owned && (o.Class != offer.Own || o.Terms != offer.Owned):
			t.Errorf("%s is of class %s on terms %s, of a backend of own machines", o.ID, o.Class, o.Terms)
		}
		ids[o.ID] = true
	}
}

func launchTwice(t *testing.T, w *world) {
	tag := w.tag()
	first, second := w.launch(tag), w.launch(tag)
	if first.Tag != tag || first.Handle == "" || second.Handle != first.Handle {
		t.Errorf("launched %+v, then %+v", first, second)
	}
	w.hello(w.b, first)
	w.count(1)
}

func launchAtOnce(t *testing.T, w *world) {
	tag, o := w.tag(), w.offer()
	var all sync.WaitGroup
	for range 4 {
		b := w.reopen()
		all.Go(func() {
			if _, err := b.Launch(w.ctx(), backend.Request{Tag: tag, Plane: w.plane, Offer: o}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	w.hello(w.b, w.find(tag))
	w.count(1)
	if n := len(w.agents(tag)); w.Proc != "" && n != 1 {
		t.Errorf("%d agents run for one tag", n)
	}
}

func onlyPlane(t *testing.T, w *world) {
	f := w.launch(w.tag())
	w.hello(w.b, f)
	other, _ := names()
	if got, err := w.b.List(w.ctx(), other); err != nil || len(got) > 0 {
		t.Errorf("another plane sees %v, %v", got, err)
	}
}

// restart is a control plane that was killed after it launched.
func restart(_ *testing.T, w *world) {
	f := w.launch(w.tag())
	w.hello(w.b, f)
	_ = w.b.Close()
	w.b = w.reopen()
	w.hello(w.b, w.find(f.Tag))
}

func agentKilled(t *testing.T, w *world) {
	if w.Proc == "" {
		t.Skip("its machines are no processes of this host")
	}
	f := w.launch(w.tag())
	w.hello(w.b, f)
	for range 3 {
		before := w.agents(f.Tag)
		for _, pid := range before {
			kill(pid)
		}
		w.hello(w.b, f)
	}
	w.count(1)
}

func allKilled(t *testing.T, w *world) {
	if w.Proc == "" || !w.b.Capabilities().Owned {
		t.Skip("a machine that dies is gone there")
	}
	f := w.launch(w.tag())
	w.hello(w.b, f)
	w.killAll(f.Tag)
	w.count(1)
	w.hello(w.b, f)
}

func end(t *testing.T, w *world) {
	f := w.launch(w.tag())
	w.hello(w.b, f)
	w.end(f)
	for range 2 {
		if err := w.b.End(w.ctx(), f.Tag, f.Handle); err != nil {
			t.Errorf("the end of what has ended: %v", err)
		}
	}
	if err := w.b.End(w.ctx(), w.tag(), ""); err != nil {
		t.Errorf("the end of what never was: %v", err)
	}
}

func endWithTasks(t *testing.T, w *world) {
	if w.Proc == "" {
		t.Skip("its machines are no processes of this host")
	}
	f := w.launch(w.tag())
	w.hello(w.b, f)
	nap := strconv.Itoa(100000 + int(counter.Add(1)) + os.Getpid()%1000*100)
	w.sync(f, wire.Sync{Plane: w.plane, Token: 1, Start: []wire.Task{{ID: "1-1.0", Run: "trap '' TERM; setsid sleep " + nap + " & sleep " + nap}}})
	w.until("the task runs", func() bool { return len(w.processes("sleep\x00"+nap)) == 2 })
	w.end(f)
	if left := w.processes("sleep\x00" + nap); len(left) > 0 {
		t.Errorf("processes %v outlive their machine", left)
	}
}

// endStubborn is an agent that does not understand us.
func endStubborn(t *testing.T, w *world) {
	if w.Proc == "" {
		t.Skip("its machines are no processes of this host")
	}
	f := w.launch(w.tag())
	w.hello(w.b, f)
	for _, pid := range w.agents(f.Tag) {
		home, err := os.Readlink(filepath.Join(w.Proc, strconv.Itoa(pid), "cwd"))
		if err == nil {
			// Seen through the process, for its file system may be another.
			err = os.WriteFile(filepath.Join(w.Proc, strconv.Itoa(pid), "root", home, "stubborn"), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	conn, err := w.b.Dial(w.ctx(), &machine.Machine{Handle: f.Handle})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := Hello(w.ctx(), conn); fault.KindOf(err) != fault.Conflict {
		t.Errorf("an agent of another version: %v", err)
	}
	w.end(f)
}

func endedTag(t *testing.T, w *world) {
	f := w.launch(w.tag())
	w.hello(w.b, f)
	w.end(f)
	if _, err := w.b.Launch(w.ctx(), backend.Request{Tag: f.Tag, Plane: w.plane, Offer: w.offer()}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a tag that ended was launched again: %v", err)
	}
	w.count(0)
	w.hello(w.b, w.launch(w.tag()))
}

// lostCalls are calls of which the answer never comes.
func lostCalls(t *testing.T, w *world) {
	tag, o := w.tag(), w.offer()
	for i := range 3 {
		ctx, cancel := context.WithTimeout(w.ctx(), time.Duration(i*i)*time.Millisecond)
		_, _ = w.b.Launch(ctx, backend.Request{Tag: tag, Plane: w.plane, Offer: o})
		cancel()
	}
	f := w.launch(tag)
	w.hello(w.b, f)
	w.count(1)
	ctx, cancel := context.WithTimeout(w.ctx(), time.Millisecond)
	_ = w.b.End(ctx, f.Tag, f.Handle)
	cancel()
	w.end(f)
	if n := len(w.agents(tag)); w.Proc != "" && n > 0 {
		t.Errorf("%d agents outlive their machine", n)
	}
}

func cutOff(t *testing.T, w *world) {
	if w.Cut == nil {
		t.Skip("its machines cannot be cut off")
	}
	f := w.launch(w.tag())
	w.hello(w.b, f)
	w.Cut(t, true)
	ctx, cancel := context.WithTimeout(w.ctx(), 20*time.Second)
	defer cancel()
	if got, err := w.b.List(ctx, w.plane); err == nil {
		t.Errorf("a list of machines that nobody can reach: %v", got)
	}
	if err := w.b.End(ctx, f.Tag, f.Handle); err == nil {
		t.Error("the end of a machine that nobody can reach")
	}
	if conn, err := w.b.Dial(ctx, &machine.Machine{Handle: f.Handle}); err == nil {
		if _, err := Hello(ctx, conn); err == nil {
			t.Error("an answer over a cut line")
		}
		_ = conn.Close()
	}
	w.Cut(t, false)
	w.hello(w.b, f)
	w.count(1)
	w.end(f)
}

func badTag(t *testing.T, w *world) {
	for _, tag := range []string{"", "../x", "a b", ".hidden", "a/b", strings.Repeat("x", 200)} {
		if _, err := w.b.Launch(w.ctx(), backend.Request{Tag: tag, Plane: w.plane, Offer: w.offer()}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("launched with the tag %q: %v", tag, err)
		}
	}
	w.count(0)
}

func (w *world) ctx() context.Context { return w.Context() }

func (w *world) reopen() backend.Backend {
	b := w.Open(w.T)
	w.Cleanup(func() { _ = b.Close() })
	return b
}

func (w *world) offer() backend.Offer {
	w.Helper()
	all, err := w.b.Offers(w.ctx())
	if err != nil || len(all) == 0 {
		w.Fatalf("%d offers: %v", len(all), err)
	}
	return all[0]
}

func (w *world) launch(tag string) backend.Found {
	w.Helper()
	f, err := w.b.Launch(w.ctx(), backend.Request{Tag: tag, Plane: w.plane, Offer: w.offer(), DeadMan: time.Minute})
	if err != nil {
		w.Fatalf("launch: %v", err)
	}
	return f
}

func (w *world) list() []backend.Found {
	w.Helper()
	got, err := w.b.List(w.ctx(), w.plane)
	if err != nil {
		w.Fatalf("list: %v", err)
	}
	return got
}

func (w *world) find(tag string) (found backend.Found) {
	w.Helper()
	w.until("the list has "+tag, func() bool {
		for _, f := range w.list() {
			if f.Tag == tag {
				found = f
				return true
			}
		}
		return false
	})
	return found
}

func (w *world) count(n int) {
	w.Helper()
	w.until(fmt.Sprintf("%d machines", n), func() bool { return len(w.list()) == n })
}

// hello asks the agent until it answers.
func (w *world) hello(b backend.Backend, f backend.Found) {
	w.Helper()
	var last error
	w.until("the agent answers", func() bool {
		ctx, cancel := context.WithTimeout(w.ctx(), w.Patience)
		defer cancel()
		conn, err := b.Dial(ctx, &machine.Machine{Handle: f.Handle})
		if last = err; err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		h, err := Hello(ctx, conn)
		if last = err; err != nil {
			return false
		}
		if h.Machine != f.Tag {
			w.Fatalf("the agent of %s says it is of %s", f.Tag, h.Machine)
		}
		return true
	}, &last)
}

func (w *world) sync(f backend.Found, s wire.Sync) {
	w.Helper()
	conn, err := w.b.Dial(w.ctx(), &machine.Machine{Handle: f.Handle})
	if err != nil {
		w.Fatal(err)
	}
	agent := wire.NewClient(func(context.Context) (net.Conn, error) { return conn, nil })
	defer agent.Close()
	if _, err := agent.Sync(w.ctx(), &s); err != nil {
		w.Fatal(err)
	}
}

// Hello asks the agent at the other end of a fresh stream who it is.
func Hello(ctx context.Context, conn net.Conn) (*wire.Hello, error) {
	return wire.NewClient(func(context.Context) (net.Conn, error) { return conn, nil }).Hello(ctx)
}

// end ends a machine as the control loop does: until the list lacks it.
func (w *world) end(f backend.Found) {
	w.Helper()
	var last error
	w.until("the machine is gone", func() bool {
		if last = w.b.End(w.ctx(), f.Tag, f.Handle); last != nil {
			return false
		}
		for _, l := range w.list() {
			if l.Tag == f.Tag {
				return false
			}
		}
		return true
	}, &last)
}

func (w *world) until(what string, done func() bool, last ...*error) {
	w.Helper()
	for end := time.Now().Add(w.Patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			if len(last) > 0 {
				w.Fatalf("not so after %v: %s: %v", w.Patience, what, *last[0])
			}
			w.Fatalf("not so after %v: %s", w.Patience, what)
		}
	}
}

// clean leaves no process behind, whatever the test did.
func (w *world) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b := w.Open(w.T)
	defer func() { _ = b.Close() }()
	for range 10 {
		left, err := b.List(ctx, w.plane)
		if err == nil && len(left) == 0 {
			return
		}
		for _, f := range left {
			_ = b.End(ctx, f.Tag, f.Handle)
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.Errorf("machines of %s are left", w.plane)
}

// agents are the processes that are an agent of the tag.
func (w *world) agents(tag string) []int {
	return w.processes("--tag\x00"+tag+"\x00", "agent\x00run\x00", "!/bin/sh\x00", "!systemd-run")
}

// Agent is the process that is the agent of a tag; 0: there is none.
func Agent(proc, tag string) int {
	w := &world{Harness: Harness{Proc: proc}}
	for _, pid := range w.agents(tag) {
		return pid
	}
	return 0
}

// killAll kills supervisor and agent at once, as a power failure does.
func (w *world) killAll(tag string) {
	w.until("all are dead", func() bool {
		all := w.processes("--tag\x00"+tag+"\x00", "agent\x00run\x00")
		for _, pid := range all {
			kill(pid)
		}
		return len(all) == 0
	})
}

// processes are those whose command line has all of the words, and none of
// those that begin with "!".
func (w *world) processes(words ...string) []int {
	entries, _ := os.ReadDir(w.Proc)
	var out []int
next:
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(w.Proc, e.Name(), "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		for _, word := range words {
			if not, ok := strings.CutPrefix(word, "!"); ok == strings.Contains(string(line), not) {
				continue next
			}
		}
		out = append(out, pid)
	}
	return out
}

func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}
