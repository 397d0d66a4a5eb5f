package agent

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// stop gives notice and, after the grace, kills; the caller holds the lock.
func (t *task) stop(cause machine.Cause, reason string, grace time.Duration) {
	switch t.state.State {
	case machine.TaskEnded:
		return
	case machine.TaskStopping:
		if time.Until(t.state.StopFrom.Add(t.stopping.Grace)) > grace { // it gets less time than it was given
			t.stopping.Grace = time.Since(t.state.StopFrom) + grace
			t.kill.Reset(grace)
			t.save()
		}
		return
	}
	t.stopping = &wire.Stop{ID: t.spec.ID, Cause: cause, Reason: reason, Grace: grace}
	t.state.Stop, t.state.StopFrom = t.stopping, time.Now()
	if !t.live() && !t.entered { // nothing runs
		t.end(cause, reason)
		return
	}
	t.state.State = machine.TaskStopping
	t.tell(string(cause) + "\n" + reason + "\n")
	t.save()
	t.agent.bump()
	if !t.live() { // shells only, which end when their terminal does
		for _, p := range t.agent.census.members(0, t.notice()) {
			_ = syscall.Kill(p.pid, syscall.SIGTERM)
			_ = syscall.Kill(p.pid, syscall.SIGHUP)
		}
		go t.exited(exit{})
		return
	}
	t.signal(syscall.SIGTERM)
	t.grant(grace)
}

// tell writes the notice file. A container may write in its folder: what it put
// there is never followed.
func (t *task) tell(words string) {
	_ = os.Remove(t.notice())
	f, err := os.OpenFile(t.notice(), os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return
	}
	_, _ = f.WriteString(words)
	_ = f.Close()
}

// grant gives the task a last while, after which it is killed; the caller holds
// the lock.
func (t *task) grant(grace time.Duration) {
	t.kill = time.AfterFunc(grace, func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.state.State == machine.TaskStopping {
			t.signal(syscall.SIGKILL)
		}
	})
}

// live says whether a process or a container of the task runs, or is being
// started; the caller holds the lock.
func (t *task) live() bool { return t.state.PID != 0 || t.boxed }

// signal reaches every process of the task; the caller holds the lock.
func (t *task) signal(s syscall.Signal) {
	if t.spec.Image != "" {
		t.agent.engine.signal(t, s)
		return
	}
	pid := t.state.PID
	if pid <= 1 || birth(pid) != t.state.Birth { // -1 would be everybody
		return
	}
	_ = syscall.Kill(-pid, s) // its shell lives through SIGTERM, to write down how the command ended
	if s == syscall.SIGKILL {
		return // what left the group is swept when the shell is gone
	}
	for _, p := range t.agent.census.members(pid, t.notice()) {
		if p.group != pid {
			_ = syscall.Kill(p.pid, s)
		}
	}
}

// linger leaves a task that was asked to stop the rest of its grace when the
// shell of its command died of the signal at once and others of its processes
// still write their checkpoint.
func (t *task) linger() {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		t.agent.mu.Lock()
		over := t.stopping == nil || !time.Now().Before(t.state.StopFrom.Add(t.stopping.Grace))
		pid := t.state.PID
		t.agent.mu.Unlock()
		if over || len(t.agent.census.members(pid, t.notice())) == 0 {
			return
		}
		time.Sleep(pause)
	}
}

// sweep kills what a task whose shell has ended left behind, until nothing of
// it is found.
func (t *task) sweep() {
	t.agent.mu.Lock()
	pid, foreign, groups := t.state.PID, t.foreign, t.state.Groups
	delete(t.agent.shells, pid)
	entered := t.entered
	t.agent.mu.Unlock()
	if pid > 1 && !foreign {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // nobody else can have the number yet: we buried its owner just now
	}
	calm := 0
	for range 500 {
		left := inGroups(groups)
		if foreign || entered { // orphans of a former life went to another parent, and shells are our own children
			left = append(left, members(0, t.notice())...)
		} else {
			for _, child := range t.agent.orphans() {
				if carries(child, t.notice()) {
					left = append(left, child)
				}
			}
		}
		for _, p := range left {
			_ = syscall.Kill(p, syscall.SIGKILL)
			calm = -2
		}
		// Where something was, or may be, one look is not enough: a process that
		// is just starting a program has no environment for a moment.
		if calm++; calm > 0 && !(calm == 1 && (foreign || entered)) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// orphans are our children but for the shells around the commands of tasks.
func (a *Agent) orphans() []int {
	all := adopted()
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(all, func(pid int) bool { return a.shells[pid] })
}

// recover takes up a task of a former life. A task of which a process was ever
// started is not started again: it is found alive, or its end is read from what
// its shell wrote down, or it is lost.
func (t *task) recover() {
	a := t.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &t.state
	t.stopping, t.foreign = s.Stop, true
	t.entered = t.spec.Run == "" // perhaps
	t.clock()
	if s.State == machine.TaskEnded {
		return
	}
	if t.spec.Image != "" {
		if s.State != machine.TaskQueued {
			t.held = a.slots.retake(&t.spec.Needs, s.Devices)
			a.engine.recover(t)
		}
		return
	}
	_, err := os.Stat(filepath.Join(t.dir, "log"))
	begun := err == nil
	if s.State == machine.TaskQueued && !begun {
		return
	}
	t.held = a.slots.retake(&t.spec.Needs, s.Devices)
	if begun && s.Phase == "" { // the former life died before it could say so
		if s.Phase = "run"; t.spec.Setup != "" {
			s.Phase = "setup"
		}
	}
	if begun && s.Phase == "run" && s.State != machine.TaskStopping {
		s.State = machine.TaskRunning
		if s.Started.IsZero() {
			s.Held, s.Started, s.Launched, s.Starts = s.Arrived, s.Arrived, s.Arrived, 1
			t.clock()
		}
	} else if begun && s.State == machine.TaskQueued {
		s.State = machine.TaskPreparing
	}
	if s.State == machine.TaskStopping {
		t.grant(max(0, time.Until(s.StopFrom.Add(s.Stop.Grace))))
	}
	if begun && (s.PID == 0 || birth(s.PID) != s.Birth || s.Birth == "") {
		s.PID, s.Birth = shellOf(t.exitFile()), ""
		if s.PID != 0 {
			s.Birth = birth(s.PID)
		}
	}
	switch {
	case s.PID != 0 && s.Birth != "":
		t.save()
		pid, began := s.PID, s.Birth
		go func() {
			awaitEnd(pid, began)
			t.exited(exit{code: -1, lost: true})
		}()
	case begun:
		go t.exited(exit{code: -1, lost: true})
	case s.State == machine.TaskPreparing:
		t.anew()
	case s.State == machine.TaskPrepared, s.State == machine.TaskRunning && t.spec.Run == "":
	default:
		go t.exited(exit{code: -1, lost: true})
	}
}

// anew begins a preparation again of which nothing has run.
func (t *task) anew() {
	_ = os.RemoveAll(filepath.Join(t.dir, "work"))
	_ = os.MkdirAll(filepath.Join(t.dir, "work"), 0o700)
	t.begin()
}
