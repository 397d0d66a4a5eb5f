package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/spot"
)

type spotOptions struct {
	traces, history, policies, deadlines, restarts []string
	grid, config, work, windows, billing, plot     string
	onDemand, spot                                 float64
	guard                                          bool
}

func (a *app) spotCommand() *cobra.Command {
	c := parent(&cobra.Command{Use: "spot", GroupID: "decide", Short: "Decide between spot and on-demand under a deadline"})
	var o spotOptions
	s := &cobra.Command{
		Use:   "simulate",
		Short: "Run policies on traces of spot availability",
		Long: `Run policies on traces of spot availability (JSON lines) and compare their cost
and lateness. The policies are:
  ` + strings.Join(spot.PolicyNames(), "\n  "),
		Example: "  destajo spot simulate --traces t.jsonl --policy all --work 48h --deadline 52h,70h --restart 12m\n  destajo spot simulate --traces t.jsonl --grid grid.json --config adrs_single --policy destajo --history t.jsonl",
		Args:    nothing,
		RunE:    func(*cobra.Command, []string) error { return a.simulate(o) },
	}
	f := s.Flags()
	f.StringSliceVar(&o.traces, "traces", nil, "files of traces")
	f.StringSliceVar(&o.history, "history", nil, "files of traces that our policy may learn from; the place under test is left out")
	f.StringSliceVar(&o.policies, "policy", []string{"destajo"}, "policies by name, or all")
	f.StringVar(&o.grid, "grid", "", "file of a published benchmark")
	f.StringVar(&o.config, "config", "adrs_single", "configuration of the grid: adrs_single, nsdi, adrs_multi")
	f.BoolVar(&o.guard, "guard", false, "force every policy onto on-demand when it would be too late")
	f.StringVar(&o.work, "work", "48h", "useful time of a job")
	f.StringSliceVar(&o.deadlines, "deadline", []string{"52h"}, "deadlines")
	f.StringSliceVar(&o.restarts, "restart", []string{"0.2h"}, "changeover times")
	f.Float64Var(&o.onDemand, "on-demand", 3.06, "price per hour on demand")
	f.Float64Var(&o.spot, "spot", 0.9731, "price per hour on spot, where a trace has none")
	f.StringVar(&o.windows, "windows", "", "START:STEP:LENGTH in samples: jobs start at START, START+STEP, ... (default: one at 0)")
	f.StringVar(&o.billing, "billing", "tick", "tick: every started tick whole; second: the last one up to the end")
	f.StringVar(&o.plot, "plot", "", "write a figure of the first run of the first policy as SVG")
	c.AddCommand(s)
	return c
}

func (a *app) simulate(o spotOptions) error {
	traces, err := a.readTraces(o.traces)
	if err != nil {
		return err
	}
	if len(traces) == 0 {
		return fault.New(fault.Invalid, "no traces").Hint("name files with --traces")
	}
	history, err := a.readTraces(o.history)
	if err != nil {
		return err
	}
	cases, err := a.spotCases(o, traces)
	if err != nil {
		return err
	}
	if slices.Contains(o.policies, "all") {
		o.policies = spot.PolicyNames()
	}
	s := spot.Settings{Guard: o.guard}
	switch o.billing {
	case "tick":
	case "second":
		s.Billing = spot.BySecond
	default:
		return fault.New(fault.Invalid, "unknown billing %q", o.billing).Hint("--billing takes tick or second")
	}
	var progress func(done, all int)
	if a.Terminal {
		progress = func(done, all int) { fmt.Fprintf(a.Err, "\r%d of %d runs", done, all) }
	}
	results, totals, err := spot.Bench(o.policies, cases, history, s, progress)
	if a.Terminal {
		fmt.Fprint(a.Err, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	if o.plot != "" {
		if err := plotRun(o, cases[0], history, s); err != nil {
			return err
		}
	}
	data := struct {
		Rows   []spot.Result         `json:"rows"`
		Totals map[string]spot.Total `json:"totals"`
	}{results, totals}
	l := listing{header: []string{"POLICY", "RUNS", "MEAN COST", "LATE"}, right: map[int]bool{1: true, 2: true, 3: true}}
	for _, n := range o.policies {
		t := totals[n]
		l.rows = append(l.rows, []string{n, strconv.Itoa(t.Runs), strconv.FormatFloat(t.MeanCost, 'f', 2, 64), strconv.Itoa(t.Late)})
	}
	if a.output == "csv" {
		l = listing{header: []string{"policy", "probe", "deadline_h", "restart_h", "runs", "mean_cost", "late", "on_demand_hours", "spot_hours", "changeovers"}}
		for _, r := range results {
			f := func(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }
			l.rows = append(l.rows, []string{r.Policy, r.Probe, f(r.DeadlineH), f(r.RestartH), strconv.Itoa(r.Runs), f(r.MeanCost), strconv.Itoa(r.Late), f(r.OnDemandH), f(r.SpotH), f(r.Changeovers)})
		}
	}
	return a.print(l, data)
}

func plotRun(o spotOptions, c spot.Case, history []spot.Trace, s spot.Settings) error {
	name := o.policies[0]
	var p spot.Policy
	if name == "destajo" {
		p = spot.NewPolicy(slices.DeleteFunc(slices.Clone(history), func(t spot.Trace) bool { return t.Probe == c.Trace.Probe }))
	} else {
		var err error
		if p, err = spot.PolicyByName(name); err != nil {
			return fault.Wrap(fault.Invalid, err, "--plot")
		}
	}
	s.Keep = true
	out := spot.Simulate(c.Trace, c.Start, c.Job, p, s)
	if err := os.WriteFile(o.plot, spot.Plot(c.Trace, c.Start, c.Job, out, name+" on "+c.Trace.ID), 0o644); err != nil {
		return fault.Wrap(fault.Internal, err, "the figure cannot be written")
	}
	return nil
}

func (a *app) readTraces(files []string) ([]spot.Trace, error) {
	var all []spot.Trace
	for _, f := range files {
		data, err := a.readFile(f)
		if err != nil {
			return nil, err
		}
		traces, err := spot.ParseTraces(f, data)
		if err != nil {
			return nil, err
		}
		all = append(all, traces...)
	}
	return all, nil
}

// spotCases are the runs of a grid, or of the windows and times of the flags.
func (a *app) spotCases(o spotOptions, traces []spot.Trace) ([]spot.Case, error) {
	if o.grid != "" {
		data, err := a.readFile(o.grid)
		if err != nil {
			return nil, err
		}
		g, err := spot.ParseGrid(o.grid, data)
		if err != nil {
			return nil, err
		}
		return g.Cases(o.config, traces)
	}
	work, err := job.ParseDuration(o.work)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--work").Hint("%s", fault.HintOf(err))
	}
	start, step, length := 0, 0, 0
	if o.windows != "" {
		part := strings.Split(o.windows, ":")
		var errs [3]error
		if len(part) == 3 {
			start, errs[0] = strconv.Atoi(part[0])
			step, errs[1] = strconv.Atoi(part[1])
			length, errs[2] = strconv.Atoi(part[2])
		}
		if len(part) != 3 || errs != [3]error{} || start < 0 || step < 1 || length < 1 {
			return nil, fault.New(fault.Invalid, "%q are no windows", o.windows).Hint("write START:STEP:LENGTH in samples, as in 0:24:421")
		}
	}
	var cases []spot.Case
	for i := range traces {
		t := &traces[i]
		for _, d := range o.deadlines {
			deadline, err := job.ParseDuration(d)
			if err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "--deadline").Hint("%s", fault.HintOf(err))
			}
			for _, r := range o.restarts {
				restart, err := job.ParseDuration(r)
				if err != nil {
					return nil, fault.Wrap(fault.Invalid, err, "--restart").Hint("%s", fault.HintOf(err))
				}
				j := spot.Job{Work: work.Seconds(), Deadline: deadline.Seconds(), Restart: restart.Seconds(), Gap: t.Gap, OnDemand: o.onDemand, Spot: o.spot}
				if err := j.Check(); err != nil {
					return nil, err
				}
				if step == 0 {
					cases = append(cases, spot.Case{Trace: t, Start: start, Job: j})
					continue
				}
				for at := start; at+length <= len(t.Available); at += step {
					cases = append(cases, spot.Case{Trace: t, Start: at, Job: j})
				}
			}
		}
	}
	if len(cases) == 0 {
		return nil, fault.New(fault.Invalid, "no window of %d samples fits into the traces", length).Hint("give a shorter LENGTH")
	}
	return cases, nil
}
