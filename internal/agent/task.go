package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// task is one task of the node. What follows is guarded by the agent's lock.
type task struct {
	agent *Agent
	spec  wire.Task
	dir   string
	state state
	held  *slot

	stopping *wire.Stop         // it was told to stop
	kill     *time.Timer        // the end of its grace
	cancel   context.CancelFunc // of its preparation
	saved    bool               // its state was written before
	foreign  bool               // its process was started by a former life of the agent
	kicked   bool               // its process is ended so that it starts again

	boxed bool       // its container runs, or is being started
	box   sync.Mutex // held while that is started or told something

	due     time.Time // its deadline, by the monotonic clock
	begun   time.Time // Started, by the monotonic clock
	quick   int       // how often in a row a service ended soon after its start
	shells  int       // open shells and forwards
	entered bool      // a shell was opened in it
	active  time.Time // it was last seen to do something
	logSize int64
	checked time.Time // its health was asked last
	healthy time.Time // it answered last
}

// state is what is kept of a task beside what it is to run.
type state struct {
	wire.Status
	Arrived   time.Time  `json:"arrived"`
	Phase     string     `json:"phase,omitempty"`   // setup or run: what its process does, from before that is started
	PID       int        `json:"pid,omitempty"`     // the shell around the command; leader of its session
	Birth     string     `json:"birth,omitempty"`   // of the process, as the kernel counts: a number may come again
	Launched  time.Time  `json:"launched,omitzero"` // its present process, or run of its container
	Container string     `json:"container,omitempty"`
	Groups    []string   `json:"groups,omitempty"`   // control groups that were made for it
	Stop      *wire.Stop `json:"stop,omitempty"`     // it was told to stop
	StopFrom  time.Time  `json:"stop_from,omitzero"` // from then its grace counts
}

// newTask is a task that has just arrived.
func newTask(a *Agent, spec wire.Task) *task {
	t := &task{agent: a, spec: spec, dir: a.path("tasks", spec.ID)}
	t.state = state{Status: wire.Status{ID: spec.ID, State: machine.TaskQueued, Exit: -1}, Arrived: time.Now()}
	t.clock()
	return t
}

// clock fixes the task's times to the monotonic clock, so that a jump of the
// wall clock neither ends it nor lets it run for ever.
func (t *task) clock() {
	now := time.Now()
	if !t.spec.Deadline.IsZero() {
		t.due = now.Add(time.Until(t.spec.Deadline))
	}
	if !t.state.Started.IsZero() {
		t.begun = now.Add(-max(0, time.Since(t.state.Started)))
	}
	t.active = now
}

// status is what is reported; the caller holds the lock.
func (t *task) status() wire.Status {
	s := t.state.Status
	s.Log = t.size()
	if s.State == machine.TaskRunning || s.State == machine.TaskStopping {
		s.Ran = time.Since(t.begun)
	}
	return s
}

func (t *task) size() int64 {
	if t.state.State == machine.TaskEnded || t.state.State == machine.TaskQueued && t.state.Phase == "" {
		return t.state.Log
	}
	i, err := os.Stat(filepath.Join(t.dir, "log"))
	if err != nil {
		return 0
	}
	return i.Size()
}

// save keeps the state; the caller holds the lock.
func (t *task) save() {
	write := putJSON // a first one that is cut off counts as none
	if t.saved {
		write = writeJSON
	}
	t.saved = true
	if err := write(filepath.Join(t.dir, "state.json"), &t.state); err != nil {
		t.agent.c.Log.Warn("keeping a task's state", "task", t.spec.ID, "err", err)
	}
}

// begin prepares a task that has its slot, in the background where that takes
// time; the caller holds the lock.
func (t *task) begin() {
	simple := t.spec.Bundle == "" && t.spec.Keep == "" && t.spec.KeepDir == "" && t.spec.Setup == "" && t.spec.Image == "" && !t.spec.Gang && len(t.spec.Mounts) == 0
	if simple {
		t.run()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	go t.prepare(ctx)
}

// prepare unpacks files, pulls the image, runs the setup, and for a gang waits
// for the word to go.
func (t *task) prepare(ctx context.Context) {
	a := t.agent
	err := t.unpack(ctx)
	if err == nil && t.spec.Image != "" {
		err = a.engine.pull(ctx, t)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.state.State != machine.TaskPreparing {
		return
	}
	if err != nil {
		t.end(machine.NotStarted, inWords(err))
		return
	}
	if t.spec.Setup != "" {
		t.say("setup")
		t.launch("setup")
		return
	}
	t.ready()
}

// ready goes on after the preparation; the caller holds the lock.
func (t *task) ready() {
	if t.spec.Gang {
		t.state.State, t.state.Detail = machine.TaskPrepared, ""
		t.save()
		t.agent.bump()
		return
	}
	t.run()
}

// say tells how far the preparation is; the caller holds the lock.
func (t *task) say(words string) {
	if t.state.Detail != words {
		t.state.Detail = words
		t.agent.bump()
	}
}

// proceed is the word to go for a prepared task; the caller holds the lock.
func (t *task) proceed() {
	if t.state.State == machine.TaskPrepared {
		t.run()
	}
}

// run starts the command; the caller holds the lock.
func (t *task) run() {
	now := time.Now()
	t.state.State, t.state.Detail, t.active = machine.TaskRunning, "", now
	if t.state.Started.IsZero() { // not so for a notebook without a command that is taken up again
		t.state.Started, t.begun, t.state.Starts = now, now, 1
	}
	if t.spec.Run == "" && t.spec.Image == "" { // a notebook that is only entered
		t.save()
		t.agent.bump()
		return
	}
	t.launch("run")
}

// launch starts a process for a phase; the caller holds the lock. A later life
// of the agent must know of the process even if this one dies before it wrote
// down its number: the log is there from before the process is, and a run after
// a setup is announced in the state.
func (t *task) launch(phase string) {
	_ = os.Remove(t.exitFile())
	t.foreign, t.state.Phase, t.state.Launched = false, phase, time.Now()
	text := t.spec.Run
	if phase == "setup" {
		text = t.spec.Setup
	}
	if t.spec.Image != "" {
		t.agent.engine.launch(t, text)
		return
	}
	if phase == "run" && t.spec.Setup != "" {
		t.save()
	}
	cmd, log, err := t.command(text)
	if err == nil {
		err = cmd.Start()
		_ = log.Close()
	}
	if err != nil {
		if isFull(err) {
			err = diskFault(err)
		}
		t.end(machine.NotStarted, "it could not be started: "+inWords(err))
		return
	}
	pid := cmd.Process.Pid
	t.state.PID, t.state.Birth = pid, birth(pid)
	t.agent.shells[pid] = true
	if t.plain() { // a later life finds its process, and in this its start
		touch(filepath.Join(t.dir, "task.json"), t.state.Launched)
	} else {
		t.save()
	}
	t.agent.bump()
	go func() {
		_ = cmd.Wait()
		t.exited(exitOf(cmd.ProcessState))
	}()
}

// plain says that nothing of the task's state need be kept while it runs: files
// cost as much as a short task itself.
func (t *task) plain() bool {
	return t.spec.Kind == string(job.Task) && t.spec.Setup == "" && len(t.state.Devices) == 0 && len(t.state.Groups) == 0 && !t.saved
}

// wrapper runs the command in a shell of its own and writes down how it ended,
// so that a later life of the agent knows. A line without its end counts as none.
// The shell around lives through SIGTERM, which its command gets as usual.
const wrapper = `trap : TERM; /bin/sh -c "$1"; c=$?; echo $c >"$2"; exit $c`

// command is the process of a phase: its own session, its output to the log,
// which the caller closes.
func (t *task) command(text string) (*exec.Cmd, *os.File, error) {
	log, err := os.OpenFile(filepath.Join(t.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", t.agent.limits.confine(t)+wrapper, "destajo", text, t.exitFile())
	cmd.Dir = filepath.Join(t.dir, "work")
	cmd.Env = t.environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if t.held != nil {
		cmd.ExtraFiles = t.held.locks // the devices stay locked while a process of the task lives
	}
	return cmd, log, nil
}

// environment is what a process of the task sees. What we say of devices and
// folders stands last and wins over what the job says.
func (t *task) environment() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "SHELL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "ROCM_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	for name, v := range t.spec.Env {
		env = append(env, name+"="+v)
	}
	return append(env, t.surroundings(t.notice(), filepath.Join(t.dir, "work"), t.keepDir())...)
}

// surroundings are the variables that say where the task is, by the paths that
// its processes see.
func (t *task) surroundings(notice, work, keep string) []string {
	env := append(t.agent.slots.visible(t.held), "DESTAJO_NOTICE="+notice, "DESTAJO_WORK="+work)
	if t.spec.KeepDir != "" {
		env = append(env, "DESTAJO_CHECKPOINT="+keep)
	}
	if len(t.spec.Outputs) > 0 {
		env = append(env, "DESTAJO_OUT="+filepath.Join(work, filepath.FromSlash(t.spec.Outputs[0])))
	}
	return env
}

// keepDir is where the task's checkpoints are on the node.
func (t *task) keepDir() string {
	switch {
	case !filepath.IsAbs(t.spec.KeepDir):
		return filepath.Join(t.dir, "work", filepath.FromSlash(t.spec.KeepDir))
	case t.spec.Image != "":
		return filepath.Join(t.dir, "keep")
	}
	return filepath.Clean(t.spec.KeepDir)
}

// notice is the file that tells a task why it is asked to stop.
func (t *task) notice() string {
	if t.spec.Image != "" {
		return filepath.Join(t.dir, "box", "notice")
	}
	return filepath.Join(t.dir, "notice")
}

// exitFile is where the shell around the command writes down how that ended.
func (t *task) exitFile() string { return filepath.Join(t.dir, "exit") }

// exit is how a process ended.
type exit struct {
	code   int    // -1: by a signal, or unknown
	signal string // that ended it
	lost   bool   // nobody saw it end
	oom    bool
}

func exitOf(s *os.ProcessState) exit {
	if s == nil {
		return exit{code: -1, lost: true}
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exit{code: -1, signal: w.Signal().String()}
	}
	return exit{code: s.ExitCode()}
}

// exited takes the end of the task's process.
func (t *task) exited(x exit) {
	a := t.agent
	if t.spec.Image == "" { // what it left behind goes with it
		t.linger()
		t.sweep()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.state.State == machine.TaskEnded {
		return
	}
	if x.lost { // the shell around it may have written it down
		if code, ok := t.written(); ok {
			x = exit{code: code, oom: x.oom}
		}
	}
	if x.code > 128 && x.code < 160 && x.signal == "" { // as shells say it
		x.signal = syscall.Signal(x.code - 128).String()
	}
	t.state.PID, t.state.Birth = 0, ""
	switch {
	case t.stopping != nil:
		t.state.Exit, t.state.Signal = x.code, x.signal
		t.end(t.stopping.Cause, t.stopping.Reason)
	case x.lost && t.noRoom():
		t.end(machine.Lost, "its process vanished, and the disk of the node is full")
	case x.lost:
		t.end(machine.Lost, "its process vanished: the node was started anew, or someone killed it with its shell")
	case t.state.Phase == "setup" && x.code == 0:
		t.ready()
	case t.state.Phase == "setup":
		t.state.Exit, t.state.Signal = x.code, x.signal
		why := t.words(x)
		if why == "" {
			why = fmt.Sprintf("exit code %d", x.code)
		}
		t.end(machine.Exited, "its setup failed: "+why)
	case t.spec.Kind == string(job.Service) && t.again(x):
	default:
		t.state.Exit, t.state.Signal = x.code, x.signal
		t.end(machine.Exited, t.words(x))
	}
}

// words say how a process ended, where more is known than its exit code.
func (t *task) words(x exit) string {
	switch {
	case x.oom || x.code != 0 && t.agent.limits.outOfMemory(t):
		if m := t.spec.Needs.Memory; m > 0 {
			return fmt.Sprintf("out of memory: it used all of the %s that it may have", amount(m))
		}
		return "out of memory"
	case x.code == 127:
		return "exit code 127: a command was not found; the end of the log says which"
	case x.code == 126:
		return "exit code 126: a command could not be run; is it executable, and for this processor?"
	case x.code != 0 && t.noRoom():
		return fmt.Sprintf("exit code %d, and the disk of the node is full", x.code)
	case x.signal != "":
		return "ended by the signal " + x.signal
	}
	return ""
}

func (t *task) noRoom() bool {
	n, err := free(t.dir)
	return err == nil && n < 1<<20
}

// again starts a service anew after a pause, unless its policy says no; the
// caller holds the lock. The pause doubles from a second to a minute, and begins
// again when the service lived for ten minutes.
func (t *task) again(x exit) bool {
	if !t.kicked && (t.spec.Restart == "never" || t.spec.Restart == "failure" && x.code == 0) || t.agent.ending {
		return false
	}
	if time.Since(t.state.Launched) > 10*time.Minute {
		t.quick = 0
	}
	pause := min(time.Second<<min(t.quick, 6), time.Minute)
	t.quick++
	t.kicked = false
	t.state.Healthy = false
	t.state.Detail = fmt.Sprintf("ended with exit code %d; starts again in %s", x.code, pause)
	t.save()
	t.agent.bump()
	time.AfterFunc(pause, func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.state.State == machine.TaskRunning && t.stopping == nil && !t.live() {
			t.state.Starts++
			t.state.Detail = ""
			t.launch("run")
		}
	})
	return true
}

// written is the exit code that the shell wrote down.
func (t *task) written() (int, bool) {
	data, err := os.ReadFile(t.exitFile())
	if err != nil || !strings.HasSuffix(string(data), "\n") {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return n, err == nil
}

// end writes down how the task ended and gives its slot to others; the caller
// holds the lock.
func (t *task) end(cause machine.Cause, reason string) {
	now := time.Now()
	s := &t.state
	s.Log = t.size()
	s.State, s.Cause, s.Reason, s.Detail, s.Ended, s.Healthy = machine.TaskEnded, cause, reason, "", now, false
	if !s.Started.IsZero() {
		s.Ran = now.Sub(t.begun)
	}
	s.Outputs = !s.Started.IsZero() && t.hasOutputs()
	if t.spec.KeepDir != "" {
		if root, err := t.openKeep(false); err == nil {
			_, newest := fingerprint(root)
			s.Kept = !newest.IsZero()
			_ = root.Close()
		}
	}
	s.PeakMem = max(s.PeakMem, t.agent.limits.peak(t))
	if t.kill != nil {
		t.kill.Stop()
	}
	if t.cancel != nil {
		t.cancel()
	}
	t.agent.limits.release(t)
	t.agent.engine.clean(t)
	if t.held != nil {
		t.agent.slots.give(t.held)
		t.held = nil
	}
	t.save()
	t.agent.bump()
	t.agent.admit()
}

func inWords(err error) string {
	if h := fault.HintOf(err); h != "" {
		return err.Error() + " (" + h + ")"
	}
	return err.Error()
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
