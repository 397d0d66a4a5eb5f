package agent_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/agent"
	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestMain makes the test binary double as an agent, so that it can be killed.
func TestMain(m *testing.M) {
	if home := os.Getenv("AGENT_TEST_HOME"); home != "" {
		if err := agent.Run(context.Background(), agent.Config{Home: home, Tag: "t", Plane: "p", Version: "test", Finder: devices.New(), Release: os.Getenv("AGENT_TEST_RELEASE")}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests wait for processes more than they compute.
	flag.Parse()
	_ = flag.Set("test.parallel", "16")
	os.Exit(m.Run())
}

// node is an agent in a process of its own.
type node struct {
	*wire.Client
	t    testing.TB
	home string
	cmd  *exec.Cmd
	env  []string
	seen int64
}

// newNode starts an agent, with more variables in its environment.
func newNode(t testing.TB, env ...string) *node {
	t.Helper()
	home, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, home: home, env: env}
	n.Client = wire.NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(home, "agent.sock"))
	})
	n.start()
	t.Cleanup(func() {
		_ = n.Shutdown(context.Background(), &wire.Shutdown{Plane: "p", Token: 1 << 62})
		time.Sleep(50 * time.Millisecond)
		n.kill()
		_ = os.RemoveAll(home)
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = append(append(os.Environ(), n.env...), "AGENT_TEST_HOME="+n.home)
	n.cmd.Stderr = os.Stderr
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	for range 2000 {
		if _, err := n.Hello(context.Background()); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.t.Fatal("the agent did not answer")
}

func (n *node) kill() {
	_ = n.cmd.Process.Signal(syscall.SIGKILL)
	_ = n.cmd.Wait()
}

// say syncs once.
func (n *node) say(s wire.Sync) *wire.Report {
	n.t.Helper()
	s.Plane, s.Token = "p", max(s.Token, 1)
	r, err := n.Sync(context.Background(), &s)
	if err != nil {
		n.t.Fatal(err)
	}
	n.seen = r.Version
	return r
}

// until syncs until a task is in a state.
func (n *node) until(id string, state machine.TaskState) wire.Status {
	n.t.Helper()
	end := time.Now().Add(15 * time.Second)
	r := n.say(wire.Sync{})
	for {
		var last wire.Status
		for _, s := range r.Tasks {
			if s.ID == id {
				if last = s; s.State == state {
					return s
				}
			}
		}
		if time.Now().After(end) {
			n.t.Fatalf("task %s is %+v, want %s", id, last, state)
		}
		r = n.say(wire.Sync{Seen: n.seen, Wait: time.Second})
	}
}

func (n *node) log(id string) string {
	n.t.Helper()
	b, err := n.Log(context.Background(), id, 0, 1<<24)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

func run(id, text string) wire.Task {
	return wire.Task{ID: id, Kind: "task", Run: text, Grace: time.Second, Env: map[string]string{"DESTAJO_TASK": id}}
}

func TestTask(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "echo hello; exit 3")}})
	s := n.until("1-1.0", machine.TaskEnded)
	if s.Exit != 3 || s.Cause != machine.Exited || n.log("1-1.0") != "hello\n" || s.Log != 6 {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
	n.say(wire.Sync{Forget: []string{"1-1.0"}, Start: []wire.Task{run("1-1.0", "echo again")}})
	if r := n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "echo again")}}); len(r.Tasks) != 0 {
		t.Errorf("a forgotten task runs again: %+v", r.Tasks)
	}
}

func TestKilledAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done; exit 7"), run("2-1.0", "echo short; exit 4")}})
	n.until("1-1.0", machine.TaskRunning)
	n.kill()
	time.Sleep(100 * time.Millisecond)
	n.start()
	if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 7 || n.log("1-1.0") != "1\n2\n3\n4\n5\n6\n" {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
	if s := n.until("2-1.0", machine.TaskEnded); s.Exit != 4 {
		t.Errorf("%+v", s)
	}
}

func TestStopKillsAll(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "trap 'echo notice; cat $DESTAJO_NOTICE' TERM; (trap '' TERM; sleep 77.5) & setsid sleep 78.5 & while :; do sleep 0.05; done")}})
	n.until("1-1.0", machine.TaskRunning)
	time.Sleep(200 * time.Millisecond)
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "enough", Grace: 300 * time.Millisecond}}})
	s := n.until("1-1.0", machine.TaskEnded)
	if s.Cause != machine.Cancelled || s.Reason != "enough" || !strings.Contains(n.log("1-1.0"), "notice\ncancelled\nenough\n") {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
	time.Sleep(50 * time.Millisecond)
	if out, _ := exec.Command("pgrep", "-f", "sleep 7[78].5").Output(); len(out) > 0 {
		t.Errorf("processes are left: %s", out)
	}
}

func TestLateStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "first"}}})
	r := n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "touch "+n.home+"/ran")}})
	if len(r.Tasks) != 1 || r.Tasks[0].State != machine.TaskEnded {
		t.Errorf("%+v", r.Tasks)
	}
}

func TestFencing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Token: 5})
	if _, err := n.Sync(context.Background(), &wire.Sync{Plane: "p", Token: 4}); err == nil {
		t.Error("an older token was taken")
	}
	if _, err := n.Sync(context.Background(), &wire.Sync{Plane: "other", Token: 9}); err == nil {
		t.Error("another plane was heard")
	}
}

func TestDeadMan(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{DeadMan: time.Second, Start: []wire.Task{run("1-1.0", "sleep 60")}})
	time.Sleep(3 * time.Second)
	s := n.until("1-1.0", machine.TaskEnded)
	if s.Cause != machine.DeadMan {
		t.Errorf("%+v", s)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "sleep 60")
	x.Duration = time.Second
	y := run("2-1.0", "sleep 60")
	y.Idle = 2 * time.Second
	n.say(wire.Sync{Start: []wire.Task{x, y}})
	for _, id := range []string{"1-1.0", "2-1.0"} {
		if s := n.until(id, machine.TaskEnded); s.Cause != machine.Limit {
			t.Errorf("%+v", s)
		}
	}
}

func TestGang(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "echo go")
	x.Gang, x.Setup = true, "echo setup"
	n.say(wire.Sync{Start: []wire.Task{x}})
	n.until("1-1.0", machine.TaskPrepared)
	n.say(wire.Sync{Go: []string{"1-1.0"}})
	if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 0 || n.log("1-1.0") != "setup\ngo\n" {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
}

func BenchmarkTasks(b *testing.B) {
	n := newNode(b)
	var all []wire.Task
	for i := range b.N {
		all = append(all, run(fmt.Sprintf("%d-1.0", i+1), "true"))
	}
	b.ResetTimer()
	r := n.say(wire.Sync{Start: all})
	for {
		ended := 0
		for _, s := range r.Tasks {
			if s.State == machine.TaskEnded {
				ended++
			}
		}
		if ended == b.N {
			return
		}
		r = n.say(wire.Sync{Seen: n.seen, Wait: time.Second})
	}
}
