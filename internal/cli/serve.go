package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

func (a *app) serveCommand() *cobra.Command {
	var restored bool
	c := &cobra.Command{
		Use:     "serve",
		GroupID: "run",
		Short:   "Look after jobs and machines on this machine until it is stopped",
		Long: `Look after the jobs and machines of the state on this machine: place jobs that
wait, follow them, stop them at their limits, end their machines. Needed for jobs
that were started with --detach or left. It may be killed at any moment and
started again; one serves a state at a time. As a service of systemd it needs
KillMode=process; the manual has the unit: destajo docs 057.`,
		Example: "  destajo serve\n  destajo serve --restored\n  systemd-run --user --unit destajo destajo serve",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			debug.SetGCPercent(100) // it stays: memory counts, not the start
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			if restored {
				epoch, err := h.store.NewEpoch(ctx)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.Err, "epoch %d begins: machines of earlier ones are quarantined; `destajo machines adopt` takes one back, `end` ends it\n", epoch)
			}
			if err := h.only(ctx); err != nil {
				return err
			}
			fmt.Fprintf(a.Err, "serving the state in %s; Ctrl-C ends it, jobs go on\n", h.Files.Dir)
			present, err := h.present()
			if err != nil {
				return err
			}
			defer present.Close()
			err = h.loop("serve", -1, a.logger()).Run(ctx)
			stop() // a second Ctrl-C ends it at once
			h.endIdle()
			h.sayLeft()
			return err
		},
	}
	c.Flags().BoolVar(&restored, "restored", false, "the state was restored from a copy: put machines aside that it may not know rightly")
	return c
}

// present says, as long as the file is open, that a serve lives here, whether
// it is the one that acts or waits for its turn.
func (h *house) present() (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(h.Files.Dir, "serving"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "saying that this state is served")
	}
	return f, nil
}

// served says whether a serve lives on this machine.
func (h *house) served() bool {
	f, err := os.Open(filepath.Join(h.Files.Dir, "serving"))
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// endIdle ends the machines that nobody needs before serve goes: what lingers
// for the next job would cost with nobody to look after it.
func (h *house) endIdle() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	idle := func() int {
		live, err := h.Machines(ctx, h.who, false)
		if err != nil {
			return 0
		}
		on, err := h.On(ctx, h.who)
		if err != nil {
			return 0
		}
		n := 0
		for _, m := range live {
			if len(on[m.ID]) == 0 && m.State != machine.Quarantined {
				n++
			}
		}
		return n
	}
	switch n := idle(); n {
	case 0:
		return
	case 1:
		fmt.Fprintln(h.app.Err, "ending an idle machine")
	default:
		fmt.Fprintf(h.app.Err, "ending %d idle machines\n", n)
	}
	loopContext, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.loop("serve", 0, h.app.logger()).Run(loopContext)
	}()
	for ctx.Err() == nil && idle() > 0 {
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	<-done
}

// sayLeft names the machines that nobody looks after when serve has ended.
func (h *house) sayLeft() {
	live, err := h.Machines(context.Background(), h.who, false)
	if err != nil {
		return
	}
	for _, m := range live {
		fmt.Fprintf(h.app.Err, "machine %s goes on, for %s %s an hour: `destajo serve` looks after it again, `destajo machines end %s` ends it\n",
			m.ID, price(m.Terms.PriceHour), m.Terms.Currency, m.ID)
	}
}

// only refuses to serve beside another one. One that was killed a moment ago
// still holds its lease for a while.
func (h *house) only(ctx context.Context) error {
	for until := time.Now().Add(4 * time.Second); ; {
		lease, mine, err := h.store.Acquire(ctx, holder("serve"), h.Now(), 3*time.Second)
		switch {
		case err != nil || mine:
			return err
		case !strings.HasPrefix(lease.Holder, "serve"):
			fmt.Fprintf(h.app.Err, "waiting for %s to end\n", lease.Holder)
			return nil
		case time.Now().After(until):
			return fault.New(fault.Conflict, "another destajo serve looks after this state (%s)", lease.Holder).Hint("one is enough")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
