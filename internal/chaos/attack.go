package chaos

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a control plane: `destajo serve`, or a `destajo run` that follows.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	role  string
	done  chan struct{} // it has ended
}

// environment is that of every process of the program: short times.
func (r *rig) environment() []string {
	cooldown := "5s"
	if r.Short {
		cooldown = "1s"
	}
	env := []string{"DESTAJO_HOME=" + r.home, "DESTAJO_DEAD_MAN=" + r.DeadMan.String(), "DESTAJO_MARGIN=" + r.Margin.String(),
		"DESTAJO_GRACE=1s", "DESTAJO_LINGER=1s", "DESTAJO_SWEEP=1s", "DESTAJO_COOLDOWN=" + cooldown, "DESTAJO_LOG=info"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// start starts a control plane whose words go to a file.
func (r *rig) start(role string, args ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(r.Dir, role+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(r.Binary, args...), began: time.Now(), role: role, done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = r.environment(), out, out, r.Dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	r.lock.Lock()
	r.procs[p.cmd.Process.Pid] = p
	r.lock.Unlock()
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (r *rig) forget(p *process) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.procs, p.cmd.Process.Pid)
}

// serve keeps one of the `destajo serve` going, as a service manager would.
// Those that find another one end at once, and are started again.
func (r *rig) serve(ctx context.Context, n int) {
	for ctx.Err() == nil {
		p, err := r.start("serve-"+strconv.Itoa(n), "serve")
		if err != nil {
			r.wrong("harness: %v", err)
			return
		}
		<-p.done
		r.forget(p)
		sleep(ctx, r.between(200*time.Millisecond, 1200*time.Millisecond))
	}
}

func (r *rig) kills() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.report.Plane + r.report.Agents
}

// attack kills until it has killed enough.
func (r *rig) attack(ctx context.Context) {
	for ctx.Err() == nil && r.kills() < r.Kills {
		sleep(ctx, r.between(r.Pace/5, r.Pace*9/5))
		if r.chance() < 0.45 || !r.killAgent() {
			r.killPlane(ctx)
		}
	}
}

// killPlane kills the control plane that has lived longest, which as a rule is
// the one that acts, or any; now and then it is only stopped for longer than
// its lease, and goes on while another acts.
func (r *rig) killPlane(ctx context.Context) {
	r.lock.Lock()
	var all []*process
	for _, p := range r.procs {
		all = append(all, p)
	}
	r.lock.Unlock()
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b *process) int { return a.began.Compare(b.began) })
	p := all[0]
	if r.chance() < 0.3 {
		p = all[int(r.chance()*float64(len(all)))]
	}
	select {
	case <-p.done:
		return
	default:
	}
	if r.chance() < 0.12 {
		if p.cmd.Process.Signal(syscall.SIGSTOP) == nil {
			r.lock.Lock()
			r.report.Pauses++
			r.lock.Unlock()
			sleep(ctx, r.between(3500*time.Millisecond, 5*time.Second))
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
		return
	}
	if p.cmd.Process.Kill() == nil {
		r.lock.Lock()
		r.report.Plane++
		r.lock.Unlock()
	}
}

// killAgent kills an agent, and now and then the supervisor above one; false
// when there is none.
func (r *rig) killAgent() bool {
	agents, supervisors := r.agents()
	pids := agents
	if r.chance() < 0.15 {
		pids = supervisors
	}
	if len(pids) == 0 {
		return false
	}
	slices.Sort(pids)
	if syscall.Kill(pids[int(r.chance()*float64(len(pids)))], syscall.SIGKILL) != nil {
		return false
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.report.Agents++
	return true
}

// agents finds the agents of the provider's machines and their supervisors.
func (r *rig) agents() (agents, supervisors []int) {
	mark := []byte("DESTAJO_AGENT=" + r.provider + "/")
	for _, pid := range processes() {
		env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil || !bytes.Contains(env, mark) {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		switch words := strings.Split(string(line), "\x00"); {
		case err != nil || len(words) < 3:
		case words[0] == r.Binary:
			agents = append(agents, pid)
		case words[0] == "/bin/sh" && strings.Contains(words[2], "machine.ended"):
			supervisors = append(supervisors, pid)
		}
	}
	return agents, supervisors
}

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// left finds every process that has a folder of ours in its environment or its
// command: agents, supervisors, jobs, control planes.
func (r *rig) left() map[int]string {
	out := map[int]string{}
	for _, pid := range processes() {
		if pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + strconv.Itoa(pid)
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || len(env) == 0 {
			continue
		}
		for _, folder := range []string{r.home, r.provider} {
			if bytes.Contains(env, []byte("="+folder)) {
				line, _ := os.ReadFile(dir + "/cmdline")
				out[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
			}
		}
	}
	return out
}

// endPlanes ends the control planes in order.
func (r *rig) endPlanes() {
	r.lock.Lock()
	var all []*process
	for _, p := range r.procs {
		all = append(all, p)
	}
	r.lock.Unlock()
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range all {
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			r.wrong("%s does not end when it is told to", p.role)
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
}

// clear leaves nothing behind, whatever went wrong.
func (r *rig) clear() {
	for range 50 {
		left := r.left()
		if len(left) == 0 {
			return
		}
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
