package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

// costRow is a group of charges.
type costRow struct {
	Key      string                       `json:"key"`
	Name     string                       `json:"name"`
	Currency string                       `json:"currency"`
	Amount   money.Amount                 `json:"amount"`
	Hours    float64                      `json:"hours"`
	Unknown  int                          `json:"unknown_parts"`
	Assumed  bool                         `json:"price_assumed"`
	Parts    map[ledger.Kind]money.Amount `json:"parts"`
}

func (a *app) costCommand() *cobra.Command {
	var by, since, until string
	c := &cobra.Command{
		Use:     "cost",
		GroupID: "run",
		Short:   "What was spent, by job, machine, provider, day, member or kind",
		Long: `What was spent: every quantity that was used, at the price that was frozen when it
was used. Jobs and the idle time of a machine add up to what the machine cost. An
assumed price is marked with ~, and a part whose price is not known is counted.`,
		Example: "  destajo cost\n  destajo cost --by day --since 2026-11-01 -o csv",
		Args:    nothing,
		RunE:    func(*cobra.Command, []string) error { return a.cost(by, since, until) },
	}
	c.Flags().StringVar(&by, "by", "job", strings.Join(ledger.Ways(), ", "))
	c.Flags().StringVar(&since, "since", "", "from this day or moment on, UTC: 2026-11-30")
	c.Flags().StringVar(&until, "until", "", "before this day or moment, UTC")
	return c
}

func (a *app) cost(by, since, until string) error {
	f := record.LedgerFilter{}
	for _, x := range []struct {
		name, text string
		into       *time.Time
	}{{"since", since, &f.From}, {"until", until, &f.To}} {
		if x.text == "" {
			continue
		}
		t, err := time.Parse("2006-01-02", x.text)
		if err != nil {
			t, err = time.Parse(time.RFC3339, x.text)
		}
		if err != nil {
			return fault.New(fault.Invalid, "--%s %q is no day", x.name, x.text).Hint("write 2026-11-30 or 2026-11-30T12:00:00Z")
		}
		*x.into = t
	}
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	entries, err := h.Ledger(ctx, h.who, f)
	if err != nil {
		return err
	}
	sums, err := sumsBy(entries, by)
	if err != nil {
		return err
	}
	names := map[string]string{}
	if by == "job" {
		all, err := h.Jobs(ctx, h.who, record.JobFilter{})
		if err != nil {
			return err
		}
		for _, j := range all {
			names[fmt.Sprint(j.ID)] = jobRef(j) + " " + j.Name
		}
	}
	rows := []costRow{}
	l := listing{header: []string{strings.ToUpper(by), "COST", "", "HOURS", "STARTUP", "RUN", "FINISH", "IDLE", "NOTE"},
		right: map[int]bool{1: true, 3: true, 4: true, 5: true, 6: true, 7: true}, shrink: 8}
	total := map[string]money.Amount{}
	for _, s := range sums {
		rows = append(rows, costRow{s.Key, names[s.Key], s.Currency, s.Amount, s.Hours, s.Unknown, s.Assumed, s.Parts})
		label, mark, note := s.Key, "", ""
		if n := names[s.Key]; n != "" {
			label = n
		}
		if s.Assumed {
			mark = "~"
		}
		if s.Unknown > 0 {
			note = fmt.Sprintf("%d parts of unknown price are not in it", s.Unknown)
		}
		part := func(k ledger.Kind) string {
			if s.Parts[k] == 0 {
				return "-"
			}
			return price(s.Parts[k])
		}
		l.rows = append(l.rows, []string{label, mark + price(s.Amount), s.Currency, fmt.Sprintf("%.3f", s.Hours), part(ledger.Startup), part(ledger.Run), part(ledger.Finish), part(ledger.Idle), note})
		total[s.Currency] += s.Amount
	}
	if a.tabular() {
		l.dropEmpty(3)
		for _, c := range slices.Sorted(maps.Keys(total)) {
			l.foot = append(l.foot, fmt.Sprintf("In all %s %s.", price(total[c]), c))
		}
		if len(rows) == 0 {
			l.foot = append(l.foot, "Nothing was spent.")
		}
	}
	return a.print(l, rows)
}

// dropEmpty leaves out the columns, from one on, in which nothing stands.
func (l *listing) dropEmpty(from int) {
	for i := len(l.header) - 1; i >= from; i-- {
		if slices.ContainsFunc(l.rows, func(r []string) bool { return r[i] != "" && r[i] != "-" }) {
			continue
		}
		l.header = slices.Delete(slices.Clone(l.header), i, i+1)
		for n, r := range l.rows {
			l.rows[n] = slices.Delete(r, i, i+1)
		}
		right := map[int]bool{}
		for c := range l.right {
			switch {
			case c < i:
				right[c] = true
			case c > i:
				right[c-1] = true
			}
		}
		l.right = right
		if l.shrink >= i {
			l.shrink--
		}
	}
}

func sumsBy(entries []record.Entry, by string) ([]ledger.Sum, error) {
	usage, charges := make([]ledger.Usage, len(entries)), make([]ledger.Charge, len(entries))
	for i := range entries {
		usage[i], charges[i] = entries[i].Usage, entries[i].Charge
	}
	return ledger.Group(usage, charges, by)
}

// actual is what a job took and cost in truth.
type actual struct {
	Cost     money.Amount                 `json:"cost"`
	Currency string                       `json:"currency"`
	Assumed  bool                         `json:"price_assumed"`
	Unknown  int                          `json:"unknown_parts"`
	Parts    map[ledger.Kind]money.Amount `json:"parts"`
	Hours    float64                      `json:"hours"`      // of running, elapsed, of all attempts
	Wall     float64                      `json:"wall_hours"` // from submission to the end
	Startup  float64                      `json:"startup_hours"`
	Energy   *float64                     `json:"energy_kwh"` // measured where the driver says, else at full load; nil unknown
	Measured bool                         `json:"energy_measured"`
	CO2      *float64                     `json:"co2_kg"`
}

// actually sums what a job took and cost.
func actually(d *detail, now time.Time) actual {
	x := actual{Parts: map[ledger.Kind]money.Amount{}, Currency: "USD"}
	for i := range d.Entries {
		e := &d.Entries[i]
		if !e.Charge.Known {
			x.Unknown++
			continue
		}
		x.Cost += e.Charge.Amount
		x.Parts[e.Kind] += e.Charge.Amount
		x.Currency, x.Assumed = e.Charge.Currency, x.Assumed || e.Charge.Assumed
	}
	end := now
	if !d.Job.Ended.IsZero() {
		end = d.Job.Ended
	}
	x.Wall = end.Sub(d.Job.Submitted).Hours()
	joules, watts, grams, known := 0.0, 0.0, 0.0, true
	for _, at := range d.Attempts {
		if at.Started.IsZero() {
			continue
		}
		if at.State != machine.Over { // what is not recorded yet, at the price of the machine
			for i := range at.Tasks {
				if m := d.Machines[at.Tasks[i].Machine]; m != nil && now.After(at.Billed) && at.Tasks[i].Ended.IsZero() {
					u := ledger.Usage{From: at.Billed, To: now, Share: int64(at.ShareOf(&at.Tasks[i]) * ledger.Whole)}
					more := u.Time(m.Terms.PriceHour)
					x.Cost += more
					x.Parts[ledger.Run] += more
					x.Currency, x.Assumed = m.Terms.Currency, x.Assumed || m.Terms.Assumed
				}
			}
		}
		stop := end
		if !at.Ended.IsZero() {
			stop = at.Ended
		}
		run := stop.Sub(at.Started)
		if at.Useful > 0 && at.Useful < run {
			run = at.Useful
		}
		x.Hours += run.Hours()
		x.Startup += at.Started.Sub(at.Made).Hours()
		for i := range at.Tasks {
			m := d.Machines[at.Tasks[i].Machine]
			if m == nil {
				continue
			}
			used := at.Tasks[i].Joules
			if used == 0 && m.Terms.GPUCount > 0 && at.Needs.GPUs > 0 {
				used = m.Terms.Watts / float64(m.Terms.GPUCount) * float64(at.Needs.GPUs) * run.Seconds()
				watts += used
			}
			joules += used
			if m.Terms.GridGrams == nil {
				known = false
			} else {
				grams += used / 3.6e6 * *m.Terms.GridGrams
			}
		}
	}
	if joules > 0 {
		kwh := joules / 3.6e6
		x.Energy, x.Measured = &kwh, watts == 0
		if known {
			kg := grams / 1000
			x.CO2 = &kg
		}
	}
	return x
}
