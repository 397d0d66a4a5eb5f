package node_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/backendtest"
	"github.com/destajo/destajo/internal/backend/node"
)

func TestMain(m *testing.M) { backendtest.Main(m) }

// command runs `agent node` and gives its answer.
func command(t *testing.T, args ...string) node.Reply {
	t.Helper()
	var out bytes.Buffer
	if err := node.Command(t.Context(), args, strings.NewReader(""), &out, backendtest.Host); err != nil {
		t.Fatal(err)
	}
	var r node.Reply
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%s: %v", out.Bytes(), err)
	}
	return r
}

// TestCommand goes through the life of a machine as SSH does.
func TestCommand(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "agents")
	if r := command(t, "list", "--root", root, "--plane", "p"); r.Err() != nil || len(r.Machines) != 0 {
		t.Errorf("before anything: %+v", r)
	}
	if exists(root) {
		t.Error("a list made the folder")
	}
	if r := command(t, "start", "--root", root, "--tag", "p-m1", "--plane", "p"); r.Err() != nil || r.Found.Tag != "p-m1" {
		t.Fatalf("%+v, %v", r, r.Err())
	}
	if r := command(t, "start", "--root", root, "--tag", "p-m2", "--plane", "p"); fault.KindOf(r.Err()) != fault.NothingFits || !strings.Contains(r.Err().Error(), "p-m1") {
		t.Errorf("a second machine of one plane: %v", r.Err())
	}
	if r := command(t, "start", "--root", root, "--tag", "q-m1", "--plane", "q"); r.Err() != nil {
		t.Errorf("a machine of another plane: %v", r.Err())
	}
	if r := command(t, "list", "--root", root, "--plane", "p"); len(r.Machines) != 1 || r.Machines[0].Tag != "p-m1" {
		t.Errorf("%+v", r)
	}
	for _, tag := range []string{"p-m1", "q-m1"} {
		if r := command(t, "end", "--root", root, "--tag", tag); r.Err() != nil {
			t.Error(r.Err())
		}
	}
	if r := command(t, "list", "--root", root); len(r.Machines) != 0 {
		t.Errorf("after all: %+v", r)
	}
	if r := command(t, "connect", "--root", root, "--tag", "p-m1"); fault.KindOf(r.Err()) != fault.NotFound {
		t.Errorf("a stream to what has ended: %v", r.Err())
	}
	if r := command(t, "probe"); r.Host == nil || r.Host.CPUs == 0 {
		t.Errorf("%+v", r)
	}
	if r := command(t, "stop"); fault.KindOf(r.Err()) != fault.Invalid {
		t.Errorf("an unknown verb: %v", r.Err())
	}
}

// TestEndedAlone is an agent that went by itself: it is not listed, its files
// stay for a week.
func TestEndedAlone(t *testing.T) {
	t.Parallel()
	k := node.Keeper{Root: t.TempDir(), Exe: "/bin/true"}
	if _, err := k.Start("p-m1", "p"); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if l, err := k.List("p"); err == nil && len(l) == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("it is still listed")
		}
	}
	out := filepath.Join(k.Root, "p-m1", "agent.out")
	if !exists(out) {
		t.Fatal("its files are gone at once")
	}
	if _, err := k.Dial(t.Context(), "p-m1"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a machine that ended answers: %v", err)
	}
	if _, err := k.Start("p-m1", "p"); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a tag that ended starts again: %v", err)
	}
	old := time.Now().Add(-8 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(k.Root, "p-m1", "machine.ended"), old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := k.List("p"); err != nil || exists(out) {
		t.Errorf("its files stay for ever: %v", err)
	}
}

// TestDamaged is a folder of which nobody can say what runs there.
func TestDamaged(t *testing.T) {
	t.Parallel()
	k := node.Keeper{Root: t.TempDir(), Exe: "/bin/true"}
	if err := os.MkdirAll(filepath.Join(k.Root, "p-m1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if l, err := k.List("p"); err != nil || len(l) != 0 {
		t.Errorf("a start that died at once: %v, %v", l, err)
	}
	if err := os.WriteFile(filepath.Join(k.Root, "p-m1", "machine.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.List("p"); fault.KindOf(err) != fault.Internal || !strings.Contains(fault.HintOf(err), "p-m1") {
		t.Errorf("%v", err)
	}
	if err := k.End(t.Context(), "p-m1"); err != nil {
		t.Error(err)
	}
	if l, err := k.List("p"); err != nil || len(l) != 0 {
		t.Errorf("after its end: %v, %v", l, err)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
