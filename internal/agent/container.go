package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// engine runs tasks in containers. A task has one container for its life: it is
// started for the setup and started again for the command and for each restart
// of a service, so that what the setup installed is there. It is the engine's
// child, so that it survives us, and carries labels by which we find it again.
//
// Where the job gives a command, a shell in the container writes its output
// straight to the task's log, which is mounted: nothing is copied and no byte
// can be lost. An image's own command may have no shell around it: what it
// writes is kept by the engine and copied, and the size of our log is the
// cursor in it.
type engine struct {
	agent *Agent
	mu    sync.Mutex
	to    *docker
}

// engineWait is for one word with the engine, but for those that last.
const engineWait = time.Minute

func newEngine(a *Agent) *engine { return &engine{agent: a} }

// reach finds the engine, again if it went away meanwhile.
func (e *engine) reach(ctx context.Context) (*docker, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.to != nil {
		if _, err := os.Stat(e.to.socket); err == nil {
			return e.to, nil
		}
	}
	found, problem := e.agent.c.Finder.Engine(ctx)
	if found.Name == "" {
		return nil, fault.New(fault.NotFound, "this node runs no containers, and the job names an image").Hint("%s", problem)
	}
	e.to = newDocker(found.Socket, found.Name == "podman")
	return e.to, nil
}

// pull makes sure that the node has the task's image.
func (e *engine) pull(ctx context.Context, t *task) error {
	d, err := e.reach(ctx)
	if err != nil {
		return err
	}
	name := imageName(t.spec.Image)
	_, err = d.image(ctx, name)
	if err == nil {
		return nil
	}
	if refused(err) != http.StatusNotFound {
		return engineFault(err, name)
	}
	e.say(t, "pulling image "+name)
	for try := 1; ; try++ {
		err := d.pull(ctx, name, func(words string) { e.say(t, words) })
		if err == nil {
			return nil
		}
		err = engineFault(err, name)
		if try == 3 || fault.KindOf(err) != fault.Unreachable || ctx.Err() != nil {
			return err
		}
		select { // the network may come back
		case <-time.After(time.Duration(try) * 2 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *engine) say(t *task, words string) {
	e.agent.mu.Lock()
	defer e.agent.mu.Unlock()
	if t.state.State == machine.TaskPreparing {
		t.say(words)
	}
}

// launch starts the task's container for a phase; the caller holds the lock.
func (e *engine) launch(t *task, text string) {
	t.boxed = true
	t.save()
	t.agent.bump()
	go e.play(t, text)
}

// play makes the container, if there is none yet, and starts it.
func (e *engine) play(t *task, text string) {
	if err := e.begin(t, text); err != nil {
		e.agent.mu.Lock()
		defer e.agent.mu.Unlock()
		t.boxed = false
		if t.state.State != machine.TaskEnded {
			t.end(machine.NotStarted, "its container could not be started: "+inWords(err))
		}
		return
	}
	e.await(t)
}

// begin starts the container, unless the task was told to stop meanwhile.
func (e *engine) begin(t *task, text string) error {
	t.box.Lock()
	defer t.box.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	d, err := e.reach(ctx)
	if err != nil {
		return err
	}
	if err := e.furnish(t, text); err != nil {
		return diskFault(err)
	}
	a := e.agent
	a.mu.Lock()
	id := t.state.Container
	a.mu.Unlock()
	if id == "" {
		spec, err := e.spec(ctx, d, t)
		if err != nil {
			return engineFault(err, imageName(t.spec.Image))
		}
		if id, err = d.create(ctx, spec); err != nil {
			return engineFault(err, spec.Image)
		}
	}
	a.mu.Lock()
	t.state.Container = id
	stopping := t.stopping != nil
	t.save()
	a.mu.Unlock()
	if stopping {
		return nil // it never ran: await finds it so
	}
	if err := d.start(ctx, id); err != nil {
		return engineFault(err, imageName(t.spec.Image))
	}
	return nil
}

// await waits until the container has ended, through restarts of its engine too.
func (e *engine) await(t *task) {
	a := e.agent
	a.mu.Lock()
	id := t.state.Container
	a.mu.Unlock()
	var copied chan struct{}
	if !t.shelled() {
		copied = make(chan struct{})
		go func() { e.copyLog(t, id); close(copied) }()
	}
	x := exit{code: -1, lost: true}
	for {
		d, err := e.reach(context.Background())
		if err == nil {
			err = d.wait(context.Background(), id)
		}
		var s containerState
		if err == nil || refused(err) != 0 {
			s, err = e.inspect(d, id)
		}
		switch {
		case refused(err) == http.StatusNotFound: // someone removed it
		case err != nil && e.hopeless(t):
		case err != nil || s.State.Running:
			a.mu.Lock()
			if err != nil {
				t.say("the container engine does not answer: " + err.Error())
			}
			if t.state.State == machine.TaskStopping && time.Since(t.state.StopFrom) > t.stopping.Grace {
				t.signal(syscall.SIGKILL)
			}
			a.mu.Unlock()
			time.Sleep(time.Second)
			continue
		case s.State.StartedAt.IsZero(): // told to stop before it ran
			x = exit{code: -1, signal: syscall.SIGTERM.String()}
		default:
			x = exit{code: s.State.ExitCode, oom: s.State.OOMKilled && s.State.ExitCode != 0}
		}
		break
	}
	if copied != nil {
		<-copied
	}
	e.own(t)
	a.mu.Lock()
	t.boxed = false
	t.state.Detail = ""
	a.mu.Unlock()
	t.exited(x)
}

func (e *engine) inspect(d *docker, id string) (containerState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	return d.inspect(ctx, id)
}

// copyLog copies what the container writes until it has ended and all is here.
func (e *engine) copyLog(t *task, id string) {
	for {
		d, err := e.reach(context.Background())
		if err == nil {
			err = e.copyOnce(d, t, id)
		}
		if err == nil || refused(err) == http.StatusNotFound {
			return
		}
		if isFull(err) && d != nil { // it goes on when there is room, while the container lives
			if s, err := e.inspect(d, id); err == nil && !s.State.Running {
				return
			}
		}
		time.Sleep(time.Second)
	}
}

func (e *engine) copyOnce(d *docker, t *task, id string) error {
	f, err := os.OpenFile(filepath.Join(t.dir, "log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	return d.logs(context.Background(), id, have, f)
}

// own gives us the files that the container's root left in the task's folders,
// where we are not root ourselves: else we could not delete them.
func (e *engine) own(t *task) {
	d, err := e.reach(context.Background())
	if err != nil || os.Getuid() == 0 || d.podman {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	id, err := d.create(ctx, &containerSpec{
		Image:      imageName(t.spec.Image),
		Entrypoint: []string{"chown", "-R", fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), boxWork},
		Labels:     map[string]string{labelHome: e.agent.c.Home},
		HostConfig: hostConfig{Binds: []string{filepath.Join(t.dir, "work") + ":" + boxWork}, NetworkMode: "none", LogConfig: logConfig{Type: "none"}},
	})
	if err != nil {
		return
	}
	if err := d.start(ctx, id); err == nil {
		_ = d.wait(ctx, id)
	}
	_ = d.remove(ctx, id)
}

// signal reaches every process of the container; the caller holds the lock.
func (e *engine) signal(t *task, s syscall.Signal) {
	go func() {
		t.box.Lock() // not while it starts
		defer t.box.Unlock()
		e.agent.mu.Lock()
		id, runs := t.state.Container, t.boxed
		e.agent.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), engineWait)
		defer cancel()
		d, err := e.reach(ctx)
		if err != nil || id == "" || !runs {
			return
		}
		if s == syscall.SIGKILL {
			_ = d.kill(ctx, id, "SIGKILL")
			return
		}
		if t.shelled() { // to all but the shell around them
			if code, err := d.execute(ctx, id, "/bin/sh", "-c", "kill -s TERM -- -1"); err == nil && code == 0 {
				return
			}
		}
		_ = d.kill(ctx, id, "SIGTERM")
	}()
}

// recover takes up a task of a former life; the caller holds the lock.
func (e *engine) recover(t *task) {
	started := t.state.Phase != ""
	if !started && t.state.State == machine.TaskPreparing {
		t.anew()
		return
	}
	if !started || t.state.State == machine.TaskPrepared { // a gang's, waiting for its word to go
		return
	}
	t.boxed = true
	launched := t.state.Launched
	text := t.spec.Run
	if t.state.Phase == "setup" {
		text = t.spec.Setup
	}
	id := t.state.Container
	go func() {
		d := e.regain(t)
		if d == nil {
			e.agent.mu.Lock()
			t.boxed = false
			e.agent.mu.Unlock()
			t.exited(exit{code: -1, lost: true})
			return
		}
		var s containerState
		if id == "" { // it was being made, and not started: its start follows what is saved
			_ = e.removeOf(d, t.spec.ID)
		} else {
			var err error
			if s, err = e.inspect(d, id); refused(err) == http.StatusNotFound {
				e.agent.mu.Lock()
				t.boxed = false
				e.agent.mu.Unlock()
				t.exited(exit{code: -1, lost: true})
				return
			}
		}
		if !s.State.Running && s.State.StartedAt.Before(launched) { // we died before we started it
			e.play(t, text)
			return
		}
		e.agent.mu.Lock()
		if t.state.State == machine.TaskStopping && t.stopping != nil {
			t.grant(max(time.Until(t.state.StopFrom.Add(t.stopping.Grace)), 0))
		}
		e.agent.mu.Unlock()
		e.await(t)
	}()
}

// hopeless says that the task was told to stop, and the engine, which does not
// answer, had more than time to do so.
func (e *engine) hopeless(t *task) bool {
	e.agent.mu.Lock()
	defer e.agent.mu.Unlock()
	return t.stopping != nil && time.Since(t.state.StopFrom) > t.stopping.Grace+time.Minute
}

// regain waits until the engine answers; nil when that is no use any more.
func (e *engine) regain(t *task) *docker {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), engineWait)
		d, err := e.reach(ctx)
		if err == nil {
			err = d.call(ctx, http.MethodGet, "/_ping", nil, nil)
		}
		cancel()
		if err == nil {
			return d
		}
		if e.hopeless(t) {
			return nil
		}
		e.agent.mu.Lock()
		t.say("the container engine does not answer: " + err.Error())
		e.agent.mu.Unlock()
		time.Sleep(time.Second)
	}
}

// clean removes the container of an ended task; the caller holds the lock.
func (e *engine) clean(t *task) {
	if t.spec.Image == "" || t.state.Phase == "" {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), engineWait)
		defer cancel()
		d, err := e.reach(ctx)
		if err == nil {
			err = e.removeOf(d, t.spec.ID)
		}
		if err != nil {
			e.agent.c.Log.Warn("removing a container", "task", t.spec.ID, "err", err)
		}
	}()
}

// removeOf removes all containers of a task.
func (e *engine) removeOf(d *docker, task string) error {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	all, err := d.labelled(ctx, labelHome, e.agent.c.Home, labelTask)
	for id, name := range all {
		if name == task {
			err = errors.Join(err, d.remove(ctx, id))
		}
	}
	return err
}

// leftovers removes containers of former lives that belong to no live task.
func (e *engine) leftovers() {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	d, err := e.reach(ctx)
	if err != nil {
		return
	}
	all, err := d.labelled(ctx, labelHome, e.agent.c.Home, labelTask)
	if err != nil {
		return
	}
	for id, name := range all {
		e.agent.mu.Lock()
		t := e.agent.tasks[name]
		live := t != nil && t.state.State != machine.TaskEnded
		e.agent.mu.Unlock()
		if !live {
			_ = d.remove(ctx, id)
		}
	}
}

// usage is what the task's container uses: seconds of CPU since it began, and
// bytes in memory.
func (e *engine) usage(ctx context.Context, t *task) (cpu float64, memory int64) {
	e.agent.mu.Lock()
	id, runs := t.state.Container, t.boxed
	e.agent.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	d, err := e.reach(ctx)
	if err != nil || id == "" || !runs {
		return 0, 0
	}
	cpu, memory, err = d.use(ctx, id)
	if err != nil && !errors.Is(err, context.Canceled) {
		e.agent.c.Log.Debug("measuring a container", "task", t.spec.ID, "err", err)
	}
	return cpu, memory
}

// inside opens a terminal in the container; an empty command is a shell.
func (e *engine) inside(t *task, command string, cols, rows int) (terminal, error) {
	e.agent.mu.Lock()
	id, runs := t.state.Container, t.boxed
	e.agent.mu.Unlock()
	if id == "" || !runs {
		return nil, fault.New(fault.Conflict, "the job's container does not run").Hint("wait until it has started")
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	d, err := e.reach(ctx)
	if err != nil {
		return nil, err
	}
	// The engine does not end a command when its stream is closed: it leaves its
	// number, by which we can.
	note := "/dev/shm/destajo-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	script := `echo $$ >` + note + `; if [ -n "$1" ]; then exec /bin/sh -c "$1"; fi; if [ -x /bin/bash ]; then exec /bin/bash; fi; exec /bin/sh`
	x := &boxTerminal{d: d, container: id, note: note}
	x.id, err = d.command(ctx, id, true, append(t.boxEnvironment(), "TERM=xterm-256color"), boxWork, "/bin/sh", "-c", script, "destajo", command)
	if err == nil {
		x.WriteCloser, x.Reader, err = d.hijack(ctx, "/exec/"+x.id+"/start", map[string]any{"Detach": false, "Tty": true})
	}
	if err != nil {
		return nil, engineFault(err, imageName(t.spec.Image))
	}
	x.Resize(cols, rows)
	return x, nil
}

// boxTerminal is a terminal in a container.
type boxTerminal struct {
	io.Reader
	io.WriteCloser
	d             *docker
	container, id string
	note          string
}

func (x *boxTerminal) Resize(cols, rows int) {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	_ = x.d.resize(ctx, x.id, cols, rows)
}

func (x *boxTerminal) Wait() int {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	code, err := x.d.ended(ctx, x.id)
	if err != nil {
		return 1
	}
	return code
}

// Kill ends what runs in the terminal.
func (x *boxTerminal) Kill() {
	ctx, cancel := context.WithTimeout(context.Background(), engineWait)
	defer cancel()
	note := x.note
	_, _ = x.d.execute(ctx, x.container, "/bin/sh", "-c", "read p <"+note+" && kill -s HUP -- -$p; sleep 0.2; kill -s KILL -- -$p; rm -f "+note)
	_ = x.Close()
}
