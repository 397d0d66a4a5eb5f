package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/destajo/destajo/internal/bundle"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestMounts places files that were sent elsewhere on the node, and takes
// nobody's place there.
func TestMounts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	there := t.TempDir()
	sent := n.packed("data/x", "sent")
	mounted := func(id, text, to string) wire.Task {
		x := run(id, text)
		x.Bundle, x.Mounts = sent, []wire.Mount{{Bundle: "data", To: to}}
		return x
	}
	to := filepath.Join(there, "sub", "data")
	n.say(wire.Sync{Start: []wire.Task{mounted("1-1.0", "cat "+to+"/x; echo; sleep 60", to)}})
	n.logged("1-1.0", "sent\n")
	n.say(wire.Sync{Start: []wire.Task{mounted("2-1.0", "cat "+to+"/x", to)}})
	if s := n.until("2-1.0", machine.TaskEnded); s.Cause != machine.NotStarted || !strings.Contains(s.Reason, "another job") {
		t.Errorf("a place was taken from a running job: %+v", s)
	}
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled}}})
	n.until("1-1.0", machine.TaskEnded)
	n.say(wire.Sync{Start: []wire.Task{mounted("3-1.0", "cat "+to+"/x", to)}})
	if s := n.until("3-1.0", machine.TaskEnded); s.Exit != 0 || n.log("3-1.0") != "sent" {
		t.Errorf("%+v with the log %q", s, n.log("3-1.0"))
	}
	// What is not of a task stays.
	own := filepath.Join(there, "own")
	if err := os.Symlink("/etc", own); err != nil {
		t.Fatal(err)
	}
	n.say(wire.Sync{Start: []wire.Task{mounted("4-1.0", "true", own)}})
	if s := n.until("4-1.0", machine.TaskEnded); s.Cause != machine.NotStarted || !strings.Contains(s.Reason, "something stands there") {
		t.Errorf("%+v", s)
	}
}

// TestBundle runs on what package bundle packed: hard links and modes are there.
func TestBundle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")); err != nil {
		t.Skip(err)
	}
	var b bytes.Buffer
	if _, err := bundle.Pack(&b, dir, nil, nil); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	x := run("1-1.0", "./one && ./two")
	x.Bundle = n.put(b.Bytes())
	n.say(wire.Sync{Start: []wire.Task{x}})
	if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 0 || n.log("1-1.0") != "ran\nran\n" {
		t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
	}
}
