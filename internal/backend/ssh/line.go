package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/destajo/destajo/fault"
)

// sessionsEach is how many sessions one connection carries: sshd allows 10.
const sessionsEach = 8

// line is the way to one host: connections that are opened when they are
// needed, kept alive, and opened anew after they broke, ever more slowly.
type line struct {
	b    *Backend
	host Host

	lock   sync.Mutex
	conns  []*conn
	fails  int
	again  time.Time // not before then
	why    error     // of the last failure
	binary string    // path on the host of our agent, once it is known to be there

	prepare sync.Mutex // while it is brought there
	dialing sync.Mutex
}

type conn struct {
	*ssh.Client
	busy int
}

// process is a command on the host.
type process struct {
	in   io.WriteCloser
	out  io.Reader
	err  *tail
	wait func() error // an *exitError when it ended with another status than 0
	kill func()
}

type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// start runs a line of the shell on the host.
func (l *line) start(ctx context.Context, script string) (*process, error) {
	command := "sh -c " + quote(script)
	if l.host.SSHCommand != "" {
		return l.spawn(command)
	}
	for try := 0; ; try++ {
		c, err := l.connection(ctx)
		if err != nil {
			return nil, err
		}
		p, err := l.session(c, command)
		if err == nil {
			return p, nil
		}
		// The connection broke unnoticed: once more on a new one.
		l.drop(c)
		if try > 0 || ctx.Err() != nil {
			return nil, fault.Wrap(fault.Unreachable, err, "%s takes no command", l.host.ID())
		}
	}
}

// connection gives one that has room, counted as busy.
func (l *line) connection(ctx context.Context) (*conn, error) {
	if c, err := l.free(); c != nil || err != nil {
		return c, err
	}
	l.dialing.Lock()
	defer l.dialing.Unlock()
	if c, err := l.free(); c != nil || err != nil { // another one dialled meanwhile
		return c, err
	}
	began := time.Now()
	client, err := l.b.dial(ctx, &l.host, 0)
	l.lock.Lock()
	defer l.lock.Unlock()
	if err != nil {
		// A caller in a hurry says nothing about the host.
		if ctx.Err() == nil || time.Since(began) > l.b.c.Dial/2 {
			l.fails++
			l.again, l.why = time.Now().Add(min(l.b.c.Backoff<<min(l.fails-1, 10), 30*time.Second)), err
		}
		return nil, err
	}
	l.fails, l.why = 0, nil
	c := &conn{Client: client, busy: 1}
	l.conns = append(l.conns, c)
	go l.keepAlive(c)
	return c, nil
}

// free gives a connection that is there, or says why none is to be tried yet.
func (l *line) free() (*conn, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	for _, c := range l.conns {
		if c.busy < sessionsEach {
			c.busy++
			return c, nil
		}
	}
	if time.Until(l.again) > 0 {
		return nil, l.why
	}
	return nil, nil
}

// keepAlive asks the host now and then, and closes a connection that is dead.
func (l *line) keepAlive(c *conn) {
	broken := make(chan struct{})
	go func() {
		_ = c.Wait()
		close(broken)
	}()
	defer l.drop(c)
	for tick := time.NewTicker(l.b.c.KeepAlive); ; {
		select {
		case <-broken:
			tick.Stop()
			return
		case <-tick.C:
		}
		answered := make(chan error, 1)
		go func() {
			_, _, err := c.SendRequest("keepalive@openssh.com", true, nil)
			answered <- err
		}()
		select {
		case err := <-answered:
			if err == nil {
				continue
			}
		case <-time.After(l.b.c.KeepAlive):
		case <-broken:
		}
		tick.Stop()
		return
	}
}

func (l *line) drop(c *conn) {
	l.lock.Lock()
	for i, o := range l.conns {
		if o == c {
			l.conns = append(l.conns[:i], l.conns[i+1:]...)
			break
		}
	}
	l.lock.Unlock()
	_ = c.Close()
}

func (l *line) close() {
	l.lock.Lock()
	all := l.conns
	l.conns = nil
	l.lock.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// down is why the host was not reached a moment ago; nil when it was.
func (l *line) down() error {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.why
}

func (l *line) session(c *conn, command string) (*process, error) {
	free := sync.OnceFunc(func() {
		l.lock.Lock()
		c.busy--
		l.lock.Unlock()
	})
	s, err := c.NewSession()
	if err != nil {
		free()
		return nil, err
	}
	p := &process{err: &tail{}}
	s.Stderr = p.err
	if p.in, err = s.StdinPipe(); err == nil {
		if p.out, err = s.StdoutPipe(); err == nil {
			err = s.Start(command)
		}
	}
	if err != nil {
		_ = s.Close()
		free()
		return nil, err
	}
	p.kill = func() { _ = s.Close(); free() }
	p.wait = func() error {
		defer free()
		defer func() { _ = s.Close() }()
		err := s.Wait()
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			return &exitError{exit.ExitStatus()}
		}
		return err
	}
	return p, nil
}

// spawn runs the host's own ssh_command with ours after it.
func (l *line) spawn(command string) (*process, error) {
	cmd := exec.Command("/bin/sh", "-c", l.host.SSHCommand+" "+quote(command))
	p := &process{err: &tail{}}
	cmd.Stderr = p.err
	cmd.WaitDelay = time.Second // a shared connection may hold it open
	group(cmd)
	var err error
	if p.in, err = cmd.StdinPipe(); err == nil {
		// Our own pipe: that of the package is closed by Wait, before all is read.
		var r, w *os.File
		if r, w, err = os.Pipe(); err == nil {
			cmd.Stdout, p.out = w, r
			err = cmd.Start()
			_ = w.Close()
			if err != nil {
				_ = r.Close()
			}
			p.kill = func() { killGroup(cmd); _ = r.Close() }
			p.wait = func() error {
				err := cmd.Wait()
				_ = r.Close()
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					if exit.ExitCode() == 255 { // ssh's own word for a broken connection
						return fault.New(fault.Unreachable, "the ssh_command of %s failed: %s", l.host.ID(), p.err)
					}
					return &exitError{exit.ExitCode()}
				}
				return err
			}
		}
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "the ssh_command of %s cannot be run", l.host.ID())
	}
	return p, nil
}

// run runs a line of the shell to its end and gives what it printed.
func (l *line) run(ctx context.Context, script string, stdin io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.b.c.Timeout)
	defer cancel()
	return l.runLong(ctx, script, stdin)
}

func (l *line) runLong(ctx context.Context, script string, stdin io.Reader) (string, error) {
	p, err := l.start(ctx, script)
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	sent := make(chan error, 1)
	go func() {
		var err error
		if stdin != nil {
			_, err = io.Copy(p.in, stdin)
		}
		_ = p.in.Close()
		sent <- err
	}()
	out, readErr := io.ReadAll(io.LimitReader(p.out, 64<<20))
	err = p.wait()
	var exit *exitError
	switch {
	case ctx.Err() != nil:
		return "", fault.Wrap(fault.Unreachable, ctx.Err(), "%s does not answer", l.host.ID())
	case errors.As(err, &exit):
		return string(out), fault.Wrap(fault.Internal, exit, "%s says %q", l.host.ID(), p.err)
	case fault.KindOf(err) == fault.Unreachable:
		return "", err
	case err != nil || readErr != nil:
		return "", fault.Wrap(fault.Unreachable, errors.Join(err, readErr), "the connection to %s broke", l.host.ID())
	}
	if stdin != nil {
		if err := <-sent; err != nil {
			return "", fault.Wrap(fault.Unreachable, err, "the connection to %s broke", l.host.ID())
		}
	}
	return string(out), nil
}

// stream makes a net.Conn of a command, whose first bytes were read already.
func (p *process) stream(first io.Reader) net.Conn {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(p.in, far)
		_ = p.in.Close()
		p.kill()
		_ = p.wait()
	}()
	go func() {
		_, _ = io.Copy(far, first)
		_ = far.Close()
	}()
	return near
}

// tail keeps the end of what a command complains.
type tail struct {
	lock sync.Mutex
	buf  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.buf = append(t.buf, b...)
	if n := len(t.buf); n > 2000 {
		t.buf = append(t.buf[:0], t.buf[n-2000:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return string(bytes.TrimSpace(t.buf))
}

// quote makes one word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
