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
	cmd := t.inside(r.FormValue("command"))
	near, rest, err := hijack(w, "destajo-shell")
	if err != nil {
		return
	}
	defer near.Close()
	defer t.use()()
	frames := wire.NewFrames(rest, near)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(max(cols, 20)), Rows: uint16(max(rows, 5))})
	if err != nil {
		_ = frames.Write(wire.FrameData, []byte("the shell could not be started: "+err.Error()+"\r\n"))
		_ = frames.Exit(1)
		return
	}
	defer tty.Close()
	go func() {
		for {
			kind, data, err := frames.Read()
			if err != nil { // the other end is gone: so is its shell
				_ = cmd.Process.Kill()
				return
			}
			switch kind {
			case wire.FrameData:
				_, _ = tty.Write(data)
			case wire.FrameSize:
				if c, r, ok := wire.ParseSize(data); ok {
					_ = pty.Setsize(tty, &pty.Winsize{Cols: uint16(c), Rows: uint16(r)})
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
	_ = cmd.Wait()
	_ = frames.Exit(max(cmd.ProcessState.ExitCode(), 0))
}

// inside is a command that runs as the task's own processes do; empty: a shell.
func (t *task) inside(command string) *exec.Cmd {
	if t.spec.Image != "" && t.agent.engine != nil {
		return t.agent.engine.inside(t, command)
	}
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
	cmd.Env = append(t.environment(), "TERM=xterm-256color")
	return cmd
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
