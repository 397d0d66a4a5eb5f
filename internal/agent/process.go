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

// process is one of the host, as a census saw it.
type process struct {
	pid, group, session int
	notice              string
}

// census lists the processes of the host, for many tasks at once: one look costs
// some 25 µs a process.
type census struct {
	mu    sync.Mutex
	taken time.Time
	all   []process
}

// censusLife is how old a census may be.
const censusLife = 50 * time.Millisecond

// members is as the function, from a look that may be a moment old.
func (c *census) members(session int, notice string) []process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.taken) > censusLife {
		c.all = c.all[:0]
		for _, pid := range processes() {
			dir := "/proc/" + strconv.Itoa(pid)
			data, err := os.ReadFile(dir + "/stat")
			if err != nil {
				continue
			}
			f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
			if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
				continue
			}
			p := process{pid: pid, notice: noticeOf(dir)}
			p.group, _ = strconv.Atoi(f[2])
			p.session, _ = strconv.Atoi(f[3])
			c.all = append(c.all, p)
		}
		c.taken = time.Now()
	}
	var out []process
	for _, p := range c.all {
		if session != 0 && p.session == session || p.notice == notice {
			out = append(out, p)
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

// usage is what the processes of one task use.
type usage struct {
	session int     // of the task; 0: only shells run in it, if any
	notice  string  // its notice file
	cpu     float64 // seconds of CPU since they began, with that of their children that have ended
	memory  int64   // bytes
}

// measure looks once at all processes, for some tasks. A process is of a task as
// members says.
func measure(all []*usage) {
	sessions, notices := map[int]*usage{}, map[string]*usage{}
	for _, u := range all {
		notices[u.notice] = u
		if u.session != 0 {
			sessions[u.session] = u
		}
	}
	page := int64(os.Getpagesize())
	for _, pid := range processes() {
		dir := "/proc/" + strconv.Itoa(pid)
		data, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(f) < 22 {
			continue
		}
		session, _ := strconv.Atoi(f[3])
		u := sessions[session]
		if u == nil {
			u = notices[noticeOf(dir)]
		}
		if u == nil {
			continue
		}
		for _, ticks := range f[11:15] { // user, system, and both of the children
			n, _ := strconv.ParseFloat(ticks, 64)
			u.cpu += n / ticksPerSecond
		}
		rss, _ := strconv.ParseInt(f[21], 10, 64)
		u.memory += rss * page
	}
}

// noticeOf is the notice file in the environment of a process; empty: none.
func noticeOf(dir string) string {
	env, err := os.ReadFile(dir + "/environ")
	if err != nil {
		return ""
	}
	_, rest, ok := bytes.Cut(env, []byte("DESTAJO_NOTICE="))
	name, _, ended := bytes.Cut(rest, []byte{0})
	if !ok || !ended {
		return ""
	}
	return string(name)
}

// ticksPerSecond is the unit of CPU time in /proc, 100 on every Linux.
const ticksPerSecond = 100
