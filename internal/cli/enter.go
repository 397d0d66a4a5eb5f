package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/wire"
)

func (a *app) sshCommand() *cobra.Command {
	var rank int
	c := &cobra.Command{
		Use:     "ssh JOB [-- COMMAND]",
		GroupID: "run",
		Short:   "Open a shell in a running job, or run a command there",
		Long: `Open a shell where a job runs: in its folder or container, with its variables and
its GPUs. It goes the way that the control plane itself goes; the job's machine
needs no SSH server for it. An open shell keeps a notebook from being idle.`,
		Example: "  destajo ssh 12\n  destajo ssh 12 -- nvidia-smi\n  destajo ssh train --rank 1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.New(fault.Invalid, "destajo ssh takes a job").Hint("usage: %s", c.UseLine())
			}
			return a.enter(args[0], rank, strings.Join(args[1:], " "))
		},
	}
	c.Flags().IntVar(&rank, "rank", 0, "which machine of a gang, from 0")
	return c
}

// way opens the way into the running job that a person names.
func (h *house) way(ctx context.Context, ref string, rank int) (*wire.Client, string, error) {
	jobs, err := h.Find(ctx, h.who, ref)
	if err != nil {
		return nil, "", err
	}
	if len(jobs) > 1 {
		return nil, "", fault.New(fault.Invalid, "%s is an array of %d jobs", ref, len(jobs)).Hint("name a member, as in %s", jobRef(jobs[0]))
	}
	return h.Enter(ctx, h.who, jobs[0].ID, rank)
}

func (a *app) enter(ref string, rank int, command string) error {
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	client, task, err := h.way(ctx, ref, rank)
	if err != nil {
		return err
	}
	defer client.Close()
	cols, rows := 80, 24
	in, _ := a.In.(*os.File)
	raw := in != nil && term.IsTerminal(int(in.Fd()))
	if raw {
		if w, r, err := term.GetSize(int(in.Fd())); err == nil {
			cols, rows = w, r
		}
	}
	conn, err := client.Shell(ctx, task, cols, rows, command)
	if err != nil {
		return err
	}
	defer conn.Close()
	frames := wire.NewFrames(conn, conn)
	if raw {
		before, err := term.MakeRaw(int(in.Fd()))
		if err == nil {
			defer term.Restore(int(in.Fd()), before)
		}
		sizes := make(chan os.Signal, 1)
		signal.Notify(sizes, syscall.SIGWINCH)
		defer signal.Stop(sizes)
		go func() {
			for range sizes {
				if w, r, err := term.GetSize(int(in.Fd())); err == nil {
					_ = frames.Size(w, r)
				}
			}
		}()
	}
	go func() {
		buffer := make([]byte, 16<<10)
		for {
			n, err := a.In.Read(buffer)
			if n > 0 && frames.Write(wire.FrameData, buffer[:n]) != nil {
				return
			}
			if err != nil {
				if command == "" { // the end of what was piped in is the end of the shell
					_ = frames.Write(wire.FrameData, []byte{4})
				}
				return
			}
		}
	}()
	for {
		kind, data, err := frames.Read()
		switch {
		case errors.Is(err, io.EOF):
			return fault.New(fault.Unreachable, "the shell was cut off").Hint("did the job end? `destajo job %s` tells", ref)
		case err != nil:
			return fault.Wrap(fault.Unreachable, err, "the shell was cut off")
		case kind == wire.FrameExit:
			if code := wire.ParseExit(data); code != 0 {
				return fault.New(fault.JobFailed, "the command ended with exit code %d", code)
			}
			return nil
		case kind == wire.FrameData:
			if _, err := a.Out.Write(data); err != nil {
				return fault.Wrap(fault.Internal, err, "writing")
			}
		}
	}
}

func (a *app) portCommand() *cobra.Command {
	var rank int
	c := &cobra.Command{
		Use:     "port JOB [LOCAL:]PORT...",
		GroupID: "run",
		Short:   "Forward ports of a running job to this machine, on loopback",
		Long: `Forward ports of a running job, such as Jupyter's 8888, to this machine. They are
open on 127.0.0.1 alone, until Ctrl-C. Without a port those of the job file are
forwarded. LOCAL 0 takes a free one.`,
		Example: "  destajo port notebook 8888\n  destajo port 12 9000:8000",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.New(fault.Invalid, "destajo port takes a job").Hint("usage: %s", c.UseLine())
			}
			return a.forward(args[0], args[1:], rank)
		},
	}
	c.Flags().IntVar(&rank, "rank", 0, "which machine of a gang, from 0")
	return c
}

func (a *app) forward(ref string, ports []string, rank int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	client, task, err := h.way(ctx, ref, rank)
	if err != nil {
		return err
	}
	defer client.Close()
	if len(ports) == 0 {
		jobs, err := h.Find(ctx, h.who, ref)
		if err != nil {
			return err
		}
		d, err := h.Job(ctx, h.who, jobs[0].ID)
		if err != nil {
			return err
		}
		for _, p := range d.Spec.Ports {
			ports = append(ports, strconv.Itoa(p))
		}
		if len(ports) == 0 {
			return fault.New(fault.Invalid, "job %s names no ports", ref).Hint("write which, as in `destajo port %s 8888`, or add ports: to the job", ref)
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, p := range ports {
		near, far, ok := strings.Cut(p, ":")
		if !ok {
			far = near
		}
		n, err1 := strconv.Atoi(near)
		m, err2 := strconv.Atoi(far)
		if err1 != nil || err2 != nil || n < 0 || n > 65535 || m < 1 || m > 65535 {
			return fault.New(fault.Invalid, "%q is no port", p).Hint("write 8888, or 9000:8888 for another port here")
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", near))
		if err != nil {
			return fault.Wrap(fault.Conflict, err, "port %s here", near).Hint("write another one before the colon, as in 0:%s", far)
		}
		if a.output == "json" {
			if err := a.printJSON(map[string]any{"local": l.Addr().String(), "port": m, "job": ref}); err != nil {
				return err
			}
		}
		fmt.Fprintf(a.Err, "http://%s → port %d of job %s; Ctrl-C ends it\n", l.Addr(), m, ref)
		all.Go(func() {
			go func() { <-ctx.Done(); _ = l.Close() }()
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go a.carry(ctx, client, task, m, conn)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// carry joins a connection here with the port of the task.
func (a *app) carry(ctx context.Context, client *wire.Client, task string, port int, near net.Conn) {
	defer near.Close()
	far, err := client.Forward(ctx, task, port)
	if err != nil {
		a.explain(err)
		return
	}
	defer far.Close()
	go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
	_, _ = io.Copy(near, far)
}
