package spot

import (
	"math"
	"strings"
	"testing"

	"github.com/destajo/destajo/fault"
)

func situation() Situation {
	return Situation{Remaining: 10 * 3600, Left: 20 * 3600, Restart: 600, Gap: 600, OnDemand: 3,
		Zones: []Zoned{{Name: "a", Zone: Zone{Available: true, Price: 1}}}}
}

func TestLiveDecisions(t *testing.T) {
	t.Parallel()
	p := NewPolicy(nil)
	for _, c := range []struct {
		name   string
		change func(*Situation)
		want   Mode
		reason string
	}{
		{"spot is there", func(*Situation) {}, Spot, "going to spot is expected to cost"},
		{"spot is not there", func(s *Situation) { s.Zones[0].Available = false }, Idle, "waiting for spot is expected to cost"},
		{"no time left", func(s *Situation) { s.Zones[0].Available = false; s.Left = s.Remaining + 900 }, OnDemand, "no time is left"},
		{"on spot to the end", func(s *Situation) { s.Mode, s.Here, s.Left = Spot, "a", s.Remaining+300 }, Spot, "stay until it is gone"},
		{"spot is dear", func(s *Situation) { s.Zones[0].Price = 4 }, OnDemand, "not cheaper"},
		{"no zone has spot for sale", func(s *Situation) { s.Zones = nil }, OnDemand, "not cheaper"},
		{"a gap in a tight job", func(s *Situation) { s.Zones[0].Available = false; s.Left = s.Remaining + 3600; s.Mode = OnDemand }, OnDemand, "spot is not there; staying on on-demand"},
	} {
		s := situation()
		c.change(&s)
		d, err := p.Decide(s)
		if err != nil || d.Mode != c.want || !strings.Contains(d.Reason, c.reason) {
			t.Errorf("%s: %s, %q, %v; want %s, %q", c.name, d.Mode, d.Reason, err, c.want, c.reason)
		}
	}
}

// TestLiveChoosesTheZone prefers, at equal prices, the zone that had spot all
// the time to one where it comes and goes.
func TestLiveChoosesTheZone(t *testing.T) {
	t.Parallel()
	s := situation()
	s.Zones = []Zoned{{Name: "restless", Zone: Zone{true, 1}}, {Name: "calm", Zone: Zone{true, 1}}}
	for i := range 200 {
		s.Zones[0].Before = append(s.Zones[0].Before, i%3 > 0)
		s.Zones[1].Before = append(s.Zones[1].Before, true)
	}
	p := NewPolicy(nil)
	if d, err := p.Decide(s); err != nil || d.Zone != "calm" || d.Mode != Spot {
		t.Errorf("%+v, %v", d, err)
	}
	s.Zones[1].Price = 2.9
	if d, err := p.Decide(s); err != nil || d.Zone != "restless" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestBadSituations(t *testing.T) {
	t.Parallel()
	p := NewPolicy(nil)
	for _, bad := range []func(*Situation){
		func(s *Situation) { s.Remaining = 0 }, func(s *Situation) { s.Gap = 0 }, func(s *Situation) { s.Restart = -1 },
		func(s *Situation) { s.OnDemand = 0 }, func(s *Situation) { s.Left = math.NaN() }, func(s *Situation) { s.Zones[0].Price = 0 },
		func(s *Situation) { s.Mode, s.Here = Spot, "b" },
		func(s *Situation) {
			s.Zones = append(s.Zones, Zoned{Name: "b", Zone: Zone{Price: 1}, Before: []bool{true}})
		},
	} {
		s := situation()
		bad(&s)
		if _, err := p.Decide(s); fault.KindOf(err) != fault.Invalid || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	s := situation()
	s.Remaining, s.Left, s.Restart = 48*3600, 60*3600, 720
	p := NewPolicy(nil)
	for b.Loop() {
		if _, err := p.Decide(s); err != nil {
			b.Fatal(err)
		}
	}
}
