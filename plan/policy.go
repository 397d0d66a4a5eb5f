package plan

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/spot"
)

// SpotPolicy is how a job with a deadline uses a spot offer: the policy of
// package spot runs it there, waits, or goes to an on-demand offer, so that it
// is in time for the least money. Hours are expected and run, without the first
// start; each changeover is paid in them.
type SpotPolicy struct {
	OnDemand      *offer.Offer
	OnDemandPrice money.Amount // per hour of all machines, in the plan's currency
	OnDemandHours float64
	SpotHours     float64
	Changeovers   float64
}

// twinKey is what an on-demand offer must have to take over from a spot offer.
// Provider and region are empty where they do not matter.
type twinKey struct {
	provider, region string
	model            *gpu.Model
	count            int
	cut              gpu.Partition
	cpus, memory     float64 // of machines without GPU
}

type twin struct {
	offer *offer.Offer
	price money.Amount // per hour of one machine
}

func keyOf(o *offer.Offer) twinKey {
	k := twinKey{provider: o.Provider, region: o.Region, model: o.GPU, count: o.GPUCount, cut: o.Partition}
	if o.GPU == nil {
		k.cpus, k.memory = o.VCPUs.Or(0), o.MemoryGB.Or(0)
	}
	return k
}

// wider lists the keys under which a twin is sought, the nearest first: in the
// same region, of the same provider, anywhere.
func (k twinKey) wider() [3]twinKey {
	provider, any := k, k
	provider.region = ""
	any.provider, any.region = "", ""
	return [3]twinKey{k, provider, any}
}

// twin finds the on-demand offer that takes over from a spot offer: the
// cheapest that the job admits.
func (r *ranker) twin(o *offer.Offer) (twin, bool) {
	if r.twins == nil {
		r.twins = r.findTwins()
	}
	for _, k := range keyOf(o).wider() {
		if t, ok := r.twins[k]; ok {
			return t, true
		}
	}
	return twin{}, false
}

func (r *ranker) findTwins() map[twinKey]twin {
	twins := map[twinKey]twin{}
	for _, o := range r.in.Offers {
		if o.Terms != offer.OnDemand || r.admit(o).Kind != "" {
			continue
		}
		if _, ref := r.match(o); ref.Kind != "" {
			continue
		}
		if r.host(o, &Option{Work: &Estimate{}}).Kind != "" {
			continue
		}
		price, err := r.convert(o, o.Prices.Compute.Amount)
		if err != nil { // weighing the offer itself reports it
			continue
		}
		if all, err := price.MulDiv(int64(r.nodes), 1); err != nil || r.limits.hasPrice && all > r.limits.price {
			continue
		}
		for _, k := range keyOf(o).wider() {
			old, ok := twins[k]
			if !ok || cmp.Or(cmp.Compare(price, old.price), cmp.Compare(o.ID, old.offer.ID)) < 0 {
				twins[k] = twin{o, price}
			}
		}
	}
	return twins
}

// mix is what a meter needs to price hours on spot and on on-demand. It is set
// where the policy decides: on spot offers for jobs with a deadline that can
// resume, if there is an on-demand offer to go to.
type mix struct {
	twin     twin
	onDemand money.Amount // per hour of all machines
	within   float64      // hours from the start of the work to the deadline
	known    map[outlook]*spot.Forecast
}

// mixed sets up the policy for an offer, or says on the option why it is priced
// as spot alone.
func (r *ranker) mixed(o *offer.Offer, opt *Option, m *meter) error {
	if r.deadline == 0 || m.resumable {
		return nil
	}
	if !m.saves {
		opt.flags |= flagNoSaves
		return nil
	}
	t, ok := r.twin(o)
	if !ok {
		opt.flags |= flagNoTwin
		return nil
	}
	if t.offer.Provider != o.Provider {
		opt.flags |= flagFarTwin
	}
	price, err := t.price.MulDiv(int64(opt.Nodes), 1)
	m.mix = &mix{twin: t, onDemand: price, within: r.deadline - m.startup - m.idle, known: r.outlooks}
	opt.Policy = &SpotPolicy{OnDemand: t.offer, OnDemandPrice: price}
	return err
}

// outlook is what a forecast depends on, in steps of grids. Prices are those
// in units of the on-demand price and slack in units of the work, so that offers
// share forecasts.
type outlook struct{ ratio, lost, back, restart, work, slack int }

// The widths of the grids, in parts of the value. A choice that is made for
// another price of spot is dearer by the square of the difference only, and what
// comes of some work with its slack is nearly in proportion to it.
const (
	gridRatio = 0.1
	gridRate  = 0.04
	gridTime  = 0.1
	gridWork  = 0.1
)

// ways is a forecast for the hours of one job.
type ways struct {
	*spot.Forecast
	hours  float64 // useful
	writes float64 // hours of checkpoints
	scale  float64
}

func (w ways) of(x spot.Way) spot.Way {
	x.OnDemandH *= w.scale
	x.SpotH *= w.scale
	x.Changeovers *= w.scale
	x.EndH *= w.scale
	return x
}

// ways forecasts the policy for h useful hours. On on-demand alone, which it
// comes to where spot is too dear or would be too late, a job writes fewer
// checkpoints. Rates, prices and times are rounded so that offers share
// forecasts: the time that may be lost down and a changeover up, so that what is
// in time stays so.
func (m *meter) ways(h float64) ways {
	calm := m.calmWrites(h)
	only := spot.Way{OnDemandH: h + calm, EndH: h + calm}
	alone := ways{&spot.Forecast{Way: only, First: spot.OnDemand, Drawn: []spot.Way{only}}, h, calm, 1}
	writes := m.writes(h)
	work := h + writes
	slack := m.mix.within - work
	if slack < 0 || m.price >= m.mix.onDemand {
		return alone
	}
	k := outlook{
		ratio: onGrid(m.price.Float()/m.mix.onDemand.Float(), gridRatio, math.Round),
		lost:  onGrid(m.lambda, gridRate, math.Round), back: onGrid(1/m.wait, gridRate, math.Round),
		restart: onGrid(m.changeover(h), gridTime, math.Ceil),
		work:    onGrid(work, gridWork, math.Round), slack: onGrid(slack/work, gridTime, math.Floor),
	}
	rounded := offGrid(k.work, gridWork)
	f, ok := m.mix.known[k]
	if !ok {
		x := spot.Expect(spot.Job{Work: rounded * 3600, Deadline: rounded * (1 + offGrid(k.slack, gridTime)) * 3600, Restart: offGrid(k.restart, gridTime) * 3600,
			OnDemand: 1, Spot: offGrid(k.ratio, gridRatio)}, offGrid(k.lost, gridRate), offGrid(k.back, gridRate))
		f = &x
		m.mix.known[k] = f
	}
	mixed := ways{f, h, writes, work / rounded}
	if m.paid(mixed, mixed.Way) > m.paid(alone, alone.Way) {
		return alone
	}
	return mixed
}

// paid is what a way's machines cost, to compare it with others.
func (m *meter) paid(f ways, w spot.Way) float64 {
	od, cheap := m.mix.onDemand.Float(), m.price.Float()
	begin := cheap
	if f.First == spot.OnDemand {
		begin = od
	}
	w = f.of(w)
	cost, hours := w.Cost(od, cheap), w.OnDemandH+w.SpotH
	return begin*m.billed + cost + cost/hours*(m.round(hours, 1+w.Changeovers)-hours)
}

// calmWrites is the time for the checkpoints of h useful hours on machines that
// are not taken away.
func (m *meter) calmWrites(h float64) float64 {
	calm := *m
	calm.lambda = 0
	return calm.writes(h)
}

// onGrid is the place of a value on a grid of equal ratios, offGrid its value.
func onGrid(x, width float64, round func(float64) float64) int {
	if !(x > 1e-9) {
		return math.MinInt
	}
	return int(round(math.Log(x) / width))
}

func offGrid(k int, width float64) float64 {
	if k == math.MinInt {
		return 0
	}
	return math.Exp(float64(k) * width)
}

// changeover is what a loss costs in running hours: the restart, and the work
// since the last checkpoint, which is the mean of an exponential time that is
// cut at one segment. It is counted for moves that the policy chooses too.
func (m *meter) changeover(h float64) float64 {
	segment := m.tau(h) + m.write
	if m.lambda*segment < 1e-6 {
		return m.restart + segment/2
	}
	return m.restart + 1/m.lambda - segment/math.Expm1(m.lambda*segment)
}

// along sums a way of the policy's.
func (m *meter) along(f ways, w spot.Way) (s Sum, err error) {
	w = f.of(w)
	h := f.hours
	s.Useful, s.Running, s.Attempts = h, w.OnDemandH+w.SpotH, 1+w.Changeovers
	s.Wall = m.startup + w.EndH + m.idle
	net := m.billed + s.Running + m.idle
	s.Billed = m.round(net, s.Attempts)
	s.Parts = m.fixed
	var running, billed money.Amount
	add := func(to *money.Amount, price money.Amount, hours float64) {
		if err != nil || hours <= 0 {
			return
		}
		var a money.Amount
		if a, err = price.For(duration(hours)); err == nil {
			*to, err = to.Add(a)
		}
	}
	add(&running, m.mix.onDemand, w.OnDemandH)
	add(&running, m.price, w.SpotH)
	mean := m.price
	if ns := duration(s.Running); err == nil && ns > 0 {
		mean, err = running.MulDiv(int64(time.Hour), int64(ns))
	}
	begin := m.price
	if f.First == spot.OnDemand {
		begin = m.mix.onDemand
	}
	add(&s.Parts[Startup], begin, m.billed)
	add(&s.Parts[Checkpoints], mean, f.writes)
	add(&s.Parts[Interruptions], mean, s.Running-h-f.writes)
	add(&s.Parts[Idle], mean, m.idle)
	add(&s.Parts[Rounding], mean, s.Billed-net)
	if w.SpotH == 0 { // as the on-demand offer itself, to the nano-unit
		add(&billed, m.mix.onDemand, s.Billed)
	} else {
		billed = running
		for _, p := range []Part{Startup, Idle, Rounding} {
			if err == nil {
				billed, err = billed.Add(s.Parts[p])
			}
		}
	}
	if err == nil {
		err = m.total(&s, billed)
	}
	return s, err
}

// spread sets the quantiles of cost and time: over the ways that the job may
// go, and over its hours at their P10, P50 and P90 with the weights 0.3, 0.4
// and 0.3.
func (m *meter) spread(opt *Option) error {
	type drawn struct {
		from         ways
		way          spot.Way
		weight, cost float64
		wall         float64
	}
	var all []drawn
	at := [3]float64{0.1, 0.5, 0.9}
	waiting := m.diskMonth.Float()/money.MonthHours + m.addressHour.Float() // paid for every hour
	for _, q := range weighted(opt.Work.Hours) {
		f := m.ways(q.hours)
		for _, w := range f.Drawn {
			wall := m.startup + f.of(w).EndH + m.idle
			all = append(all, drawn{f, w, q.weight / float64(len(f.Drawn)), m.paid(f, w) + waiting*wall, wall})
		}
	}
	quantile := func(q float64) *drawn {
		for i := range all {
			if q -= all[i].weight; q <= 1e-9 {
				return &all[i]
			}
		}
		return &all[len(all)-1]
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.cost, b.cost) })
	for i, cost := range []*money.Amount{&opt.CostP10, &opt.CostP50, &opt.CostP90} {
		d := quantile(at[i])
		s, err := m.along(d.from, d.way)
		if err != nil {
			return err
		}
		*cost = s.Cost
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.wall, b.wall) })
	for i, wall := range []*float64{&opt.WallP10, &opt.WallP50, &opt.WallP90} {
		*wall = quantile(at[i]).wall
	}
	return nil
}
