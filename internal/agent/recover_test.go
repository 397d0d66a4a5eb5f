package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/agent"
	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// change rewrites what a dead agent kept of a task.
func (n *node) change(id string, change func(state map[string]any)) {
	n.t.Helper()
	path := filepath.Join(n.home, "tasks", id, "state.json")
	state := map[string]any{}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	change(state)
	if data, err = json.Marshal(state); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// killGroup kills the processes of a task by what was kept of it.
func (n *node) killGroup(state map[string]any) {
	n.t.Helper()
	pid, _ := state["pid"].(float64)
	if pid < 2 {
		n.t.Fatalf("no process is named in %v", state)
	}
	_ = syscall.Kill(-int(pid), syscall.SIGKILL)
}

// counted is a task that writes down how often it ran, and lasts a while.
func (n *node) counted(id string) (wire.Task, func() int) {
	path := filepath.Join(n.home, "ran-"+id)
	return run(id, "echo x >>"+path+"; sleep 0.8; exit 5"), func() int {
		data, _ := os.ReadFile(path)
		return bytes.Count(data, []byte("x"))
	}
}

// TestStartedOnce kills the agent in the moments in which a process is there and
// the state does not say so yet.
func TestStartedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		setup  string
		forget func(n *node, id string)
		wait   time.Duration // before the next life
		want   wire.Status
	}{
		{"no state", "", func(n *node, id string) { _ = os.Remove(filepath.Join(n.home, "tasks", id, "state.json")) }, 0,
			wire.Status{Cause: machine.Exited, Exit: 5}},
		{"no state, ended meanwhile", "", func(n *node, id string) { _ = os.Remove(filepath.Join(n.home, "tasks", id, "state.json")) }, 1500 * time.Millisecond,
			wire.Status{Cause: machine.Exited, Exit: 5}},
		{"run after setup, number unknown", "true", func(n *node, id string) {
			n.change(id, func(s map[string]any) { delete(s, "pid"); delete(s, "birth") })
		}, 0, wire.Status{Cause: machine.Exited, Exit: 5}},
		{"number of the setup", "true", func(n *node, id string) {
			n.change(id, func(s map[string]any) { s["pid"], s["birth"] = 1, "other" })
		}, 0, wire.Status{Cause: machine.Exited, Exit: 5}},
		{"no exit code", "true", func(n *node, id string) {
			n.change(id, func(s map[string]any) { n.killGroup(s) })
		}, 0, wire.Status{Cause: machine.Lost, Exit: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			task, ran := n.counted("1-1.0")
			task.Setup = c.setup
			n.say(wire.Sync{Start: []wire.Task{task}})
			n.until("1-1.0", machine.TaskRunning)
			for ran() == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			n.kill()
			c.forget(n, "1-1.0")
			time.Sleep(c.wait)
			n.start()
			s := n.until("1-1.0", machine.TaskEnded)
			if s.Cause != c.want.Cause || s.Exit != c.want.Exit || ran() != 1 {
				t.Errorf("it ran %d times and is %+v", ran(), s)
			}
		})
	}
}

// TestStrangersLive gives the number of a task's dead process to a process of
// somebody else, as a restart of the host may: it must not be touched.
func TestStrangersLive(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "sleep 60")
	x.Setup = "true"
	n.say(wire.Sync{Start: []wire.Task{x}})
	n.until("1-1.0", machine.TaskRunning)
	n.kill()
	stranger := exec.Command("sleep", "30")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stranger.Wait() }()
	n.change("1-1.0", func(s map[string]any) {
		n.killGroup(s)
		s["pid"] = stranger.Process.Pid
	})
	n.start()
	if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Lost {
		t.Errorf("%+v", s)
	}
	select {
	case err := <-ended:
		t.Errorf("the stranger was ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	_ = stranger.Process.Kill()
}

// TestOrphansOfFormerLife has a process that left its session while no agent
// was there to adopt it.
func TestOrphansOfFormerLife(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "(setsid sh -c 'echo $$ >pid; sleep 60; :' &); sleep 0.4")}})
	n.until("1-1.0", machine.TaskRunning)
	n.kill()
	time.Sleep(600 * time.Millisecond)
	data, err := os.ReadFile(filepath.Join(n.home, "tasks", "1-1.0", "work", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	n.start()
	if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 0 {
		t.Errorf("%+v", s)
	}
	for range 100 {
		if err := syscall.Kill(pid, 0); err != nil {
			return
		}
		data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if bytes.Contains(data, []byte(") Z ")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("an orphan is left")
}

// TestGraceOutlivesShell has a shell that dies of the signal at once and a
// command that still writes its checkpoint.
func TestGraceOutlivesShell(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", `cd . ; sh -c 'trap "sleep 0.5; echo saved; exit" TERM; echo up; while :; do sleep 0.05; done'; echo never`)}})
	n.until("1-1.0", machine.TaskRunning)
	for n.log("1-1.0") == "" {
		time.Sleep(10 * time.Millisecond)
	}
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Interrupted, Reason: "taken", Grace: 10 * time.Second}}})
	at := time.Now()
	n.until("1-1.0", machine.TaskEnded)
	if log := n.log("1-1.0"); !strings.Contains(log, "saved") || strings.Contains(log, "never") {
		t.Errorf("the log is %q", log)
	}
	if took := time.Since(at); took > 5*time.Second {
		t.Errorf("it took %s, though everything had ended", took)
	}
}

func TestStopIsRemembered(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "trap '' TERM; echo up; while :; do sleep 0.05; done")}})
	n.until("1-1.0", machine.TaskRunning)
	for n.log("1-1.0") == "" {
		time.Sleep(10 * time.Millisecond)
	}
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "enough", Grace: time.Second}}})
	n.kill()
	n.start()
	if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Cancelled || s.Reason != "enough" {
		t.Errorf("%+v", s)
	}
}

func TestOneAgentAFolder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	err := agent.Run(context.Background(), agent.Config{Home: n.home, Plane: "p", Finder: devices.New()})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("a second agent: %v", err)
	}
	if _, err := n.Hello(context.Background()); err != nil {
		t.Errorf("the first one no longer answers: %v", err)
	}
}

func TestServiceAfterDeath(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "echo up; sleep 0.6; exit 1")
	x.Kind = "service"
	n.say(wire.Sync{Start: []wire.Task{x}})
	n.until("1-1.0", machine.TaskRunning)
	n.kill()
	time.Sleep(900 * time.Millisecond) // it ends while nobody looks
	n.start()
	for end := time.Now().Add(10 * time.Second); strings.Count(n.log("1-1.0"), "up") < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it was not started again: %+v", n.say(wire.Sync{}).Tasks)
		}
	}
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Grace: time.Second}}})
	if s := n.until("1-1.0", machine.TaskEnded); s.Starts != 2 || s.Cause != machine.Cancelled {
		t.Errorf("%+v", s)
	}
}
