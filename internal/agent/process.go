package agent

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// birth is when a process began, as the kernel counts; empty when there is none.
// With the number it names a process for ever.
func birth(pid int) string {
	_, _, start, ok := stat(pid)
	if !ok {
		return ""
	}
	return boot() + "." + start
}

// boot names the life of the node's kernel: numbers and times of processes come
// again after a restart.
var boot = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

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

// members are the processes of a task: those of its session, if that is known
// (0: it is not), and those that left it but still carry the name of its notice
// file, which no other task of this host has, whoever runs it.
func members(session int, notice string) []int {
	var out []int
	for _, pid := range processes() {
		_, s, _, ok := stat(pid)
		if ok && (session != 0 && s == session || carries(pid, notice)) {
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

// shellOf finds the shell around a task's command by its arguments, of which
// the last is the task's exit file; 0: there is none.
func shellOf(exit string) int {
	for _, pid := range processes() {
		_, session, _, ok := stat(pid)
		if !ok || session != pid {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && bytes.Contains(line, []byte("\x00destajo\x00")) && bytes.HasSuffix(line, []byte("\x00"+exit+"\x00")) {
			return pid
		}
	}
	return 0
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

// usageOf sums what some processes use: seconds of CPU since they began, with
// that of their children that have ended, and bytes in memory.
func usageOf(pids []int) (cpu float64, memory int64) {
	page := int64(os.Getpagesize())
	for _, pid := range pids {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(f) < 22 {
			continue
		}
		for _, ticks := range f[11:15] { // user, system, and both of the children
			n, _ := strconv.ParseFloat(ticks, 64)
			cpu += n / ticksPerSecond
		}
		rss, _ := strconv.ParseInt(f[21], 10, 64)
		memory += rss * page
	}
	return cpu, memory
}

// ticksPerSecond is the unit of CPU time in /proc, 100 on every Linux.
const ticksPerSecond = 100
