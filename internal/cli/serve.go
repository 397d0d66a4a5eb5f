package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
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
				fmt.Fprintf(a.Err, "epoch %d begins: machines of earlier ones are quarantined; `destajo machines end` ends them\n", epoch)
			}
			if err := h.only(ctx); err != nil {
				return err
			}
			fmt.Fprintf(a.Err, "serving the state in %s; Ctrl-C ends it, jobs go on\n", h.Files.Dir)
			return h.loop("serve", -1, a.logger()).Run(ctx)
		},
	}
	c.Flags().BoolVar(&restored, "restored", false, "the state was restored from a copy: put machines aside that it may not know rightly")
	return c
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
