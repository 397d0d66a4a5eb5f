package spot

import (
	"encoding/json"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/destajo/destajo/fault"
)

// Case is one job on one piece of a trace.
type Case struct {
	Trace *Trace
	Start int
	Job   Job
}

// Result is a policy's figures on the cases of one place, deadline and changeover.
type Result struct {
	Policy      string  `json:"policy"`
	Probe       string  `json:"probe"`
	DeadlineH   float64 `json:"deadline_h"`
	RestartH    float64 `json:"restart_h"`
	Runs        int     `json:"runs"`
	MeanCost    float64 `json:"mean_cost"`
	Late        int     `json:"late"`
	OnDemandH   float64 `json:"on_demand_hours"` // mean of a job
	SpotH       float64 `json:"spot_hours"`
	Changeovers float64 `json:"changeovers"`
}

// Total is a policy's figures over all cases.
type Total struct {
	Runs     int     `json:"runs"`
	MeanCost float64 `json:"mean_cost"`
	Late     int     `json:"late"`
}

// Bench runs policies on cases, on all cores; the result does not depend on
// their number. Histories are traces that our policy may learn from; those of
// the place under test are left out. Progress, if not nil, is told how many
// of all runs are done; it is called by one goroutine at a time.
func Bench(names []string, cases []Case, histories []Trace, s Settings, progress func(done, all int)) ([]Result, map[string]Total, error) {
	for _, n := range names {
		if n != "optimum" && n != "destajo" {
			if _, err := PolicyByName(n); err != nil {
				return nil, nil, err
			}
		}
	}
	// Work is cut by place and job, so that the programmes of our policy are
	// solved once for each.
	type piece struct {
		name  string
		probe string
		job   Job
		cases []int
	}
	type pieceKey struct {
		name, probe string
		job         Job
	}
	var pieces []*piece
	at := map[pieceKey]*piece{}
	for _, n := range names {
		for i, c := range cases {
			key := pieceKey{n, c.Trace.Probe, c.Job}
			key.job.Spot = 0 // a place's price may differ from window to window
			p, ok := at[key]
			if !ok {
				p = &piece{name: n, probe: c.Trace.Probe, job: c.Job}
				at[key] = p
				pieces = append(pieces, p)
			}
			p.cases = append(p.cases, i)
		}
	}
	results := make([]Result, len(pieces))
	all := len(names) * len(cases)
	var mu sync.Mutex
	finished := 0
	work := make(chan int)
	var wg sync.WaitGroup
	for range min(len(pieces), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range work {
				p := pieces[i]
				r := Result{Policy: p.name, Probe: p.probe, DeadlineH: p.job.Deadline / 3600, RestartH: p.job.Restart / 3600, Runs: len(p.cases)}
				policy := policyFor(p.name, cases[p.cases[0]].Trace, histories)
				for _, c := range p.cases {
					r.add(cases[c], policy, s)
				}
				n := float64(r.Runs)
				r.MeanCost, r.OnDemandH, r.SpotH, r.Changeovers = r.MeanCost/n, r.OnDemandH/n, r.SpotH/n, r.Changeovers/n
				results[i] = r
				mu.Lock()
				finished += r.Runs
				if progress != nil {
					progress(finished, all)
				}
				mu.Unlock()
			}
		})
	}
	for i := range pieces {
		work <- i
	}
	close(work)
	wg.Wait()
	totals := map[string]Total{}
	for _, r := range results {
		t := totals[r.Policy]
		t.MeanCost = (t.MeanCost*float64(t.Runs) + r.MeanCost*float64(r.Runs)) / float64(t.Runs+r.Runs)
		t.Runs += r.Runs
		t.Late += r.Late
		totals[r.Policy] = t
	}
	return results, totals, nil
}

// policyFor makes a policy by name for a trace; nil for the optimum.
func policyFor(name string, t *Trace, histories []Trace) Policy {
	switch name {
	case "optimum":
		return nil
	case "destajo":
		var others []Trace
		for _, h := range histories {
			if !slices.ContainsFunc(t.zones(), func(z *Trace) bool { return z.Probe == h.Probe }) {
				others = append(others, h)
			}
		}
		return NewPolicy(others)
	}
	p, err := PolicyByName(name)
	if err != nil {
		return nil
	}
	return p
}

func (r *Result) add(c Case, p Policy, s Settings) {
	if p == nil {
		r.MeanCost += Optimum(c.Trace, c.Start, c.Job)
		return
	}
	o := Simulate(c.Trace, c.Start, c.Job, p, s)
	r.MeanCost += o.Cost
	r.OnDemandH += o.OnDemandH
	r.SpotH += o.SpotH
	r.Changeovers += float64(o.Changeovers)
	if o.Late {
		r.Late++
	}
}

// Check says what is wrong with a job.
func (j Job) Check() error {
	switch {
	case !(j.Gap > 0):
		return fault.New(fault.Invalid, "a decision every %v seconds", j.Gap).Hint("give a time above 0")
	case !(j.Work > 0) || math.IsInf(j.Work, 0):
		return fault.New(fault.Invalid, "work of %v h", j.Work/3600).Hint("give a time above 0")
	case !(j.Restart >= 0) || j.Restart > 24*3600:
		return fault.New(fault.Invalid, "a changeover of %v h", j.Restart/3600).Hint("give a time of 0 or more")
	case !(j.Deadline >= j.Work+j.Restart) || math.IsInf(j.Deadline, 0):
		return fault.New(fault.Invalid, "a deadline of %.4g h is shorter than %.4g h of work and one changeover", j.Deadline/3600, j.Work/3600).Hint("no policy can be in time: give more time")
	case !(j.OnDemand > 0) || !(j.Spot > 0):
		return fault.New(fault.Invalid, "prices of %v and %v", j.OnDemand, j.Spot).Hint("give prices above 0 for on-demand and spot")
	case j.Deadline/j.Gap > 20_000:
		return fault.New(fault.Invalid, "a deadline of %.0f decisions", j.Deadline/j.Gap).Hint("give a shorter one, or traces with a larger gap")
	}
	return nil
}

// Grid is a published benchmark: window starts and what is run on them.
type Grid struct {
	Starts []int      `json:"window_starts"`
	Single GridConfig `json:"adrs_single"`
	NSDI   GridConfig `json:"nsdi"`
	Multi  GridConfig `json:"adrs_multi"`
}

// GridConfig is one configuration of a grid.
type GridConfig struct {
	Probes      []string        `json:"zones_gpus"`
	Windows     json.RawMessage `json:"window_ids"` // ids, or words for all
	DurationH   float64         `json:"duration_h"`
	DeadlineH   json.RawMessage `json:"deadline_h"` // a number or several
	ChangeoverH json.RawMessage `json:"changeover_h"`
	OnDemand    float64         `json:"od_usd_h"`
	Spot        float64         `json:"spot_usd_h"`
	Scenarios   []struct {
		Name    string   `json:"name"`
		Zones   []string `json:"zones"`
		Windows int      `json:"windows"`
	} `json:"scenarios"`
}

// ParseGrid reads a grid file.
func ParseGrid(file string, data []byte) (*Grid, error) {
	var g Grid
	if err := json.Unmarshal(data, &g); err != nil {
		return nil, fault.New(fault.Invalid, "this is no grid of a benchmark: %v", err).At(file, 0, 0).Hint("it has window_starts and adrs_single, nsdi or adrs_multi")
	}
	if len(g.Starts) == 0 {
		return nil, fault.New(fault.Invalid, "the grid has no window_starts").At(file, 0, 0).Hint("give the benchmark_grid.json of the traces")
	}
	return &g, nil
}

// Cases lists the runs of a configuration on traces: adrs_single, nsdi, or
// adrs_multi, where a job may use several zones.
func (g *Grid) Cases(config string, traces []Trace) ([]Case, error) {
	var c GridConfig
	switch config {
	case "adrs_single":
		c = g.Single
	case "nsdi":
		c = g.NSDI
	case "adrs_multi":
		return g.multi(traces)
	default:
		return nil, fault.New(fault.Invalid, "unknown configuration %q", config).Hint("one of adrs_single, nsdi, adrs_multi")
	}
	var ids []int
	if json.Unmarshal(c.Windows, &ids) != nil {
		for i := range g.Starts {
			ids = append(ids, i)
		}
	}
	var out []Case
	for i := range traces {
		t := &traces[i]
		if !slices.Contains(c.Probes, t.Probe) {
			continue
		}
		for _, deadline := range numbers(c.DeadlineH) {
			for _, restart := range numbers(c.ChangeoverH) {
				for _, id := range ids {
					if id < 0 || id >= len(g.Starts) || g.Starts[id] < 0 || g.Starts[id] >= len(t.Available) {
						return nil, fault.New(fault.Invalid, "window %d is not in trace %s", id, t.ID).Hint("give the traces that the grid was made for")
					}
					job := c.job(deadline, restart, t.Gap)
					if err := job.Check(); err != nil {
						return nil, err
					}
					out = append(out, Case{t, g.Starts[id], job})
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "none of the traces is in the configuration %s", config).Hint("it runs on %v", c.Probes)
	}
	return out, nil
}

func (c *GridConfig) job(deadlineH, restartH, gap float64) Job {
	return Job{Work: c.DurationH * 3600, Deadline: deadlineH * 3600, Restart: restartH * 3600, Gap: gap, OnDemand: c.OnDemand, Spot: c.Spot}
}

func numbers(raw json.RawMessage) []float64 {
	var many []float64
	if json.Unmarshal(raw, &many) == nil {
		return many
	}
	var one float64
	if json.Unmarshal(raw, &one) == nil {
		return []float64{one}
	}
	return nil
}

// multi puts the zones of each scenario's windows together.
func (g *Grid) multi(traces []Trace) ([]Case, error) {
	c := g.Multi
	var out []Case
	for _, s := range c.Scenarios {
		for w := range s.Windows {
			var zones []*Trace
			for i := range traces {
				if traces[i].Window == w && slices.Contains(s.Zones, traces[i].Zone) {
					zones = append(zones, &traces[i])
				}
			}
			if len(zones) != len(s.Zones) {
				return nil, fault.New(fault.Invalid, "window %d of %s has %d of %d zones", w, s.Name, len(zones), len(s.Zones)).Hint("give the traces of the multi-region windows")
			}
			t, err := Together(s.Name, zones)
			if err != nil {
				return nil, err
			}
			deadlines, changeovers := numbers(c.DeadlineH), numbers(c.ChangeoverH)
			if len(deadlines) != 1 || len(changeovers) != 1 {
				return nil, fault.New(fault.Invalid, "adrs_multi has %d deadlines and %d changeovers", len(deadlines), len(changeovers)).Hint("give one of each")
			}
			job := c.job(deadlines[0], changeovers[0], t.Gap)
			job.Spot = cheapestPrice(zones)
			if err := job.Check(); err != nil {
				return nil, err
			}
			out = append(out, Case{t, 0, job})
		}
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "the grid has no scenarios of several zones").Hint("give the benchmark_grid.json of the traces")
	}
	return out, nil
}

func cheapestPrice(zones []*Trace) float64 {
	least := math.Inf(1)
	for i := range zones {
		least = math.Min(least, zones[i].priceAt(0, math.Inf(1)))
	}
	return least
}

// Together makes one trace of several zones that were sampled together.
func Together(name string, zones []*Trace) (*Trace, error) {
	if len(zones) == 0 {
		return nil, fault.New(fault.Invalid, "no zones").Hint("give at least one trace")
	}
	t := &Trace{ID: name, Zone: name, Probe: name, Gap: zones[0].Gap, Zones: zones, Available: make([]bool, len(zones[0].Available))}
	for _, z := range zones {
		if z.Gap != t.Gap || len(z.Available) != len(t.Available) {
			return nil, fault.New(fault.Invalid, "the traces %s and %s differ in gap or length", zones[0].ID, z.ID).Hint("give traces that were sampled together")
		}
		for i, up := range z.Available {
			t.Available[i] = t.Available[i] || up
		}
	}
	return t, nil
}
