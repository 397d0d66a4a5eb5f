package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// freed counts how often the release hook ran.
func freed(path string) int {
	data, _ := os.ReadFile(path)
	return strings.Count(string(data), "freed")
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestRelease has a node that nobody speaks to any more: what it costs must end,
// whether a task runs, or has ended by itself.
func TestRelease(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"running": "sleep 60", "ended": "true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "freed")
			n := newNode(t, "AGENT_TEST_RELEASE=echo freed >>"+path)
			n.say(wire.Sync{DeadMan: time.Second, Start: []wire.Task{run("1-1.0", text)}})
			await(t, "the release hook did not run", func() bool { return freed(path) == 1 })
			if r := n.say(wire.Sync{}); r.Tasks[0].State != machine.TaskEnded { // a word: all is well again
				t.Errorf("%+v", r.Tasks[0])
			}
			await(t, "it did not run again", func() bool { return freed(path) == 2 })
			n.say(wire.Sync{DeadMan: time.Hour})
			time.Sleep(1500 * time.Millisecond)
			if got := freed(path); got != 2 {
				t.Errorf("it ran %d times", got)
			}
		})
	}
}

// TestDeadManOutlivesAgent kills the agent for longer than the dead-man time: its
// next life must count the time from the last word, not from its own start.
func TestDeadManOutlivesAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{DeadMan: 4 * time.Second, Start: []wire.Task{run("1-1.0", "trap 'cat $DESTAJO_NOTICE; exit 0' TERM; while :; do sleep 0.05; done")}})
	n.until("1-1.0", machine.TaskRunning)
	n.kill()
	time.Sleep(4 * time.Second)
	n.start()
	at := time.Now()
	await(t, "the dead man did not fire", func() bool { return n.log("1-1.0") != "" })
	if took := time.Since(at); took > 3*time.Second {
		t.Errorf("it fired %s after its new start", took)
	}
	if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.DeadMan || !strings.Contains(n.log("1-1.0"), "heard nothing from the control plane for 4s") {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "sleep 60")
	x.Deadline = time.Now().Add(time.Second)
	n.say(wire.Sync{Start: []wire.Task{x}})
	if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Limit || s.Ran > 5*time.Second {
		t.Errorf("%+v", s)
	}
}

// TestIdleKnowsShortWork has a task that works in many short processes: none of
// them is there at two looks, and it is not idle.
func TestIdleKnowsShortWork(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	busy := run("1-1.0", "while :; do head -c 3000000 /dev/zero | cksum >/dev/null; done")
	idle := run("2-1.0", "sleep 60")
	busy.Idle, idle.Idle = 3*time.Second, 3*time.Second
	n.say(wire.Sync{Start: []wire.Task{busy, idle}})
	if s := n.until("2-1.0", machine.TaskEnded); s.Cause != machine.Limit {
		t.Errorf("%+v", s)
	}
	time.Sleep(time.Second)
	if r := n.say(wire.Sync{}); r.Tasks[0].State != machine.TaskRunning {
		t.Errorf("it was stopped while it worked: %+v", r.Tasks[0])
	}
}
