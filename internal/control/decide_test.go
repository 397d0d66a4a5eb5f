package control

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/tenant"
)

// play is a world around Decide: rows as a store would keep them, and nodes
// that do what they are told unless they are cut off.
type play struct {
	t     *rapid.T
	l     *Loop
	now   time.Time
	nodes map[string]*node // by machine
	next  int64
	tries map[int64]int // attempts of each job when its stop was written down
	sum   map[string]money.Amount
	rows  map[string]*machine.Machine
	usage []ledger.Usage
	bills []ledger.Charge
	held  map[string]int64
}

// node is one machine as it really is.
type node struct {
	there bool                    // it exists and costs
	cut   bool                    // nobody reaches it
	word  time.Time               // it heard its last word
	tasks map[string]*wire.Status // what runs on it
}

func newPlay(t *rapid.T) *play {
	s := DefaultSettings()
	s.DeadMan, s.Margin, s.Grace, s.Linger = 60*time.Second, 30*time.Second, 5*time.Second, 10*time.Second
	return &play{t: t, now: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), nodes: map[string]*node{}, next: 1, tries: map[int64]int{}, sum: map[string]money.Amount{},
		rows: map[string]*machine.Machine{}, held: map[string]int64{},
		l: &Loop{Settings: s, snap: &Snapshot{Plane: record.Plane{ID: "p", Epoch: 1}, Settings: s, Jobs: map[int64]*job.Job{}, Ended: map[int64]job.State{},
			Attempts: map[string]*machine.Attempt{}, Machines: map[string]*machine.Machine{}, Holds: map[int64]*tenant.Hold{}, Places: map[string]*record.Place{},
			Specs: map[int64]*job.Spec{}, Choices: map[int64]*Choice{}, Advice: map[int64]Advice{}}}}
}

// write keeps rows as a store does, and checks what must hold of every change.
func (p *play) write(c *record.Changes) {
	s := p.l.snap
	for _, m := range c.Machines {
		if m.Version == 0 && m.State == machine.Intent {
			if !slices.ContainsFunc(c.Holds, func(h *tenant.Hold) bool { return h.Released.IsZero() }) && len(s.Holds) == 0 {
				p.t.Fatalf("machine %s is asked for without a hold", m.ID)
			}
		}
		m.Version++
		p.rows[m.ID] = m
	}
	for _, a := range c.Attempts {
		if a.Version == 0 {
			if h := s.Holds[a.Job]; h == nil && !slices.ContainsFunc(c.Holds, func(h *tenant.Hold) bool { return h.Job == a.Job && h.Released.IsZero() }) {
				p.t.Fatalf("attempt %s begins without a hold", a.ID)
			}
		}
		a.Version++
	}
	for _, j := range c.Jobs {
		if old := s.Jobs[j.ID]; old == nil && j.Version > 0 {
			p.t.Fatalf("job %d had ended and is changed", j.ID)
		}
		if n, stopped := p.tries[j.ID]; stopped && j.Attempts > n {
			p.t.Fatalf("job %d was stopped and gets attempt %d", j.ID, j.Attempts)
		}
		if j.Stop != "" {
			if _, ok := p.tries[j.ID]; !ok {
				p.tries[j.ID] = j.Attempts
			}
		}
		j.Version++
	}
	for _, h := range c.Holds {
		h.Version++
	}
	for _, x := range c.Places {
		x.Version++
	}
	for _, x := range c.Counters {
		p.held[x.Key] += x.Add
	}
	p.usage = append(p.usage, c.Usage...)
	p.bills = append(p.bills, c.Charges...)
	p.l.adopt(c)
}

// see lets observations change the rows, and carries out all that is due.
func (p *play) see(seen ...Step) {
	d := newDraft(p.l.snap, p.now)
	for _, s := range seen {
		s.apply(d)
	}
	p.write(d.changes())
	for round := 0; ; round++ {
		steps := Decide(p.l.snap, p.now)
		if len(steps) == 0 {
			break
		}
		if round > 8 {
			p.t.Fatalf("it does not come to rest: %v", steps)
		}
		p.write(carry(p.l.snap, steps, p.now))
	}
	p.alone()
}

// alone checks that no job runs on two machines at once but as a gang, whatever
// anybody believes of them.
func (p *play) alone() {
	running := map[int64]string{}
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		n := p.nodes[id]
		for name, x := range n.tasks {
			if !n.there || x.State != machine.TaskRunning && x.State != machine.TaskStopping {
				continue
			}
			attempt, _, _ := machine.ParseTask(name)
			var number int64
			fmt.Sscanf(attempt, "%d-", &number)
			if other, ok := running[number]; ok && other != attempt {
				p.t.Fatalf("job %d runs as %s and as %s", number, other, attempt)
			}
			running[number] = attempt
		}
	}
}

func (p *play) submit() {
	id := p.next
	p.next++
	gang := rapid.IntRange(1, 3).Draw(p.t, "nodes")
	shared := rapid.Bool().Draw(p.t, "shared")
	spec := &job.Spec{Name: "j", Kind: job.Task, Run: "x", Array: 1, Retries: rapid.IntRange(0, 2).Draw(p.t, "retries"), Resources: job.Resources{Nodes: gang}}
	var limit money.Amount
	if rapid.Bool().Draw(p.t, "limited") {
		limit = money.FromUnits(int64(rapid.IntRange(1, 3).Draw(p.t, "limit")))
	}
	c := &Choice{Made: p.now}
	for i := range rapid.IntRange(1, 3).Draw(p.t, "places") {
		name := fmt.Sprintf("place%d", i)
		needs := machine.Needs{CPUs: 1, Share: 1}
		if shared {
			name, needs.Share = fmt.Sprintf("own%d", i), 0.25
		}
		c.Candidates = append(c.Candidates, Candidate{Backend: "b", Nodes: gang, Needs: needs, Hold: money.FromUnits(1), Limit: limit,
			Offer: backend.Offer{Offer: &offer.Offer{ID: name}, Shared: shared}, Terms: machine.Terms{OfferID: name, Currency: "USD", PriceHour: money.FromUnits(36), VCPUs: 4, Terms: "spot"}})
	}
	if shared && len(c.Candidates) < gang {
		c.Candidates, c.Why = nil, "too few machines"
	}
	j := &job.Job{ID: id, Project: "default", Member: "owner", Name: "j", Kind: job.Task, State: job.Waiting, Submitted: p.now, ExitCode: -1}
	if id > 1 && rapid.IntRange(0, 4).Draw(p.t, "after") == 0 {
		j.After = []int64{rapid.Int64Range(1, id-1).Draw(p.t, "before")}
	}
	if len(c.Candidates) == 0 {
		c.Fatal = true
	}
	p.l.snap.Specs[id], p.l.snap.Choices[id] = spec, c
	p.write(&record.Changes{Jobs: []*job.Job{j}})
	p.see()
}

func (p *play) stop() {
	ids := slices.Sorted(maps.Keys(p.l.snap.Jobs))
	if len(ids) == 0 {
		return
	}
	j := *p.l.snap.Jobs[rapid.SampledFrom(ids).Draw(p.t, "stopped")]
	j.Stop = "enough"
	p.write(&record.Changes{Jobs: []*job.Job{&j}})
	p.see()
}

// live gives a machine of the rows in one of some states; nil when there is none.
func (p *play) live(states ...machine.State) *machine.Machine {
	var all []*machine.Machine
	for _, id := range slices.Sorted(maps.Keys(p.l.snap.Machines)) {
		if m := p.l.snap.Machines[id]; slices.Contains(states, m.State) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return rapid.SampledFrom(all).Draw(p.t, "machine")
}

func (p *play) launch() {
	m := p.live(machine.Intent)
	if m == nil {
		return
	}
	switch rapid.IntRange(0, 3).Draw(p.t, "launch") {
	case 0:
		p.see(refused{m.ID, "no capacity"})
	case 1: // it is made, and the answer is lost: it is asked again
		p.nodes[m.ID] = &node{there: true, tasks: map[string]*wire.Status{}}
	default:
		if p.nodes[m.ID] == nil {
			p.nodes[m.ID] = &node{there: true, tasks: map[string]*wire.Status{}}
		}
		p.see(asked{m.ID, "h-" + m.ID})
	}
}

func (p *play) answer() {
	if m := p.live(machine.Booting); m != nil && p.nodes[m.ID] != nil && p.nodes[m.ID].there && !p.nodes[m.ID].cut {
		p.nodes[m.ID].word = p.now
		p.see(answered{m.ID, machine.Host{CPUs: 4}, p.now, p.now})
	}
}

// talk lets a keeper tell a node what the rows want, as keepers do, and brings
// its report back.
func (p *play) talk() { p.talkTo(p.live(machine.Ready, machine.Ending)) }

func (p *play) talkTo(m *machine.Machine) {
	if m == nil || m.Booted.IsZero() || m.State == machine.Gone {
		return
	}
	n := p.nodes[m.ID]
	if n == nil || !n.there || n.cut {
		return
	}
	k := &keeper{loop: p.l, id: m.ID}
	var on []*machine.Attempt
	for _, id := range slices.Sorted(maps.Keys(p.l.snap.Attempts)) {
		a := p.l.snap.Attempts[id]
		if slices.ContainsFunc(a.Tasks, func(t machine.Task) bool { return t.Machine == m.ID }) {
			on = append(on, a)
		}
	}
	k.orders.Store(p.l.orders(m, on))
	n.word = p.now
	for _, sync := range []*wire.Sync{k.due(n.report(p.now))} {
		for _, x := range sync.Stop {
			s := n.tasks[x.ID]
			if s == nil {
				s = &wire.Status{ID: x.ID}
				n.tasks[x.ID] = s
			}
			if s.State != machine.TaskEnded {
				s.State, s.Cause, s.Reason, s.Ended = machine.TaskEnded, x.Cause, x.Reason, p.now
			}
		}
		for _, x := range sync.Start {
			if n.tasks[x.ID] == nil {
				n.tasks[x.ID] = &wire.Status{ID: x.ID, State: machine.TaskRunning, Held: p.now, Started: p.now}
				if x.Gang {
					n.tasks[x.ID].State, n.tasks[x.ID].Started = machine.TaskPrepared, time.Time{}
				}
			}
		}
		for _, id := range sync.Go {
			if s := n.tasks[id]; s != nil && s.State == machine.TaskPrepared {
				s.State, s.Started = machine.TaskRunning, p.now
			}
		}
		for _, id := range sync.Forget {
			delete(n.tasks, id)
		}
	}
	row := *p.l.snap.Machines[m.ID]
	row.Heard, row.Said = p.now, p.now
	p.l.snap.Machines[m.ID] = &row
	p.see(reported{machine: m.ID, report: n.report(p.now), said: p.now, heard: p.now, save: rapid.Bool().Draw(p.t, "save")})
}

func (n *node) report(now time.Time) *wire.Report {
	r := &wire.Report{Now: now}
	for _, id := range slices.Sorted(maps.Keys(n.tasks)) {
		r.Tasks = append(r.Tasks, *n.tasks[id])
	}
	return r
}

// exit ends a running task.
func (p *play) exit() {
	for _, id := range slices.Sorted(maps.Keys(p.nodes)) {
		for _, name := range slices.Sorted(maps.Keys(p.nodes[id].tasks)) {
			if s := p.nodes[id].tasks[name]; s.State == machine.TaskRunning && rapid.IntRange(0, 3).Draw(p.t, "ends") == 0 {
				s.State, s.Cause, s.Exit, s.Ended = machine.TaskEnded, machine.Exited, rapid.IntRange(0, 1).Draw(p.t, "code"), p.now
				return
			}
		}
	}
}

func (p *play) cut() {
	if ids := slices.Sorted(maps.Keys(p.nodes)); len(ids) > 0 {
		n := p.nodes[rapid.SampledFrom(ids).Draw(p.t, "cut")]
		n.cut = !n.cut
	}
}

// vanish takes a machine away without a word.
func (p *play) vanish() {
	if ids := slices.Sorted(maps.Keys(p.nodes)); len(ids) > 0 {
		p.nodes[rapid.SampledFrom(ids).Draw(p.t, "vanishes")].there = false
	}
}

func (p *play) notice() {
	if m := p.live(machine.Ready); m != nil {
		p.see(noticed{m.ID, p.now.Add(2 * time.Minute), "wanted back"})
	}
}

// list lets the backend say which machines it has, and end what is to end.
func (p *play) list() {
	for _, id := range slices.Sorted(maps.Keys(p.l.snap.Machines)) {
		m := p.l.snap.Machines[id]
		n := p.nodes[id]
		if m.State == machine.Ending && n != nil && !n.cut {
			busy := false
			for _, a := range p.l.snap.Attempts {
				busy = busy || slices.ContainsFunc(a.Tasks, func(t machine.Task) bool { return t.Machine == id })
			}
			if !busy || p.now.Sub(m.Ending) > 20*time.Second {
				n.there = false
			}
		}
		if (n == nil || !n.there) && (m.State == machine.Ending || m.State == machine.Ready || m.State == machine.Booting) {
			p.see(absent{id, p.now, "not listed"})
		}
	}
}

// wait lets time pass; nodes that hear nothing for too long stop by themselves.
func (p *play) wait() {
	p.now = p.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(p.t, "seconds")) * time.Second)
	p.tick()
	p.see()
}

func (p *play) tick() {
	for _, n := range p.nodes {
		if p.now.Sub(n.word) <= p.l.Settings.DeadMan {
			continue
		}
		for _, s := range n.tasks {
			if s.State != machine.TaskEnded {
				s.State, s.Cause, s.Ended = machine.TaskEnded, machine.DeadMan, p.now
			}
		}
	}
}

// TestDecide plays random histories. In every one of them: no machine and no
// attempt without a hold; a stop is final; an ended job stays as it is; a job is
// never on two machines; steps come to rest; and in the end, when everything can be reached again, every job has ended, no
// machine is left, nothing is held, and the ledger is balanced.
func TestDecide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := newPlay(t)
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(*rapid.T) {
				if p.next < 12 {
					p.submit()
				}
			},
			"stop": func(*rapid.T) { p.stop() }, "launch": func(*rapid.T) { p.launch() }, "answer": func(*rapid.T) { p.answer() },
			"talk": func(*rapid.T) { p.talk() }, "talk again": func(*rapid.T) { p.talk() }, "exit": func(*rapid.T) { p.exit() }, "cut": func(*rapid.T) { p.cut() },
			"vanish": func(*rapid.T) { p.vanish() }, "notice": func(*rapid.T) { p.notice() }, "list": func(*rapid.T) { p.list() }, "wait": func(*rapid.T) { p.wait() },
		})
		p.settle()
	})
}

// settle lets the world come to its end: nodes can be reached, tasks end well.
func (p *play) settle() {
	for round := 0; len(p.l.snap.Jobs)+len(p.l.snap.Machines) > 0; round++ {
		if round > 400 {
			for _, j := range p.l.snap.Jobs {
				p.t.Logf("job %d is %s: %s", j.ID, j.State, j.Reason)
			}
			for _, m := range p.l.snap.Machines {
				p.t.Logf("machine %s is %s: %s", m.ID, m.State, m.Reason)
			}
			p.t.Fatalf("%d jobs and %d machines do not end", len(p.l.snap.Jobs), len(p.l.snap.Machines))
		}
		for _, id := range slices.Sorted(maps.Keys(p.l.snap.Machines)) {
			m := p.l.snap.Machines[id]
			if m == nil {
				continue
			}
			if p.nodes[id] == nil && m.State == machine.Intent {
				p.nodes[id] = &node{there: true, tasks: map[string]*wire.Status{}}
			}
			n := p.nodes[id]
			if n != nil {
				n.cut = false
			}
			switch {
			case m.State == machine.Intent:
				p.see(asked{id, "h"})
			case m.State == machine.Booting && n.there:
				n.word = p.now
				p.see(answered{id, machine.Host{CPUs: 4}, p.now, p.now})
			}
		}
		for range 2 {
			for _, id := range slices.Sorted(maps.Keys(p.l.snap.Machines)) {
				p.talkTo(p.l.snap.Machines[id])
			}
		}
		for _, n := range p.nodes {
			for _, s := range n.tasks {
				if s.State == machine.TaskRunning {
					s.State, s.Cause, s.Exit, s.Ended = machine.TaskEnded, machine.Exited, 0, p.now
				}
			}
		}
		p.list()
		p.now = p.now.Add(5 * time.Second)
		p.tick()
		p.see()
	}
	if n := p.held[heldKey("default", "USD")]; n != 0 {
		p.t.Fatalf("%s are still held", money.Amount(n))
	}
	var bills []ledger.Bill
	for id, m := range p.rows {
		from := m.BilledFrom()
		if from.IsZero() {
			from = m.Gone
		}
		bills = append(bills, ledger.Bill{Machine: id, Cost: ledger.MachineCost(m.Terms.PriceHour, from, m.Gone, m.Terms.Increment, m.Terms.Minimum)})
	}
	for _, x := range ledger.Check(p.usage, p.bills, bills) {
		p.t.Error(x)
	}
}
