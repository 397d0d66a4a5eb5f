package control

import (
	"testing"
	"time"

	"github.com/destajo/destajo/machine"
)

// TestUnansweredWordsCount: an agent that may have heard a word stops its tasks
// so much later, even if its answer never came.
func TestUnansweredWordsCount(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	m := &machine.Machine{ID: "m1.1", State: machine.Ready, Heard: now.Add(-2 * time.Minute), Said: now.Add(-2 * time.Minute)}
	s := &Snapshot{Settings: Settings{DeadMan: time.Minute, Margin: 40 * time.Second}, Machines: map[string]*machine.Machine{m.ID: m}}
	l := &Loop{Settings: s.Settings, snap: s, saved: map[string]time.Time{}}
	silent := func() bool { return (&decision{draft: newDraft(s, now)}).silent(s.Machines[m.ID]) }
	if !silent() {
		t.Fatal("nothing was heard for two minutes")
	}
	d := newDraft(s, now)
	l.take(d, unanswered{m.ID, now.Add(-90 * time.Second)})
	if silent() || d.machines[m.ID] == nil || !d.machines[m.ID].Said.Equal(now.Add(-90*time.Second)) {
		t.Error("a word that may have been heard 90 seconds ago does not count")
	}
	d = newDraft(s, now)
	l.take(d, unanswered{m.ID, now.Add(-85 * time.Second)})
	if d.machines[m.ID] != nil {
		t.Error("written down twice within a quarter of the margin")
	}
	l.take(d, unanswered{m.ID, now.Add(-80 * time.Second)})
	if d.machines[m.ID] == nil {
		t.Error("not written down after a quarter of the margin")
	}
}

// TestRefusedWhileItEnds: a machine whose end was decided while it was asked
// for, and that was then refused, never was and costs nothing.
func TestRefusedWhileItEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		state  machine.State
		handle string
		free   bool
	}{{machine.Intent, "", true}, {machine.Ending, "", true}, {machine.Ending, "i-1", false}, {machine.Gone, "", false}} {
		m := &machine.Machine{ID: "m1.1", State: c.state, Handle: c.handle, Asked: now}
		d := newDraft(&Snapshot{Machines: map[string]*machine.Machine{m.ID: m}}, now)
		refused{m.ID, "no capacity"}.apply(d)
		if got := d.machine(m.ID).BilledFrom().IsZero(); got != c.free {
			t.Errorf("%s %q: free of charge is %v", c.state, c.handle, got)
		}
	}
}
