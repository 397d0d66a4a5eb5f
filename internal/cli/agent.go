package cli

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/internal/agent"
	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/backend/node"
)

// agentCommand is what backends start on nodes; people need it only to look
// for faults.
func (a *app) agentCommand() *cobra.Command {
	c := parent(&cobra.Command{
		Use:     "agent",
		GroupID: "other",
		Short:   "Run tasks on a node; started by backends",
		Long: `Run tasks on a node. Backends start the agent on the machines that they launch;
nobody needs to call it by hand. It answers on a unix socket in its folder, keeps
its tasks running when the control plane is away, and stops them when it hears
nothing for the dead-man time.`,
		Example: "  destajo agent run --home ~/.destajo/agents/x --tag x --plane y",
	})
	var config agent.Config
	run := &cobra.Command{
		Use:     "run",
		Short:   "Serve on the socket in the agent's folder",
		Example: "  destajo agent run --home ~/.destajo/agents/x --tag x --plane y",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			debug.SetGCPercent(100) // it stays: memory counts, not the start
			config.Finder, config.Version, config.Log = devices.New(), version, a.logger()
			return agent.Run(ctx, config)
		},
	}
	f := run.Flags()
	f.StringVar(&config.Home, "home", "", "the agent's folder")
	f.StringVar(&config.Tag, "tag", "", "of the machine")
	f.StringVar(&config.Plane, "plane", "", "the control plane that may command it")
	f.StringVar(&config.Release, "release", "", "shell command that ends the node's billing, when nobody is heard of any more")
	f.StringVar(&config.Address, "address", "", "by which other nodes reach this one")
	host := &cobra.Command{
		Use:                "node",
		Short:              "Start, list and end agents on this host; what `ssh` calls from afar",
		Long:               "Start, list and end agents on this host, and reach them. The SSH backend calls it on\nthe far host. start, list, end, probe and connect answer in JSON.",
		Example:            "  destajo agent node list --root ~/.destajo/agents",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			for _, x := range args {
				if x == "-h" || x == "--help" {
					return c.Help()
				}
			}
			return node.Command(context.Background(), args, a.In, a.Out, a.host)
		},
	}
	c.AddCommand(run, host)
	return c
}
