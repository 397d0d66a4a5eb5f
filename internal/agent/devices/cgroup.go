package devices

import (
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// cgroups are the control groups of this process: for each kind of limit the
// directories that bind it, its own first and the root's last.
type cgroups struct {
	unified, cpu, mem []string
	controllers       string // those of version 2, separated by spaces
}

// cgroups reads in which groups this process is. In a container without its
// own view of the tree the path is the host's and does not exist: the root,
// which is always in the list, is the container's then.
func (f Finder) cgroups() cgroups {
	var out cgroups
	base := f.path("/sys/fs/cgroup")
	text, _ := os.ReadFile(f.path("/proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			root := base
			if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
				root = filepath.Join(base, "unified")
			}
			if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
				out.unified = upwards(root, parts[2])
				out.controllers = word(root, "cgroup.controllers")
			}
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			switch c {
			case "cpu":
				out.cpu = upwards(filepath.Join(base, "cpu"), parts[2])
			case "memory":
				out.mem = upwards(filepath.Join(base, "memory"), parts[2])
			}
		}
	}
	return out
}

// upwards gives the directory of a group and all above it that exist.
func upwards(root, group string) []string {
	var out []string
	for p := path.Clean("/" + group); ; p = path.Dir(p) {
		dir := filepath.Join(root, p)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			out = append(out, dir)
		}
		if p == "/" {
			return out
		}
	}
}

// cpus is the least quota, in CPUs; 0: none.
func (c cgroups) cpus() float64 {
	least := 0.0
	take := func(quota, period string) {
		q, err := strconv.ParseFloat(quota, 64)
		p, perr := strconv.ParseFloat(period, 64)
		if err == nil && perr == nil && q > 0 && p > 0 && (least == 0 || q/p < least) {
			least = q / p
		}
	}
	for _, dir := range c.unified {
		if parts := strings.Fields(word(dir, "cpu.max")); len(parts) == 2 {
			take(parts[0], parts[1])
		}
	}
	for _, dir := range c.cpu {
		take(word(dir, "cpu.cfs_quota_us"), word(dir, "cpu.cfs_period_us"))
	}
	return least
}

// memory is the least limit, in bytes; 0: none.
func (c cgroups) memory() int64 {
	least := int64(0)
	take := func(text string) {
		// Version 1 writes no limit as a number near the largest.
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && n < 1<<60 && (least == 0 || n < least) {
			least = n
		}
	}
	for _, dir := range c.unified {
		take(word(dir, "memory.max"))
	}
	for _, dir := range c.mem {
		take(word(dir, "memory.limit_in_bytes"))
	}
	return least
}

// limits says how a job's CPUs and memory can be held down here: cgroup2 or
// cgroup1 where this process may make groups, else rlimit or none; and what
// would be better.
func (c cgroups) limits() (kind, problem string) {
	two := strings.Fields(c.controllers)
	switch {
	case runtime.GOOS == "windows":
		return "none", "jobs' memory and CPUs cannot be limited on this system: run the agent on Linux"
	case has(two, "memory") && has(two, "cpu"):
		if fertile(c.unified) {
			return "cgroup2", ""
		}
		return "rlimit", "jobs are held down by rlimits only, as this user may not make control groups: run the agent as a systemd service (`systemd-run --user -p Delegate=yes …`), or as root"
	case len(c.mem) > 0 && len(c.cpu) > 0:
		if fertile(c.mem) && fertile(c.cpu) {
			return "cgroup1", ""
		}
		return "rlimit", "jobs are held down by rlimits only, as this user may not make control groups: run the agent as root, or give this user a group of /sys/fs/cgroup/memory and cpu"
	}
	return "rlimit", "jobs are held down by rlimits only: there are no control groups for CPU and memory; in a container, mount /sys/fs/cgroup writable"
}

func has(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// fertile says whether groups can be made in the first or the last of the
// directories, by making one: file modes do not tell in containers.
func fertile(dirs []string) bool {
	for _, dir := range dirs {
		if dir != dirs[0] && dir != dirs[len(dirs)-1] {
			continue
		}
		if made, err := os.MkdirTemp(dir, "destajo-try-"); err == nil {
			return os.Remove(made) == nil
		}
	}
	return false
}
