package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
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
	fired := false
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
		a.mu.Lock()
		live := false
		for _, id := range slices.Clone(a.order) {
			if t := a.tasks[id]; t.state.State != machine.TaskEnded {
				live = true
				t.limits(now)
			}
		}
		quiet, deadMan := now.Sub(a.word), a.deadMan
		silent := deadMan > 0 && quiet > deadMan
		if silent && live && !fired {
			fired = true
			for _, id := range slices.Clone(a.order) {
				t := a.tasks[id]
				t.stop(machine.DeadMan, fmt.Sprintf("the node heard nothing from the control plane for %s", deadMan), t.grace())
			}
		}
		if !silent {
			fired = false
		}
		empty := len(a.order) == 0
		a.mu.Unlock()
		if silent && !live && !empty && fired {
			fired = false
			a.release()
		}
		// Nobody knows of this agent any more, or nobody needs it.
		if empty && quiet > max(deadMan, time.Minute) {
			a.release()
			a.finish()
			return
		}
		a.samples.look(ctx, now)
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

// limits stops a task that is over one of its own; the caller holds the lock.
func (t *task) limits(now time.Time) {
	s := &t.state
	switch {
	case !t.spec.Deadline.IsZero() && now.After(t.spec.Deadline):
		t.stop(machine.Limit, "its deadline came: "+t.spec.Deadline.UTC().Format(time.RFC3339), t.grace())
	case s.State == machine.TaskRunning && t.spec.Duration > 0 && t.ran(now) > t.spec.Duration:
		t.stop(machine.Limit, fmt.Sprintf("it ran for its limit of %s", t.spec.Duration), t.grace())
	case s.State == machine.TaskRunning && t.spec.Idle > 0 && t.shells == 0 && now.Sub(t.active) > t.spec.Idle:
		t.stop(machine.Limit, fmt.Sprintf("it did nothing for its limit of %s", t.spec.Idle), t.grace())
	}
	if s.State == machine.TaskRunning && t.spec.Health != nil && now.Sub(t.checked) >= t.spec.Health.Every {
		t.checked = now
		go t.health()
	}
}

// ran is how long the command has run: by the monotonic clock in this life, so
// that a jump of the clock does not end it, and by the wall before.
func (t *task) ran(now time.Time) time.Duration { return now.Sub(t.state.Started) }

// health asks a service whether it answers.
func (t *task) health() {
	h := t.spec.Health
	host := "127.0.0.1"
	if t.spec.Image != "" && t.agent.engine != nil {
		host = t.agent.engine.address(t)
	}
	address := net.JoinHostPort(host, strconv.Itoa(h.Port))
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
	if since.IsZero() || since.Before(t.state.Started) {
		since = t.state.Started
	}
	if time.Since(since) > h.Start && t.spec.Kind == string(job.Service) && t.spec.Restart != "never" && (t.state.PID != 0 || t.contained()) {
		t.healthy = time.Now()
		t.kick() // its end starts it again
	}
}

// kick ends the present process of a service; the caller holds the lock.
func (t *task) kick() {
	t.signal(15)
	pid := t.state.PID
	time.AfterFunc(t.grace(), func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.state.PID == pid && t.state.State == machine.TaskRunning {
			t.signal(9)
		}
	})
}
