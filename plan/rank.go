package plan

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan/estimate"
	"github.com/destajo/destajo/spot"
)

// What is taken when neither job nor offer says.
const (
	assumedStartup = 5.0 / 60 // hours from request to running
	assumedWrite   = 1.0 / 60 // hours to write a checkpoint
	assumedImageGB = 8.0      // size of a training image, compressed
	likelyLate     = 0.5      // above this probability an option is never recommended
)

// Rank puts every offer to the job. It fails when the job's work cannot be
// estimated at all or a currency has no rate; that nothing fits is a plan
// without options and no error.
func Rank(in Input) (*Plan, error) {
	r, err := newRanker(in)
	if err != nil {
		return nil, err
	}
	p := &Plan{Job: in.Job, AsOf: in.Now, Currency: r.currency}
	options := make([]Option, 0, len(in.Offers))
	for _, o := range in.Offers {
		n := len(options)
		options = append(options, Option{})
		refusal, err := r.weigh(o, &options[n])
		if err != nil {
			return nil, err
		}
		if refusal.Kind != "" {
			refusal.Offer, refusal.currency = o, r.currency
			p.Refused = append(p.Refused, refusal)
			options = options[:n]
		}
	}
	p.Options = r.order(options)
	slices.SortFunc(p.Refused, func(a, b Refusal) int { return cmp.Compare(a.Offer.ID, b.Offer.ID) })
	p.Alternatives = r.alternatives(p)
	return p, nil
}

// ranker is a job made ready to be put to many offers.
type ranker struct {
	in       Input
	job      *job.Spec
	currency string
	nodes    int
	wanted   []gpu.Request // none: any GPU of the default vendor; see cpuOnly
	cpuOnly  bool
	terms    map[string]bool // nil: all but reservations
	limits   struct {
		cost, price money.Amount
		hasCost     bool
		hasPrice    bool
	}
	deadline  float64 // hours from now; 0: none
	estimates map[estimateKey]*estimated
	twins     map[twinKey]twin // on-demand offers that take over from spot; nil until asked for
	outlooks  map[outlook]*spot.Forecast
	work      *estimate.Job // of a model; nil for stated hours and units
	least     int           // GPUs, of a variant that needs more than the job asks
	scratch   meter         // of the offer that is weighed

	date  offer.Date // of the offer before, with its age
	class offer.Class
	stale bool
	days  int
}

// estimateKey is what hours depend on: they are computed once for each.
type estimateKey struct {
	model *gpu.Model
	count int
	cut   gpu.Partition
}

type estimated struct {
	Estimate
	refusal Refusal // when its Kind is set, the work cannot be done there
}

func newRanker(in Input) (*ranker, error) {
	j := in.Job
	r := &ranker{in: in, job: j, currency: in.Currency, nodes: max(1, j.Resources.Nodes), wanted: j.Resources.GPUs,
		estimates: map[estimateKey]*estimated{}, outlooks: map[outlook]*spot.Forecast{}}
	if r.currency == "" {
		r.currency = "USD"
	}
	if j.Work == nil {
		return nil, errNoWork(j)
	}
	r.cpuOnly = j.Resources.NoGPU
	if len(r.wanted) == 0 && !r.cpuOnly {
		r.wanted = r.defaultGPUs()
	}
	if len(j.Place.Terms) > 0 {
		r.terms = map[string]bool{}
		for _, t := range j.Place.Terms {
			r.terms[t] = true
		}
	}
	var err error
	if r.work, err = ModelWork(j, in.World.Measured, in.World.Own); err != nil {
		return nil, err
	}
	if l := j.Limits.Cost; l != nil {
		r.limits.hasCost = true
		if r.limits.cost, err = in.Exchange.Convert(l.Amount, l.Currency, r.currency); err != nil {
			return nil, err
		}
	}
	if l := j.Limits.Price; l != nil {
		r.limits.hasPrice = true
		if r.limits.price, err = in.Exchange.Convert(l.Amount, l.Currency, r.currency); err != nil {
			return nil, err
		}
	}
	if d := j.Limits.Deadline; d != nil {
		r.deadline = d.In(in.Now).Hours()
		if r.deadline <= 0 {
			return nil, fault.New(fault.Invalid, "the deadline of job %q has passed", j.Name).Hint("give limits.deadline a later time")
		}
	}
	return r, nil
}

// defaultGPUs are the GPUs of a job that names none: those whose hours or
// rates are stated, else any card of the default vendor.
func (r *ranker) defaultGPUs() []gpu.Request {
	w := r.job.Work
	var out []gpu.Request
	for _, h := range w.Hours {
		out = append(out, h.Key)
	}
	if w.Units != nil {
		for _, u := range w.Units.Rates {
			out = append(out, u.Key)
		}
	}
	if len(out) == 0 {
		out = append(out, gpu.Any())
	}
	return out
}

// weigh puts one offer to the job: it fills opt, or gives the reason why not.
func (r *ranker) weigh(o *offer.Offer, opt *Option) (Refusal, error) {
	if ref := r.admit(o); ref.Kind != "" {
		return ref, nil
	}
	count, ref := r.match(o)
	if ref.Kind != "" {
		return ref, nil
	}
	card := o.GPU
	if r.cpuOnly { // whatever GPU the machine has, the job does not use it
		card = nil
	}
	est := r.at(o.Provider, r.estimate(card, count, o.Partition), o.Partition)
	if est.refusal.Kind != "" {
		return est.refusal, nil
	}
	nodes := r.nodes
	if est.Replicas > 0 {
		nodes = est.Replicas
	}
	*opt = Option{Offer: o, Nodes: nodes, Work: &est.Estimate, Late: -1, CO2: -1}
	if ref = r.host(o, opt); ref.Kind != "" {
		return ref, nil
	}
	hourly, err := r.convert(o, o.Prices.Compute.Amount)
	if err == nil {
		opt.Price, err = hourly.MulDiv(int64(nodes), 1)
	}
	if err != nil {
		return Refusal{}, err
	}
	if r.limits.hasPrice && opt.Price > r.limits.price {
		return Refusal{Kind: RefusedPrice, ask: opt.Price, limit: r.limits.price}, nil
	}
	m, err := r.meter(o, opt)
	if err != nil {
		return Refusal{}, err
	}
	return r.sum(o, opt, m)
}

// admit checks what does not depend on the GPU: terms, place, availability
// and that there is a price.
func (r *ranker) admit(o *offer.Offer) Refusal {
	place := func(text string) Refusal { return Refusal{Kind: RefusedPlace, text: text} }
	p := &r.job.Place
	switch {
	case o.Terms == offer.Reserved:
		return Refusal{Kind: RefusedTerms, text: "a reservation is a commitment of months: see rent-or-buy"}
	case r.terms != nil && !r.terms[string(o.Terms)]:
		return Refusal{Kind: RefusedTerms}
	case o.Available.Known && !o.Available.Value:
		return Refusal{Kind: RefusedUnavailable, text: "not available now"}
	case o.Prices.Compute == nil:
		return Refusal{Kind: RefusedUnknownPrice, text: "its price is unknown"}
	case len(p.Classes) > 0 && !slices.Contains(p.Classes, string(o.Class)):
		return place("class " + string(o.Class) + " is not among the job's classes")
	case len(p.Providers) > 0 && !slices.ContainsFunc(p.Providers, func(n string) bool { return strings.EqualFold(n, o.Provider) }):
		return place("provider is not among the job's providers")
	case slices.ContainsFunc(p.Exclude, func(n string) bool { return strings.EqualFold(n, o.Provider) }):
		return place("provider is excluded by the job")
	case len(p.Countries) > 0 && o.Country == "":
		return place("its country is unknown")
	case len(p.Countries) > 0 && !slices.Contains(p.Countries, o.Country):
		return place("country " + o.Country + " is not among the job's countries")
	case len(p.Regions) > 0 && !slices.ContainsFunc(p.Regions, func(g string) bool {
		return strings.EqualFold(g, o.Region) || strings.EqualFold(g, o.Provider+":"+o.Region)
	}):
		return place("region is not among the job's regions")
	case p.Verified != nil && *p.Verified && o.Class == offer.Marketplace && !o.Verified.Or(false):
		return place("the seller is not verified")
	case p.Consumer != nil && !*p.Consumer && o.GPU != nil && o.GPU.Consumer:
		return place("consumer cards are excluded by the job")
	}
	return Refusal{}
}

// match finds how many GPUs of the offer's machine the job uses.
func (r *ranker) match(o *offer.Offer) (int, Refusal) {
	if r.cpuOnly {
		return 0, Refusal{}
	}
	if o.GPU == nil || o.GPUCount == 0 {
		return 0, Refusal{Kind: RefusedGPU, text: "has no GPU"}
	}
	best, short := 0, 0
	vendor, memory := false, 0.0
	for i := range r.wanted {
		q := &r.wanted[i]
		if !q.Matches(o.GPU) {
			if q.OtherVendor(o.GPU) {
				vendor = true
			} else if n := q.MemoryMinGB; n > o.GPU.MemoryGB {
				memory = n
			}
			continue
		}
		if !fitsCut(q, o) {
			return 0, Refusal{Kind: RefusedGPU, text: "sells " + o.Partition.String() + " of a card only"}
		}
		n := max(1, q.Count, r.least)
		if n > o.GPUCount {
			short = n
		} else if n > best {
			best = n
		}
	}
	switch {
	case best > 0:
		return best, Refusal{}
	case short > 0:
		return 0, Refusal{Kind: RefusedGPU, need: float64(short), have: float64(o.GPUCount)}
	case vendor:
		return 0, Refusal{Kind: RefusedVendor}
	case memory > 0:
		return 0, Refusal{Kind: RefusedMemory, need: memory, have: o.GPU.MemoryGB}
	}
	return 0, Refusal{Kind: RefusedGPU}
}

// fitsCut says whether what the offer sells of a card is enough of it.
func fitsCut(q *gpu.Request, o *offer.Offer) bool {
	switch {
	case o.Partition.Whole():
		return true
	case q.Partition.Whole():
		return false
	case q.Partition.Profile != "":
		return strings.EqualFold(q.Partition.Profile, o.Partition.Profile)
	}
	return o.Partition.Profile == "" && o.Partition.Share >= q.Partition.Share
}

// host checks the machine around the GPUs and sets the notes on it.
func (r *ranker) host(o *offer.Offer, opt *Option) Refusal {
	need := &r.job.Resources
	if n := need.CPUs; n > 0 {
		if !o.VCPUs.Known {
			opt.flags |= flagUnknownCPU
		} else if o.VCPUs.Value < n {
			return Refusal{Kind: RefusedCPU, need: n, have: o.VCPUs.Value}
		}
	}
	if n := need.Memory.GB(); n > 0 {
		if !o.MemoryGB.Known {
			opt.flags |= flagUnknownHostMemory
		} else if o.MemoryGB.Value < n {
			return Refusal{Kind: RefusedHostMemory, need: n, have: o.MemoryGB.Value}
		}
	}
	if o.AsOf != r.date || o.Class != r.class || o.AsOf == "" { // lists repeat their dates
		r.date, r.class = o.AsOf, o.Class
		r.stale, r.days = o.Stale(r.in.Now)
	}
	stale, days := r.stale, r.days
	if o.Billing.StoppedFull && r.job.Data.Keep > 0 {
		opt.flags |= flagStoppedFull
	}
	switch {
	case days < 0 && o.AsOf == "":
		opt.flags |= flagNoDate
	case stale:
		opt.flags |= flagStale
		opt.ageDays = days
	}
	if o.GPU != nil && o.GPU.Consumer && o.Class != offer.Own {
		opt.flags |= flagConsumer
	}
	if o.Class == offer.Marketplace {
		opt.flags |= flagMarketplace
		if o.Verified.Known && !o.Verified.Value {
			opt.flags |= flagUnverified
		}
	}
	if opt.Work.Fit.Verdict == "tight" {
		opt.flags |= flagTight
	}
	if opt.Work.Count > 0 && o.GPUCount > opt.Work.Count {
		opt.flags |= flagSpareGPUs
	}
	return Refusal{}
}

// convert brings an amount of the offer into the plan's currency.
func (r *ranker) convert(o *offer.Offer, a money.Amount) (money.Amount, error) {
	if o.Currency == r.currency || o.Currency == "" && r.currency == "USD" {
		return a, nil
	}
	from := o.Currency
	if from == "" {
		from = "USD"
	}
	converted, err := r.in.Exchange.Convert(a, from, r.currency)
	if err != nil {
		return 0, fault.Wrap(fault.Invalid, err, "offer %s", o.ID).Hint("%s", fault.HintOf(err))
	}
	return converted, nil
}

// meter sets up the sums of the job on one offer.
func (r *ranker) meter(o *offer.Offer, opt *Option) (*meter, error) {
	j := r.job
	m := &r.scratch
	*m = meter{price: opt.Price, increment: o.Billing.Increment.Value.Hours(), minimum: o.Billing.Minimum.Value.Hours()}
	r.startup(o, opt, m)

	m.resumable = j.Work.Traffic != nil
	if o.Terms == offer.Spot {
		lost, back := spot.Default(o.GPUCount)
		lost, back = o.InterruptionsPerHour.Or(lost), o.RecoveriesPerHour.Or(back)
		if !o.InterruptionsPerHour.Known || o.InterruptionsAssumed {
			opt.flags |= flagAssumedRate
		}
		m.lambda = lost * float64(opt.Nodes)
		if m.resumable { // the machines of a service are replaced one by one
			m.lambda = lost
		}
		m.wait = 1 / back
	}
	m.restart = m.billed
	if c := j.Checkpoint; c != nil {
		m.saves = true
		m.write = assumedWrite
		if c.Write != nil {
			m.write = c.Write.Hours()
		} else {
			opt.flags |= flagAssumedWrite
		}
		if c.Every != nil {
			m.every = c.Every.Hours()
		}
		if c.Restart != nil {
			m.restart = c.Restart.Hours()
		}
	}
	opt.Startup, opt.BilledStartup, opt.Lambda = m.startup, m.billed, m.lambda
	opt.Restart, opt.Wait, opt.Write = m.restart, m.wait, m.write
	if o.Terms == offer.Spot {
		if err := r.mixed(o, opt, m); err != nil {
			return nil, err
		}
	}
	return m, r.extras(o, opt, m)
}

// extras sets what is paid beside the machine's hours.
func (r *ranker) extras(o *offer.Offer, opt *Option, m *meter) error {
	j, nodes := r.job, int64(opt.Nodes)
	if disk := j.Resources.Disk.GB(); disk > 0 {
		extra := math.Max(0, disk-o.DiskIncludedGB.Or(0))
		switch p := o.Prices.DiskRunning; {
		case extra == 0:
		case p == nil:
			opt.flags |= flagUnknownDisk
		default:
			month, err := r.priced(o, p, extra)
			if err == nil {
				m.diskMonth, err = month.MulDiv(nodes, 1)
			}
			if err != nil {
				return err
			}
		}
	}
	if kept := j.Data.Keep.GB(); kept > 0 {
		if p := o.Prices.DiskStopped; p == nil {
			opt.flags |= flagUnknownKept
		} else {
			month, err := r.priced(o, p, kept)
			if err == nil {
				m.fixed[KeptDisk], err = month.MulDiv(int64(j.Data.KeepFor), int64(money.Month))
			}
			if err != nil {
				return err
			}
		}
	}
	if err := r.transfers(o, opt, m); err != nil {
		return err
	}
	if p := o.Prices.Address; p != nil {
		a, err := r.convert(o, p.Amount)
		if err == nil {
			m.addressHour, err = a.MulDiv(nodes, 1)
		}
		if err != nil {
			return err
		}
	}
	if p := o.Prices.Fee; p != nil {
		a, err := r.convert(o, p.Amount)
		if err == nil {
			m.fixed[Fees], err = a.MulDiv(nodes, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// priced is what a quantity costs in the plan's currency.
func (r *ranker) priced(o *offer.Offer, p *offer.Price, quantity float64) (money.Amount, error) {
	a, err := p.For(quantity)
	if err != nil {
		return 0, err
	}
	return r.convert(o, a)
}

// transfers sets what the job's data costs on its way in and out.
func (r *ranker) transfers(o *offer.Offer, opt *Option, m *meter) error {
	d := &r.job.Data
	if in := d.Download.GB(); in > 0 {
		var sum money.Amount
		if d.From != "" && !strings.EqualFold(d.From, "internet") {
			provider, region, _ := strings.Cut(d.From, ":")
			if p := r.transfer(provider, region, o.Provider, o.Region); p == nil {
				opt.flags |= flagUnknownSource
			} else {
				a, err := p.For(in)
				if err == nil {
					sum, err = r.in.Exchange.Convert(a, "USD", r.currency)
				}
				if err != nil {
					return err
				}
			}
		}
		if p := o.Prices.Ingress; p == nil {
			opt.flags |= flagUnknownIngress
		} else {
			a, err := r.priced(o, p, in)
			if err == nil {
				sum, err = sum.Add(a)
			}
			if err != nil {
				return err
			}
		}
		m.fixed[Download] = sum
	}
	out := d.Upload.GB()
	if out == 0 {
		return nil
	}
	price := o.Prices.Egress
	inDollars := false
	if d.To != "" && !strings.EqualFold(d.To, "internet") {
		provider, region, _ := strings.Cut(d.To, ":")
		if p := r.transfer(o.Provider, o.Region, provider, region); p != nil {
			price, inDollars = p, true
		}
	}
	if price == nil {
		opt.flags |= flagUnknownEgress
		return nil
	}
	a, err := price.For(out)
	if err == nil && inDollars {
		a, err = r.in.Exchange.Convert(a, "USD", r.currency)
	} else if err == nil {
		a, err = r.convert(o, a)
	}
	m.fixed[Upload] = a
	return err
}

func (r *ranker) transfer(fromProvider, fromRegion, toProvider, toRegion string) *offer.Price {
	if strings.EqualFold(fromProvider, toProvider) && fromRegion != "" && strings.EqualFold(fromRegion, toRegion) {
		return &offer.Price{}
	}
	if r.in.World.Transfer == nil {
		return nil
	}
	return r.in.World.Transfer(strings.ToLower(fromProvider), strings.ToLower(fromRegion), strings.ToLower(toProvider), strings.ToLower(toRegion))
}

// sum fills the option's hours and money from the meter, and refuses what is
// beyond the job's limits.
func (r *ranker) sum(o *offer.Offer, opt *Option, m *meter) (Refusal, error) {
	h := opt.Work.Hours
	s, ok, err := m.at(h.Expected)
	if err != nil {
		return Refusal{}, err
	}
	if !ok {
		return Refusal{Kind: RefusedInterruptions, need: h.Expected, have: m.lambda}, nil
	}
	opt.Sum, opt.Tau = s, m.tau(h.Expected)
	opt.CostP10, opt.CostP50, opt.CostP90 = s.Cost, s.Cost, s.Cost
	opt.WallP10, opt.WallP50, opt.WallP90 = s.Wall, s.Wall, s.Wall
	if p := opt.Policy; p != nil {
		f := m.ways(h.Expected)
		way := f.of(f.Way)
		p.OnDemandHours, p.SpotHours, p.Changeovers = way.OnDemandH, way.SpotH, way.Changeovers
		if err := m.spread(opt); err != nil {
			return Refusal{}, err
		}
	} else if h.P10 != h.Expected || h.P90 != h.Expected {
		for _, q := range []struct {
			hours float64
			cost  *money.Amount
			wall  *float64
		}{{h.P10, &opt.CostP10, &opt.WallP10}, {h.P50, &opt.CostP50, &opt.WallP50}, {h.P90, &opt.CostP90, &opt.WallP90}} {
			at, ok, err := m.at(q.hours)
			if err != nil {
				return Refusal{}, err
			}
			if !ok { // a tail that explodes: the widest that is still counted
				at, ok, err = m.at(h.Expected)
				if err != nil || !ok {
					return Refusal{}, err
				}
				opt.flags |= flagWidePrice
			}
			*q.cost, *q.wall = at.Cost, at.Wall
		}
	}
	if r.deadline > 0 {
		r.late(opt, m)
		if opt.Late > 0.99 {
			return Refusal{Kind: RefusedDeadline, need: opt.Sum.Wall, have: r.deadline}, nil
		}
		if opt.Late > likelyLate {
			opt.flags |= flagLikelyLate
		}
	}
	if d := r.job.Limits.Duration; d != nil && opt.Sum.Running > d.Hours()*(1+1e-9) {
		return Refusal{Kind: RefusedDuration, need: opt.Sum.Running, have: d.Hours()}, nil
	}
	if r.limits.hasCost && opt.Cautions() {
		opt.flags |= flagUncheckedLimit
	}
	if r.limits.hasCost && opt.Sum.Cost > r.limits.cost {
		return Refusal{Kind: RefusedBudget, ask: opt.Sum.Cost, limit: r.limits.cost}, nil
	}
	if r.job.Array > 1 {
		opt.flags |= flagArray
		opt.array = r.job.Array
	}
	if s.Parts[KeptDisk] > s.Parts[Compute] {
		opt.flags |= flagDiskCostsMore
	}
	r.energy(o, opt)
	if opt.Work.Rate > 0 && opt.Price > 0 {
		hour := opt.Price.Float()
		if p := opt.Policy; p != nil {
			hour = (p.SpotHours*hour + p.OnDemandHours*p.OnDemandPrice.Float()) / (p.SpotHours + p.OnDemandHours)
		}
		opt.WorkPerDollar = opt.Work.Rate * float64(opt.Nodes) / hour
		if opt.Work.Replicas > 0 {
			opt.WorkPerDollar = opt.Work.Rate / hour * float64(opt.Work.Replicas)
		}
	}
	return Refusal{}, nil
}

// energy sets kWh, CO2 and the marginal cost of what is already paid for.
func (r *ranker) energy(o *offer.Offer, opt *Option) {
	if o.GPU != nil && o.GPU.Watts > 0 {
		opt.Energy = o.GPU.Watts / 1000 * float64(max(1, opt.Work.Count)*opt.Nodes) * opt.Sum.Running
		if share := o.Partition.Share; share > 0 {
			opt.Energy *= share
		}
		if r.in.World.GridGrams != nil && o.Country != "" {
			if g, ok := r.in.World.GridGrams(o.Country); ok {
				opt.CO2 = opt.Energy * g / 1000
			}
		}
	}
	if o.Terms != offer.Owned || opt.Energy == 0 || r.in.World.PowerPrice == nil {
		return
	}
	if p, ok := r.in.World.PowerPrice(o.Country); ok {
		a, err := p.Times(opt.Energy)
		if err == nil {
			a, err = r.in.Exchange.Convert(a, "USD", r.currency)
		}
		opt.Marginal, opt.MarginalKnown = a, err == nil
	}
}

// order ranks the options, marks the Pareto front of expected cost and wall
// time, and puts what is likely late behind what is not.
func (r *ranker) order(options []Option) []*Option {
	cost := func(o *Option) money.Amount {
		if r.in.Marginal && o.MarginalKnown {
			return o.Marginal
		}
		return o.Sum.Cost
	}
	type keyed struct { // what is compared lies together
		cost money.Amount
		wall float64
		o    *Option
	}
	keys := make([]keyed, len(options))
	for i := range options {
		keys[i] = keyed{cost(&options[i]), options[i].Sum.Wall, &options[i]}
	}
	slices.SortFunc(keys, func(a, b keyed) int {
		switch {
		case a.cost != b.cost:
			return cmp.Compare(a.cost, b.cost)
		case a.wall != b.wall:
			return cmp.Compare(a.wall, b.wall)
		}
		return cmp.Compare(a.o.Offer.ID, b.o.Offer.ID)
	})
	front := make([]*Option, len(options))
	for i, k := range keys {
		front[i] = k.o
	}
	soonest := math.Inf(1)
	for i := 0; i < len(front); {
		// Among equal costs only the soonest is on the front, with its equals.
		j := i
		for ; j < len(front) && cost(front[j]) == cost(front[i]); j++ {
			if w := front[j].Sum.Wall; w < soonest && w == front[i].Sum.Wall {
				front[j].Pareto = true
			}
		}
		soonest = math.Min(soonest, front[i].Sum.Wall)
		i = j
	}
	if r.in.By != "" && r.in.By != ByCost {
		slices.SortStableFunc(front, func(a, b *Option) int {
			switch r.in.By {
			case ByTime:
				return cmp.Compare(a.Sum.Wall, b.Sum.Wall)
			case ByPrice:
				return cmp.Compare(a.Price, b.Price)
			}
			return cmp.Compare(b.WorkPerDollar, a.WorkPerDollar)
		})
	}
	if r.deadline > 0 {
		slices.SortStableFunc(front, func(a, b *Option) int { return cmp.Compare(a.flags&flagLikelyLate, b.flags&flagLikelyLate) })
	}
	for i, o := range front {
		o.Rank = i + 1
	}
	return front
}
