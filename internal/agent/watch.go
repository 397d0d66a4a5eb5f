package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// The agent's own times.
const (
	logTick   = 100 * time.Millisecond // news of a growing log, while someone waits for it
	watchTick = time.Second
)

// watch looks after time: limits, the dead man, growing logs, health, idleness.
func (a *Agent) watch(ctx context.Context) {
	logs := time.NewTicker(logTick)
	defer logs.Stop()
	last := time.Now()
	blobs := last
	zombies := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.done:
			return
		case <-logs.C:
		}
		a.growth()
		now := time.Now()
		if now.Sub(last) < watchTick {
			continue
		}
		last = now
		zombies = reap(zombies)
		if !a.beat(now) {
			return
		}
		if now.Sub(blobs) > time.Minute {
			blobs = now
			a.tidy(now)
		}
		if s := a.samples; s.busy.CompareAndSwap(false, true) { // a tool that hangs must not hold up limits
			go func() {
				defer s.busy.Store(false)
				s.look(ctx, now)
			}()
		}
	}
}

// beat looks at every task and at the dead man; false when the agent is to go.
func (a *Agent) beat(now time.Time) bool {
	a.mu.Lock()
	live := false
	for _, id := range slices.Clone(a.order) {
		if t := a.tasks[id]; t.state.State != machine.TaskEnded {
			live = true
			t.watch(now)
		}
	}
	if live && !a.ending {
		a.admit() // a device that an agent of somebody else held may be free
	}
	if len(a.rubbish) > 0 && (!live || now.Sub(a.dropped) > rubbishLife) {
		go removeAll(a.rubbish)
		a.rubbish = nil
	}
	quiet, deadMan, empty := now.Sub(a.word), a.deadMan, len(a.order) == 0
	silent := deadMan > 0 && quiet > deadMan
	free := false
	switch {
	case !silent:
	case live && !a.fired:
		a.fired = true
		for _, id := range slices.Clone(a.order) {
			t := a.tasks[id]
			t.stop(machine.DeadMan, fmt.Sprintf("the node heard nothing from the control plane for %s", deadMan), t.grace())
		}
	case !live && !a.freed:
		a.freed, free = true, true
	}
	a.mu.Unlock()
	if free {
		a.release()
	}
	// Nobody knows of this agent any more, or nobody needs it.
	if empty && quiet > max(deadMan, time.Minute) {
		if !free {
			a.release()
		}
		a.finish()
		return false
	}
	return true
}

// rubbishLife is how long folders of forgotten tasks may lie about while others
// run: many short tasks need the processors and the file system for themselves.
const rubbishLife = 10 * time.Second

func removeAll(paths []string) {
	for _, p := range paths {
		_ = os.RemoveAll(p)
	}
}

// blobLife is how long a file that no task needs is kept from its last use on:
// the control plane asks for it shortly before it starts a task.
const blobLife = time.Hour

// tidy deletes files that nobody needs any more.
func (a *Agent) tidy(now time.Time) {
	used := map[string]bool{}
	a.mu.Lock()
	for _, t := range a.tasks {
		if t.state.State != machine.TaskEnded {
			used[t.spec.Bundle], used[t.spec.Keep] = true, true
		}
	}
	a.mu.Unlock()
	all, _ := os.ReadDir(a.path("blobs"))
	for _, e := range all {
		if i, err := e.Info(); err == nil && !used[e.Name()] && now.Sub(i.ModTime()) > blobLife {
			_ = os.Remove(a.path("blobs", e.Name()))
		}
	}
}

func (t *task) grace() time.Duration {
	if t.spec.Grace > 0 {
		return t.spec.Grace
	}
	return 30 * time.Second
}

// growth tells those who wait that a log has grown.
func (a *Agent) growth() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == 0 {
		return
	}
	grew := false
	for _, id := range a.order {
		t := a.tasks[id]
		if t.state.State == machine.TaskEnded || t.state.State == machine.TaskQueued {
			continue
		}
		if n := t.size(); n != t.logSize {
			t.logSize = n
			grew = true
		}
	}
	if grew {
		a.bump()
	}
}

// reap buries the children that were adopted from tasks and have ended: those
// that were dead a second ago and that nobody waited for.
func reap(before map[int]bool) map[int]bool {
	now := map[int]bool{}
	for _, pid := range adopted() {
		if birth(pid) != "" {
			continue
		}
		if before[pid] {
			bury(pid)
			continue
		}
		now[pid] = true
	}
	return now
}

// watch stops a task that is over one of its limits, and asks a service how it
// is; the caller holds the lock.
func (t *task) watch(now time.Time) {
	s := &t.state
	switch {
	case !t.due.IsZero() && now.After(t.due):
		t.stop(machine.Limit, "its deadline came: "+t.spec.Deadline.UTC().Format(time.RFC3339), t.grace())
	case s.State == machine.TaskRunning && t.spec.Duration > 0 && now.Sub(t.begun) > t.spec.Duration:
		t.stop(machine.Limit, fmt.Sprintf("it ran for its limit of %s", t.spec.Duration), t.grace())
	case s.State == machine.TaskRunning && t.spec.Idle > 0 && t.shells == 0 && now.Sub(t.active) > t.spec.Idle:
		t.stop(machine.Limit, fmt.Sprintf("it did nothing for its limit of %s", t.spec.Idle), t.grace())
	}
	if s.State == machine.TaskRunning && t.spec.Health != nil && now.Sub(t.checked) >= t.spec.Health.Every && t.live() {
		t.checked = now
		go t.health()
	}
}

// health asks a service whether it answers.
func (t *task) health() {
	h := t.spec.Health
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.Port))
	why := ""
	if h.Path == "" {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			why = err.Error()
		} else {
			_ = conn.Close()
		}
	} else {
		client := http.Client{Timeout: 5 * time.Second}
		r, err := client.Get("http://" + address + h.Path)
		switch {
		case err != nil:
			why = err.Error()
		case r.StatusCode >= 400:
			why = r.Status
		}
		if err == nil {
			_ = r.Body.Close()
		}
		client.CloseIdleConnections()
	}
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	if t.state.State != machine.TaskRunning {
		return
	}
	if healthy := why == ""; healthy != t.state.Healthy {
		t.state.Healthy = healthy
		t.state.Detail = ""
		t.agent.bump()
	}
	if why == "" {
		t.healthy = time.Now()
		return
	}
	t.say("does not answer: " + why)
	since := t.healthy
	if since.Before(t.state.Launched) {
		since = t.state.Launched
	}
	if time.Since(since) > h.Start && t.spec.Kind == string(job.Service) && t.spec.Restart != "never" && t.live() {
		t.healthy = time.Now()
		t.kick() // its end starts it again
	}
}

// kick ends the present process of a service; the caller holds the lock.
func (t *task) kick() {
	t.kicked = true
	t.signal(syscall.SIGTERM)
	launched := t.state.Launched
	time.AfterFunc(t.grace(), func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.live() && t.state.Launched.Equal(launched) && t.state.State == machine.TaskRunning {
			t.signal(syscall.SIGKILL)
		}
	})
}
