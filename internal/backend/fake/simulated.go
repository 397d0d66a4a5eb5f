package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// simulations are the imaginary agents of a process: one HTTP server, to which
// every dialled stream is handed with the agent that it is for.
type simulations struct {
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
}

type simConn struct {
	net.Conn
	sim *simulation
}

type simKey struct{}

func newSimulations() *simulations {
	s := &simulations{conns: make(chan net.Conn), done: make(chan struct{})}
	s.server = &http.Server{Handler: http.HandlerFunc(serveSim), ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, simKey{}, c.(simConn).sim)
		}}
	go func() { _ = s.server.Serve(s) }()
	return s
}

// Accept, Close and Addr make it the server's listener.
func (s *simulations) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close ends the server.
func (s *simulations) Close() error { return nil }

// Addr is nowhere.
func (s *simulations) Addr() net.Addr { return &net.UnixAddr{Name: "simulated", Net: "pipe"} }

func (s *simulations) dial(ctx context.Context, sim *simulation) (net.Conn, error) {
	near, far := net.Pipe()
	sim.lock.Lock()
	if sim.dead {
		sim.lock.Unlock()
		return nil, fault.New(fault.Unreachable, "nothing answers at %s", sim.tag)
	}
	sim.conns[far] = true
	sim.lock.Unlock()
	select {
	case s.conns <- simConn{far, sim}:
		return near, nil
	case <-s.done:
	case <-ctx.Done():
	}
	sim.drop(far)
	return nil, fault.New(fault.Unreachable, "nothing answers at %s", sim.tag)
}

// Close of a stream is noticed, so that a dead agent's others can be cut.
func (c simConn) Close() error {
	c.sim.drop(c.Conn)
	return c.Conn.Close()
}

func (s *simulations) start(m *instance, sale *Sale, script *Script) *simulation {
	h := machine.Host{Name: m.Tag, OS: "linux/amd64", Agent: "simulated", CPUs: max(1, int(sale.VCPUs)), MemoryBytes: int64(sale.MemoryGB * 1e9), DiskFree: 1e11, Address: "127.0.0.1", Limits: "none"}
	if g, err := sale.model(); err == nil && g != nil {
		for i := range max(1, sale.GPUs) {
			bytes := int64(g.MemoryGB * 1e9)
			h.Devices = append(h.Devices, machine.Device{Index: i, UUID: fmt.Sprintf("%s-gpu-%d", m.Tag, i), Vendor: g.Vendor, Model: g.Title, GPU: g.ID, MemoryBytes: &bytes})
		}
	}
	length := time.Duration(script.TaskLength)
	if length == 0 {
		length = time.Second
	}
	// Versions grow over restarts too.
	sim := &simulation{tag: m.Tag, host: h, length: length, notice: m.Notice, reclaim: m.Reclaim, version: time.Now().UnixMicro(),
		tasks: map[string]*simTask{}, changed: make(chan struct{}), conns: map[net.Conn]bool{}, cpus: float64(h.CPUs), gpus: len(h.Devices)}
	if !m.Notice.IsZero() {
		time.AfterFunc(time.Until(m.Notice), sim.touch)
	}
	return sim
}

func (s *simulations) cut(sim *simulation) {
	sim.lock.Lock()
	sim.dead = true
	conns := sim.conns
	sim.conns = map[net.Conn]bool{}
	for _, t := range sim.tasks {
		t.stopTimer()
	}
	sim.wake()
	sim.lock.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

func (s *simulations) close(j *journal) {
	for _, m := range j.living {
		if m.sim != nil {
			s.cut(m.sim)
		}
	}
	close(s.done)
	_ = s.server.Close()
}

// simulation is one imaginary agent. Its tasks last as long as their command
// says: "sleep 3" three seconds, "exit 2" and "false" fail, all else takes the
// script's length.
type simulation struct {
	tag     string
	host    machine.Host
	length  time.Duration
	notice  time.Time
	reclaim time.Time

	lock    sync.Mutex
	version int64
	token   int64
	deadMan time.Duration
	silence *time.Timer
	dead    bool
	tasks   map[string]*simTask
	order   []string
	cpus    float64 // free
	gpus    int
	changed chan struct{} // closed at every change
	conns   map[net.Conn]bool
}

type simTask struct {
	wire.Status
	spec  wire.Task
	timer *time.Timer
	log   string
	holds bool
}

func (t *simTask) stopTimer() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (sim *simulation) drop(c net.Conn) {
	sim.lock.Lock()
	delete(sim.conns, c)
	sim.lock.Unlock()
}

// wake tells all who wait for a newer report. The caller holds the lock.
func (sim *simulation) wake() {
	sim.version++
	close(sim.changed)
	sim.changed = make(chan struct{})
}

func (sim *simulation) touch() {
	sim.lock.Lock()
	sim.wake()
	sim.lock.Unlock()
}

func serveSim(w http.ResponseWriter, r *http.Request) {
	sim, _ := r.Context().Value(simKey{}).(*simulation)
	if v := r.Header.Get(wire.VersionHeader); v != strconv.Itoa(wire.Version) {
		answer(w, http.StatusUpgradeRequired, wire.Hello{Wire: wire.Version, Agent: "simulated", Machine: sim.tag, Host: sim.host, Now: time.Now()})
		return
	}
	name := func(prefix string) string { return strings.TrimPrefix(r.URL.Path, prefix) }
	switch {
	case r.URL.Path == wire.PathHello:
		answer(w, http.StatusOK, wire.Hello{Wire: wire.Version, Agent: "simulated", Machine: sim.tag, Host: sim.host, Now: time.Now()})
	case r.URL.Path == wire.PathSync:
		sim.sync(w, r)
	case r.URL.Path == wire.PathShutdown:
		sim.lock.Lock()
		for _, id := range sim.order {
			sim.finish(sim.tasks[id], machine.Cancelled, "the machine is released", -1)
		}
		sim.lock.Unlock()
		answer(w, http.StatusOK, struct{}{})
	case strings.HasPrefix(r.URL.Path, wire.PathLog):
		sim.logs(w, r, name(wire.PathLog))
	case strings.HasPrefix(r.URL.Path, wire.PathBlob):
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	case strings.HasPrefix(r.URL.Path, wire.PathOutputs), strings.HasPrefix(r.URL.Path, wire.PathKeep):
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == wire.PathSamples:
		after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
		answer(w, http.StatusOK, wire.Samples{Next: after, Samples: []record.Sample{}})
	default:
		answer(w, http.StatusNotFound, wire.Refusal{Kind: string(fault.NotFound), Message: "a simulated agent cannot do that"})
	}
}

func (sim *simulation) logs(w http.ResponseWriter, r *http.Request, id string) {
	sim.lock.Lock()
	t := sim.tasks[id]
	var log string
	if t != nil {
		log = t.log
	}
	sim.lock.Unlock()
	if t == nil {
		answer(w, http.StatusNotFound, wire.Refusal{Kind: string(fault.NotFound), Message: "no task " + id})
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	to := len(log)
	from = min(max(from, 0), to)
	if most, err := strconv.Atoi(r.URL.Query().Get("max")); err == nil && most >= 0 {
		to = min(to, from+most)
	}
	w.Header().Set("Destajo-Log-Size", strconv.Itoa(len(log)))
	_, _ = io.WriteString(w, log[from:to])
}

func (sim *simulation) sync(w http.ResponseWriter, r *http.Request) {
	var s wire.Sync
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		answer(w, http.StatusBadRequest, wire.Refusal{Kind: string(fault.Invalid), Message: err.Error()})
		return
	}
	sim.lock.Lock()
	if s.Token < sim.token {
		sim.lock.Unlock()
		answer(w, http.StatusConflict, wire.Refusal{Kind: string(fault.Conflict), Message: "another control plane has taken over"})
		return
	}
	sim.token = s.Token
	sim.word(s.DeadMan)
	for _, t := range s.Start {
		sim.take(t)
	}
	for _, id := range s.Go {
		if t := sim.tasks[id]; t != nil && t.State == machine.TaskPrepared {
			sim.run(t)
		}
	}
	for _, x := range s.Stop {
		t := sim.tasks[x.ID]
		if t == nil {
			t = &simTask{Status: wire.Status{ID: x.ID}}
			sim.tasks[x.ID], sim.order = t, append(sim.order, x.ID)
		}
		sim.finish(t, x.Cause, x.Reason, -1)
	}
	for _, id := range s.Forget {
		if t := sim.tasks[id]; t != nil && t.State == machine.TaskEnded {
			delete(sim.tasks, id)
			sim.order = without(sim.order, id)
		}
	}
	limit := time.NewTimer(s.Wait)
	defer limit.Stop()
	for sim.version <= s.Seen && !sim.dead {
		changed := sim.changed
		sim.lock.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			s.Seen = -1
		case <-r.Context().Done():
			return
		}
		sim.lock.Lock()
		if s.Seen < 0 {
			break
		}
	}
	now := time.Now()
	report := wire.Report{Version: sim.version, Now: now, Host: sim.host, Tasks: make([]wire.Status, 0, len(sim.order))}
	for _, id := range sim.order {
		t := sim.tasks[id]
		if t.State == machine.TaskRunning {
			t.Ran = now.Sub(t.Started)
		}
		report.Tasks = append(report.Tasks, t.Status)
	}
	if !sim.notice.IsZero() && !now.Before(sim.notice) {
		report.Notice = &wire.Notice{At: sim.reclaim, Reason: "the fake provider takes the machine"}
	}
	sim.lock.Unlock()
	answer(w, http.StatusOK, report)
}

// word resets the dead-man switch. The caller holds the lock.
func (sim *simulation) word(deadMan time.Duration) {
	sim.deadMan = deadMan
	if sim.silence != nil {
		sim.silence.Stop()
	}
	if deadMan > 0 {
		sim.silence = time.AfterFunc(deadMan, func() {
			sim.lock.Lock()
			defer sim.lock.Unlock()
			for _, id := range sim.order {
				sim.finish(sim.tasks[id], machine.DeadMan, "no word from the control plane for "+deadMan.String(), -1)
			}
		})
	}
}

// take queues a task that is new, and starts what has a slot.
func (sim *simulation) take(t wire.Task) {
	if sim.tasks[t.ID] != nil {
		return
	}
	sim.tasks[t.ID] = &simTask{spec: t, Status: wire.Status{ID: t.ID, State: machine.TaskQueued}}
	sim.order = append(sim.order, t.ID)
	sim.next()
	sim.wake()
}

// next gives slots away in the order of arrival.
func (sim *simulation) next() {
	for _, id := range sim.order {
		t := sim.tasks[id]
		if t.State != machine.TaskQueued {
			continue
		}
		if t.spec.Needs.CPUs > sim.cpus || t.spec.Needs.GPUs > sim.gpus {
			if t.spec.Needs.CPUs > float64(sim.host.CPUs) || t.spec.Needs.GPUs > len(sim.host.Devices) {
				sim.finish(t, machine.NotStarted, "the machine has not what the task needs", -1)
				continue
			}
			return
		}
		sim.cpus, sim.gpus, t.holds = sim.cpus-t.spec.Needs.CPUs, sim.gpus-t.spec.Needs.GPUs, true
		t.Held = time.Now()
		if t.spec.Gang {
			t.State = machine.TaskPrepared
			continue
		}
		sim.run(t)
	}
}

func (sim *simulation) run(t *simTask) {
	length, exit := sim.length, 0
	f := strings.Fields(t.spec.Run)
	switch {
	case len(f) == 1 && f[0] == "true":
		length = 0
	case len(f) == 1 && f[0] == "false":
		length, exit = 0, 1
	case len(f) == 2 && f[0] == "exit":
		exit, _ = strconv.Atoi(f[1])
		length = 0
	case len(f) == 2 && f[0] == "sleep":
		if s, err := strconv.ParseFloat(f[1], 64); err == nil && s >= 0 && s < 1e9 {
			length = time.Duration(s * float64(time.Second))
		}
	}
	cause, reason := machine.Exited, ""
	if t.spec.Duration > 0 && length > t.spec.Duration {
		length, cause, reason, exit = t.spec.Duration, machine.Limit, "its duration is over", -1
	}
	t.State, t.Started, t.Healthy, t.Starts = machine.TaskRunning, time.Now(), t.spec.Kind == "service", 1
	t.log = fmt.Sprintf("task %s on the simulated machine %s\n", t.ID, sim.tag)
	t.Log = int64(len(t.log))
	t.timer = time.AfterFunc(length, func() {
		sim.lock.Lock()
		defer sim.lock.Unlock()
		sim.finish(t, cause, reason, exit)
	})
	sim.wake()
}

// finish ends a task, if it has not ended. The caller holds the lock.
func (sim *simulation) finish(t *simTask, cause machine.Cause, reason string, exit int) {
	if t.State == machine.TaskEnded {
		return
	}
	t.stopTimer()
	now := time.Now()
	if !t.Started.IsZero() {
		t.Ran = now.Sub(t.Started)
	}
	t.State, t.Cause, t.Reason, t.Exit, t.Ended, t.Healthy = machine.TaskEnded, cause, reason, exit, now, false
	if t.holds {
		t.holds = false
		sim.cpus, sim.gpus = sim.cpus+t.spec.Needs.CPUs, sim.gpus+t.spec.Needs.GPUs
		sim.next()
	}
	sim.wake()
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails when nobody listens any more
}

func without(all []string, one string) []string {
	for i, s := range all {
		if s == one {
			return append(all[:i:i], all[i+1:]...)
		}
	}
	return all
}
