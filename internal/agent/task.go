package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

	stopping *wire.Stop  // it was told to stop
	kill     *time.Timer // the end of its grace

	shells  int       // open shells and forwards
	active  time.Time // it was last seen to do something
	logSize int64
	checked time.Time          // its health was asked last
	healthy time.Time          // it answered last
	cancel  context.CancelFunc // of its preparation
}

// state is what is kept of a task beside what it is to run.
type state struct {
	wire.Status
	Arrived  time.Time     `json:"arrived"`
	Phase    string        `json:"phase,omitempty"` // setup or run: what its process does
	PID      int           `json:"pid,omitempty"`
	Birth    string        `json:"birth,omitempty"`     // of the process, as the kernel counts: a number may come again
	Stop     *wire.Stop    `json:"stop,omitempty"`      // it was told to stop
	StopFrom time.Time     `json:"stop_from,omitempty"` //
	Limit    time.Time     `json:"limit,omitempty"`     // when its duration is over
	Base     time.Duration `json:"base,omitempty"`
	Locks    []string      `json:"locks,omitempty"`
}

// status is what is reported; the caller holds the lock.
func (t *task) status() wire.Status {
	s := t.state.Status
	s.Log = t.size()
	if s.State == machine.TaskRunning || s.State == machine.TaskStopping {
		s.Ran = time.Since(t.state.Started)
	}
	return s
}

func (t *task) size() int64 {
	if t.state.State == machine.TaskEnded {
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
	if err := writeJSON(filepath.Join(t.dir, "state.json"), &t.state); err != nil {
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
		if a.engine == nil {
			err = fault.New(fault.NotFound, "this node runs no containers, and the job names the image %s", t.spec.Image).Hint("start Docker or Podman on the node, or leave image: out")
		} else {
			err = a.engine.pull(ctx, t)
		}
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
	t.state.State, t.state.Detail, t.state.Started, t.active = machine.TaskRunning, "", now, now
	t.state.Starts++
	if t.spec.Duration > 0 {
		t.state.Limit = now.Add(t.spec.Duration)
	}
	if t.spec.Run == "" && t.spec.Image == "" { // a notebook that is only entered
		t.save()
		t.agent.bump()
		return
	}
	t.launch("run")
}

// launch starts a process for a phase; the caller holds the lock.
func (t *task) launch(phase string) {
	t.state.Phase = phase
	text := t.spec.Run
	if phase == "setup" {
		text = t.spec.Setup
	}
	if t.spec.Image != "" {
		t.agent.engine.launch(t, phase, text)
		return
	}
	cmd, err := t.command(text)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		if isFull(err) {
			err = diskFault(err)
		}
		t.end(machine.NotStarted, "it could not be started: "+inWords(err))
		return
	}
	t.state.PID, t.state.Birth = cmd.Process.Pid, birth(cmd.Process.Pid)
	t.save()
	t.agent.bump()
	go func() {
		err := cmd.Wait()
		t.exited(exitOf(cmd.ProcessState, err))
	}()
}

// wrapper runs the command in a shell of its own and writes down how it ended,
// so that a later life of the agent knows.
const wrapper = `/bin/sh -c "$1"; c=$?; echo $c >"$2"; exit $c`

// command is the process of a phase: its own session, its output to the log.
func (t *task) command(text string) (*exec.Cmd, error) {
	exit := filepath.Join(t.dir, "exit")
	_ = os.Remove(exit)
	log, err := os.OpenFile(filepath.Join(t.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", t.agent.confine(t)+wrapper, "destajo", text, exit)
	cmd.Dir = filepath.Join(t.dir, "work")
	cmd.Env = t.environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if t.held != nil {
		cmd.ExtraFiles = t.held.locks // the devices stay locked while a process of the task lives
	}
	return cmd, nil
}

// environment is what a process of the task sees.
func (t *task) environment() []string {
	env := []string{"DESTAJO_NOTICE=" + t.notice(), "DESTAJO_WORK=" + filepath.Join(t.dir, "work")}
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "SHELL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "ROCM_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	if t.spec.KeepDir != "" {
		env = append(env, "DESTAJO_CHECKPOINT="+t.keepDir())
	}
	env = append(env, t.agent.slots.visible(t.held)...)
	for name, v := range t.spec.Env {
		env = append(env, name+"="+v)
	}
	return env
}

// keepDir is where the task's checkpoints are.
func (t *task) keepDir() string {
	if filepath.IsAbs(t.spec.KeepDir) && t.spec.Image == "" {
		return filepath.Clean(t.spec.KeepDir)
	}
	return filepath.Join(t.dir, "work", filepath.FromSlash(strings.TrimPrefix(t.spec.KeepDir, "/")))
}

// notice is the file that tells a task why it is asked to stop.
func (t *task) notice() string { return filepath.Join(t.dir, "notice") }

// exit is how a process ended.
type exit struct {
	code   int    // -1: by a signal, or unknown
	signal string // that ended it
	lost   bool   // nobody saw it end
	oom    bool
}

func exitOf(s *os.ProcessState, err error) exit {
	if s == nil {
		return exit{code: -1, lost: true}
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exit{code: -1, signal: w.Signal().String()}
	}
	_ = err
	return exit{code: s.ExitCode()}
}

// exited takes the end of the task's process.
func (t *task) exited(x exit) {
	a := t.agent
	left := t.sweep() // what it left behind goes with it
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.state.State == machine.TaskEnded {
		return
	}
	_ = left
	if x.lost { // the shell around it may have written it down
		if code, ok := t.written(); ok {
			x = exit{code: code}
		}
	}
	if x.code > 128 && x.code < 160 && x.signal == "" { // as shells say it
		if s := syscall.Signal(x.code - 128); x.code-128 != 127 {
			x.signal = s.String()
		}
	}
	t.state.PID, t.state.Birth = 0, ""
	switch {
	case t.stopping != nil:
		t.state.Exit, t.state.Signal = x.code, x.signal
		t.end(t.stopping.Cause, t.stopping.Reason)
	case x.lost:
		t.end(machine.Lost, "its process vanished: the node was started anew, or someone killed it with its shell")
	case t.state.Phase == "setup" && x.code == 0:
		t.ready()
	case t.state.Phase == "setup":
		t.state.Exit, t.state.Signal = x.code, x.signal
		t.end(machine.Exited, fmt.Sprintf("its setup ended with exit code %d", x.code))
	case t.spec.Kind == string(job.Service) && t.again(x):
	default:
		t.state.Exit, t.state.Signal = x.code, x.signal
		t.end(machine.Exited, t.words(x))
	}
}

func (t *task) words(x exit) string {
	switch {
	case x.oom || t.agent.outOfMemory(t):
		return "out of memory: it used more than it may"
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

// again starts a service anew after a pause; the caller holds the lock.
func (t *task) again(x exit) bool {
	if t.spec.Restart == "never" || t.spec.Restart == "failure" && x.code == 0 || t.agent.ending {
		return false
	}
	pause := time.Second << min(t.state.Starts-1, 6)
	if time.Since(t.state.Started) > 10*time.Minute {
		t.state.Starts = 0
	}
	t.state.Healthy = false
	t.state.Detail = fmt.Sprintf("ended with exit code %d; starts again in %s", x.code, min(pause, time.Minute))
	t.agent.bump()
	time.AfterFunc(min(pause, time.Minute), func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.state.State == machine.TaskRunning && t.stopping == nil && t.state.PID == 0 {
			started := t.state.Started
			t.state.Starts++
			t.state.Detail = ""
			t.launch("run")
			t.state.Started = started
		}
	})
	return true
}

// written is the exit code that the shell wrote down.
func (t *task) written() (int, bool) {
	data, err := os.ReadFile(filepath.Join(t.dir, "exit"))
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
		s.Ran = now.Sub(s.Started)
	}
	s.Outputs = !s.Started.IsZero() && t.hasOutputs()
	s.Kept = t.spec.KeepDir != "" && hasFiles(t.keepDir())
	if t.kill != nil {
		t.kill.Stop()
	}
	if t.cancel != nil {
		t.cancel()
	}
	t.agent.unconfine(t)
	if t.held != nil {
		t.agent.slots.give(t.held)
		t.held = nil
	}
	t.save()
	t.agent.bump()
	t.agent.admit()
}

// stop gives notice and, after the grace, kills; the caller holds the lock.
func (t *task) stop(cause machine.Cause, reason string, grace time.Duration) {
	switch t.state.State {
	case machine.TaskEnded:
		return
	case machine.TaskStopping:
		if t.stopping != nil && time.Until(t.state.StopFrom.Add(t.stopping.Grace)) > grace { // it gets less time than it was given
			t.stopping.Grace = time.Since(t.state.StopFrom) + grace
			t.kill.Reset(grace)
		}
		return
	}
	t.stopping = &wire.Stop{ID: t.spec.ID, Cause: cause, Reason: reason, Grace: grace}
	t.state.Stop, t.state.StopFrom = t.stopping, time.Now()
	if t.state.PID == 0 && !t.contained() { // nothing runs
		t.end(cause, reason)
		return
	}
	t.state.State = machine.TaskStopping
	_ = os.WriteFile(t.notice(), []byte(string(cause)+"\n"+reason+"\n"), 0o600)
	t.save()
	t.agent.bump()
	t.signal(syscall.SIGTERM)
	t.kill = time.AfterFunc(grace, func() {
		t.agent.mu.Lock()
		defer t.agent.mu.Unlock()
		if t.state.State == machine.TaskStopping {
			t.signal(syscall.SIGKILL)
		}
	})
}

// contained says that the task runs in a container.
func (t *task) contained() bool {
	return t.spec.Image != "" && t.agent.engine != nil && t.agent.engine.running(t)
}

// signal reaches every process of the task; the caller holds the lock.
func (t *task) signal(s syscall.Signal) {
	if t.spec.Image != "" {
		if t.agent.engine != nil {
			t.agent.engine.signal(t, s)
		}
		return
	}
	pid := t.state.PID
	if pid == 0 || birth(pid) != t.state.Birth {
		return
	}
	// The shell around the command must live on to write down how it ended: it
	// gets SIGKILL only with all others.
	if s == syscall.SIGKILL {
		_ = syscall.Kill(-pid, s)
		return
	}
	for _, p := range members(pid, t.notice()) {
		if p != pid {
			_ = syscall.Kill(p, s)
		}
	}
}

// recover takes up a task of a former life.
func (t *task) recover() {
	a := t.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &t.state
	t.active = time.Now()
	t.stopping = s.Stop
	switch s.State {
	case machine.TaskEnded, machine.TaskQueued:
		return
	}
	if t.held = a.slots.retake(&t.spec.Needs, s.Devices); t.held == nil {
		t.held = &slot{}
	}
	alive := s.PID != 0 && birth(s.PID) == s.Birth && s.Birth != ""
	switch {
	case t.spec.Image != "":
		if a.engine == nil || !a.engine.recover(t) {
			go t.exited(exit{code: -1, lost: true})
		}
	case alive:
		if s.State == machine.TaskStopping && s.Stop != nil {
			left := max(time.Until(s.StopFrom.Add(s.Stop.Grace)), 0)
			t.kill = time.AfterFunc(left, func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				t.signal(syscall.SIGKILL)
			})
		}
		go func() {
			awaitEnd(s.PID, s.Birth)
			t.exited(exit{code: -1, lost: true})
		}()
	case s.PID != 0:
		go t.exited(exit{code: -1, lost: true})
	case s.State == machine.TaskPreparing: // nothing of it ran: it begins anew
		_ = os.RemoveAll(filepath.Join(t.dir, "work"))
		_ = os.MkdirAll(filepath.Join(t.dir, "work"), 0o700)
		t.begin()
	case s.State == machine.TaskPrepared, t.spec.Run == "":
	default:
		go t.exited(exit{code: -1, lost: true})
	}
}

func inWords(err error) string {
	if h := fault.HintOf(err); h != "" {
		return err.Error() + " (" + h + ")"
	}
	return err.Error()
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// hasFiles says whether there is a file below a folder.
func hasFiles(dir string) bool {
	found := false
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}
