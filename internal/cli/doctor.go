package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/ssh"
	"github.com/destajo/destajo/machine"
)

// check is one thing that was looked at.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Words string `json:"words"`
	Mend  string `json:"mend"` // what to do when it is not
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "doctor",
		GroupID: "other",
		Short:   "Check what this machine can run, and how to mend what it cannot",
		Long: `Check what this machine can run: its GPUs as an agent sees them, containers, limits,
the state, the hosts that were added. What is not there is said with how to mend
it. With -o json the GPUs stand under gpus, null where the driver does not say.`,
		Example: "  destajo doctor\n  destajo doctor -o json",
		Args:    nothing,
		RunE:    func(*cobra.Command, []string) error { return a.doctor() },
	}
}

func (a *app) doctor() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	host := a.host(ctx)
	checks := a.checks(ctx, &host)
	if a.output == "json" {
		return a.printJSON(struct {
			machine.Host
			Checks []check `json:"checks"`
		}{host, checks})
	}
	if len(host.Devices) > 0 {
		l := listing{header: []string{"#", "GPU", "MEMORY GB", "WATTS", "BUSY", "MIG", "UUID"}, right: map[int]bool{0: true, 2: true, 3: true, 4: true}, shrink: 6}
		for _, d := range host.Devices {
			number := func(x *float64, scale float64, unit string) string {
				if x == nil {
					return "?"
				}
				return fmt.Sprintf("%.0f%s", *x/scale, unit)
			}
			memory := "?"
			if d.MemoryBytes != nil {
				memory = fmt.Sprintf("%.1f", float64(*d.MemoryBytes)/1e9)
			}
			l.rows = append(l.rows, []string{fmt.Sprint(d.Index), d.Model, memory, number(d.PowerWatts, 1, ""), number(d.Utilization, 1, "%"), fmt.Sprint(len(d.MIG)), d.UUID})
		}
		if err := a.print(l, nil); err != nil {
			return err
		}
		fmt.Fprintln(a.Out)
	}
	l := listing{header: []string{"", "CHECK", "FOUND"}, shrink: 2}
	for _, c := range checks {
		mark := "ok"
		if !c.OK {
			mark = "!"
		}
		l.rows = append(l.rows, []string{mark, c.Name, c.Words})
	}
	for _, c := range checks {
		if !c.OK && c.Mend != "" {
			l.foot = append(l.foot, "! "+c.Name+": "+c.Mend)
		}
	}
	for _, p := range host.Problems {
		l.foot = append(l.foot, "! "+p)
	}
	return a.print(l, nil)
}

func (a *app) checks(ctx context.Context, host *machine.Host) []check {
	out := []check{
		{"processor and memory", host.CPUs > 0, fmt.Sprintf("%d CPUs, %.1f GB, %s", host.CPUs, float64(host.MemoryBytes)/1e9, host.OS), ""},
		{"GPUs", len(host.Devices) > 0, gpuWords(host), "jobs that ask for none run here; for others add a machine: destajo machines add ssh://user@host"},
		{"containers", host.Containers != "", orElse(host.Containers, "no engine answers"), "start Docker or Podman to run jobs that name an image; others run without"},
		{"limits", host.Limits != "" && host.Limits != "none", orElse(host.Limits, "none"), "memory and CPU of jobs are not limited here; run as root, or with a delegated cgroup"},
	}
	started := time.Now()
	h, err := a.open(ctx)
	state := check{"state", err == nil, a.home(), ""}
	if err != nil {
		state.Words, state.Mend = err.Error(), fault.HintOf(err)
		return append(out, state)
	}
	defer h.close()
	state.Words = fmt.Sprintf("%s, opened in %d ms", filepath.Join(h.Files.Dir, "state.db"), time.Since(started).Milliseconds())
	out = append(out, state)
	acting, err := h.Acting(ctx)
	serve := check{"serve", err == nil && acting != "", acting, "detached jobs need it: run `destajo serve` as a service"}
	if acting == "" {
		serve.Words = "not running"
	}
	out = append(out, serve)
	if _, err := exec.LookPath("ssh"); err != nil && !errors.Is(err, os.ErrExist) {
		out = append(out, check{"ssh", false, "no ssh program", "only hosts with --ssh-command need one"})
	}
	places, failed, err := h.Places(ctx, h.who)
	words := plural(len(places), "place") + " where jobs can run"
	if err != nil {
		words = err.Error()
	}
	out = append(out, check{"machines", err == nil && len(places) > 0, words, "destajo machines add ssh://user@host adds one"})
	out = append(out, h.hosts(ctx)...)
	for _, f := range failed {
		out = append(out, check{"machines", false, f, "is the host on, and does `ssh` reach it?"})
	}
	return out
}

// hosts asks every host that was added how it is, all at once.
func (h *house) hosts(ctx context.Context) []check {
	sources, err := h.Sources(ctx, h.who)
	if err != nil {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var out []check
	var all sync.WaitGroup
	var lock sync.Mutex
	for _, s := range sources {
		if s.Backend != ssh.Name {
			continue
		}
		x, err := ssh.ParseConfig(s.Config)
		if err != nil {
			continue
		}
		all.Go(func() {
			b := ssh.New(ssh.Config{Hosts: []ssh.Host{x}, Binary: ssh.FindBinary(exe, h.Files.Dir), Costs: h.app.ownCosts(), Now: h.Now})
			defer b.Close()
			host, err := b.Probe(ctx, x.ID())
			c := check{"host " + x.ID(), err == nil, fmt.Sprintf("%d CPUs, GPUs: %s", host.CPUs, gpuWords(&host)), ""}
			if err != nil {
				c.Words, c.Mend = err.Error(), fault.HintOf(err)
			}
			lock.Lock()
			defer lock.Unlock()
			out = append(out, c)
		})
	}
	all.Wait()
	slices.SortFunc(out, func(x, y check) int { return cmp.Compare(x.Name, y.Name) })
	return out
}
