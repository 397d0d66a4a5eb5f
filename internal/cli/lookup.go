package cli

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/docs"
	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

type offerOptions struct {
	memory, price, by, file                       string
	terms, classes, countries, providers, regions []string
	count, top                                    int
	history                                       bool
}

func (a *app) offersCommand() *cobra.Command {
	var o offerOptions
	c := &cobra.Command{
		Use:     "offers [GPU]...",
		GroupID: "know",
		Short:   "List offers by GPU, memory, terms, country and price",
		Long: `List offers, cheapest GPU hour first. GPU is a card, a family or a memory:
H100, A100-80GB, H100:8, 24GB+. Machines with several GPUs are listed too, with
their price per GPU.`,
		Example: "  destajo offers H100 --terms spot --country FI\n  destajo offers 24GB+ --by memory --top 5\n  destajo offers H100 --history",
		RunE:    func(_ *cobra.Command, args []string) error { return a.listOffers(args, o) },
	}
	f := c.Flags()
	f.StringVar(&o.memory, "memory", "", "least memory of one card, such as 40GB")
	f.IntVar(&o.count, "count", 0, "GPUs of one machine, exactly")
	f.StringSliceVar(&o.terms, "terms", nil, "on-demand, spot, reserved, owned")
	f.StringSliceVar(&o.classes, "class", nil, "hyperscaler, neocloud, marketplace, colo, serverless, own")
	f.StringSliceVar(&o.countries, "country", nil, "ISO 3166-1 codes, such as DE,FI")
	f.StringSliceVar(&o.providers, "provider", nil, "short names, such as runpod")
	f.StringSliceVar(&o.regions, "region", nil, "regions")
	f.StringVar(&o.price, "max-price", "", "most that one GPU hour may cost, in USD")
	f.StringVar(&o.by, "by", "price", "rank by price, or by memory, flops or bandwidth per dollar")
	f.StringVar(&o.file, "offers", "", "use only the offers of this file")
	f.IntVar(&o.top, "top", 0, "show at most this many (default: 20 in tables, all else)")
	f.BoolVar(&o.history, "history", false, "show how the prices moved")
	return c
}

// OfferRow is an offer as JSON.
type offerRow struct {
	ID           string                `json:"id"`
	Provider     string                `json:"provider"`
	Class        offer.Class           `json:"class"`
	Region       string                `json:"region"`
	Zone         string                `json:"zone"`
	Country      string                `json:"country"`
	InstanceType string                `json:"instance_type"`
	GPU          string                `json:"gpu"`
	GPUCount     int                   `json:"gpu_count"`
	GPUMemoryGB  float64               `json:"gpu_memory_gb"`
	VCPUs        *float64              `json:"vcpus"`
	MemoryGB     *float64              `json:"memory_gb"`
	Terms        offer.Terms           `json:"terms"`
	TermMonths   int                   `json:"term_months,omitempty"`
	Currency     string                `json:"currency"`
	PriceHour    *money.Amount         `json:"price_hour"`
	PriceGPUHour *money.Amount         `json:"price_gpu_hour"`
	Parts        map[string]*pricePart `json:"parts"`
	Interruption *float64              `json:"interruptions_per_hour"`
	Assumed      bool                  `json:"interruptions_assumed,omitempty"`
	Available    *bool                 `json:"available"`
	Verified     *bool                 `json:"verified"`
	Source       string                `json:"source"`
	AsOf         offer.Date            `json:"as_of"`
	AgeDays      *int                  `json:"age_days"`
	Stale        bool                  `json:"stale"`
	Note         string                `json:"note,omitempty"`
}

type pricePart struct {
	Amount money.Amount `json:"amount"`
	Tiers  []tier       `json:"tiers,omitempty"`
	Source string       `json:"source"`
	AsOf   offer.Date   `json:"as_of"`
}

type tier struct {
	FromGB float64      `json:"from_gb"`
	Amount money.Amount `json:"amount"`
}

func known[T any](o offer.Opt[T]) *T {
	if !o.Known {
		return nil
	}
	return &o.Value
}

func rowOf(o *offer.Offer, now time.Time) offerRow {
	r := offerRow{ID: o.ID, Provider: o.Provider, Class: o.Class, Region: o.Region, Zone: o.Zone, Country: o.Country, InstanceType: o.InstanceType,
		GPU: o.GPUName(), GPUCount: o.GPUCount, VCPUs: known(o.VCPUs), MemoryGB: known(o.MemoryGB), Terms: o.Terms, TermMonths: o.TermMonths,
		Currency: o.Currency, Interruption: known(o.InterruptionsPerHour), Assumed: o.InterruptionsAssumed, Available: known(o.Available),
		Verified: known(o.Verified), Source: o.Source, AsOf: o.AsOf, Note: o.Note, Parts: map[string]*pricePart{}}
	if o.GPU != nil {
		r.GPUMemoryGB = o.GPU.MemoryGB
	}
	if o.Prices.Compute != nil {
		r.PriceHour = &o.Prices.Compute.Amount
	}
	if p, ok := o.PerGPU(); ok {
		r.PriceGPUHour = &p
	}
	stale, days := o.Stale(now)
	r.Stale = stale
	if days >= 0 {
		r.AgeDays = &days
	}
	for name, p := range map[string]*offer.Price{"upfront": o.Prices.Upfront, "disk_gb_month": o.Prices.DiskRunning, "disk_stopped_gb_month": o.Prices.DiskStopped,
		"egress_gb": o.Prices.Egress, "ingress_gb": o.Prices.Ingress, "address_hour": o.Prices.Address, "fee": o.Prices.Fee} {
		if p == nil {
			r.Parts[name] = nil
			continue
		}
		part := &pricePart{Amount: p.Amount, Source: p.Source, AsOf: p.AsOf}
		for _, t := range p.Tiers {
			part.Tiers = append(part.Tiers, tier(t))
		}
		r.Parts[name] = part
	}
	return r
}

func (a *app) listOffers(args []string, o offerOptions) error {
	if o.top < 0 || o.count < 0 {
		return fault.New(fault.Invalid, "--top and --count cannot be negative").Hint("write numbers from 1")
	}
	keep, err := offerFilter(args, o)
	if err != nil {
		return err
	}
	all, err := a.offers(o.file)
	if err != nil {
		return err
	}
	var found []*offer.Offer
	for _, x := range all {
		if keep(x) {
			found = append(found, x)
		}
	}
	score, err := offerScore(o.by)
	if err != nil {
		return err
	}
	slices.SortStableFunc(found, func(x, y *offer.Offer) int { return cmp.Or(cmp.Compare(score(y), score(x)), cmp.Compare(x.ID, y.ID)) })
	if o.history {
		return a.history(found)
	}
	now := a.Now()
	l := listing{header: []string{"GPU/H", "MACHINE/H", "GPU", "PROVIDER", "INSTANCE", "REGION", "COUNTRY", "TERMS", "AS OF"}, right: map[int]bool{0: true, 1: true}, shrink: 4}
	if o.by != "price" {
		l.header = append([]string{strings.ToUpper(o.by) + "/$"}, l.header...)
		l.right, l.shrink = map[int]bool{0: true, 1: true, 2: true}, 5
	}
	if !a.tabular() {
		l.header = append(l.header, "ID")
	}
	top := o.top
	if top == 0 && a.tabular() {
		top = 20
	}
	var rows []offerRow
	stale := 0
	for i, x := range found {
		if top > 0 && i == top {
			l.foot = append(l.foot, fmt.Sprintf("%d more: --top %d shows all", len(found)-top, len(found)))
			break
		}
		each, machine := "unknown", "unknown"
		if p, ok := x.PerGPU(); ok {
			each, machine = p.Fixed(3), x.Prices.Compute.Amount.Fixed(2)
		}
		date := string(x.AsOf)
		if old, _ := x.Stale(now); old {
			if a.tabular() {
				date += "!"
			}
			stale++
		}
		row := []string{each, machine, counted(x, 1), x.Provider, x.InstanceType, x.Region, x.Country, string(x.Terms), date}
		if o.by != "price" {
			row = append([]string{strconv.FormatFloat(score(x), 'g', 4, 64)}, row...)
		}
		if !a.tabular() {
			row = append(row, x.ID)
		}
		l.rows = append(l.rows, row)
		rows = append(rows, rowOf(x, now))
	}
	if stale > 0 {
		l.foot = append(l.foot, "! the price is old: over 180 days, on marketplaces over 7")
	}
	if len(found) == 0 {
		fmt.Fprintln(a.Err, "destajo: no offer fits; `destajo catalog status` shows what there is")
		rows = []offerRow{}
	}
	return a.print(l, rows)
}

// offerFilter makes a test of the command's words.
func offerFilter(args []string, o offerOptions) (func(*offer.Offer) bool, error) {
	var requests []gpu.Request
	for _, s := range args {
		r, err := gpu.ParseRequest(s)
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	var memory float64
	if o.memory != "" {
		b, err := gpu.ParseBytes(strings.TrimSuffix(o.memory, "+"))
		if err != nil {
			return nil, err
		}
		memory = b.GB()
	}
	var most money.Amount
	if o.price != "" {
		var err error
		if most, err = money.Parse(o.price); err != nil {
			return nil, err
		}
	}
	for i, c := range o.countries {
		o.countries[i] = strings.ToUpper(c)
		if !job.IsCountry(o.countries[i]) {
			return nil, fault.New(fault.Invalid, "%q is no country", c).Hint("write ISO 3166-1 codes of two letters, such as DE")
		}
	}
	if err := words("terms", o.terms, offer.AllTerms()); err != nil {
		return nil, err
	}
	if err := words("class", o.classes, offer.Classes()); err != nil {
		return nil, err
	}
	among := func(all []string, s string) bool {
		return len(all) == 0 || slices.ContainsFunc(all, func(x string) bool { return strings.EqualFold(x, s) })
	}
	return func(x *offer.Offer) bool {
		if len(requests) > 0 && !slices.ContainsFunc(requests, func(r gpu.Request) bool { return r.Matches(x.GPU) && (r.Count == 0 || r.Count == x.GPUCount) }) {
			return false
		}
		if memory > 0 && (x.GPU == nil || x.GPU.MemoryGB < memory) || o.count > 0 && x.GPUCount != o.count {
			return false
		}
		if most > 0 {
			if p, ok := x.PerGPU(); !ok || p > most {
				return false
			}
		}
		return among(o.terms, string(x.Terms)) && among(o.classes, string(x.Class)) && among(o.countries, x.Country) && among(o.providers, x.Provider) && among(o.regions, x.Region)
	}, nil
}

func words[T ~string](flag string, given []string, known []T) error {
	for _, g := range given {
		if !slices.Contains(known, T(g)) {
			var all []string
			for _, k := range known {
				all = append(all, string(k))
			}
			return fault.New(fault.Invalid, "--%s %q is not one of %s", flag, g, strings.Join(all, ", ")).Hint("several are separated by commas")
		}
	}
	return nil
}

// offerScore gives what offers are ranked by, most first; an unknown price
// comes last.
func offerScore(by string) (func(*offer.Offer) float64, error) {
	per := func(figure func(*gpu.Model) float64) func(*offer.Offer) float64 {
		return func(o *offer.Offer) float64 {
			p, ok := o.PerGPU()
			if !ok || p <= 0 || o.GPU == nil {
				return 0
			}
			share := 1.0
			if o.Partition.Share > 0 {
				share = o.Partition.Share
			}
			return figure(o.GPU) * share / p.Float()
		}
	}
	switch by {
	case "price":
		return per(func(*gpu.Model) float64 { return 1 }), nil
	case "memory":
		return per(func(m *gpu.Model) float64 { return m.MemoryGB }), nil
	case "flops":
		return per(func(m *gpu.Model) float64 { return cmp.Or(m.FP16TFLOPS, m.FP32TFLOPS) }), nil
	case "bandwidth":
		return per(func(m *gpu.Model) float64 { return m.BandwidthGBs }), nil
	}
	return nil, fault.New(fault.Invalid, "cannot rank by %q", by).Hint("--by takes price, memory, flops or bandwidth")
}

func (a *app) history(found []*offer.Offer) error {
	all, err := a.local().History(found)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, o := range all {
		count[o.ID]++
	}
	l := listing{header: []string{"OFFER", "AS OF", "MACHINE/H", "CHANGE", "SOURCE"}, right: map[int]bool{2: true, 3: true}, shrink: 4}
	type row struct {
		ID     string       `json:"id"`
		AsOf   offer.Date   `json:"as_of"`
		Price  money.Amount `json:"price_hour"`
		Source string       `json:"source"`
	}
	rows := []row{}
	single := 0
	var before catalog.Observation
	for _, o := range all {
		rows = append(rows, row{o.ID, o.AsOf, o.Price, o.Source})
		if count[o.ID] == 1 {
			single++
			continue
		}
		change := ""
		if before.ID == o.ID && before.Price > 0 {
			change = fmt.Sprintf("%+.0f %%", 100*(o.Price.Float()/before.Price.Float()-1))
		}
		l.rows = append(l.rows, []string{o.ID, string(o.AsOf), o.Price.Fixed(3), change, o.Source})
		before = o
	}
	if single > 0 {
		l.foot = append(l.foot, fmt.Sprintf("%d more offers have one dated price only", single))
	}
	return a.print(l, rows)
}

func (a *app) gpusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "gpus [GPU]...", GroupID: "know", Short: "List the known GPUs and what they can do",
		Long: "List the known GPUs. TFLOPS are dense FP16 with FP32 accumulation.",
		RunE: func(_ *cobra.Command, args []string) error {
			var requests []gpu.Request
			for _, s := range args {
				r, err := gpu.ParseRequest(s)
				if err != nil {
					return err
				}
				requests = append(requests, r)
			}
			l := listing{header: []string{"GPU", "TITLE", "VENDOR", "MEMORY GB", "GB/S", "TFLOPS", "WATTS", "COMPUTE", "MIG", "CHECKED"},
				right: map[int]bool{3: true, 4: true, 5: true, 6: true}, shrink: 1}
			data := []gpuRow{}
			for _, m := range gpu.Models() {
				if len(requests) > 0 && !slices.ContainsFunc(requests, func(r gpu.Request) bool { return r.Matches(m) }) {
					continue
				}
				data = append(data, gpuRowOf(m))
				number := func(x float64) string {
					if x == 0 {
						return ""
					}
					return strconv.FormatFloat(x, 'f', -1, 64)
				}
				var mig []string
				for _, p := range m.MIG {
					mig = append(mig, p.Name)
				}
				profiles := strings.Join(mig, " ")
				if a.output == "" && a.Terminal || a.output == "table" {
					profiles = ""
					if len(mig) > 0 {
						profiles = strconv.Itoa(len(mig)) + " profiles"
					}
				}
				l.rows = append(l.rows, []string{m.Name, m.Title, m.Vendor, number(m.MemoryGB), number(m.BandwidthGBs), number(m.FP16TFLOPS), number(m.Watts), m.Compute, profiles, m.Checked})
			}
			return a.print(l, data)
		},
	}
}

// gpuRow is a card as JSON; what is unknown or absent is null.
type gpuRow struct {
	ID           string   `json:"id"`
	Name         string   `json:"name"`
	Title        string   `json:"title"`
	Vendor       string   `json:"vendor"`
	Family       string   `json:"family"`
	Architecture string   `json:"architecture"`
	Form         string   `json:"form"`
	MemoryGB     float64  `json:"memory_gb"`
	MemoryType   string   `json:"memory_type"`
	BandwidthGBs *float64 `json:"bandwidth_gb_s"`
	FP16         *float64 `json:"fp16_tflops"`
	FP32         *float64 `json:"fp32_tflops"`
	FP8          *float64 `json:"fp8_tflops"`
	FP4          *float64 `json:"fp4_tflops"`
	INT8         *float64 `json:"int8_tops"`
	Watts        *float64 `json:"watts"`
	Compute      string   `json:"compute"`
	Year         int      `json:"year"`
	Consumer     bool     `json:"consumer"`
	MIG          []migRow `json:"mig"`
	Source       string   `json:"source"`
	Checked      string   `json:"checked"`
}

type migRow struct {
	Profile       string  `json:"profile"`
	MemoryGB      float64 `json:"memory_gb"`
	ComputeSlices string  `json:"compute_slices"`
	Max           int     `json:"max"`
}

func gpuRowOf(m *gpu.Model) gpuRow {
	figure := func(x float64) *float64 {
		if x == 0 {
			return nil
		}
		return &x
	}
	r := gpuRow{ID: m.ID, Name: m.Name, Title: m.Title, Vendor: m.Vendor, Family: m.Family, Architecture: m.Architecture, Form: m.Form,
		MemoryGB: m.MemoryGB, MemoryType: m.MemoryType, BandwidthGBs: figure(m.BandwidthGBs), FP16: figure(m.FP16TFLOPS), FP32: figure(m.FP32TFLOPS),
		FP8: figure(m.FP8TFLOPS), FP4: figure(m.FP4TFLOPS), INT8: figure(m.INT8TOPS), Watts: figure(m.Watts), Compute: m.Compute, Year: m.Year,
		Consumer: m.Consumer, MIG: []migRow{}, Source: m.Source, Checked: m.Checked}
	for _, p := range m.MIG {
		r.MIG = append(r.MIG, migRow{p.Name, p.MemoryGB, p.ComputeSlices, p.Max})
	}
	return r
}

func (a *app) providersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "providers [NAME]...", GroupID: "know", Short: "Show what each provider bills, side by side",
		Long: "Show the providers' cards side by side. An empty cell is unknown. With a name, its card in full.",
		RunE: func(_ *cobra.Command, args []string) error { return a.providers(args) },
	}
}

type cardRow struct {
	ID           string        `json:"id"`
	Title        string        `json:"title"`
	Class        offer.Class   `json:"class"`
	Jurisdiction string        `json:"jurisdiction"`
	Certificates []string      `json:"certificates"`
	IncrementS   *float64      `json:"billing_increment_s"`
	MinimumS     *float64      `json:"billing_minimum_s"`
	Starts       string        `json:"billing_starts"`
	DiskRunning  *money.Amount `json:"disk_gb_month"`
	DiskStopped  *money.Amount `json:"disk_stopped_gb_month"`
	Egress       []string      `json:"egress_gb"`
	Stopped      string        `json:"stopped"`
	NoticeS      *float64      `json:"spot_notice_s"`
	StartupS     *float64      `json:"startup_s"`
	PriceAPI     *bool         `json:"price_api"`
	Offers       int           `json:"offers"`
	Unpriced     string        `json:"unpriced,omitempty"`
	Source       string        `json:"source"`
	AsOf         offer.Date    `json:"as_of"`
	Confidence   string        `json:"confidence"`
}

func (a *app) providers(args []string) error {
	offers, err := a.local().Offers()
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, o := range offers {
		count[o.Provider]++
	}
	var names []string
	for _, c := range catalog.Cards() {
		names = append(names, c.ID)
	}
	for i, n := range args {
		args[i] = catalog.ProviderID(n)
		if !slices.Contains(names, args[i]) {
			e := fault.New(fault.NotFound, "no provider %q", n)
			if near := fault.Nearest(n, names); len(near) > 0 {
				return e.Hint("did you mean %s?", strings.Join(near, " or "))
			}
			return e.Hint("`destajo providers` lists all")
		}
	}
	seconds := func(o offer.Opt[time.Duration]) *float64 {
		if !o.Known {
			return nil
		}
		s := o.Value.Seconds()
		return &s
	}
	amount := func(p *offer.Price) *money.Amount {
		if p == nil {
			return nil
		}
		return &p.Amount
	}
	l := listing{header: []string{"PROVIDER", "CLASS", "LAW", "OFFERS", "BILLS BY", "FROM", "DISK", "STOPPED", "EGRESS", "NOTICE", "START", "API"}, right: map[int]bool{3: true}, shrink: 1}
	var data []cardRow
	for _, c := range catalog.Cards() {
		if len(args) > 0 && !slices.Contains(args, c.ID) {
			continue
		}
		why := c.Unpriced
		if count[c.ID] == 0 && why == "" {
			why = "no dated price in the data"
		}
		if count[c.ID] > 0 {
			why = ""
		}
		r := cardRow{ID: c.ID, Title: c.Title, Class: c.Class, Jurisdiction: c.Jurisdiction, Certificates: c.Certificates, IncrementS: seconds(c.Billing.Increment),
			MinimumS: seconds(c.Billing.Minimum), Starts: string(c.Billing.Starts), DiskRunning: amount(c.DiskRunning), DiskStopped: amount(c.DiskStopped),
			Egress: c.Egress(), Stopped: c.Stopped, NoticeS: seconds(c.Notice), StartupS: seconds(c.Startup), PriceAPI: known(c.PriceAPI), Offers: count[c.ID],
			Unpriced: why, Source: c.Source, AsOf: c.AsOf, Confidence: c.Confidence}
		data = append(data, r)
		num := strconv.Itoa(r.Offers)
		if r.Offers == 0 {
			num = "unpriced"
		}
		l.rows = append(l.rows, []string{r.ID, string(r.Class), r.Jurisdiction, num, shortSeconds(r.IncrementS), r.Starts, shortAmount(r.DiskRunning), shortAmount(r.DiskStopped),
			firstEgress(r.Egress), shortSeconds(r.NoticeS), shortSeconds(r.StartupS), shortBool(r.PriceAPI)})
		if r.Unpriced != "" {
			l.foot = append(l.foot, r.ID+": unpriced: "+r.Unpriced)
		}
	}
	if len(args) > 0 && (a.output == "" || a.output == "table") {
		for _, r := range data {
			a.card(r)
		}
		return nil
	}
	return a.print(l, data)
}

func (a *app) card(r cardRow) {
	line := func(name, value string) {
		fmt.Fprintln(a.Out, wrap(fmt.Sprintf("  %-14s %s", name, orUnknown(value)), a.columns()))
	}
	fmt.Fprintln(a.Out, a.bold(r.Title+" ("+r.ID+")"))
	line("class", string(r.Class))
	line("jurisdiction", r.Jurisdiction)
	line("certificates", strings.Join(r.Certificates, ", "))
	line("bills by", shortSeconds(r.IncrementS))
	line("at least", shortSeconds(r.MinimumS))
	line("bills from", r.Starts)
	line("disk", shortAmount(r.DiskRunning))
	line("disk, stopped", shortAmount(r.DiskStopped))
	line("egress", strings.Join(r.Egress, "; "))
	line("stopped", r.Stopped)
	line("spot notice", shortSeconds(r.NoticeS))
	line("start-up", shortSeconds(r.StartupS))
	line("price API", shortBool(r.PriceAPI))
	if r.Unpriced != "" {
		line("unpriced", r.Unpriced)
	} else {
		line("offers", strconv.Itoa(r.Offers))
	}
	line("source", r.Source+", "+string(r.AsOf)+" ("+r.Confidence+")")
}

func shortSeconds(s *float64) string {
	switch {
	case s == nil:
		return ""
	case *s >= 3600 && *s == float64(int(*s/3600))*3600:
		return strconv.Itoa(int(*s/3600)) + "h"
	case *s >= 60 && *s == float64(int(*s/60))*60:
		return strconv.Itoa(int(*s/60)) + "m"
	}
	return strconv.FormatFloat(*s, 'f', -1, 64) + "s"
}

func shortAmount(a *money.Amount) string {
	if a == nil {
		return ""
	}
	return a.String()
}

func shortBool(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "yes"
	}
	return "no"
}

// firstEgress is the price of egress above what is free, of the first region.
func firstEgress(all []string) string {
	if len(all) == 0 {
		return ""
	}
	for _, t := range strings.Fields(all[0]) {
		if _, price, ok := strings.Cut(t, ":"); ok && price != "0" {
			return price
		}
	}
	f := strings.Fields(all[0])
	return strings.TrimPrefix(f[len(f)-1], "0:")
}

func (a *app) schemaCommand() *cobra.Command {
	c := parent(&cobra.Command{Use: "schema", GroupID: "other", Short: "Print the JSON Schema of a file"})
	c.AddCommand(&cobra.Command{
		Use: "job", Short: "JSON Schema of the job file", Args: nothing,
		RunE: func(*cobra.Command, []string) error {
			s, err := job.Schema()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.Out, string(s))
			return err
		},
	})
	return c
}

func (a *app) docsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "docs [CHAPTER]", GroupID: "other", Short: "Read the manual",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				l := listing{header: []string{"CHAPTER", "TITLE"}}
				for _, c := range docs.Chapters() {
					l.rows = append(l.rows, []string{c.Name, c.Title})
				}
				return a.print(l, docs.Chapters())
			}
			text, ok := docs.Chapter(args[0])
			if !ok {
				return fault.New(fault.NotFound, "no chapter %q", args[0]).Hint("`destajo docs` lists them")
			}
			_, err := fmt.Fprint(a.Out, text)
			return err
		},
	}
}

// Version is set when a release is built.
var version = "dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", GroupID: "other", Short: "Print the version", Args: nothing,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
				Go      string `json:"go"`
			}{Version: version}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Go = info.GoVersion
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v.Commit = s.Value
					}
				}
			}
			if a.output == "json" {
				return a.printJSON(v)
			}
			fmt.Fprintln(a.Out, strings.TrimSpace("destajo "+v.Version+" "+v.Commit+" "+v.Go))
			return nil
		},
	}
}
