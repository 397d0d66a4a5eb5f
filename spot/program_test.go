package spot

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// expectimax is the least expected cost by trying every way: what the
// programme computes, written from the rules of the simulator.
func expectimax(j Job, change [2]float64, tick int, up bool, m Mode, rem, oh float64) float64 {
	left := j.Deadline - float64(tick)*j.Gap
	if left < rem-tiny {
		return never
	}
	best := math.Inf(1)
	for next := range Mode(3) {
		if next == Spot && !up {
			continue
		}
		cost, r, o := 0.0, rem, 0.0
		if next != Idle {
			cost = [...]float64{0, j.Spot, j.OnDemand}[next] * j.Gap / 3600
			o = j.Restart
			if next == m {
				o = oh
			}
			x := min(o, j.Gap)
			o -= x
			if j.Gap-x >= r-tiny {
				if left < x+r-tiny {
					cost = never
				}
				best = min(best, cost)
				continue
			}
			r -= j.Gap - x
		}
		p := change[state(up)]
		turned := next
		if next == Spot {
			turned, o = Idle, 0
		}
		kept := o
		if next == Spot {
			kept = max(0, func() float64 {
				if m == Spot {
					return oh
				}
				return j.Restart
			}()-j.Gap)
		}
		cost += (1-p)*expectimax(j, change, tick+1, up, next, r, kept) + p*expectimax(j, change, tick+1, !up, turned, r, o)
		best = min(best, cost)
	}
	return best
}

func TestProgramAgainstEveryWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j := Job{Gap: 600, OnDemand: 3, Spot: rapid.SampledFrom([]float64{0.5, 1, 2}).Draw(t, "spot"),
			Restart: rapid.SampledFrom([]float64{0, 120, 300, 600}).Draw(t, "restart")}
		j.Work = 600 * float64(rapid.IntRange(1, 3).Draw(t, "work"))
		j.Deadline = j.Work + 600*float64(rapid.IntRange(2, 4).Draw(t, "slack"))
		lost, back := rapid.Float64Range(0.1, 4).Draw(t, "lost"), rapid.Float64Range(0.1, 4).Draw(t, "back")
		up := rapid.Bool().Draw(t, "up")
		c := steady(lost, back)
		w := newWatch(c.start, j.Gap)
		w.see(up)
		v := View{Available: up, SpotPrice: j.Spot, Remaining: j.Work, Left: j.Deadline}
		got := math.Inf(1)
		for _, cost := range newProgram(j, 0, &c, plain(), true).choices(v, &w) {
			got = min(got, cost)
		}
		change := [2]float64{-math.Expm1(-back / 6), -math.Expm1(-lost / 6)}
		want := expectimax(j, change, 0, up, Idle, j.Work, 0)
		if math.Abs(got-want) > 1e-4*want {
			t.Fatalf("programme %v, every way %v", got, want)
		}
	})
}

// TestLearnFindsTheRates draws places from a climate and fits another to them.
func TestLearnFindsTheRates(t *testing.T) {
	t.Parallel()
	const lost, back = 0.4, 1.5
	seed := uint64(1)
	tr := Trace{Gap: 600}
	up := true
	for range 40_000 {
		tr.Available = append(tr.Available, up)
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		x, rate := float64(seed>>11)/(1<<53), back
		if up {
			rate = lost
		}
		if x < -math.Expm1(-rate/6) {
			up = !up
		}
	}
	c := learn([]Trace{tr}, &general)
	for age := range ages - 2 { // the oldest are rare
		m := mood{share: back / (back + lost), rate: 2 * lost * back / (lost + back)}
		for s, want := range []float64{back, lost} {
			if got := c.hazard(s == 1, age, m.x(), m.y()); got < want/1.35 || got > want*1.35 {
				t.Errorf("age %d, there %v: %.3f per hour, want %.3f", age, s == 1, got, want)
			}
		}
	}
	if none := learn(nil, &general); none.base != general.base || none.share != general.share || none.rate != general.rate {
		t.Errorf("without history it is %+v", none)
	}
}

func TestMoodsKeepTheirScales(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := mood{rapid.Float64Range(0, 1).Draw(t, "share"), rapid.Float64Range(0, 6).Draw(t, "rate")}
		if back := moodAt(m.x(), m.y()); math.Abs(back.share-m.share) > 1e-9 || math.Abs(back.rate-m.rate) > 1e-9 {
			t.Fatalf("%+v comes back as %+v", m, back)
		}
		up := rapid.Bool().Draw(t, "up")
		if next := m.after(up, rapid.Bool().Draw(t, "changed"), 600); next.share < -1e-12 || next.share > 1+1e-12 || next.rate < 0 {
			t.Fatalf("%+v", next)
		}
	})
}

// TestSeveralZones follows two zones that take turns: the job moves with a
// changeover each time, and the bound knows both.
func TestSeveralZones(t *testing.T) {
	t.Parallel()
	a, b := &Trace{ID: "a", Gap: 600}, &Trace{ID: "b", Gap: 600, Prices: []PriceChange{{0, 0.5}}}
	for i := range 60 {
		a.Available = append(a.Available, i/10%2 == 0)
		b.Available = append(b.Available, i/10%2 == 1)
	}
	both, err := Together("both", []*Trace{a, b})
	if err != nil {
		t.Fatal(err)
	}
	j := Job{Work: 20 * 600, Deadline: 30 * 600, Restart: 600, Gap: 600, OnDemand: 3, Spot: 1}
	greedy, err := PolicyByName("greedy")
	if err != nil {
		t.Fatal(err)
	}
	// Ticks 0-9 at 1, 10-19 at 0.5, 20-22 at 1: 20 of work and 3 changeovers.
	o := Simulate(both, 0, j, greedy, Settings{})
	if want := (13*1 + 10*0.5) / 6.0; math.Abs(o.Cost-want) > 1e-9 || o.Changeovers != 3 || o.Late {
		t.Errorf("greedy: %+v, want a cost of %v", o, want)
	}
	ours, best := Simulate(both, 0, j, NewPolicy(nil), Settings{}), Optimum(both, 0, j)
	if ours.Late || ours.Cost < best-1e-9 || best > o.Cost+1e-9 {
		t.Errorf("ours %+v, optimum %v", ours, best)
	}
	b.Available = b.Available[1:]
	if _, err := Together("both", []*Trace{a, b}); err == nil {
		t.Error("zones of different length were put together")
	}
}
