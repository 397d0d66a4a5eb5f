package agent

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/destajo/destajo/machine"
)

// limits holds tasks down to what they asked for. A task that states memory or
// holds GPUs gets control groups of its own: its memory is a hard limit, its
// CPUs are a weight (it gets at least so many, and more while nobody else wants
// them), and half of the node's process numbers are the most that it can use up.
// A task that states no memory gets none: making one costs more than a short
// task itself. Where there are no control groups, a stated memory limits the
// address space of each process of a task without GPUs; one with GPUs is not
// limited, since CUDA reserves address space of many times the memory.
type limits struct {
	kind string   // cgroup2, cgroup1, rlimit, none
	dirs []string // in which tasks' groups are made; of version 1 those of memory, cpu and pids
	pids int
}

// newLimits makes the groups in which those of the tasks are, and tries whether
// they hold. What does not work falls back to rlimits; the host then says so.
func newLimits(h *machine.Host, home string) limits {
	l := limits{kind: h.Limits, pids: most()}
	f := fnv.New64a()
	_, _ = f.Write([]byte(home))
	name := "destajo-" + strconv.FormatUint(f.Sum64(), 36)
	switch l.kind {
	case "cgroup2":
		l.dirs = unified(name)
	case "cgroup1":
		l.dirs = hierarchies(name)
	}
	if l.kind != "cgroup1" && l.kind != "cgroup2" {
		return l
	}
	try := &task{dir: filepath.Join(home, "try")}
	try.spec.ID, try.spec.Needs = "try", machine.Needs{Memory: 1 << 30, CPUs: 1}
	if len(l.dirs) == 0 || l.confine(try) == "" {
		l.kind, l.dirs = "rlimit", nil
		h.Limits = l.kind
		h.Problems = append(h.Problems, "jobs are held down by rlimits only, as control groups could not be made: run the agent as a systemd service with Delegate=yes, or as root")
	}
	l.release(try)
	return l
}

// confine gives the text of a shell that puts itself under the task's limits;
// empty when it has none. The caller holds the lock.
func (l *limits) confine(t *task) string {
	n := t.spec.Needs
	if n.Memory <= 0 && n.GPUs == 0 {
		return ""
	}
	if len(l.dirs) == 0 {
		if l.kind == "rlimit" && n.GPUs == 0 {
			return fmt.Sprintf("ulimit -v %d\n", max(1, n.Memory>>10))
		}
		return ""
	}
	var text strings.Builder
	t.state.Groups = nil
	for _, parent := range l.dirs {
		dir := filepath.Join(parent, t.spec.ID)
		if l.make(dir) != nil {
			continue
		}
		t.state.Groups = append(t.state.Groups, dir)
		if !l.set(dir, n) {
			l.release(t)
			return ""
		}
		fmt.Fprintf(&text, "echo $$ >'%s/cgroup.procs'\n", dir)
	}
	return text.String()
}

// make makes a task's group, and the one for all tasks when it is not there: it
// goes with the last of them.
func (l *limits) make(dir string) error {
	var err error
	for range 3 { // that of an earlier task may be going just now
		if err = os.Mkdir(dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
			return nil
		}
		if os.Mkdir(filepath.Dir(dir), 0o755) == nil && l.kind == "cgroup2" {
			_ = enable(filepath.Dir(dir))
		}
	}
	return err
}

// set writes the limits of one group; false when it does not take that of memory.
func (l *limits) set(dir string, n machine.Needs) bool {
	put := func(file, value string) error { return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644) }
	there := func(file string) bool { _, err := os.Stat(filepath.Join(dir, file)); return err == nil }
	memory := strconv.FormatInt(n.Memory, 10)
	if there("pids.max") {
		_ = put("pids.max", strconv.Itoa(l.pids))
	}
	if n.CPUs > 0 {
		if there("cpu.weight") {
			_ = put("cpu.weight", strconv.Itoa(min(10_000, max(1, int(100*n.CPUs)))))
		}
		if there("cpu.shares") {
			_ = put("cpu.shares", strconv.Itoa(max(2, int(1024*n.CPUs))))
		}
	}
	if n.Memory <= 0 {
		return true
	}
	switch {
	case l.kind == "cgroup2":
		_ = put("memory.swap.max", "0")
		return put("memory.max", memory) == nil
	case there("memory.limit_in_bytes"):
		if put("memory.limit_in_bytes", memory) != nil {
			return false
		}
		_ = put("memory.memsw.limit_in_bytes", memory) // where the kernel counts swap
	}
	return true
}

// outOfMemory says whether the kernel killed a process of the task for its memory.
func (l *limits) outOfMemory(t *task) bool {
	for _, dir := range t.state.Groups {
		for _, file := range []string{"memory.events", "memory.oom_control"} {
			data, _ := os.ReadFile(filepath.Join(dir, file))
			for line := range strings.Lines(string(data)) {
				if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok && n != "0" {
					return true
				}
			}
		}
	}
	return false
}

// peak is the most memory that a confined task used; 0 unknown.
func (l *limits) peak(t *task) int64 {
	for _, dir := range t.state.Groups {
		for _, file := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
			data, _ := os.ReadFile(filepath.Join(dir, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
				return n
			}
		}
	}
	return 0
}

// release removes the task's groups; the caller holds the lock. The kernel keeps
// one for a moment after its last process.
func (l *limits) release(t *task) {
	groups := t.state.Groups
	t.state.Groups = nil
	for _, dir := range groups {
		if !away(dir) {
			go func() {
				for range 100 {
					time.Sleep(50 * time.Millisecond)
					if away(dir) {
						return
					}
				}
			}()
		}
	}
}

// away removes a task's group, and that of all tasks with the last of them;
// false: processes are still in it.
func away(dir string) bool {
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
		return false
	}
	_ = syscall.Rmdir(filepath.Dir(dir))
	return true
}

// inGroups lists the processes in some control groups.
func inGroups(dirs []string) []int {
	var out []int
	for _, dir := range dirs {
		data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && birth(pid) != "" {
				out = append(out, pid)
			}
		}
	}
	return out
}

// most is how many processes and threads a task may have.
func most() int {
	least := 4 << 20
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		data, _ := os.ReadFile(file)
		if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n > 0 {
			least = min(least, n)
		}
	}
	return least / 2
}

// hierarchies makes a group in each hierarchy of version 1 that holds tasks
// down: below our own group, so that our limits bind them too, else at the root.
func hierarchies(name string) []string {
	own := ownGroups()
	var out []string
	for _, controller := range []string{"memory", "cpu", "pids"} {
		group, ok := own[controller]
		if !ok {
			continue
		}
		root := filepath.Join("/sys/fs/cgroup", controller)
		for _, parent := range []string{filepath.Join(root, group), root} {
			dir := filepath.Join(parent, name)
			if err := os.Mkdir(dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
				out = append(out, dir)
				break
			}
		}
	}
	if len(out) == 0 || !strings.HasPrefix(out[0], "/sys/fs/cgroup/memory/") {
		return nil
	}
	return out
}

// unified makes a group in the tree of version 2 whose children can limit
// memory, CPU and processes: at the root, as container engines do, else below
// our own group. A group with processes has no children with limits, so we then
// move into a child of it ourselves.
func unified(name string) []string {
	root := "/sys/fs/cgroup"
	own := filepath.Join(root, ownGroups()[""])
	for _, parent := range []string{root, own} {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		if errors.Is(enable(parent), syscall.EBUSY) && parent == own {
			leaf := filepath.Join(parent, name+"-agent")
			_ = os.Mkdir(leaf, 0o755)
			_ = os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
			_ = enable(parent)
		}
		if enable(dir) == nil {
			return []string{dir}
		}
		_ = syscall.Rmdir(dir)
	}
	return nil
}

// enable gives the children of a group their controllers: memory must be among
// them, the others may be missing.
func enable(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	err := os.WriteFile(file, []byte("+memory"), 0o644)
	for _, c := range []string{"+cpu", "+pids"} {
		_ = os.WriteFile(file, []byte(c), 0o644)
	}
	return err
}

// ownGroups gives our own group by controller; that of version 2 has none.
func ownGroups() map[string]string {
	out := map[string]string{}
	data, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			out[c] = parts[2]
		}
	}
	return out
}
