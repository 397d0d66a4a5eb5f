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

func TestLiveDecisions(t *testing.T) {
	t.Parallel()
	j := Job{Work: 10 * 3600, Deadline: 20 * 3600, Restart: 600, Gap: 600, OnDemand: 3, Spot: 1}
	p := NewPolicy(nil)
	for _, c := range []struct {
		v    View
		want Mode
	}{
		{View{Available: true, Remaining: j.Work, Left: j.Deadline, SpotPrice: 1}, Spot},
		{View{Available: false, Remaining: j.Work, Left: j.Deadline, SpotPrice: 1}, Idle},
		{View{Tick: 59, Available: false, Remaining: j.Work, Left: 10.2 * 3600, SpotPrice: 1}, OnDemand},
	} {
		if d := p.Decide(Situation{Job: j, View: c.v}); d.Mode != c.want || d.Reason == "" {
			t.Errorf("%+v: %s, %s; want %s", c.v, d.Mode, d.Reason, c.want)
		}
	}
	dear := j
	dear.Spot = 4
	if d := p.Decide(Situation{Job: dear, View: View{Available: true, Remaining: j.Work, Left: j.Deadline}}); d.Mode != OnDemand {
		t.Errorf("spot dearer than on-demand: %s", d.Mode)
	}
}
