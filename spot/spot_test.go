package spot

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
)

// collected reads a file of the collected traces, or skips.
func collected(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../../shared/data/spot/" + name)
	if err != nil {
		t.Skipf("collected data is not here: %v", err)
	}
	return data
}

func adrs(t testing.TB) ([]Trace, []Case) {
	t.Helper()
	traces, err := ParseTraces("t", collected(t, "aws2022_availability.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := ParseGrid("g", collected(t, "benchmark_grid.json"))
	if err != nil {
		t.Fatal(err)
	}
	cases, err := g.Cases("adrs_single", traces)
	if err != nil || len(cases) != 1080 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	return traces, cases
}

// TestPublishedFigures reproduces the mean costs that are published, or were
// measured with the public simulator, for configuration A.
func TestPublishedFigures(t *testing.T) {
	t.Parallel()
	_, cases := adrs(t)
	want := map[string]struct{ cost, within float64 }{
		"on-demand": {147.39, 0.01}, "greedy": {119.03, 0.01}, "up-plain": {100.48, 0.01}, "up": {101.68, 0.01}, "up-oracle": {96.68, 0.01},
		"evolved-slack": {95.35, 0.3}, "evolved-stay": {95.07, 0.3},
	}
	for name, w := range want {
		_, totals, err := Bench([]string{name}, cases, nil, Settings{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := totals[name].MeanCost; math.Abs(got-w.cost) > w.within {
			t.Errorf("%s costs %.4f, published %.2f", name, got, w.cost)
		}
		if late := totals[name].Late; late > 0 && name != "evolved-slack" {
			t.Errorf("%s is late %d times", name, late)
		}
	}
}

// every takes one case in n.
func every(n int, cases []Case) []Case {
	var out []Case
	for i := n / 2; i < len(cases); i += n {
		out = append(out, cases[i])
	}
	return out
}

// TestOursBeatsThePublished holds our policy to its gates on thinned grids:
// below every published policy, above the optimum, never late.
func TestOursBeatsThePublished(t *testing.T) {
	t.Parallel()
	traces, short := adrs(t)
	g, err := ParseGrid("g", collected(t, "benchmark_grid.json"))
	if err != nil {
		t.Fatal(err)
	}
	long, err := g.Cases("nsdi", traces)
	if err != nil {
		t.Fatal(err)
	}
	zones, err := ParseTraces("t", collected(t, "adrs_multi_windows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	several, err := g.Cases("adrs_multi", zones)
	if err != nil {
		t.Fatal(err)
	}
	later, err := ParseTraces("t", collected(t, "aws2022_availability_validation.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var days []Case
	for i := range later {
		for start := 0; start+421 <= len(later[i].Available); start += 72 {
			for _, deadline := range []float64{52, 70} {
				for _, restart := range []float64{0.05, 0.2} {
					days = append(days, Case{&later[i], start, Job{Work: 48 * 3600, Deadline: deadline * 3600, Restart: restart * 3600, Gap: 600, OnDemand: 3.06, Spot: 0.9731}})
				}
			}
		}
	}
	for name, cases := range map[string][]Case{"A": every(6, short), "B": every(60, long), "later days": days, "several zones": several} {
		results, totals, err := Bench([]string{"destajo", "evolved-slack", "evolved-stay", "up", "greedy", "optimum"}, cases, traces, Settings{Guard: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ours := totals["destajo"]
		for _, other := range []string{"evolved-slack", "evolved-stay", "up", "greedy"} {
			if ours.MeanCost >= totals[other].MeanCost {
				t.Errorf("%s: ours costs %.2f, %s %.2f", name, ours.MeanCost, other, totals[other].MeanCost)
			}
		}
		if best := totals["optimum"].MeanCost; ours.Late > 0 || ours.MeanCost < best {
			t.Errorf("%s: %+v, optimum %.2f", name, ours, best)
		}
		if name != "several zones" {
			continue
		}
		if seen := slices.IndexFunc(results, func(r Result) bool { return r.Probe == "all_9_regions" && r.Runs == 2 }); seen < 0 {
			t.Errorf("the runs of a scenario are not in one row: %+v", results)
		}
	}
}

func BenchmarkOursOnA(b *testing.B) {
	traces, cases := adrs(b)
	for b.Loop() { // 1080 runs
		if _, _, err := Bench([]string{"destajo"}, cases, traces, Settings{}, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// drawTrace makes availability that comes and goes.
func drawTrace(t *rapid.T, n int) *Trace {
	tr := &Trace{ID: "x", Probe: "x", Gap: 600}
	up := rapid.Bool().Draw(t, "first")
	for len(tr.Available) < n {
		for range rapid.IntRange(1, 30).Draw(t, "run") {
			tr.Available = append(tr.Available, up)
		}
		up = !up
	}
	return tr
}

func drawJob(t *rapid.T) Job {
	j := Job{Gap: rapid.SampledFrom([]float64{600, 200, 60}).Draw(t, "gap"), OnDemand: 3, Spot: rapid.SampledFrom([]float64{0.5, 1, 2.9, 3, 5}).Draw(t, "spot")}
	j.Work = 600 * float64(rapid.IntRange(1, 60).Draw(t, "work"))
	j.Restart = 60 * float64(rapid.IntRange(0, 30).Draw(t, "restart"))
	j.Deadline = j.Work + 2*j.Restart + 600*float64(rapid.IntRange(2, 40).Draw(t, "slack"))
	return j
}

func TestOursIsNeverLateNorBelowTheOptimum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr, j := drawTrace(t, 200), drawJob(t)
		o := Simulate(tr, 0, j, NewPolicy(nil), Settings{})
		if o.Late {
			t.Fatalf("late: %v of %v s", o.End, j.Deadline)
		}
		if best := Optimum(tr, 0, j); o.Cost < best-1e-6 {
			t.Fatalf("cost %v, optimum %v", o.Cost, best)
		}
		if j.Spot >= j.OnDemand && o.SpotH > 0 {
			t.Fatalf("spot at %v beside on-demand at %v", j.Spot, j.OnDemand)
		}
	})
}

func TestTheOptimumIsABoundOfAllPolicies(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr, j := drawTrace(t, 200), drawJob(t)
		best := Optimum(tr, 0, j)
		for _, p := range published {
			if o := Simulate(tr, 0, j, p, Settings{Guard: true}); !o.Late && o.Cost < best-1e-6 {
				t.Fatalf("%s costs %v, the optimum %v", p.Name(), o.Cost, best)
			}
		}
	})
}

// TestOptimumAgainstEveryWay compares the programme with all sequences of
// actions on small instances.
func TestOptimumAgainstEveryWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := &Trace{Gap: 600}
		for range 7 {
			tr.Available = append(tr.Available, rapid.Bool().Draw(t, "up"))
		}
		j := Job{Gap: 600, OnDemand: 3, Spot: 1, Deadline: 7 * 600, Work: 600 * float64(rapid.IntRange(1, 4).Draw(t, "work")), Restart: 120 * float64(rapid.IntRange(0, 4).Draw(t, "restart"))}
		least := math.Inf(1)
		for code := range 2187 { // 3^7
			modes := make([]Mode, 7)
			for i, c := 0, code; i < 7; i, c = i+1, c/3 {
				modes[i] = Mode(c % 3)
			}
			if o := Simulate(tr, 0, j, script(modes), Settings{}); !o.Late {
				least = math.Min(least, o.Cost)
			}
		}
		if got := Optimum(tr, 0, j); math.Abs(got-least) > 1e-9 && !(math.IsInf(got, 1) && math.IsInf(least, 1)) {
			t.Fatalf("programme %v, all ways %v: %+v %v", got, least, j, tr.Available)
		}
	})
}

type script []Mode

func (script) Name() string              { return "script" }
func (s script) Start(Job, [][]bool) Run { return s }
func (s script) Decide(v View) Mode {
	if v.Tick < len(s) {
		return s[v.Tick]
	}
	return Idle
}

func TestBadTraces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "no traces",
		"{":                                    "no JSON line",
		`{"id":"a","gap_s":600,"avail":"10x"}`: "sample 2",
		`{"id":"a","gap_s":0,"avail":"10"}`:    "a gap of 0",
		`{"id":"a","gap_s":600,"n":5,"avail":"1"}`:                            "n says 5",
		`{"id":"a","gap_s":600}`:                                              "neither avail nor count",
		`{"id":"a","gap_s":600,"avail":"1","spot_price_usd_h":[[0,0]]}`:       "a spot price of 0",
		`{"id":"a","gap_s":600,"avail":"1","spot_price_usd_h":[[5,1],[3,1]]}`: "out of order",
	} {
		_, err := ParseTraces("t.jsonl", []byte(text))
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
	good := Job{Work: 3600, Deadline: 7200, Gap: 600, OnDemand: 3, Spot: 1}
	for _, bad := range []func(*Job){
		func(j *Job) { j.Deadline = 1800 }, func(j *Job) { j.Spot = 0 }, func(j *Job) { j.OnDemand = -1 }, func(j *Job) { j.Work = 0 }, func(j *Job) { j.Restart = -1 }, func(j *Job) { j.Gap = 0 },
	} {
		j := good
		bad(&j)
		if fault.KindOf(j.Check()) != fault.Invalid {
			t.Errorf("%+v passes", j)
		}
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
}

func FuzzParseTraces(f *testing.F) {
	for _, seed := range []string{`{"id":"a/b_v100_1@5","zone":"b","gap_s":600,"n":4,"avail":"1101","spot_price_usd_h":[[0,1],[2,0.5]]}`, `{"gap_s":300,"nodes":4,"count":[4,3,4]}`, "{", `{"gap_s":-1,"avail":"1"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		traces, err := ParseTraces("t", data)
		if (err == nil) != (len(traces) > 0) {
			t.Fatalf("%d traces, %v", len(traces), err)
		}
		for i := range traces {
			if len(traces[i].Available) == 0 || !(traces[i].Gap > 0) || !(traces[i].priceAt(0, 1) > 0) {
				t.Fatalf("%+v", traces[i])
			}
		}
	})
}
