//go:build linux

package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOwnMachines uses three hosts over SSH as a person does, and cuts, kills
// and mistrusts them.
func TestOwnMachines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, h := range l.hosts {
		l.run("machines", "add", "ssh://root@"+h.addr, "--identity", l.dir+"/id", "--price", "0.50")
	}
	l.run("machines", "price", "local", "9")
	var places []struct {
		GPU string `json:"gpu"`
	}
	if err := json.Unmarshal([]byte(l.run("machines", "places", "-o", "json")), &places); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range places {
		if p.GPU != "" {
			found = append(found, p.GPU)
		}
	}
	slices.Sort(found)
	if want := []string{"rtx-4090", "rtx-6000-turing", "v100-sxm-16"}; !slices.Equal(found, want) {
		t.Fatalf("the hosts have %q, and not %q\n%s", found, want, l.run("machines", "places"))
	}
	l.startServe()
	for _, step := range []struct {
		name string
		do   func(*testing.T, *lab)
	}{{"a job on each", jobOnEach}, {"an array over them", arrayOver}, {"the agent is killed", agentKilled}, {"the control plane is killed", planeKilled},
		{"a host is cut off for a moment", shortCut}, {"a host is cut off", longCut}, {"the power fails", powerFails}, {"the disk of a host is full", nodeFull}, {"the disk of the control plane is full", planeFull}, {"the key of a host changed", keyChanged}, {"a wrong user", wrongUser}} {
		t.Run(step.name, func(t *testing.T) { l.t = t; step.do(t, l) })
	}
	l.t = t
	l.until(60*time.Second, "no machine is left", func() bool { return strings.TrimSpace(l.run("machines", "-o", "json")) == "[]" })
	for _, h := range l.hosts {
		for _, p := range h.processes() {
			t.Errorf("host %d still runs %s", h.n, p)
		}
	}
}

// processes lists what our program left on a host.
func (h *host) processes() []string {
	out, _ := exec.Command("ip", "netns", "pids", h.ns()).Output()
	var left []string
	for _, pid := range strings.Fields(string(out)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		env, _ := os.ReadFile("/proc/" + pid + "/environ")
		if text := strings.ReplaceAll(string(line), "\x00", " "); strings.Contains(string(env), "DESTAJO_AGENT=") || strings.Contains(string(env), "DESTAJO_TASK=") {
			left = append(left, pid+" "+text)
		}
	}
	return left
}

func jobOnEach(t *testing.T, l *lab) {
	for n, c := range cards {
		id := l.submit("each-"+l.hosts[n].ns(), "gpus: "+c.gpu, 0)
		l.done(id, 30*time.Second, 1)
		if log := l.run("logs", number(id)); !strings.HasPrefix(log, "on h"+number(int64(n))+" with ") || strings.Contains(log, "nothing") {
			t.Errorf("the job for %s says %q", c.gpu, log)
		}
	}
}

func arrayOver(t *testing.T, l *lab) {
	text := "name: sweep\nresources: {gpus: 16GB+}\narray: 8\nrun: |\n  echo \"$(hostname) $DESTAJO_ARRAY_INDEX $CUDA_VISIBLE_DEVICES\" >> " + l.dir + "/sweep; sleep 0.7\n"
	if err := os.WriteFile(l.dir+"/sweep.yml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l.run("run", "--detach", l.dir+"/sweep.yml")
	hosts, members := map[string]bool{}, map[string]bool{}
	l.until(30*time.Second, "the array ends", func() bool {
		data, _ := os.ReadFile(l.dir + "/sweep")
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 3 {
				hosts[f[0]], members[f[1]] = true, true
			}
		}
		return len(members) == 8
	})
	t.Logf("%d hosts ran the array of 8 in %s", len(hosts), time.Since(began).Round(100*time.Millisecond))
	if len(hosts) < 2 {
		t.Errorf("the array ran on %v alone", hosts)
	}
	l.until(20*time.Second, "the array is written down", func() bool { return !strings.Contains(l.run("jobs"), "sweep") })
}

// killAgent kills the agent on a host, not what is above and below it.
func (h *host) killAgent() bool {
	out, _ := exec.Command("ip", "netns", "pids", h.ns()).Output()
	for _, pid := range strings.Fields(string(out)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if words := strings.Split(string(line), "\x00"); len(words) > 2 && words[1] == "agent" && words[2] == "run" {
			return exec.Command("kill", "-9", pid).Run() == nil
		}
	}
	return false
}

func agentKilled(t *testing.T, l *lab) {
	id := l.submit("agent", "gpus: "+cards[0].gpu, 3)
	l.running("agent", number(id)+"-1.0")
	if !l.hosts[0].killAgent() {
		t.Fatal("there is no agent")
	}
	l.done(id, 30*time.Second, 1)
	l.ranOnce("agent")
}

func planeKilled(t *testing.T, l *lab) {
	id := l.submit("plane", "gpus: "+cards[1].gpu, 3)
	l.running("plane", number(id)+"-1.0")
	l.stopServe(syscall.SIGKILL)
	l.startServe()
	l.done(id, 30*time.Second, 1)
	l.ranOnce("plane")
}

// shortCut: a cut that is shorter than the dead-man time changes nothing.
func shortCut(t *testing.T, l *lab) {
	id := l.submit("short", "gpus: "+cards[0].gpu, 3)
	l.running("short", number(id)+"-1.0")
	l.hosts[0].cut(true)
	time.Sleep(deadMan / 3)
	l.hosts[0].cut(false)
	l.done(id, 40*time.Second, 1)
	l.ranOnce("short")
}

// longCut: the job moves, after the agent of the lost host has stopped it.
func longCut(t *testing.T, l *lab) {
	id := l.submit("long", "gpus: 16GB+", 7)
	l.running("long", number(id)+"-1.0")
	h := l.hostOf(id)
	cut := time.Now()
	h.cut(true)
	task := number(id) + "-2.0"
	l.until(deadMan+margin+20*time.Second, "the job is tried elsewhere", func() bool { return l.marks("long")[task] != nil })
	m := l.marks("long")
	began := time.Unix(0, m[task].first)
	t.Logf("the job moved %s after the cut; its first attempt had stopped after %s", began.Sub(cut).Round(time.Millisecond), time.Unix(0, m[number(id)+"-1.0"].last).Sub(cut).Round(time.Millisecond))
	if began.Sub(cut) < deadMan+margin-3*time.Second { // the last word came a moment before the cut
		t.Error("that is before the dead-man time and the margin are over")
	}
	l.done(id, 40*time.Second, 2)
	h.cut(false)
	l.ranOnce("long")
	if now := l.hostOf(id); now == h {
		t.Error("the job ran on the host that was cut off")
	}
	l.until(60*time.Second, "the machine of the lost host ends", func() bool { return len(h.processes()) == 0 })
}

// powerFails: a host that starts anew has forgotten its tasks.
func powerFails(t *testing.T, l *lab) {
	id := l.submit("power", "gpus: "+cards[1].gpu, 3)
	l.running("power", number(id)+"-1.0")
	l.hosts[1].kill()
	l.hosts[1].boot()
	l.done(id, 60*time.Second, 2)
	l.ranOnce("power")
}

// nodeFull: what fills the disk fails and says why, and the next job has room.
func nodeFull(t *testing.T, l *lab) {
	for _, run := range []string{"head -c 200000000 /dev/zero > big", "head -c 200000000 /dev/zero"} {
		id := l.raw("full", "gpus: "+cards[0].gpu, run)
		l.until(30*time.Second, "the job fails", func() bool { return l.job(id).State == "failed" })
		if r := l.job(id); !strings.Contains(r.Reason, "disk of the node is full") {
			t.Errorf("%s: it is %s: %s", run, r.State, r.Reason)
		}
	}
	l.done(l.raw("room", "gpus: "+cards[0].gpu, "head -c 5000000 /dev/zero > small"), 30*time.Second, 0)
}

// planeFull: a log for which there is no room here stays on its node until there is.
func planeFull(t *testing.T, l *lab) {
	logs := l.dir + "/state/logs"
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "none", logs).CombinedOutput(); err != nil {
		t.Skipf("no small disk: %s", out)
	}
	mounted := true
	defer func() {
		if mounted {
			_ = exec.Command("umount", "-l", logs).Run()
		}
	}()
	id := l.raw("loud", "gpus: "+cards[1].gpu, "seq 1000000") // 6.9 MB
	l.until(30*time.Second, "the disk is full", func() bool {
		data, _ := os.ReadFile(l.dir + "/serve.log")
		return strings.Contains(string(data), "no space left on device")
	})
	if s := l.job(id).State; s != "running" {
		t.Errorf("the job is %s though its log is not here", s)
	}
	l.must("mount", "-o", "remount,size=50m", logs)
	l.done(id, 30*time.Second, 1)
	lines := strings.Split(strings.TrimSuffix(l.run("logs", number(id)), "\n"), "\n")
	if len(lines) != 1_000_000 || lines[0] != "1" || lines[len(lines)-1] != "1000000" {
		t.Errorf("the log has %d lines", len(lines))
	}
	l.must("umount", "-l", logs)
	mounted = false
}

func keyChanged(t *testing.T, l *lab) {
	h := l.hosts[2]
	h.kill()
	h.newKey()
	h.boot()
	id := l.submit("pinned", "gpus: "+cards[2].gpu, 0)
	l.until(30*time.Second, "the job says that the host cannot be trusted", func() bool {
		r := l.job(id)
		return r.State == "waiting" && strings.Contains(r.Reason, "known_hosts")
	})
	t.Log(l.job(id).Reason)
	l.know() // a person looked, and takes the new key
	l.done(id, 60*time.Second, 0)
	l.ranOnce("pinned")
}

func wrongUser(t *testing.T, l *lab) {
	address := "ssh://daemon@" + l.hosts[0].addr
	out, err := l.command("machines", "add", address, "--identity", l.dir+"/id").CombinedOutput()
	t.Logf("adding a host with a wrong user: %v: %s", err, out)
	if err == nil {
		out, err = l.command("machines", "places").CombinedOutput()
		if !strings.Contains(string(out), "daemon") {
			t.Errorf("machines places says %v: %s", err, out)
		}
		l.run("machines", "remove", address)
	}
	if !strings.Contains(string(out), "daemon") {
		t.Errorf("it does not name the user: %s", out)
	}
}

// ranOnce checks that no task was started twice, and no two attempts at once.
func (l *lab) ranOnce(name string) {
	l.t.Helper()
	var last int64
	m := l.marks(name)
	tasks := make([]string, 0, len(m))
	for id := range m {
		tasks = append(tasks, id)
	}
	slices.Sort(tasks)
	for _, id := range tasks {
		if m[id].starts != 1 {
			l.t.Errorf("task %s was started %d times", id, m[id].starts)
		}
		if m[id].first <= last {
			l.t.Errorf("task %s began %s before the one before it had ended", id, time.Duration(last-m[id].first))
		}
		last = m[id].last
	}
}
