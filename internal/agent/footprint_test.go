package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestFootprint runs many tasks and looks at what the agent still holds after
// them, then at what it costs while one sleeps.
func TestFootprint(t *testing.T) {
	t.Parallel()
	const many = 200
	n := newNode(t)
	ids := func(from int) (all []wire.Task, names []string) {
		for i := range many {
			x := run(fmt.Sprintf("%d-1.0", from+i), "true")
			all, names = append(all, x), append(names, x.ID)
		}
		return all, names
	}
	round := func(from int) {
		all, names := ids(from)
		n.say(wire.Sync{Start: all})
		for _, id := range names {
			n.until(id, machine.TaskEnded)
		}
		n.say(wire.Sync{Forget: names})
	}
	round(1)
	before := n.holds()
	round(1 + many)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		now := n.holds()
		if now.files <= before.files+2 && now.zombies == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it holds %+v after %+v", now, before)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Millisecond) { // folders are deleted a little later
		left, _ := os.ReadDir(filepath.Join(n.home, "tasks"))
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d folders of tasks are left", len(left))
		}
	}
	n.say(wire.Sync{Start: []wire.Task{run("9999-1.0", "sleep 60")}})
	n.until("9999-1.0", machine.TaskRunning)
	cpu, began := n.holds().cpu, time.Now()
	time.Sleep(2 * time.Second)
	now := n.holds()
	used := float64(now.cpu-cpu) / 100 / time.Since(began).Seconds()
	t.Logf("idle: %d MB, %.1f %% of a core, %d files, %d threads", now.memory>>20, 100*used, now.files, now.threads)
	if used > 0.05 { // on a busy machine; it is below 0.01 on a quiet one
		t.Errorf("it uses %.3f of a core while it waits", used)
	}
}

// holdings are what a process holds.
type holdings struct {
	files, zombies, threads int
	memory                  int64
	cpu                     int64 // hundredths of a second
}

func (n *node) holds() (h holdings) {
	n.t.Helper()
	dir := "/proc/" + strconv.Itoa(n.cmd.Process.Pid)
	files, _ := os.ReadDir(dir + "/fd")
	threads, _ := os.ReadDir(dir + "/task")
	h.files, h.threads = len(files), len(threads)
	f := fields(dir)
	if len(f) < 22 {
		n.t.Skip("there is no /proc")
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	h.cpu, h.memory = user+system, pages*int64(os.Getpagesize())
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if f := fields(p); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(n.cmd.Process.Pid) {
			h.zombies++
		}
	}
	return h
}

// fields of a process's stat file, from its state on.
func fields(dir string) []string {
	data, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
}
