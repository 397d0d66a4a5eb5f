package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestFullDisk has an agent whose disk is full while a task runs, and then from
// the start of another one on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.kill()
	if err := unix.Mount("tmpfs", n.home, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.home, unix.MNT_DETACH) })
	n.start()
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "head -c 4000000 /dev/zero >big || exit 3")}})
	s := n.until("1-1.0", machine.TaskEnded)
	if s.Exit != 3 || s.Reason != "exit code 3, and the disk of the node is full" {
		t.Errorf("%+v", s)
	}
	// Another token is taken though it cannot be kept.
	n.say(wire.Sync{Token: 7, Start: []wire.Task{run("2-1.0", "true")}})
	if s := n.until7("2-1.0"); s.Cause != machine.NotStarted || !strings.Contains(s.Reason, "the disk of the node is full") {
		t.Errorf("%+v", s)
	}
	_ = os.Remove(filepath.Join(n.home, "tasks", "1-1.0", "work", "big"))
	n.say(wire.Sync{Token: 7, Start: []wire.Task{run("3-1.0", "echo room")}})
	if s := n.until7("3-1.0"); s.Exit != 0 || n.log("3-1.0") != "room\n" {
		t.Errorf("%+v", s)
	}
}

// until7 waits for the end of a task with the token 7.
func (n *node) until7(id string) wire.Status {
	n.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r, err := n.Sync(context.Background(), &wire.Sync{Plane: "p", Token: 7})
		if err != nil || time.Now().After(end) {
			n.t.Fatalf("%+v %v", r, err)
		}
		for _, s := range r.Tasks {
			if s.ID == id && s.State == machine.TaskEnded {
				return s
			}
		}
	}
}
