// Package agent is what runs on a node: it finds what the node has, runs tasks
// and recovers them after its own death, keeps their logs, enforces their limits
// without anybody's help, and stops everything when it hears nothing from the
// control plane for too long. It answers on a unix socket in its folder.
//
//	HOME/agent.sock          where it answers
//	HOME/lock                held by the agent that runs
//	HOME/seen                the highest fencing token, and the dead-man time
//	HOME/word                its time is that of the last word from the control plane
//	HOME/forgotten           tasks that are never started again
//	HOME/blobs/SHA256        files that were sent
//	HOME/samples             what was measured last
//	HOME/tasks/ID/task.json  what to run
//	HOME/tasks/ID/state.json what became of it
//	HOME/tasks/ID/log        what it wrote: its processes hold the file, not a pipe to us
//	HOME/tasks/ID/exit       its exit code, written by the shell around it
//	HOME/tasks/ID/notice     why it is asked to stop
//	HOME/tasks/ID/work       where it runs
//	HOME/tasks/ID/box        of a task with an image: what its container finds of ours
//	HOME/tasks/ID/keep       of a task with an image: its checkpoint folder, when that is an absolute path
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// Config is what an agent is started with.
type Config struct {
	Home    string // its folder
	Tag     string // of the machine
	Plane   string // of the control plane that may command it; empty: any
	Version string // of this program
	Release string // shell command that ends the node's billing, run when the dead man fires
	Address string // by which other nodes reach this one; empty: found
	Finder  devices.Finder
	Log     *slog.Logger
}

// Agent is a running agent.
type Agent struct {
	c    Config
	host machine.Host

	mu      sync.Mutex
	version int64
	changed chan struct{} // closed at every change, and replaced
	tasks   map[string]*task
	order   []string // of arrival
	slots   slots
	census  census
	rubbish []string        // folders of forgotten tasks
	dropped time.Time       // the oldest of them
	shells  map[int]bool    // processes around the commands of tasks, which are our children
	gone    map[string]bool // forgotten tasks
	token   int64
	deadMan time.Duration
	word    time.Time // last word, with the monotonic clock
	noted   time.Time // when that was last written down
	waiting int       // long polls under way
	ending  bool
	fired   bool          // the dead man has: tasks were told to stop
	freed   bool          // and the release hook was run
	done    chan struct{} // closed when it is to exit

	limits  limits
	samples *samples
	engine  *engine
}

// Run serves until ctx ends or it is told to go. Tasks of a former life are
// taken up again.
func Run(ctx context.Context, c Config) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{"tasks", "blobs"} {
		if err := os.MkdirAll(filepath.Join(c.Home, dir), 0o700); err != nil {
			return fault.Wrap(fault.Internal, err, "the agent's folder")
		}
	}
	a := &Agent{c: c, version: time.Now().UnixMicro(), changed: make(chan struct{}), tasks: map[string]*task{}, shells: map[int]bool{}, gone: map[string]bool{},
		word: time.Now(), done: make(chan struct{})}
	alone, err := a.alone()
	if err != nil {
		return err
	}
	defer alone.Close()
	adopt()
	// It listens before it knows what the node has: the caller waits less.
	sock := filepath.Join(c.Home, "agent.sock")
	_ = os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "listening")
	}
	a.host, err = c.Finder.Host(ctx, c.Home)
	if err != nil {
		return err
	}
	a.host.Agent, a.host.Address = c.Version, c.Address
	if a.host.Address == "" {
		a.host.Address = address()
	}
	a.slots = newSlots(&a.host)
	a.limits = newLimits(&a.host, c.Home)
	a.samples = newSamples(a)
	a.engine = newEngine(a)
	if err := a.recall(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Error("serving", "err", err)
			a.finish()
		}
	}()
	go a.watch(ctx)
	if a.host.Containers != "" {
		go a.engine.leftovers()
	}
	select {
	case <-ctx.Done():
	case <-a.done:
		time.Sleep(5 * time.Millisecond) // the answer that says so leaves first
	}
	_ = server.Close()
	return nil
}

// alone makes sure that no other agent works in the same folder. One that was
// just killed may take a moment to go.
func (a *Agent) alone() (*os.File, error) {
	f, err := os.OpenFile(a.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the agent's folder")
	}
	for end := time.Now().Add(2 * time.Second); !lockFile(f); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			_ = f.Close()
			return nil, fault.New(fault.Conflict, "an agent runs in %s already", a.c.Home)
		}
	}
	return f, nil
}

// address is by which others reach this node: the first of its addresses that
// is not its own alone.
func address() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, x := range all {
		if n, ok := x.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func (a *Agent) finish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.done:
	default:
		close(a.done)
	}
}

// seen is what is kept of the control plane's words.
type seen struct {
	Token   int64         `json:"token"`
	DeadMan time.Duration `json:"dead_man"`
}

// recall takes up what a former life left.
func (a *Agent) recall() error {
	var s seen
	if readJSON(a.path("seen"), &s) {
		a.token, a.deadMan = s.Token, s.DeadMan
	}
	if i, err := os.Stat(a.path("word")); err == nil { // the dead man's clock goes on
		if quiet := time.Since(i.ModTime()); quiet > 0 {
			a.word = time.Now().Add(-quiet)
		}
	}
	if data, err := os.ReadFile(a.path("forgotten")); err == nil {
		for _, id := range strings.Fields(string(data)) {
			a.gone[id] = true
		}
	}
	entries, err := os.ReadDir(a.path("tasks"))
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the agent's tasks")
	}
	var all []*task
	for _, e := range entries {
		var spec wire.Task
		dir := a.path("tasks", e.Name())
		if !readJSON(filepath.Join(dir, "task.json"), &spec) || spec.ID != e.Name() || a.gone[spec.ID] {
			_ = os.RemoveAll(dir) // it was being written, or deleted: nobody was told of it
			continue
		}
		t := newTask(a, spec)
		if i, err := os.Stat(filepath.Join(dir, "task.json")); err == nil {
			t.state.Arrived = i.ModTime()
		}
		t.saved = true
		_ = readJSON(filepath.Join(dir, "state.json"), &t.state) // one that is damaged counts as none
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y *task) int { return x.state.Arrived.Compare(y.state.Arrived) })
	for _, t := range all {
		a.tasks[t.spec.ID] = t
		a.order = append(a.order, t.spec.ID)
	}
	for _, t := range all {
		t.recover()
	}
	a.mu.Lock()
	a.admit()
	a.mu.Unlock()
	return nil
}

func (a *Agent) path(parts ...string) string {
	return filepath.Join(append([]string{a.c.Home}, parts...)...)
}

// bump says that something changed; the caller holds the lock.
func (a *Agent) bump() {
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

// heard takes a word of the control plane; the caller holds the lock.
func (a *Agent) heard(plane string, token int64, deadMan time.Duration) error {
	if a.c.Plane != "" && plane != "" && plane != a.c.Plane {
		return fault.New(fault.Denied, "this agent belongs to another control plane")
	}
	if token < a.token {
		return fault.New(fault.Conflict, "a newer process commands this agent (its token is %d, yours %d)", a.token, token)
	}
	if deadMan <= 0 {
		deadMan = a.deadMan
	}
	if token != a.token && token < 1<<62 || deadMan != a.deadMan {
		a.token, a.deadMan = token, deadMan
		if err := writeJSON(a.path("seen"), seen{token, deadMan}); err != nil { // on a full disk it must be obeyed all the same
			a.c.Log.Warn("keeping who commands this agent", "err", err)
		}
	}
	now := time.Now()
	if now.Sub(a.noted) > time.Second {
		touch(a.path("word"), now)
		a.noted = now
	}
	a.word, a.fired, a.freed = now, false, false
	return nil
}

// start takes a task in, unless it is known; the caller holds the lock. One that
// the disk has no room for is there all the same, and ended.
func (a *Agent) start(spec *wire.Task) error {
	if a.tasks[spec.ID] != nil || a.gone[spec.ID] || a.ending {
		return nil
	}
	if !fs.ValidPath(spec.ID) || strings.ContainsAny(spec.ID, "/\\") || strings.HasPrefix(spec.ID, ".") {
		return fault.New(fault.Invalid, "%q is no name of a task", spec.ID)
	}
	t := newTask(a, *spec)
	a.tasks[spec.ID] = t
	a.order = append(a.order, spec.ID)
	err := os.MkdirAll(filepath.Join(t.dir, "work"), 0o700)
	if err == nil {
		err = putJSON(filepath.Join(t.dir, "task.json"), &t.spec) // one that is cut off counts as none
	}
	if err != nil {
		t.end(machine.NotStarted, inWords(diskFault(err)))
	}
	return nil
}

// admit starts what waits for a slot, in the order of arrival: nothing takes
// what one that came before it waits for. The caller holds the lock.
func (a *Agent) admit() {
	var ahead machine.Needs
	for _, id := range a.order {
		t := a.tasks[id]
		if t == nil || t.state.State != machine.TaskQueued {
			continue
		}
		n := &t.spec.Needs
		held, why := a.slots.take(n, &ahead)
		if held == nil {
			if why != "" {
				t.end(machine.NotStarted, why)
				continue
			}
			ahead.CPUs, ahead.Memory, ahead.GPUs = ahead.CPUs+n.CPUs, ahead.Memory+n.Memory, ahead.GPUs+n.GPUs
			continue
		}
		t.held = held
		t.state.Devices, t.state.Held = held.devices, time.Now()
		t.state.State = machine.TaskPreparing
		t.begin()
	}
}

// forget deletes an ended task for ever; the caller holds the lock.
func (a *Agent) forget(id string) {
	t := a.tasks[id]
	if t != nil && t.state.State != machine.TaskEnded {
		return
	}
	if !a.gone[id] {
		a.gone[id] = true
		if f, err := os.OpenFile(a.path("forgotten"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			_, _ = fmt.Fprintln(f, id)
			_ = f.Close()
		}
	}
	if t == nil {
		return
	}
	delete(a.tasks, id)
	a.order = slices.DeleteFunc(a.order, func(x string) bool { return x == id })
	away := a.path("tasks", ".gone-"+id)
	if os.Rename(t.dir, away) != nil {
		away = t.dir
	}
	if len(a.rubbish) == 0 {
		a.dropped = time.Now()
	}
	a.rubbish = append(a.rubbish, away)
}

// report is what the control plane hears; the caller holds the lock.
func (a *Agent) report() *wire.Report {
	r := &wire.Report{Version: a.version, Now: time.Now(), Host: machine.Host{}, Tasks: make([]wire.Status, 0, len(a.order))}
	for _, id := range a.order {
		r.Tasks = append(r.Tasks, a.tasks[id].status())
	}
	return r
}

// shutdown stops all tasks and lets the agent exit when they have ended.
func (a *Agent) shutdown(reason string, grace time.Duration) {
	a.mu.Lock()
	if a.ending {
		a.mu.Unlock()
		return
	}
	a.ending = true
	for _, id := range slices.Clone(a.order) {
		a.tasks[id].stop(machine.Cancelled, reason, grace)
	}
	a.bump()
	a.mu.Unlock()
	go func() {
		for {
			a.mu.Lock()
			live := 0
			for _, t := range a.tasks {
				if t.state.State != machine.TaskEnded {
					live++
				}
			}
			changed := a.changed
			a.mu.Unlock()
			if live == 0 {
				break
			}
			<-changed
		}
		a.release()
		a.finish()
	}()
}

// release runs the hook that ends the node's billing.
func (a *Agent) release() {
	if a.c.Release == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/bin/sh", "-c", a.c.Release).CombinedOutput()
	a.c.Log.Info("release hook", "err", err, "output", string(out))
}

func readJSON(path string, into any) bool {
	data, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(data, into) == nil
}

// putJSON writes a new file.
func putJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// writeJSON replaces a file. It is not synced: it must survive our death, not
// the node's, whose processes are gone with it.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		_ = os.Remove(path + ".new")
		return err
	}
	return os.Rename(path+".new", path)
}

func touch(path string, at time.Time) {
	if os.Chtimes(path, at, at) != nil {
		_ = os.WriteFile(path, nil, 0o600)
	}
}

func diskFault(err error) error {
	if isFull(err) {
		return fault.Wrap(fault.Internal, err, "the disk of the node is full").Hint("make room on the node: the task is tried again")
	}
	return fault.Wrap(fault.Internal, err, "the agent's folder cannot be written")
}
