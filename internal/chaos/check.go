package chaos

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/tenant"
)

// settle waits until all jobs have ended and no machine is left, with one
// control plane that is left in peace.
func (r *rig) settle(ctx context.Context) error {
	var last string
	for until := time.Now().Add(3 * time.Minute); ; sleep(ctx, 200*time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d, err := r.store.Changed(ctx, 0)
		if err != nil {
			return err
		}
		provider, err := fake.New(fake.Config{Folder: r.provider, Exe: r.Binary})
		if err != nil {
			return err
		}
		tags, err := provider.Tags()
		_ = provider.Close()
		if err != nil {
			return err
		}
		live := 0
		for _, j := range d.Jobs {
			if !j.State.Ended() {
				live++
			}
		}
		if live+len(d.Attempts)+len(d.Machines)+len(tags) == 0 {
			return nil
		}
		if words := fmt.Sprintf("%d jobs, %d machines, %d at the provider", live, len(d.Machines), len(tags)); words != last {
			last = words
			r.say("left: %s", words)
		}
		if time.Now().After(until) {
			for _, j := range d.Jobs {
				if !j.State.Ended() {
					r.wrong("job %d %s never ends: it is %s: %s", j.ID, j.Name, j.State, j.Reason)
				}
			}
			for _, m := range d.Machines {
				r.wrong("machine %s never ends: it is %s: %s %s", m.ID, m.State, m.Reason, m.EndFail)
			}
			for _, tag := range tags {
				r.wrong("the provider still has %s", tag)
			}
			return nil
		}
	}
}

// check compares what the rows say with what happened.
func (r *rig) check(ctx context.Context, tasks []*task) error {
	for _, t := range tasks {
		jobs, err := r.store.Jobs(ctx, record.JobFilter{Name: t.name})
		if err != nil {
			return err
		}
		if len(jobs) != t.rows {
			r.wrong("%s was submitted as %d jobs, and there are %d", t.name, t.rows, len(jobs))
		}
		trace, err := readTrace(r.trace(t))
		if err != nil {
			return err
		}
		for _, j := range jobs {
			r.report.Jobs++
			attempts, err := r.store.Attempts(ctx, j.ID)
			if err != nil {
				return err
			}
			r.report.Attempts += len(attempts)
			events, err := r.store.Events(ctx, record.EventFilter{Job: j.ID})
			if err != nil {
				return err
			}
			ends := 0
			for _, e := range events {
				if job.State(e.What).Ended() {
					ends++
				}
			}
			if ends != 1 {
				r.wrong("job %d %s ended %d times", j.ID, t.name, ends)
			}
			r.state(t, j, attempts)
			r.once(t, j, attempts, trace)
			if r.logs(t, j, attempts, trace) {
				r.report.Logs++
			}
		}
		r.order(t, jobs, trace)
	}
	if err := r.money(ctx); err != nil {
		return err
	}
	for until := time.Now().Add(2 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := r.left()
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(until) {
			for pid, line := range left {
				r.wrong("process %d is left: %.200s", pid, line)
			}
			return nil
		}
	}
}

// state checks that a job ended as it must.
func (r *rig) state(t *task, j *job.Job, attempts []*machine.Attempt) {
	switch j.State {
	case job.Done:
		r.report.Done++
	case job.Failed:
		r.report.Failed++
	case job.Stopped:
		r.report.Stopped++
	}
	what := fmt.Sprintf("job %d %s", j.ID, t.name)
	if j.State != t.state {
		r.wrong("%s ended %s (%s), and not %s", what, j.State, j.Reason, t.state)
		return
	}
	if len(attempts) != j.Attempts {
		r.wrong("%s counts %d attempts, and there are %d", what, j.Attempts, len(attempts))
	}
	well, badly := 0, 0
	for _, a := range attempts {
		if a.State != machine.Over {
			r.wrong("%s: attempt %s is %s", what, a.ID, a.State)
		}
		if a.Cause == machine.Exited && j.State == job.Done && a == attempts[len(attempts)-1] {
			well++
		} else if a.Cause == machine.Exited {
			badly++
		}
	}
	switch {
	case j.State == job.Done && (well != 1 || badly > t.retry):
		r.wrong("%s is done after %d attempts that ended well and %d that failed", what, well, badly)
	case t.exit != 0 && (j.ExitCode != t.exit || badly != t.retry+1):
		r.wrong("%s failed with exit code %d after %d attempts, and not with %d after %d", what, j.ExitCode, badly, t.exit, t.retry+1)
	case t.kind == "after-failed" && len(attempts) > 0:
		r.wrong("%s was tried although the job before it failed", what)
	case (t.kind == "limit" || t.kind == "cost") && attempts[len(attempts)-1].Cause != machine.Limit:
		r.wrong("%s ended for %s (%s)", what, attempts[len(attempts)-1].Cause, j.Reason)
	}
}

// marks are what a task wrote of itself.
type marks struct {
	starts, ends int
	first, last  int64 // unix nanoseconds
}

func readTrace(path string) (map[string]*marks, error) {
	out := map[string]*marks{}
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) != 3 {
			return nil, fmt.Errorf("%s: %q", path, line)
		}
		at, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return nil, err
		}
		m := out[f[0]]
		if m == nil {
			m = &marks{first: at}
			out[f[0]] = m
		}
		m.last = max(m.last, at)
		switch f[1] {
		case "start":
			m.starts++
		case "end":
			m.ends++
		}
	}
	return out, nil
}

// span is when anything of an attempt ran.
func span(a *machine.Attempt, trace map[string]*marks) (first, last int64) {
	for rank := range a.Tasks {
		if m := trace[machine.TaskID(a.ID, rank)]; m != nil {
			if first == 0 || m.first < first {
				first = m.first
			}
			last = max(last, m.last)
		}
	}
	return first, last
}

// once checks that no task ran twice and no two attempts at the same time.
func (r *rig) once(t *task, j *job.Job, attempts []*machine.Attempt, trace map[string]*marks) {
	var before int64
	var was string
	for _, a := range attempts {
		for rank := range a.Tasks {
			id := machine.TaskID(a.ID, rank)
			if m := trace[id]; m != nil && m.starts > 1 {
				r.wrong("%s: task %s was started %d times", t.name, id, m.starts)
			}
		}
		first, last := span(a, trace)
		if first == 0 {
			continue
		}
		if first <= before {
			r.wrong("%s: attempt %s began %s before the last word of %s", t.name, a.ID, time.Duration(before-first), was)
		}
		before, was = last, a.ID
		if a.State == machine.Over && last > a.Ended.UnixNano() {
			r.wrong("%s: attempt %s ran for %s after its end was written down (%s: %s)", t.name, a.ID, time.Duration(last-a.Ended.UnixNano()), a.Cause, a.Reason)
		}
	}
	if j.State == job.Done && len(attempts) > 0 {
		a := attempts[len(attempts)-1]
		for rank := range a.Tasks {
			if m := trace[machine.TaskID(a.ID, rank)]; m == nil || m.starts != 1 || m.ends != 1 {
				r.wrong("%s: attempt %s is done, and its rank %d says %+v", t.name, a.ID, rank, m)
			}
		}
	}
}

// order checks that a job began after the one for which it waited.
func (r *rig) order(t *task, jobs []*job.Job, trace map[string]*marks) {
	if t.after == nil || t.after.state != job.Done || len(trace) == 0 {
		return
	}
	before, err := readTrace(r.trace(t.after))
	if err != nil {
		return
	}
	var last, first int64
	for _, m := range before {
		last = max(last, m.last)
	}
	for _, m := range trace {
		if first == 0 || m.first < first {
			first = m.first
		}
	}
	if first < last {
		r.wrong("%s began before %s had ended", t.name, t.after.name)
	}
}

// logs checks that every line of a job is here once and in its order: all of
// them, for attempts that ended by themselves, and those to the last that came
// over for the others.
func (r *rig) logs(t *task, j *job.Job, attempts []*machine.Attempt, trace map[string]*marks) bool {
	files := control.Files{Dir: r.home}
	whole := true
	wrong := func(format string, args ...any) {
		whole = false
		r.wrong("%s: %s", t.name, fmt.Sprintf(format, args...))
	}
	for _, a := range attempts {
		for rank := range a.Tasks {
			id := machine.TaskID(a.ID, rank)
			data, err := os.ReadFile(files.Log(j.ID, a.ID, rank))
			if err != nil && !os.IsNotExist(err) {
				wrong("%v", err)
				continue
			}
			n, rest, ok := numbered(data, id)
			if !ok {
				wrong("the log of %s breaks off at line %d: %.80q", id, n, rest)
				continue
			}
			k := &a.Tasks[rank]
			if k.Fetched && k.Log > 0 && int64(len(data)) != k.Log {
				wrong("the log of %s has %d bytes, and its node had %d", id, len(data), k.Log)
			}
			if a.Cause == machine.Exited && len(a.Tasks) == 1 && n != t.steps*perStep {
				wrong("the log of %s has %d lines of %d", id, n, t.steps*perStep)
			}
		}
	}
	if t.kind == "outputs" && j.State == job.Done {
		text, err := member(files.Outputs(j.ID, 0), "result.txt")
		if want := "result of " + machine.TaskID(attempts[len(attempts)-1].ID, 0) + "\n"; text != want {
			wrong("its output is %q and not %q (%v)", text, want, err)
		}
	}
	if t.kind == "checkpoint" && j.State == job.Done {
		if text, err := member(files.Checkpoint(j.ID, 0), "end"); text != "kept\n" {
			wrong("its checkpoint is %q (%v)", text, err)
		}
	}
	return whole
}

// numbered counts the lines of a task in a log, and says whether they are in
// order. What comes after them, such as words of the shell, is free; the last
// line may be cut.
func numbered(data []byte, id string) (n int, rest string, ok bool) {
	s := bufio.NewScanner(bytes.NewReader(data))
	for s.Scan() {
		want := fmt.Sprintf("line %d of %s", n, id)
		if s.Text() == want {
			n++
			continue
		}
		rest = s.Text()
		if strings.HasPrefix(rest, "line ") && s.Scan() { // no other line follows a cut one
			return n, rest, false
		}
		return n, rest, !strings.HasPrefix(rest, "line ") || strings.HasPrefix(want, rest)
	}
	return n, "", true
}

// member reads one file of a tar.gz.
func member(path, name string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err != nil {
			return "", err
		}
		if strings.TrimPrefix(h.Name, "./") == name {
			data, err := io.ReadAll(tr)
			return string(data), err
		}
	}
}

// money checks ledger, holds and counters, and compares with the provider's
// bill.
func (r *rig) money(ctx context.Context) error {
	machines, err := r.store.Machines(ctx, tenant.Local().Project, true)
	if err != nil {
		return err
	}
	entries, err := r.store.Ledger(ctx, record.LedgerFilter{})
	if err != nil {
		return err
	}
	var usage []ledger.Usage
	var charges []ledger.Charge
	byJob := map[int64]money.Amount{}
	total := money.Amount(0)
	for _, e := range entries {
		usage, charges = append(usage, e.Usage), append(charges, e.Charge)
		byJob[e.Job] += e.Charge.Amount
		total += e.Charge.Amount
	}
	var bills []ledger.Bill
	rows := map[string]*machine.Machine{}
	costs := map[string]money.Amount{}
	for _, m := range machines {
		r.report.Machines++
		if m.State == machine.Gone {
			r.report.Gone++
		}
		cost := ledger.MachineCost(m.Terms.PriceHour, m.BilledFrom(), m.Gone, m.Terms.Increment, m.Terms.Minimum)
		bills = append(bills, ledger.Bill{Machine: m.ID, Cost: cost})
		rows[r.plane+"-"+m.ID], costs[r.plane+"-"+m.ID] = m, cost
	}
	before := len(r.report.Wrong)
	for _, x := range ledger.Check(usage, charges, bills) {
		r.wrong("ledger: %s", x)
	}
	for _, key := range []string{"held", "spent"} {
		n, err := r.store.Counter(ctx, key+"/default/USD")
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
		if want := map[string]money.Amount{"held": 0, "spent": total}[key]; money.Amount(n) != want {
			r.wrong("the counter of what is %s is %s, and not %s", key, money.Amount(n), want)
		}
	}
	jobs, err := r.store.Jobs(ctx, record.JobFilter{})
	if err != nil {
		return err
	}
	for _, j := range jobs {
		h, err := r.store.Hold(ctx, j.ID)
		if fault.KindOf(err) == fault.NotFound {
			continue
		}
		if err != nil {
			return err
		}
		if h.Released.IsZero() {
			r.wrong("the hold of job %d is not released", j.ID)
		}
		if h.Committed != byJob[j.ID] {
			r.wrong("job %d: %s are committed, and its charges come to %s", j.ID, h.Committed, byJob[j.ID])
		}
	}
	bill, err := fake.Bill(r.provider, time.Now())
	if err != nil {
		return err
	}
	made := map[string]bool{}
	for _, l := range bill {
		made[l.Tag] = true
		m := rows[l.Tag]
		switch {
		case m == nil:
			r.wrong("the provider bills %s, which is in no row", l.Tag)
		case l.Gone.IsZero():
			r.wrong("the provider still bills %s", l.Tag)
		case m.Gone.Before(l.Gone):
			r.wrong("machine %s was said to be gone %s before it was", m.ID, l.Gone.Sub(m.Gone))
		case costs[l.Tag] < l.Cost:
			r.wrong("machine %s cost %s, and the ledger has %s", m.ID, l.Cost, costs[l.Tag])
		}
		r.report.Bill += l.Cost
	}
	r.report.Ours = total
	for _, tag := range slices.SortedFunc(maps.Keys(rows), cmp.Compare) {
		// Of one without handle and without a refusal no answer ever came: nobody
		// knows whether it was, and what is not known is not free.
		if m := rows[tag]; !made[tag] && costs[tag] != 0 && (m.Handle != "" || m.LaunchFail != "") {
			r.wrong("machine %s was never made (%s), and costs %s", m.ID, m.Reason, costs[tag])
		}
	}
	r.report.balanced = len(r.report.Wrong) == before
	return nil
}
