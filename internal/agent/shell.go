package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/creack/pty"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// shell opens a terminal in the surroundings of a task: its folder, variables
// and devices.
func (a *Agent) shell(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	a.mu.Lock()
	running := t.state.State == machine.TaskRunning || t.state.State == machine.TaskStopping
	a.mu.Unlock()
	if !running {
		refuse(w, fault.New(fault.Conflict, "the job does not run on this node"))
		return
	}
	cols, _ := strconv.Atoi(r.FormValue("cols"))
	rows, _ := strconv.Atoi(r.FormValue("rows"))
	open := t.inside
	if t.spec.Image != "" {
		open = func(command string, cols, rows int) (terminal, error) {
			return a.engine.inside(t, command, cols, rows)
		}
	}
	tty, err := open(r.FormValue("command"), max(cols, 20), max(rows, 5))
	if err != nil {
		refuse(w, fault.Wrap(fault.KindOf(err), err, "the shell could not be started"))
		return
	}
	defer tty.Close()
	near, rest, err := hijack(w, "destajo-shell")
	if err != nil {
		tty.Kill()
		return
	}
	defer near.Close()
	defer t.use()()
	frames := wire.NewFrames(rest, near)
	go func() {
		for {
			kind, data, err := frames.Read()
			if err != nil { // the other end is gone: so is its shell
				tty.Kill()
				return
			}
			switch kind {
			case wire.FrameData:
				_, _ = tty.Write(data)
			case wire.FrameSize:
				if c, r, ok := wire.ParseSize(data); ok {
					tty.Resize(c, r)
				}
			}
		}
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := tty.Read(buffer)
		if n > 0 && frames.Write(wire.FrameData, buffer[:n]) != nil {
			break
		}
		if err != nil {
			break
		}
	}
	_ = frames.Exit(tty.Wait())
}

// terminal is what a shell runs in.
type terminal interface {
	io.ReadWriteCloser
	Resize(cols, rows int)
	Wait() int // the exit code, when what is read has come to its end
	Kill()     // ends what runs in it
}

// local is a terminal on the node.
type local struct {
	*os.File
	cmd   *exec.Cmd
	ended chan struct{}
}

func (x *local) Resize(cols, rows int) {
	_ = pty.Setsize(x.File, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
}

func (x *local) Wait() int {
	<-x.ended
	if code := x.cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return 1
}

// Kill ends the shell; what runs in it hears that its terminal is gone.
func (x *local) Kill() {
	_ = x.cmd.Process.Kill()
	_ = x.Close()
}

// inside opens a terminal in which a command runs as the task's own processes
// do; empty: a shell.
func (t *task) inside(command string, cols, rows int) (terminal, error) {
	name := "/bin/sh"
	if s := os.Getenv("SHELL"); s != "" {
		name = s
	} else if _, err := os.Stat("/bin/bash"); err == nil {
		name = "/bin/bash"
	}
	cmd := exec.Command(name)
	if command != "" {
		cmd = exec.Command("/bin/sh", "-c", command)
	}
	cmd.Dir = filepath.Join(t.dir, "work")
	t.agent.mu.Lock()
	cmd.Env = append(t.environment(), "TERM=xterm-256color")
	t.agent.mu.Unlock()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
	if err != nil {
		return nil, err
	}
	x := &local{tty, cmd, make(chan struct{})}
	go func() { // at once: what nobody waits for is taken for an orphan and buried
		_ = cmd.Wait()
		close(x.ended)
	}()
	return x, nil
}

// Connect joins standard input and output with the agent's socket: the way in
// through SSH.
func Connect(home string, in io.Reader, out io.Writer) error {
	conn, err := dial(filepath.Join(home, "agent.sock"))
	if err != nil {
		return fault.Wrap(fault.Unreachable, err, "no agent answers in %s", home)
	}
	defer conn.Close()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, in)
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
		done <- err
	}()
	_, err = io.Copy(out, conn)
	if errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	return err
}

func dial(sock string) (net.Conn, error) { return net.Dial("unix", sock) }
