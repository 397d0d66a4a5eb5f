package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
	"github.com/destajo/destajo/spot"
)

// Chooser ranks what the backends can launch for a job, by the planner.
type Chooser struct {
	World    func() (plan.World, error) // what is known beside the offers
	Exchange func() (money.Exchange, error)
	Currency string // in which costs are compared
}

// Ready is a backend's offer with the backend's name and limits.
type Ready struct {
	Backend string
	Offer   backend.Offer
	Boot    time.Duration
}

// ready asks every backend what it can launch now. A backend that does not
// answer offers nothing, and its fault is among the words.
func ready(ctx context.Context, all map[string]backend.Backend) (out []Ready, failed []string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b := all[name]
		offers, err := b.Offers(ctx)
		if err != nil {
			failed = append(failed, name+": "+err.Error())
			if partial := (*backend.Partial)(nil); !errors.As(err, &partial) {
				continue
			}
		}
		for _, o := range offers {
			out = append(out, Ready{name, o, b.Capabilities().LaunchTimeout})
		}
	}
	return out, failed
}

// learn puts what own launches met at a place into its offer: the mean start-up
// that was measured, and interruptions over running hours, which correct the
// rate that is stated or assumed.
func learn(r Ready, p *record.Place) Ready {
	if p == nil || p.Startups == 0 && p.Hours == 0 {
		return r
	}
	o := *r.Offer.Offer
	if p.Startups > 0 {
		o.Startup = offer.Some(time.Duration(p.StartupHours / float64(p.Startups) * float64(time.Hour)))
	}
	if o.Terms == offer.Spot && p.Hours > 0 {
		lost, _ := spot.Default(o.GPUCount)
		prior := spot.Assume(o.InterruptionsPerHour.Or(lost))
		o.InterruptionsPerHour = offer.Some(prior.Observe(p.Interruptions, p.Hours).Rate())
		o.InterruptionsAssumed = false
	}
	r.Offer.Offer = &o
	return r
}

// Choose ranks the places for a job, best first.
func (c *Chooser) Choose(spec *job.Spec, places []Ready, met map[string]*record.Place, failed []string, now time.Time, defaults Settings) (*Choice, *plan.Plan, error) {
	asked, stated := spec, spec.Work != nil
	if !stated || len(spec.Resources.GPUs) == 0 && !spec.Resources.NoGPU && needsNoGPU(spec) {
		asked = standIn(spec)
	}
	world, err := c.World()
	if err != nil {
		return nil, nil, err
	}
	exchange, err := c.Exchange()
	if err != nil {
		return nil, nil, err
	}
	var offers []*offer.Offer
	from := map[*offer.Offer]*cut{}
	for i := range places {
		place := learn(places[i], met[places[i].Offer.ID])
		for _, x := range c.cuts(asked, &place, defaults) {
			if x.refused == "" {
				offers = append(offers, x.offer)
			}
			from[x.offer] = x
		}
	}
	p, err := plan.Rank(plan.Input{Job: asked, Offers: offers, Now: now, Currency: c.Currency, Exchange: exchange, World: world})
	if err != nil {
		return nil, nil, err
	}
	choice := &Choice{}
	for _, o := range p.Options {
		x := from[o.Offer]
		candidate := Candidate{Backend: x.place.Backend, Offer: x.place.Offer, Needs: x.needs, Nodes: o.Nodes, Boot: x.place.Boot,
			Terms: terms(x.place.Offer, x.needs, world), Estimate: estimateOf(o, p.Currency, stated)}
		if err := c.money(&candidate, spec, o, stated, exchange, defaults); err != nil {
			return nil, nil, err
		}
		choice.Candidates = append(choice.Candidates, candidate)
	}
	if n := max(1, spec.Resources.Nodes); n > 1 {
		choice.Candidates = gangs(choice.Candidates, n)
		if len(choice.Candidates) == 0 && len(p.Options) > 0 {
			choice.Why = fmt.Sprintf("it needs %d machines at once, and there are fewer that are alike", n)
			return choice, p, nil
		}
	}
	on := map[string]bool{}
	for i := range choice.Candidates {
		on[choice.Candidates[i].Terms.Terms] = true
	}
	choice.Mixed = stated && on["spot"] && on["on-demand"]
	if len(choice.Candidates) == 0 {
		var why []string
		for _, x := range from {
			if x.refused != "" {
				why = append(why, x.place.Offer.ID+": "+x.refused)
			}
		}
		for i := range p.Refused {
			x := &p.Refused[i]
			text := x.Offer.ID + ": " + x.Reason()
			if x.Kind == plan.RefusedUnavailable && x.Offer.Note != "" { // such as that it cannot be reached, and why
				text += ": " + x.Offer.Note
			}
			why = append(why, text)
		}
		slices.Sort(why)
		why = append(slices.Compact(why), failed...)
		if len(why) == 0 {
			why = []string{"no machine is known: `destajo machines add ssh://user@host` adds one"}
		}
		if n := len(why); n > 5 {
			why = append(why[:5], fmt.Sprintf("and %d more", n-5))
		}
		choice.Why = "no place can run it now: " + strings.Join(why, "; ")
	}
	return choice, p, nil
}

// gangs leaves the candidates at which so many machines can run at once: of own
// machines there must be enough with the same GPUs.
func gangs(all []Candidate, nodes int) []Candidate {
	count := map[string]int{}
	key := func(c *Candidate) string { return fmt.Sprint(c.Terms.GPU, "x", c.Needs.GPUs) }
	for i := range all {
		if all[i].Offer.Shared {
			count[key(&all[i])]++
		}
	}
	return slices.DeleteFunc(all, func(c Candidate) bool { return c.Offer.Shared && count[key(&c)] < nodes })
}

// needsNoGPU says that nothing in the job speaks of a GPU.
func needsNoGPU(s *job.Spec) bool {
	w := s.Work
	if w == nil {
		return true
	}
	for _, h := range w.Hours {
		if !h.Key.None() {
			return false
		}
	}
	if w.Units != nil {
		for _, u := range w.Units.Rates {
			if !u.Key.None() {
				return false
			}
		}
	}
	return len(w.Hours) > 0 || w.Units != nil
}

// standIn is a job whose work is not stated, as one of an hour: places are
// then ranked by their price per hour. Without a word of GPUs it needs none.
func standIn(s *job.Spec) *job.Spec {
	x := *s
	if len(x.Resources.GPUs) == 0 {
		x.Resources.NoGPU = true
	}
	if x.Work == nil {
		x.Work = &job.Work{}
		keys := x.Resources.GPUs
		if len(keys) == 0 {
			keys = []gpu.Request{gpu.Any()}
		}
		for _, k := range keys {
			x.Work.Hours = append(x.Work.Hours, job.Hours{Key: k, Hours: 1})
		}
		x.Limits.Deadline, x.Limits.Cost, x.Limits.Duration = nil, nil, nil // of the hour that stands in, nothing follows
		x.Checkpoint = nil
	}
	return &x
}

// cut is the part of a place that a job would take, as an offer of its own.
type cut struct {
	place   *Ready
	offer   *offer.Offer
	needs   machine.Needs
	refused string
}

// cuts gives what a job would take of a place. Of a machine that is shared it
// is what the job asks for, at its share of the price; else the whole machine.
func (c *Chooser) cuts(spec *job.Spec, place *Ready, defaults Settings) []*cut {
	o := place.Offer
	r := &spec.Resources
	needs := machine.Needs{CPUs: r.CPUs, Memory: int64(r.Memory), Share: 1}
	if !o.Shared {
		if o.GPU != nil && !r.NoGPU {
			needs.GPU, needs.GPUs = o.GPU.ID, o.GPUCount
			if needs.CPUs == 0 {
				needs.CPUs = 0 // the machine is its own
			}
		}
		return []*cut{{place: place, offer: o.Offer, needs: needs}}
	}
	if spec.Image != "" && o.Host != nil && o.Host.Containers == "" {
		return []*cut{{place: place, offer: o.Offer, refused: "runs no containers, and the job names an image: no Docker or Podman answers there"}}
	}
	cpus, gpus := o.VCPUs.Or(0), o.GPUCount
	slice := func(n int) *cut {
		x := needs
		x.GPUs = n
		if n > 0 {
			x.GPU = o.GPU.ID
		}
		if x.CPUs == 0 {
			x.CPUs = defaults.DefaultCPUs
			if n > 0 && gpus > 0 {
				x.CPUs = cpus * float64(n) / float64(gpus)
			}
			if cpus > 0 {
				x.CPUs = min(x.CPUs, cpus)
			}
		}
		x.Share = share(x.CPUs, cpus, n, gpus)
		part := *o.Offer
		part.GPUCount = n
		if n == 0 {
			part.GPU, part.Partition = nil, gpu.Partition{}
		}
		if p := part.Prices.Compute; p != nil {
			price := *p
			price.Amount, _ = p.Amount.MulDiv(int64(math.Round(x.Share*1e6)), 1e6) // a share is at most 1: it fits
			part.Prices.Compute = &price
		}
		return &cut{place: place, offer: &part, needs: x}
	}
	if r.NoGPU {
		return []*cut{slice(0)}
	}
	if o.GPU == nil || gpus == 0 {
		return []*cut{{place: place, offer: o.Offer, refused: "has no GPU"}}
	}
	var out []*cut
	seen := map[int]bool{}
	for i := range r.GPUs {
		q := &r.GPUs[i]
		n := max(1, q.Count)
		if !q.Matches(o.GPU) || n > gpus || seen[n] {
			continue
		}
		seen[n] = true
		x := slice(n)
		if q.Partition.Profile != "" {
			x.needs.Partition = q.Partition.Profile
			if !hasMIG(o.Host, q.Partition.Profile) {
				x.refused = "has no MIG instance " + q.Partition.Profile
			}
			x.offer.Partition = q.Partition
		}
		out = append(out, x)
	}
	if len(r.GPUs) == 0 {
		out = append(out, slice(1))
	}
	if len(out) == 0 { // the planner says why
		return []*cut{{place: place, offer: o.Offer, needs: needs}}
	}
	return out
}

func hasMIG(h *machine.Host, profile string) bool {
	if h == nil {
		return false
	}
	for _, d := range h.Devices {
		for _, m := range d.MIG {
			if m.Profile == profile {
				return true
			}
		}
	}
	return false
}

// share is the part of a shared machine's cost that an attempt bears. On a
// machine with GPUs they are nine tenths of it and its CPUs one; shares of
// attempts that fit together never pass 1.
func share(cpus, allCPUs float64, gpus, allGPUs int) float64 {
	c := 1.0
	if allCPUs > 0 {
		c = min(1, cpus/allCPUs)
	}
	if allGPUs == 0 {
		return floor6(c)
	}
	return floor6(0.9*float64(gpus)/float64(allGPUs) + 0.1*c)
}

// floor6 rounds down to millionths, so that shares that fill a machine do not
// pass it.
func floor6(x float64) float64 { return math.Floor(x*1e6+1e-6) / 1e6 }

// terms freezes an offer.
func terms(o backend.Offer, n machine.Needs, w plan.World) machine.Terms {
	t := machine.Terms{OfferID: o.ID, Provider: o.Provider, Class: string(o.Class), Region: o.Region, Zone: o.Zone, Country: o.Country,
		InstanceType: o.InstanceType, GPUCount: o.GPUCount, Partition: o.Partition.String(), VCPUs: o.VCPUs.Or(0), MemoryGB: o.MemoryGB.Or(0),
		Terms: string(o.Terms), Currency: o.Currency, Assumed: o.PriceAssumed, Source: o.Source, AsOf: string(o.AsOf),
		Increment: o.Billing.Increment.Or(0), Minimum: o.Billing.Minimum.Or(0), Starts: string(o.Billing.Starts), Lambda: o.InterruptionsPerHour.Or(0)}
	if t.Currency == "" {
		t.Currency = "USD"
	}
	if o.GPU != nil {
		t.GPU, t.Watts = o.GPU.ID, o.GPU.Watts*float64(o.GPUCount)
	}
	if p := o.Prices.Compute; p != nil {
		t.PriceHour = p.Amount
	}
	amount := func(p *offer.Price) *money.Amount {
		if p == nil {
			return nil
		}
		a := p.Amount
		if len(p.Tiers) > 0 {
			a = p.Tiers[0].Amount
		}
		return &a
	}
	t.DiskMonth, t.StoppedDisk, t.Egress = amount(o.Prices.DiskRunning), amount(o.Prices.DiskStopped), amount(o.Prices.Egress)
	if w.GridGrams != nil && o.Country != "" {
		if g, ok := w.GridGrams(o.Country); ok {
			t.GridGrams = &g
		}
	}
	return t
}

func estimateOf(o *plan.Option, currency string, stated bool) job.Estimate {
	e := job.Estimate{Offer: o.Offer.ID, Currency: currency, Known: stated, PriceHour: o.Price, StartupHours: o.Startup}
	if !stated {
		return e
	}
	e.Cost, e.CostP90 = o.Sum.Cost, o.CostP90
	e.Hours, e.WallHours, e.EnergyKWh, e.Evidence = o.Work.Hours.Expected, o.Sum.Wall, o.Energy, string(o.Work.Evidence)
	e.Parts = map[string]money.Amount{}
	for _, p := range plan.Parts() {
		if a := o.Sum.Parts[p]; a != 0 {
			e.Parts[p.String()] = a
		}
	}
	if o.CO2 >= 0 {
		e.CO2Kg = &o.CO2
	}
	return e
}

// money sets what is to be held for a candidate: the job's own limit, else what
// it costs at the p90, else some hours of a price.
func (c *Chooser) money(x *Candidate, spec *job.Spec, o *plan.Option, stated bool, exchange money.Exchange, defaults Settings) error {
	var err error
	if l := spec.Limits.Cost; l != nil {
		x.Limit, err = exchange.Convert(l.Amount, l.Currency, x.Terms.Currency)
		x.Hold = x.Limit
		return err
	}
	hold := max(o.CostP90, o.Sum.Cost)
	if !stated {
		if hold, err = o.Price.For(defaults.DefaultHold); err != nil {
			return err
		}
	}
	x.Hold, err = exchange.Convert(hold, c.Currency, x.Terms.Currency)
	return err
}

// chosen is where waiting jobs can go, by the id of their file.
type chosen struct{ choices map[int64]*Choice }

func (chosen) String() string { return "choices" }
func (chosen) apply(*draft)   {}

// choicesLast is how long a choice is good for: places come and go.
const choicesLast = 15 * time.Second

// chooseWhatWaits asks the backends in the background what there is, for jobs
// that wait and have no fresh choice.
func (l *Loop) chooseWhatWaits(ctx context.Context, now time.Time) {
	if len(l.busy) > 0 {
		return
	}
	due := map[int64]*job.Spec{}
	for _, j := range l.snap.Jobs {
		if j.State != job.Waiting || j.Stop != "" {
			continue
		}
		id := specOf(j)
		if c := l.snap.Choices[id]; c != nil && (c.Fatal || now.Sub(c.Made) < choicesLast && !now.Before(c.Made)) {
			continue
		}
		due[id] = l.snap.Specs[id]
	}
	if len(due) == 0 {
		return
	}
	for id := range due {
		l.busy[id] = true
	}
	backends, box, met := l.backends, l.inbox, maps.Clone(l.snap.Places)
	l.background.Go(func() {
		places, failed := ready(ctx, backends)
		out := map[int64]*Choice{}
		for id, spec := range due {
			c, _, err := l.Chooser.Choose(spec, places, met, failed, l.Now(), l.Settings)
			if err != nil {
				c = &Choice{Why: err.Error(), Fatal: fault.KindOf(err) == fault.Invalid}
			}
			c.Made = now
			out[id] = c
		}
		box.put(chosen{out})
	})
}

// offerOf finds the offer of a machine that is to be launched, as its backend
// gives it now.
func (l *Loop) offerOf(ctx context.Context, b backend.Backend, m *machine.Machine) (backend.Offer, error) {
	all, err := b.Offers(ctx)
	if partial := (*backend.Partial)(nil); err != nil && !errors.As(err, &partial) {
		return backend.Offer{}, fault.Wrap(fault.Unreachable, err, "asking %s what it offers", b.Name())
	}
	for _, o := range all {
		if o.ID == m.Terms.OfferID {
			return o, nil
		}
	}
	return backend.Offer{}, fault.New(fault.NothingFits, "%s no longer offers %s", b.Name(), m.Terms.OfferID)
}
