package control

import (
	"fmt"
	"time"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/spot"
)

// advised is what the spot policy says of one job.
type advised struct {
	job    int64
	advice Advice
}

func (x advised) String() string { return fmt.Sprintf("advice for job %d: %s", x.job, x.advice.Reason) }
func (advised) apply(*draft)     {}

// adviseEvery is how often the policy is asked for one job; its decisions are
// for a gap of that length.
const adviseEvery = 5 * time.Minute

// advise asks the spot policy, in the background, where jobs with a deadline
// are to run. It is asked of a job whose work is known and that can run both on
// spot and on demand; a decision takes some tens of milliseconds.
func (l *Loop) advise(now time.Time) {
	for id, j := range l.snap.Jobs {
		if j.Deadline.IsZero() || j.Stop != "" || j.Estimate == nil || !j.Estimate.Known || l.advising[id] {
			continue
		}
		if x, ok := l.snap.Advice[id]; ok && now.Sub(x.At) < adviseEvery && j.State == l.advisedIn[id] {
			continue
		}
		c := l.snap.Choices[specOf(j)]
		if c == nil || !c.Mixed {
			continue
		}
		s, zones, demand := l.situation(j, c, now)
		if demand == nil || len(zones) == 0 {
			continue
		}
		l.advising[id], l.advisedIn[id] = true, j.State
		box, state := l.inbox, j.State
		l.background.Go(func() {
			advice := Advice{At: now, In: state}
			d, err := spot.NewPolicy(nil).Decide(s)
			switch {
			case err != nil:
				advice.Reason = err.Error()
			case d.Mode == spot.Idle:
				advice.Wait, advice.Reason = true, "waits for spot: "+d.Reason
			case d.Mode == spot.OnDemand:
				advice.Offer, advice.Terms, advice.Reason = demand.Terms.OfferID, "on-demand", d.Reason
			default:
				advice.Offer, advice.Terms, advice.Reason = d.Zone, "spot", d.Reason
			}
			box.put(advised{id, advice})
		})
	}
}

// situation puts a job's state into the words of the policy.
func (l *Loop) situation(j *job.Job, c *Choice, now time.Time) (spot.Situation, map[string]*Candidate, *Candidate) {
	zones := map[string]*Candidate{}
	var demand *Candidate
	s := spot.Situation{Mode: spot.Idle, Left: j.Deadline.Sub(now).Seconds(), Gap: adviseEvery.Seconds(), Restart: j.Estimate.StartupHours * 3600}
	for i := range c.Candidates {
		x := &c.Candidates[i]
		switch {
		case x.Terms.Terms == "on-demand" && (demand == nil || x.Estimate.PriceHour < demand.Estimate.PriceHour):
			demand = x
		case x.Terms.Terms == "spot":
			zones[x.Terms.OfferID] = x
			p := l.snap.Places[x.Terms.OfferID]
			there := p == nil || p.Failures == 0 || now.Sub(p.Failed) >= l.Settings.Cooldown
			s.Zones = append(s.Zones, spot.Zoned{Name: x.Terms.OfferID, Zone: spot.Zone{Available: there, Price: x.Estimate.PriceHour.Float()}})
		}
	}
	if demand == nil {
		return s, zones, nil
	}
	s.OnDemand = demand.Estimate.PriceHour.Float()
	done := time.Duration(0)
	for _, a := range l.snap.Attempts {
		if a.Job != j.ID {
			continue
		}
		done += a.Kept
		if a.State == machine.Started {
			if m := l.snap.Machines[a.Tasks[0].Machine]; m != nil {
				if m.Terms.Terms == "spot" {
					s.Mode, s.Here = spot.Spot, m.Terms.OfferID
				} else {
					s.Mode = spot.OnDemand
				}
				done += now.Sub(a.Started) - a.Kept
			}
		}
	}
	s.Remaining = max(j.Estimate.Hours*3600-done.Seconds()-j.Progress.Seconds(), 60)
	return s, zones, demand
}
