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
