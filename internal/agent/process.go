package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// birth is when a process began, as the kernel counts; empty when there is none.
// With the number it names a process for ever.
func birth(pid int) string {
	_, _, start, ok := stat(pid)
	if !ok {
		return ""
	}
	return start
}

// stat reads what the kernel says of a process. A zombie counts as none.
func stat(pid int) (parent, session int, start string, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, "", false
	}
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return 0, 0, "", false
	}
	f := strings.Fields(string(data[i+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, 0, "", false
	}
	parent, _ = strconv.Atoi(f[1])
	session, _ = strconv.Atoi(f[3])
	return parent, session, f[19], true
}

// processes lists the numbers of all processes.
func processes() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// members are the processes of a task: those of its session, and those that
// left it but still carry the name of its notice file, which no other task of
// this host has, whoever runs it.
func members(session int, notice string) []int {
	var out []int
	for _, pid := range processes() {
		_, s, _, ok := stat(pid)
		if ok && (s == session || carries(pid, notice)) {
			out = append(out, pid)
		}
	}
	return out
}

// carries says whether a process has a task's notice file in its environment.
func carries(pid int, notice string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(env, []byte("DESTAJO_NOTICE="+notice+"\x00"))
}

// sweep kills what a task whose shell has ended left behind: first its session,
// which costs one call, then those that left it and were adopted by us.
func (t *task) sweep() bool {
	t.agent.mu.Lock()
	pid, contained := t.state.PID, t.spec.Image != ""
	t.agent.mu.Unlock()
	if contained || pid == 0 {
		return false
	}
	left := syscall.Kill(-pid, syscall.SIGKILL) == nil
	for _, child := range adopted() {
		if carries(child, t.notice()) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			left = true
		}
	}
	return left
}

// awaitEnd waits for the end of a process that is not our child.
func awaitEnd(pid int, began string) {
	if waitFor(pid) {
		return
	}
	for birth(pid) == began {
		time.Sleep(50 * time.Millisecond)
	}
}

// usageOf sums what some processes use: seconds of CPU since they began, and
// bytes in memory.
func usageOf(pids []int) (cpu float64, memory int64) {
	page := int64(os.Getpagesize())
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		if data, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil {
			if i := bytes.LastIndexByte(data, ')'); i >= 0 {
				if f := strings.Fields(string(data[i+1:])); len(f) > 21 {
					user, _ := strconv.ParseFloat(f[11], 64)
					system, _ := strconv.ParseFloat(f[12], 64)
					cpu += (user + system) / ticksPerSecond
					rss, _ := strconv.ParseInt(f[21], 10, 64)
					memory += rss * page
				}
			}
		}
	}
	return cpu, memory
}

// ticksPerSecond is the unit of CPU time in /proc, 100 on every Linux.
const ticksPerSecond = 100
