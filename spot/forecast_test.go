package spot

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestExpectIsBetweenSpotAndOnDemand(t *testing.T) {
	t.Parallel()
	j := Job{Work: 20 * 3600, Deadline: 30 * 3600, Restart: 600, OnDemand: 3, Spot: 1}
	rare, often := Expect(j, 0.01, 1), Expect(j, 2, 0.5)
	if c := rare.Cost(3, 1); c < 20 || c > 22.5 || often.Cost(3, 1) < c || often.Cost(3, 1) > 62 {
		t.Errorf("rare %+v, often %+v", rare.Way, often.Way)
	}
	if diff := cmp.Diff(often, Expect(j, 2, 0.5)); diff != "" {
		t.Error(diff)
	}
	if often.EndH > 30 {
		t.Errorf("ends after %v h", often.EndH)
	}
}

// TestExpectOfAllShapes forecasts short, long, loose and tight jobs.
func TestExpectOfAllShapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ work, deadline, restart, lost, back float64 }{ // hours
		{0.5, 1.5, 0.1, 0.3, 1}, {2, 720, 0.2, 1.5, 0.8}, {300, 400, 0.2, 0.3, 1}, {48, 52, 0, 0.3, 1},
		{10, 20, 0.1, 0, 1}, {10, 20, 0.1, 20, 0}, {10, 10.4, 0.2, 1.5, 0.8}, {10, 10, 0.2, 1.5, 0.8}, {10, 9, 0.2, 0.3, 1},
		{10, 20, 15, 0.3, 1}, {1e-3, 1, 0.1, 0.3, 1}, {700, 720, 1e-4, 100, 100},
	} {
		checkForecast(t, Job{Work: c.work * 3600, Deadline: c.deadline * 3600, Restart: c.restart * 3600, OnDemand: 3, Spot: 1}, c.lost, c.back)
	}
	if lost, back := Default(8); lost != 1.5 || back != 0.8 {
		t.Errorf("%v, %v", lost, back)
	}
}

// TestExpectOfMuchTime loses spot once in a while also where the deadline is
// years away: then on-demand ends the work, as spot never comes back.
func TestExpectOfMuchTime(t *testing.T) {
	t.Parallel()
	f := Expect(Job{Work: 3600, Deadline: 365 * 24 * 3600, Restart: 360, OnDemand: 3, Spot: 1}, 0.3, 0)
	if p := 1 - math.Exp(-0.3); math.Abs(f.Changeovers-p) > 0.03 {
		t.Errorf("%v changeovers, a loss comes with %v", f.Changeovers, p)
	}
}

func TestExpectOfAnyJob(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		work := rapid.Float64Range(0.1, 100).Draw(t, "work") * 3600
		j := Job{Work: work, Deadline: work * rapid.Float64Range(0.9, 4).Draw(t, "deadline"), Restart: rapid.Float64Range(0, 7200).Draw(t, "restart"),
			OnDemand: 1, Spot: rapid.Float64Range(0.05, 1.1).Draw(t, "spot")}
		lost, back := rapid.Float64Range(0, 5).Draw(t, "lost"), rapid.Float64Range(0, 5).Draw(t, "back")
		f := checkForecast(t, j, lost, back)
		more := j
		more.Deadline *= rapid.Float64Range(1, 2).Draw(t, "looser")
		if g := Expect(more, lost, back); g.Cost(j.OnDemand, j.Spot) > 1.1*f.Cost(j.OnDemand, j.Spot) {
			t.Fatalf("%+v costs %v, until %v s %v", j, f.Cost(j.OnDemand, j.Spot), more.Deadline, g.Cost(j.OnDemand, j.Spot))
		}
	})
}

// checkForecast checks what must hold of each: the job ends in time if that can
// be, pays for its work and changeovers, no more than on-demand and no less
// than spot, and the sample goes around the mean.
func checkForecast(t interface {
	Helper()
	Fatalf(string, ...any)
}, j Job, lost, back float64) Forecast {
	t.Helper()
	f := Expect(j, lost, back)
	work, in := j.Work/3600, max(j.Work, j.Deadline)/3600
	cost := f.Cost(j.OnDemand, j.Spot)
	if cost > j.OnDemand*work*(1+1e-6) || cost < min(j.OnDemand, j.Spot)*work*(1-1e-6) || f.EndH > in+1e-6 || f.First == Idle {
		t.Fatalf("%+v, %v, %v: %+v", j, lost, back, f.Way)
	}
	n := float64(len(f.Drawn))
	sum, squares := 0.0, 0.0
	for _, w := range f.Drawn {
		c := w.Cost(j.OnDemand, j.Spot)
		sum, squares = sum+c/n, squares+c*c/n
		if w.EndH > in+1e-6 || w.OnDemandH+w.SpotH < work*(1-1e-6) {
			t.Fatalf("%+v, %v, %v: %+v", j, lost, back, w)
		}
	}
	if far := math.Abs(sum - cost); far > 0.03*cost+5*math.Sqrt(max(0, squares-sum*sum)/n) {
		t.Fatalf("%+v, %v, %v: the mean is %v, of the sample %v", j, lost, back, cost, sum)
	}
	return f
}

// TestExpectAgreesWithTheSimulator plays the policy itself on drawn traces.
func TestExpectAgreesWithTheSimulator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ work, deadline, restart, spot, lost, back float64 }{ // hours
		{20, 30, 0.15, 0.33, 0.3, 1}, {48, 52, 0.2, 0.32, 0.3, 1}, {10, 30, 0.2, 0.5, 1.5, 0.8}, {6, 8, 0.05, 0.7, 0.1, 1},
	} {
		j := Job{Work: c.work * 3600, Deadline: c.deadline * 3600, Restart: c.restart * 3600, Gap: 120, OnDemand: 1, Spot: c.spot}
		f := Expect(j, c.lost, c.back)
		j.Deadline += j.Restart // the simulator begins with a changeover
		p := newSteady(c.lost, c.back)
		up, gone := -math.Expm1(-c.back*j.Gap/3600), -math.Expm1(-c.lost*j.Gap/3600)
		const runs = 800
		r := rand.New(rand.NewPCG(1, 2))
		var costs []float64
		mean, changes := 0.0, 0.0
		for range runs {
			tr := &Trace{Gap: j.Gap, Available: make([]bool, int(j.Deadline/j.Gap)+3)}
			there := true
			for k := range tr.Available {
				tr.Available[k] = there
				if x := r.Float64(); there && x < gone || !there && x < up {
					there = !there
				}
			}
			o := Simulate(tr, 0, j, p, Settings{Billing: BySecond})
			cost := o.Cost - c.spot*c.restart
			costs = append(costs, cost)
			mean += cost / runs
			changes += float64(o.Changeovers-1) / runs
		}
		slices.Sort(costs)
		got := f.Cost(1, c.spot)
		if w := f.Drawn[len(f.Drawn)/10].Cost(1, c.spot); math.Abs(w-costs[runs/10]) > 0.1*mean {
			t.Errorf("%+v: the cheapest tenth costs %.3f, played %.3f", c, w, costs[runs/10])
		}
		if w := f.Drawn[len(f.Drawn)*9/10].Cost(1, c.spot); math.Abs(w-costs[runs*9/10]) > 0.1*mean {
			t.Errorf("%+v: the dearest tenth costs %.3f, played %.3f", c, w, costs[runs*9/10])
		}
		if math.Abs(got-mean) > 0.04*mean || math.Abs(f.Changeovers-changes) > 0.1*changes+0.2 {
			t.Errorf("%+v: forecast %.3f with %.2f changeovers, played %.3f with %.2f", c, got, f.Changeovers, mean, changes)
		}
	}
}

func BenchmarkExpect(b *testing.B) {
	j := Job{Work: 48 * 3600, Deadline: 60 * 3600, Restart: 720, OnDemand: 3.06, Spot: 0.97}
	for b.Loop() {
		Expect(j, 0.3, 1)
	}
}
