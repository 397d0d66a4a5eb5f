package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/tenant"
)

// detail is all that is known of one job.
type detail = control.Detail

// jobDocument is one job as JSON.
type jobDocument struct {
	jobRow
	Estimate *job.Estimate     `json:"estimate"`
	Actual   actual            `json:"actual"`
	Limit    *money.Amount     `json:"cost_limit"`
	Attempts []attemptDocument `json:"tries"`
	Charges  []chargeDocument  `json:"charges"`
	Events   []eventDocument   `json:"events"`
	Samples  []record.Sample   `json:"samples"`
}

type attemptDocument struct {
	ID       string               `json:"id"`
	State    machine.AttemptState `json:"state"`
	Cause    machine.Cause        `json:"cause"`
	Reason   string               `json:"reason"`
	Offer    string               `json:"offer"`
	Machines []string             `json:"machines"`
	Made     time.Time            `json:"made"`
	Started  *time.Time           `json:"started"`
	Ended    *time.Time           `json:"ended"`
	Devices  []string             `json:"devices"`
}

type chargeDocument struct {
	Kind     ledger.Kind   `json:"kind"`
	Machine  string        `json:"machine"`
	From     time.Time     `json:"from"`
	To       time.Time     `json:"to"`
	Share    float64       `json:"share"`
	Amount   *money.Amount `json:"amount"`
	Currency string        `json:"currency"`
	Price    money.Amount  `json:"price"`
	Source   string        `json:"source"`
	AsOf     string        `json:"as_of"`
	Assumed  bool          `json:"price_assumed"`
}

type eventDocument struct {
	At      time.Time `json:"at"`
	Member  string    `json:"member"`
	Machine string    `json:"machine"`
	What    string    `json:"what"`
	Detail  string    `json:"detail"`
}

func documentOf(d *detail, now time.Time) jobDocument {
	x := jobDocument{jobRow: rowOfJob(d.Job, now), Estimate: d.Job.Estimate, Actual: actually(d, now), Attempts: []attemptDocument{}, Charges: []chargeDocument{},
		Events: []eventDocument{}, Samples: d.Samples}
	if x.Samples == nil {
		x.Samples = []record.Sample{}
	}
	if d.Hold != nil && d.Hold.Limit > 0 {
		x.Limit = &d.Hold.Limit
	}
	for _, a := range d.Attempts {
		y := attemptDocument{ID: a.ID, State: a.State, Cause: a.Cause, Reason: a.Reason, Made: a.Made.UTC(), Started: known2(a.Started), Ended: known2(a.Ended), Machines: []string{}, Devices: []string{}}
		for i := range a.Tasks {
			y.Machines = append(y.Machines, a.Tasks[i].Machine)
			y.Devices = append(y.Devices, a.Tasks[i].Devices...)
			if m := d.Machines[a.Tasks[i].Machine]; m != nil {
				y.Offer = m.Terms.OfferID
			}
		}
		x.Attempts = append(x.Attempts, y)
	}
	for i := range d.Entries {
		e := &d.Entries[i]
		y := chargeDocument{Kind: e.Kind, Machine: e.Machine, From: e.From.UTC(), To: e.To.UTC(), Share: float64(e.Share) / ledger.Whole, Currency: e.Charge.Currency,
			Price: e.Charge.Price, Source: e.Charge.Source, AsOf: e.Charge.AsOf, Assumed: e.Charge.Assumed}
		if e.Charge.Known {
			y.Amount = &e.Charge.Amount
		}
		x.Charges = append(x.Charges, y)
	}
	for _, e := range d.Events {
		x.Events = append(x.Events, eventDocument{e.At.UTC(), e.Member, e.Machine, e.What, e.Detail})
	}
	return x
}

// showJob prints all that is known of one job.
func (h *house) showJob(ctx context.Context, id int64) error {
	a := h.app
	d, err := h.Job(ctx, h.who, id)
	if err != nil {
		return err
	}
	now := a.Now()
	if a.output == "json" {
		return a.printJSON(documentOf(d, now))
	}
	j := d.Job
	fmt.Fprintf(a.Out, "%s\n", a.bold(fmt.Sprintf("job %s %s: %s", jobRef(j), j.Name, j.State)))
	if j.Reason != "" {
		fmt.Fprintln(a.Out, wrap(j.Reason, a.columns()))
	}
	fmt.Fprintln(a.Out)
	if err := a.print(comparison(d, now), nil); err != nil {
		return err
	}
	if len(d.Attempts) > 0 {
		fmt.Fprintln(a.Out)
		l := listing{header: []string{"TRY", "STATE", "WHERE", "MACHINE", "STARTED", "TOOK", "REASON"}, right: map[int]bool{5: true}, shrink: 6}
		for _, x := range documentOf(d, now).Attempts {
			started, took := "-", "-"
			if x.Started != nil {
				end := now
				if x.Ended != nil {
					end = *x.Ended
				}
				started, took = x.Started.Format("2006-01-02 15:04:05"), seconds(end.Sub(*x.Started).Seconds())
			}
			state := string(x.State)
			if x.Cause != "" && x.State == machine.Over {
				state = string(x.Cause)
			}
			l.rows = append(l.rows, []string{x.ID, state, x.Offer, strings.Join(x.Machines, " "), started, took, x.Reason})
		}
		if err := a.print(l, nil); err != nil {
			return err
		}
	}
	if len(d.Events) > 0 {
		fmt.Fprintln(a.Out)
		l := listing{header: []string{"WHEN (UTC)", "WHAT", "DETAIL"}, shrink: 2}
		form := "15:04:05.000"
		if last := d.Events[len(d.Events)-1].At; !sameDay(d.Events[0].At, last) || !sameDay(last, now) {
			form = "2006-01-02 15:04:05"
		}
		for _, e := range d.Events {
			l.rows = append(l.rows, []string{e.At.UTC().Format(form), who(e) + e.What, e.Detail})
		}
		return a.print(l, nil)
	}
	return nil
}

func sameDay(a, b time.Time) bool {
	return a.UTC().Format(time.DateOnly) == b.UTC().Format(time.DateOnly)
}

func who(e tenant.Event) string {
	if e.Member == "" {
		return ""
	}
	return e.Member + ": "
}

// comparison puts what was estimated beside what it was.
func comparison(d *detail, now time.Time) listing {
	l := listing{header: []string{"", "ESTIMATED", "ACTUAL"}, right: map[int]bool{1: true, 2: true}}
	x, e := actually(d, now), d.Job.Estimate
	add := func(name, estimated, actual string) { l.rows = append(l.rows, []string{name, estimated, actual}) }
	hours := func(h float64) string { return seconds(h * 3600) }
	mark := ""
	if x.Assumed {
		mark = "~"
	}
	var g job.Estimate
	if e != nil {
		g = *e
	}
	estimated := func(text string) string {
		if !g.Known {
			return "not stated"
		}
		return text
	}
	add("work", estimated(hours(g.Hours)), hours(x.Hours))
	add("start-up", hours(g.StartupHours), hours(x.Startup))
	add("from submission to end", estimated(hours(g.WallHours)), hours(x.Wall))
	add("cost "+x.Currency, estimated(price(g.Cost)), mark+price(x.Cost))
	for _, k := range []ledger.Kind{ledger.Startup, ledger.Run, ledger.Finish, ledger.Disk, ledger.Egress} {
		if x.Parts[k] != 0 {
			part := ""
			switch k {
			case ledger.Startup:
				part = price(g.Parts["startup"])
			case ledger.Run:
				part = price(g.Parts["compute"] + g.Parts["checkpoints"] + g.Parts["interruptions"])
			}
			if !g.Known {
				part = ""
			}
			add("  of it "+string(k), part, mark+price(x.Parts[k]))
		}
	}
	if x.Energy != nil {
		words := fmt.Sprintf("%.3f", *x.Energy)
		if !x.Measured {
			words = "at most " + words
		}
		add("energy kWh", estimated(fmt.Sprintf("%.3f", g.EnergyKWh)), words)
		if x.CO2 != nil {
			planned := "unknown"
			if g.CO2Kg != nil {
				planned = fmt.Sprintf("%.3f", *g.CO2Kg)
			}
			add("CO2 kg", estimated(planned), fmt.Sprintf("%.3f", *x.CO2))
		}
	}
	if x.Assumed {
		l.foot = append(l.foot, "~ is at an assumed price: `destajo machines price` states it.")
	}
	if x.Unknown > 0 {
		l.foot = append(l.foot, fmt.Sprintf("%d parts of unknown price are not in the cost.", x.Unknown))
	}
	return l
}

// report says at the end of a run what was estimated, what it took and what it
// cost, and ends with the job's own fault when it failed.
func (h *house) report(ctx context.Context, jobs []*job.Job) error {
	a := h.app
	var documents []jobDocument
	var failed *job.Job
	var last *detail
	total := map[string]money.Amount{}
	files, mark := 0, ""
	for _, j := range jobs {
		if j.State != job.Done && (failed == nil || j.ID < failed.ID) {
			failed = j
		}
	}
	if len(jobs) == 1 || a.output == "json" {
		for _, j := range jobs {
			d, err := h.Job(ctx, h.who, j.ID)
			if err != nil {
				return err
			}
			documents, last = append(documents, documentOf(d, a.Now())), d
			if j.Dir != "" && j.State == job.Done {
				dir := j.Dir
				if len(jobs) > 1 {
					dir = fmt.Sprintf("%s/%d", dir, j.Index)
				}
				n, err := h.fetch(ctx, j, dir)
				if err != nil {
					return err
				}
				files += n
			}
		}
		h.sayFetched(files, jobs[0].Dir)
	}
	switch {
	case a.output == "json" && len(jobs) == 1:
		if err := a.printJSON(documents[0]); err != nil {
			return err
		}
	case a.output == "json":
		if err := a.printJSON(documents); err != nil {
			return err
		}
	case len(jobs) == 1:
		h.sayEnd(last)
	default:
		entries, err := h.Ledger(ctx, h.who, record.LedgerFilter{Jobs: ids(jobs)})
		if err != nil {
			return err
		}
		for _, e := range entries {
			total[e.Charge.Currency] += e.Charge.Amount
			if e.Charge.Assumed {
				mark = "~"
			}
		}
		count := map[job.State]int{}
		end := jobs[0].Ended
		for _, j := range jobs {
			count[j.State]++
			if j.Ended.After(end) {
				end = j.Ended
			}
			if j.Dir != "" && j.State == job.Done {
				n, err := h.fetch(ctx, j, fmt.Sprintf("%s/%d", j.Dir, j.Index))
				if err != nil {
					return err
				}
				files += n
			}
		}
		h.sayFetched(files, jobs[0].Dir+", a folder for each")
		var costs []string
		for c, x := range total {
			costs = append(costs, mark+price(x)+" "+c)
		}
		fmt.Fprintf(a.Err, "array %d: %d done, %d failed, %d stopped in %s, %s\n", jobs[0].Array, count[job.Done], count[job.Failed], count[job.Stopped],
			seconds(end.Sub(jobs[len(jobs)-1].Submitted).Seconds()), strings.Join(costs, ", "))
	}
	if failed != nil {
		e := fault.New(fault.JobFailed, "job %s %s %s: %s", jobRef(failed), failed.Name, failed.State, orElse(failed.Reason, "it did not end well"))
		return e.Hint("`destajo job %s` shows what happened, `destajo logs %s` what it wrote", jobRef(failed), jobRef(failed))
	}
	return nil
}

// sayEnd is the last word of a run.
func (h *house) sayEnd(d *detail) {
	a := h.app
	j := d.Job
	x := actually(d, a.Now())
	fmt.Fprintf(a.Err, "\njob %s %s: %s after %s\n", jobRef(j), j.Name, j.State, seconds(x.Wall*3600))
	l := comparison(d, a.Now())
	width := 0
	for _, r := range l.rows {
		width = max(width, len(r[0]))
	}
	fmt.Fprintf(a.Err, "%-*s  %12s  %12s\n", width, "", "estimated", "actual")
	for _, r := range l.rows {
		fmt.Fprintf(a.Err, "%-*s  %12s  %12s\n", width, r[0], r[1], r[2])
	}
	for _, f := range l.foot {
		fmt.Fprintln(a.Err, f)
	}
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
