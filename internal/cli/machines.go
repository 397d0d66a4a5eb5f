package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/local"
	"github.com/destajo/destajo/internal/backend/ssh"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

// machineRow is a machine in a listing.
type machineRow struct {
	ID        string        `json:"id"`
	State     machine.State `json:"state"`
	Reason    string        `json:"reason"`
	Backend   string        `json:"backend"`
	Offer     string        `json:"offer"`
	Region    string        `json:"region"`
	GPU       string        `json:"gpu"`
	GPUCount  int           `json:"gpu_count"`
	Terms     string        `json:"terms"`
	PriceHour money.Amount  `json:"price_hour"`
	Currency  string        `json:"currency"`
	Assumed   bool          `json:"price_assumed"`
	Asked     time.Time     `json:"asked"`
	Gone      *time.Time    `json:"gone"`
	Hours     float64       `json:"hours"`
	Cost      money.Amount  `json:"cost"` // since it was asked for, at its price
	Jobs      []string      `json:"jobs"`
	EndTries  int           `json:"end_tries"`
	EndFail   string        `json:"end_failure"`
}

func (a *app) machinesCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "machines",
		GroupID: "run",
		Short:   "List machines that may cost money, and the places where jobs can run",
		Long: `List every machine that costs money or may: from before it was asked for until
its backend no longer has it, with what it has cost so far. A machine that does
not end stays in the list with the reason. Below stand the places where jobs can
run. --all lists the machines that are gone too.`,
		Example: "  destajo machines\n  destajo machines add ssh://me@gpu1 --price 0.80\n  destajo machines end m12.1",
		Args:    nothing,
		RunE:    func(*cobra.Command, []string) error { return a.machines(all) },
	}
	c.Flags().BoolVar(&all, "all", false, "machines that are gone too")
	c.AddCommand(a.machinesAddCommand(), a.machinesRemoveCommand(), a.machinesEndCommand(), a.machinesAdoptCommand(), a.machinesPriceCommand(), a.placesCommand())
	return c
}

func (a *app) machines(all bool) error {
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	list, err := h.Machines(ctx, h.who, all)
	if err != nil {
		return err
	}
	on, err := h.On(ctx, h.who)
	if err != nil {
		return err
	}
	now := a.Now()
	rows := []machineRow{}
	l := listing{header: []string{"ID", "STATE", "WHERE", "PER HOUR", "COST", "JOBS", "REASON", "GPU", "TERMS", "HOURS"},
		right: map[int]bool{3: true, 4: true, 9: true}, shrink: 6}
	assumed := false
	for _, m := range list {
		r := rowOfMachine(m, now, on[m.ID])
		rows = append(rows, r)
		mark := ""
		if r.Assumed {
			mark, assumed = "~", true
		}
		reason := r.Reason
		if r.EndFail != "" {
			reason = fmt.Sprintf("could not be ended %d times: %s", r.EndTries, r.EndFail)
		}
		card := "-"
		if r.GPU != "" {
			card = fmt.Sprintf("%d x %s", r.GPUCount, r.GPU)
		}
		l.rows = append(l.rows, []string{r.ID, string(r.State), r.Offer, mark + price(r.PriceHour) + " " + r.Currency, mark + price(r.Cost),
			strings.Join(r.Jobs, " "), reason, card, r.Terms, fmt.Sprintf("%.2f", r.Hours)})
		if r.EndFail != "" && m.State != machine.Gone {
			l.foot = append(l.foot, fmt.Sprintf("%s still costs %s %s an hour: end it at %s by hand if this lasts; it is tried again for ever.", r.ID, price(r.PriceHour), r.Currency, m.Backend))
		}
	}
	if len(rows) == 0 && a.tabular() {
		l.foot = append(l.foot, "No machine costs anything. `destajo machines places` lists where jobs can run.")
	}
	if a.tabular() && assumed {
		l.foot = append(l.foot, "~ is an assumed price: `destajo machines price` states it.")
	}
	return a.print(l, rows)
}

func rowOfMachine(m *machine.Machine, now time.Time, jobs []int64) machineRow {
	r := machineRow{ID: m.ID, State: m.State, Reason: m.Reason, Backend: m.Backend, Offer: m.Terms.OfferID, Region: m.Terms.Region, GPU: m.Terms.GPU,
		GPUCount: m.Terms.GPUCount, Terms: m.Terms.Terms, PriceHour: m.Terms.PriceHour, Currency: m.Terms.Currency, Assumed: m.Terms.Assumed,
		Asked: m.Asked.UTC(), Gone: known2(m.Gone), Jobs: []string{}, EndTries: m.EndTry, EndFail: m.EndFail}
	for _, id := range jobs {
		r.Jobs = append(r.Jobs, fmt.Sprint(id))
	}
	end := now
	if !m.Gone.IsZero() {
		end = m.Gone
	}
	t := max(end.Sub(m.Asked), 0)
	r.Hours = t.Hours()
	r.Cost, _ = m.Terms.PriceHour.For(t)
	return r
}

// placeRow is a place where jobs can run.
type placeRow struct {
	Offer     string        `json:"offer"`
	Backend   string        `json:"backend"`
	GPU       string        `json:"gpu"`
	GPUCount  int           `json:"gpu_count"`
	VCPUs     *float64      `json:"vcpus"`
	MemoryGB  *float64      `json:"memory_gb"`
	Terms     string        `json:"terms"`
	PriceHour *money.Amount `json:"price_hour"`
	Currency  string        `json:"currency"`
	Assumed   bool          `json:"price_assumed"`
	Source    string        `json:"source"`
}

func (a *app) placesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "places",
		Short:   "List the places where jobs can run, with their prices per hour",
		Example: "  destajo machines places",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			places, failed, err := h.Places(ctx, h.who)
			if err != nil {
				return err
			}
			l := listing{header: []string{"WHERE", "GPU", "CPUS", "MEMORY GB", "TERMS", "PER HOUR", "PRICE FROM"}, right: map[int]bool{2: true, 3: true, 5: true}, shrink: 6, foot: failed}
			rows := []placeRow{}
			for _, p := range places {
				o := p.Offer
				r := placeRow{Offer: o.ID, Backend: p.Backend, GPUCount: o.GPUCount, VCPUs: known(o.VCPUs), MemoryGB: known(o.MemoryGB), Terms: string(o.Terms), Currency: o.Currency, Assumed: o.PriceAssumed}
				card, hourly := "-", "unknown"
				if o.GPU != nil {
					r.GPU = o.GPU.ID
					card = fmt.Sprintf("%d x %s", o.GPUCount, o.GPU.Name)
				}
				if c := o.Prices.Compute; c != nil {
					r.PriceHour, r.Source = &c.Amount, c.Source
					hourly = price(c.Amount) + " " + o.Currency
					if o.PriceAssumed {
						hourly = "~" + hourly
					}
				}
				rows = append(rows, r)
				number := func(x *float64) string {
					if x == nil {
						return "?"
					}
					return fmt.Sprintf("%.0f", *x)
				}
				l.rows = append(l.rows, []string{o.ID, card, number(r.VCPUs), number(r.MemoryGB), r.Terms, hourly, r.Source})
			}
			return a.print(l, rows)
		},
	}
}

func (a *app) machinesAddCommand() *cobra.Command {
	var hourly, file, accept, pools string
	var identity []string
	var command string
	c := &cobra.Command{
		Use:   "add ssh://USER@HOST[:PORT]...",
		Short: "Add own machines that are reached by SSH",
		Long: `Add own machines that are reached by SSH. The host's key must be in known_hosts,
or be accepted by its fingerprint. Nothing is installed but our own program, in
the user's home; nothing listens but a socket in a folder of theirs.

--hosts reads a file with several; --node-pools the SSH node pools file of
SkyPilot. --ssh-command is for jump hosts and the like: that command, followed by
the command to be run on the host, is what is started.`,
		Example: "  destajo machines add ssh://me@gpu1 --price 0.80\n  destajo machines add --hosts hosts.yml\n  destajo machines add --node-pools ~/.sky/ssh_node_pools.yaml\n  destajo machines add ssh://me@inner --ssh-command 'ssh -J me@bastion me@inner'",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			var hosts []ssh.Host
			for _, text := range args {
				x, err := ssh.ParseURL(text)
				if err != nil {
					return err
				}
				hosts = append(hosts, x)
			}
			if file != "" {
				data, err := a.readFile(file)
				if err != nil {
					return err
				}
				more, err := ssh.ReadHosts(file, data)
				if err != nil {
					return err
				}
				hosts = append(hosts, more...)
			}
			if pools != "" {
				data, err := a.readFile(pools)
				if err != nil {
					return err
				}
				more, ignored, err := ssh.ReadNodePools(pools, data)
				if err != nil {
					return err
				}
				for _, x := range ignored {
					fmt.Fprintln(a.Err, x)
				}
				hosts = append(hosts, more...)
			}
			if len(hosts) == 0 {
				return fault.New(fault.Invalid, "no host to add").Hint("usage: %s", c.UseLine())
			}
			for i := range hosts {
				x := &hosts[i]
				if hourly != "" {
					p, err := hourlyPrice(hourly)
					if err != nil {
						return err
					}
					x.PriceHour = &p
				}
				if len(identity) > 0 {
					x.IdentityFiles = identity
				}
				if command != "" {
					x.SSHCommand = command
				}
			}
			for i := range hosts {
				if accept != "" {
					hosts[i].AcceptKey = accept
				}
			}
			return a.addHosts(hosts)
		},
	}
	f := c.Flags()
	f.StringVar(&hourly, "price", "", "what an hour of the machine costs its owner, in USD; without it it is derived and marked assumed")
	f.StringVar(&file, "hosts", "", "a file with hosts")
	f.StringVar(&pools, "node-pools", "", "an SSH node pools file of SkyPilot")
	f.StringSliceVar(&identity, "identity", nil, "private key files to log in with")
	f.StringVar(&command, "ssh-command", "", "a command that reaches the host, in place of our own SSH")
	f.StringVar(&accept, "accept-key", "", "accept an unknown host key by its fingerprint, SHA256:...")
	return c
}

func hourlyPrice(text string) (money.Amount, error) {
	p, err := money.Parse(strings.TrimSuffix(strings.TrimSpace(text), " USD"))
	if err != nil {
		return 0, err
	}
	if p < 0 {
		return 0, fault.New(fault.Invalid, "a price of %s", text).Hint("write an amount of USD per hour, 0 or more, as in 0.80")
	}
	return p, nil
}

// addHosts looks at every host before it is kept: one that cannot be reached
// now is refused with the reason.
func (a *app) addHosts(hosts []ssh.Host) error {
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	old, err := h.Sources(ctx, h.who)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fault.Wrap(fault.Internal, err, "finding this program")
	}
	var rows [][]string
	type added struct {
		ID   string        `json:"id"`
		Host *machine.Host `json:"host"`
	}
	out := []added{}
	for _, x := range hosts {
		b := ssh.New(ssh.Config{Hosts: []ssh.Host{x}, Binary: ssh.FindBinary(exe, h.Files.Dir), Costs: a.ownCosts(), Now: a.Now})
		fmt.Fprintf(a.Err, "· looking at %s\n", x.ID())
		host, err := b.Probe(ctx, x.ID())
		_ = b.Close()
		if err != nil {
			return err
		}
		x.Seen = &host
		config, err := json.Marshal(x)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "keeping %s", x.ID())
		}
		source := record.Source{ID: x.ID(), Backend: ssh.Name, Config: string(config)}
		for _, s := range old {
			if s.ID == source.ID {
				source.Version, source.Made = s.Version, s.Made
			}
		}
		if err := h.PutSource(ctx, h.who, &source); err != nil {
			return err
		}
		out = append(out, added{x.ID(), &host})
		rows = append(rows, []string{x.ID(), gpuWords(&host), fmt.Sprint(host.CPUs), host.OS})
		for _, p := range host.Problems {
			fmt.Fprintf(a.Err, "%s: %s\n", x.ID(), p)
		}
	}
	return a.print(listing{header: []string{"ADDED", "GPUS", "CPUS", "SYSTEM"}, rows: rows, right: map[int]bool{2: true}}, out)
}

func gpuWords(h *machine.Host) string {
	if len(h.Devices) == 0 {
		return "none"
	}
	count := map[string]int{}
	var order []string
	for _, d := range h.Devices {
		if count[d.Model] == 0 {
			order = append(order, d.Model)
		}
		count[d.Model]++
	}
	for i, m := range order {
		order[i] = fmt.Sprintf("%d x %s", count[m], m)
	}
	return strings.Join(order, ", ")
}

func (a *app) machinesRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove SOURCE",
		Short:   "Take a host or this machine from the places where jobs can run",
		Long:    "Take a source of machines away: an id that `destajo machines add` gave, or local for\nthis machine. What runs there is not touched; a source with a live machine stays.",
		Example: "  destajo machines remove ssh://me@gpu1\n  destajo machines remove local",
		Args:    exactly(1, "one source"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.editSource(args[0], func(h *house, s *record.Source) error {
				live, err := h.Machines(context.Background(), h.who, false)
				if err != nil {
					return err
				}
				for _, m := range live {
					if m.Backend == s.Backend && (s.Backend != ssh.Name || m.Terms.OfferID == s.ID) {
						return fault.New(fault.Conflict, "machine %s of %s is %s", m.ID, s.ID, m.State).Hint("`destajo machines end %s` ends it first", m.ID)
					}
				}
				if s.Backend == local.Name {
					s.Config = `{"off": true}`
					return nil
				}
				s.Removed = true
				return nil
			})
		},
	}
}

func (a *app) machinesPriceCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "price SOURCE USD",
		Short:   "State what an hour of an own machine costs",
		Long:    "State what an hour of an own machine costs, in USD: local is this machine. Without a\nstated price it is derived from purchase and power, and marked assumed.",
		Example: "  destajo machines price local 0.05\n  destajo machines price ssh://me@gpu1 1.20",
		Args:    exactly(2, "a source and a price"),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := hourlyPrice(args[1])
			if err != nil {
				return err
			}
			return a.editSource(args[0], func(_ *house, s *record.Source) error {
				config := map[string]any{}
				if s.Config != "" {
					if err := json.Unmarshal([]byte(s.Config), &config); err != nil {
						return fault.Wrap(fault.Internal, err, "the source %s", s.ID)
					}
				}
				config["price_hour"] = p
				delete(config, "off")
				data, err := json.Marshal(config)
				s.Config = string(data)
				return err
			})
		},
	}
}

// editSource changes what is kept of a source. This machine is one from the
// beginning.
func (a *app) editSource(id string, edit func(*house, *record.Source) error) error {
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	sources, err := h.Sources(ctx, h.who)
	if err != nil {
		return err
	}
	names := []string{local.Name}
	s := &record.Source{ID: local.Name, Backend: local.Name, Config: "{}"}
	found := id == local.Name
	for _, x := range sources {
		names = append(names, x.ID)
		if x.ID == id {
			s, found = x, true
		}
	}
	if !found {
		e := fault.New(fault.NotFound, "no source %q", id)
		if near := fault.Nearest(id, names); len(near) > 0 {
			return e.Hint("did you mean %s?", near[0])
		}
		return e.Hint("there are %s", strings.Join(names, ", "))
	}
	if err := edit(h, s); err != nil {
		return err
	}
	if err := h.PutSource(ctx, h.who, s); err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(struct {
			ID      string          `json:"id"`
			Backend string          `json:"backend"`
			Config  json.RawMessage `json:"config"`
			Removed bool            `json:"removed"`
		}{s.ID, s.Backend, json.RawMessage(s.Config), s.Removed})
	}
	return nil
}

func (a *app) machinesEndCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "end MACHINE...",
		Short:   "End machines; what runs on them is stopped first and tried elsewhere",
		Example: "  destajo machines end m12.1",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.New(fault.Invalid, "destajo machines end takes one or more machines").Hint("usage: %s", c.UseLine())
			}
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			for _, id := range args {
				if err := h.EndMachine(ctx, h.who, id, "ended by "+h.who.Member); err != nil {
					return err
				}
			}
			return h.awaitGone(ctx, args)
		},
	}
}

func (a *app) machinesAdoptCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "adopt MACHINE",
		Short: "Take a quarantined machine back",
		Long: `Take a machine back that was quarantined since the state was restored from a copy.
Jobs may use it again, and it is released when it is idle. The other way out of
quarantine is destajo machines end.`,
		Example: "  destajo machines adopt m12.1",
		Args:    exactly(1, "one machine"),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			return h.AdoptMachine(ctx, h.who, args[0])
		},
	}
}

// awaitGone makes ends happen, by the process that acts or here, and says which
// machines are gone.
func (h *house) awaitGone(ctx context.Context, wanted []string) error {
	loopContext, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.loop("run", 0, h.app.logger()).Run(loopContext)
	}()
	defer func() { stop(); <-done }()
	until := time.Now().Add(2*h.Settings.Grace + 30*time.Second)
	for time.Now().Before(until) {
		live, err := h.Machines(ctx, h.who, false)
		if err != nil {
			return err
		}
		left := 0
		for _, m := range live {
			for _, id := range wanted {
				if m.ID == id {
					left++
				}
			}
		}
		if left == 0 {
			if h.app.output == "json" {
				return h.app.printJSON(map[string][]string{"gone": wanted})
			}
			fmt.Fprintf(h.app.Err, "gone: %s\n", strings.Join(wanted, ", "))
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fault.New(fault.Unreachable, "not yet gone: %s", strings.Join(wanted, ", ")).Hint("`destajo machines` says why; `destajo serve` goes on ending them")
}
