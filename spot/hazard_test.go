package spot

import (
	"math"
	"testing"

	"github.com/destajo/destajo/fault"
)

func TestHazardLearns(t *testing.T) {
	t.Parallel()
	h := Assume(0.3)
	if h.Rate() != 0.3 || !h.Assumed {
		t.Errorf("%+v", h)
	}
	h = h.Observe(0, 95)
	if got := h.Rate(); math.Abs(got-0.015) > 1e-12 || h.Assumed {
		t.Errorf("after 95 quiet hours the rate is %v", got)
	}
	if h, err := FromMonthlyBand(0.3); err != nil || math.Abs(h.Rate()-4.95e-4) > 1e-5 || !h.Assumed {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := FromHourlyBand(0.125); err != nil || math.Abs(h.Rate()-0.1335) > 1e-3 {
		t.Errorf("%+v, %v", h, err)
	}
	for _, bad := range []float64{-1, 1, math.NaN()} {
		if _, err := FromMonthlyBand(bad); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestExpectIsBetweenSpotAndOnDemand(t *testing.T) {
	t.Parallel()
	j := Job{Work: 20 * 3600, Deadline: 30 * 3600, Restart: 600, Gap: 600, OnDemand: 3, Spot: 1}
	rare, often := Expect(j, 0.01, 1), Expect(j, 2, 0.5)
	if rare.Cost < 20 || rare.Cost > 22.5 || often.Cost < rare.Cost || often.Cost > 62 {
		t.Errorf("rare %+v, often %+v", rare, often)
	}
	if again := Expect(j, 2, 0.5); again != often {
		t.Errorf("%+v, then %+v", often, again)
	}
	if often.EndH > 30 {
		t.Errorf("ends after %v h", often.EndH)
	}
}

// TestExpectOfAllShapes forecasts short, long, loose and tight jobs: each ends in
// time, costs no more than on-demand and two changeovers, and no less than spot.
func TestExpectOfAllShapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ work, deadline, restart, lost, back float64 }{ // hours
		{0.5, 1.5, 0.1, 0.3, 1}, {2, 720, 0.2, 1.5, 0.8}, {300, 400, 0.2, 0.3, 1}, {48, 52, 0, 0.3, 1},
		{10, 20, 0.1, 0, 1}, {10, 20, 0.1, 20, 0}, {10, 10.4, 0.2, 1.5, 0.8},
	} {
		j := Job{Work: c.work * 3600, Deadline: c.deadline * 3600, Restart: c.restart * 3600, Gap: 300, OnDemand: 3, Spot: 1}
		f := Expect(j, c.lost, c.back)
		if most := 3 * (c.work + 3*c.restart + 1); f.EndH > c.deadline || f.Cost > most || f.Cost < c.work-1e-9 || f.CostP10 > f.CostP90 {
			t.Errorf("%+v: %+v", c, f)
		}
		if parts := 3*f.OnDemandH + f.SpotH; math.Abs(parts-f.Cost) > 1e-6*f.Cost {
			t.Errorf("%+v: the hours cost %v, not %v", c, parts, f.Cost)
		}
	}
	if lost, back := Default(8); lost != 1.5 || back != 0.8 {
		t.Errorf("%v, %v", lost, back)
	}
}
