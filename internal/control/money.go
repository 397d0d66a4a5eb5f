package control

import (
	"fmt"
	"strconv"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

func (x Record) String() string { return "record the usage of " + x.Attempt + x.Machine }

func (x Record) apply(d *draft) {
	if x.Machine != "" {
		d.settle(x.Machine)
		return
	}
	a := d.editAttempt(x.Attempt)
	to := x.To
	if to.Before(a.Billed) { // the clock jumped back: what was recorded stays
		to = a.Billed
	}
	for i := range a.Tasks {
		t := &a.Tasks[i]
		m := d.machine(t.Machine)
		if m == nil {
			continue
		}
		for _, part := range d.parts(a, t, m, to) {
			d.charge(a, t, m, part)
		}
	}
	a.Billed = to
}

// part is a piece of a task's time on its machine.
type part struct {
	kind     ledger.Kind
	origin   time.Time
	from, to time.Time
}

// parts divides a task's time since the last record. Its origin is the start of
// the machine's billing when the machine was asked for by this attempt, else the
// moment at which it got its slot; it ends when its last word came, or its
// machine was gone.
func (d *draft) parts(a *machine.Attempt, t *machine.Task, m *machine.Machine, to time.Time) []part {
	origin := t.Held
	if m.Asked.Equal(a.Made) {
		origin = m.BilledFrom()
	}
	if origin.IsZero() || m.Handle == "" && m.Booted.IsZero() { // nobody knows yet whether there is such a machine
		return nil
	}
	if !m.Gone.IsZero() && to.After(m.Gone) {
		to = m.Gone
	}
	from := a.Billed
	if from.Before(origin) {
		from = origin
	}
	var out []part
	cut := func(kind ledger.Kind, until time.Time) {
		if until.After(to) {
			until = to
		}
		if until.After(from) {
			out = append(out, part{kind, origin, from, until})
			from = until
		}
	}
	switch {
	case t.Started.IsZero():
		cut(ledger.Startup, to)
	case t.Ended.IsZero():
		cut(ledger.Startup, t.Started)
		cut(ledger.Run, to)
	default:
		cut(ledger.Startup, t.Started)
		cut(ledger.Run, t.Ended)
		if !m.Shared { // its slot on a shared machine is free already
			cut(ledger.Finish, to)
		}
	}
	return out
}

// charge writes one part down, with its price, and commits it to the job's hold.
func (d *draft) charge(a *machine.Attempt, t *machine.Task, m *machine.Machine, p part) {
	u := ledger.Usage{Key: fmt.Sprintf("%s.%d/%d", a.ID, t.Rank, p.from.UnixNano()), Project: a.Project, Member: a.Member, Job: a.Job, Attempt: a.ID,
		Machine: m.ID, Provider: m.Terms.Provider, Kind: p.kind, Origin: p.origin, From: p.from, To: p.to, Share: millionths(a.ShareOf(t))}
	c := u.Charge(tariff(m, &m.Terms.PriceHour))
	d.more.Usage = append(d.more.Usage, u)
	d.more.Charges = append(d.more.Charges, c)
	d.editMachine(m.ID).Charged += c.Amount
	d.commit(a.Job, c)
}

// tariff is a price of a machine with where it is from.
func tariff(m *machine.Machine, price *money.Amount) ledger.Tariff {
	return ledger.Tariff{Currency: m.Terms.Currency, Price: price, Assumed: m.Terms.Assumed, Source: m.Terms.Source, AsOf: m.Terms.AsOf}
}

// millionths is a share rounded down: shares that fill a machine do not pass it.
func millionths(share float64) int64 { return int64(floor6(share)*ledger.Whole + 0.5) }

// moved writes down what a task sent out of its provider's network: its outputs.
func (d *draft) moved(a *machine.Attempt, t *machine.Task, m *machine.Machine, n int64) {
	d.extra(a, m, ledger.Usage{Key: fmt.Sprintf("%s.%d/egress", a.ID, t.Rank), Kind: ledger.Egress, From: d.now, To: d.now, Bytes: n}, m.Terms.Egress)
}

// stored writes down the disk that a job asked for, as long as its attempt had
// the machine. A disk that is in the machine's price has the price 0.
func (d *draft) stored(a *machine.Attempt) {
	j := d.job(a.Job)
	spec := d.Specification(j)
	if spec == nil || spec.Resources.Disk == 0 {
		return
	}
	for i := range a.Tasks {
		m := d.machine(a.Tasks[i].Machine)
		if m == nil || m.Shared || m.Handle == "" {
			continue
		}
		from := m.BilledFrom()
		if from.Before(a.Made) {
			from = a.Made
		}
		to := d.now
		if !m.Gone.IsZero() && m.Gone.Before(to) {
			to = m.Gone
		}
		if to.After(from) {
			d.extra(a, m, ledger.Usage{Key: fmt.Sprintf("%s.%d/disk", a.ID, i), Kind: ledger.Disk, From: from, To: to, Bytes: int64(spec.Resources.Disk)}, m.Terms.DiskMonth)
		}
	}
}

// extra charges what is not machine time; a price of nil is not known.
func (d *draft) extra(a *machine.Attempt, m *machine.Machine, u ledger.Usage, price *money.Amount) {
	u.Project, u.Member, u.Job, u.Attempt, u.Machine, u.Provider = a.Project, a.Member, a.Job, a.ID, m.ID, m.Terms.Provider
	c := u.Charge(tariff(m, price))
	d.more.Usage, d.more.Charges = append(d.more.Usage, u), append(d.more.Charges, c)
	d.commit(a.Job, c)
}

// commit moves money from held to spent.
func (d *draft) commit(id int64, c ledger.Charge) {
	if d.hold(id) == nil || c.Amount == 0 {
		return
	}
	h := d.editHold(id)
	h.Committed += c.Amount
	if over := h.Committed - h.Amount; over > 0 && h.Limit == 0 { // the estimate was too low: hold as much as is used
		h.Amount = h.Committed
		d.more.Counters = append(d.more.Counters, record.Counter{Key: heldKey(h.Project, h.Currency), Add: int64(over)})
	}
	d.more.Counters = append(d.more.Counters, record.Counter{Key: heldKey(h.Project, h.Currency), Add: -int64(c.Amount)},
		record.Counter{Key: spentKey(h.Project, h.Currency), Add: int64(c.Amount)})
}

// settle writes down the idle time of a machine that is gone.
func (d *draft) settle(id string) {
	m := d.editMachine(id)
	if m.Settled || m.State != machine.Gone {
		return
	}
	m.Settled = true
	from := m.BilledFrom()
	if from.IsZero() || from.After(m.Gone) {
		from = m.Gone
	}
	total := ledger.MachineCost(m.Terms.PriceHour, from, m.Gone, m.Terms.Increment, m.Terms.Minimum)
	u, c := ledger.Settle(ledger.Usage{Key: m.ID + "/idle/" + strconv.FormatInt(m.Gone.UnixNano(), 10), Project: m.Project, Member: m.Member, Machine: m.ID,
		Provider: m.Terms.Provider, Origin: from, From: from, To: m.Gone}, tariff(m, &m.Terms.PriceHour), total, m.Charged)
	idle := c.Amount
	m.Charged += idle
	d.more.Usage = append(d.more.Usage, u)
	d.more.Charges = append(d.more.Charges, c)
	if idle != 0 {
		d.more.Counters = append(d.more.Counters, record.Counter{Key: spentKey(m.Project, m.Terms.Currency), Add: int64(idle)})
	}
}

// cost is what an attempt has cost since its last record until a moment, and
// what it costs in an hour.
func (d *draft) cost(a *machine.Attempt, at time.Time) (sinceRecord, hourly money.Amount) {
	for i := range a.Tasks {
		t := &a.Tasks[i]
		m := d.machine(t.Machine)
		if m == nil {
			continue
		}
		for _, p := range d.parts(a, t, m, at) {
			u := ledger.Usage{Origin: p.origin, From: p.from, To: p.to, Share: millionths(a.ShareOf(t))}
			sinceRecord += u.Time(m.Terms.PriceHour)
		}
		if x, err := m.Terms.PriceHour.MulDiv(millionths(a.ShareOf(t)), ledger.Whole); err == nil {
			hourly += x
		}
	}
	return sinceRecord, hourly
}

// overCost says that a job reaches its limit before it could stop if it were
// told later: the notice and the grace are paid for too.
func (d *draft) overCost(a *machine.Attempt, j *job.Job) string {
	h := d.hold(j.ID)
	if h == nil || h.Limit == 0 {
		return ""
	}
	since, hourly := d.cost(a, d.now)
	grace, err := hourly.For(d.Settings.Grace + 2*time.Second)
	if err != nil {
		return ""
	}
	used := h.Committed + since
	if grace > h.Limit/10 { // a grace that would be most of the job is cut by the limit itself
		grace = h.Limit / 10
	}
	if used+grace < h.Limit {
		return ""
	}
	return fmt.Sprintf("its limit of cost: %s of %s %s are used", used.Fixed(6), h.Limit, h.Currency)
}
