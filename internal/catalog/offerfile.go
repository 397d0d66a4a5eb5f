package catalog

import (
	"bytes"
	"encoding/csv"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Column is one column of the offer file.
type Column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Unit     string `json:"unit"`
	Meaning  string `json:"meaning"`
	Required bool   `json:"required"`
}

// Schema lists the columns of the offer file. They may come in any order;
// those that are not required may be absent. An empty cell is unknown.
func Schema() []Column {
	return []Column{
		{"id", "text", "", "stable id; derived from provider, region, instance type, GPU, count, terms and term when empty", false},
		{"provider", "text", "", "short name of who sells", true},
		{"class", "word", "", "hyperscaler, neocloud, marketplace, colo, serverless, own", false},
		{"region", "text", "", "", false},
		{"zone", "text", "", "", false},
		{"country", "code", "", "ISO 3166-1 alpha-2", false},
		{"instance_type", "text", "", "", false},
		{"gpu", "text", "", "card; name and memory must mean one card. Empty: a machine without GPU", true},
		{"gpu_count", "whole number", "", "1 when empty", false},
		{"gpu_memory_gb", "number", "GB", "of one card", false},
		{"partition", "text", "", "MIG profile such as 3g.40gb, or share such as 0.5", false},
		{"vcpus", "number", "", "", false},
		{"memory_gb", "number", "GB", "of the host", false},
		{"terms", "word", "", "on-demand, spot, reserved, owned; on-demand when empty", false},
		{"term_months", "whole number", "months", "of a reservation", false},
		{"price_hour", "money", "per hour", "of the whole machine", true},
		{"upfront", "money", "once", "of a reservation", false},
		{"currency", "code", "", "ISO 4217; USD when empty", false},
		{"disk_included_gb", "number", "GB", "", false},
		{"disk_gb_month", "money", "per GB and month", "while the machine runs", false},
		{"disk_stopped_gb_month", "money", "per GB and month", "while it is stopped", false},
		{"egress_gb", "money", "per GB", "out to the internet: one price, or tiers FROM_GB:PRICE separated by spaces", false},
		{"ingress_gb", "money", "per GB", "", false},
		{"address_hour", "money", "per hour", "public address", false},
		{"fee", "money", "once", "per machine", false},
		{"billing_increment_s", "number", "s", "", false},
		{"billing_minimum_s", "number", "s", "", false},
		{"billing_starts", "word", "", "request, boot, running, job", false},
		{"startup_s", "number", "s", "typical, from request to running", false},
		{"interruptions_per_hour", "number", "per hour", "of one machine; spot only", false},
		{"notice_s", "number", "s", "before an interruption", false},
		{"available", "true/false", "", "", false},
		{"verified", "true/false", "", "the seller was checked", false},
		{"encrypted_disk", "true/false", "", "", false},
		{"certificates", "text", "", "separated by spaces", false},
		{"interconnect", "text", "", "between machines", false},
		{"download_mbps", "number", "Mbit/s", "", false},
		{"source", "text", "", "where the price was read", false},
		{"as_of", "date", "", "day of the price: 2026-07-01; 2026-07 and 2026 are read too", false},
	}
}

var providerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9 ._-]{0,63}$`) })

// maxPrice is the most that a machine hour, or any other part, may cost: a
// larger number is a mistake.
const maxPrice = 1_000_000 * money.Unit

// ReadOffers reads an offer file. Any mistake in it is an error that lists
// the mistakes with their places, and nothing of the file is used.
func ReadOffers(file string, data []byte) ([]*offer.Offer, error) {
	t, err := openTable(file, data, ',')
	if err != nil {
		return nil, err
	}
	if err := checkHeader(t); err != nil {
		return nil, err
	}
	r := &reader{table: t, words: intern{}, cards: map[cardKey]cardFound{}}
	var out []*offer.Offer
	var all mistakes
	seen := map[string]int{}
	for {
		more, err := t.next()
		if err != nil {
			return nil, append(all, err).join(file)
		}
		if !more {
			break
		}
		r.faults = r.faults[:0]
		o := r.offer()
		if len(r.faults) == 0 {
			if first, twice := seen[o.ID]; twice {
				r.fail("id", "the offer %q stands in line %d too", o.ID, first).Hint("give each row an id of its own, or remove one")
			} else {
				seen[o.ID] = t.line
			}
		}
		for _, f := range r.faults {
			all = append(all, f)
		}
		if len(all) > 10_000 {
			break
		}
		out = append(out, o)
	}
	if len(all) > 0 {
		return nil, all.join(file)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "the file has a header and no offers").At(file, 1, 0).Hint("it may be cut off")
	}
	return out, nil
}

func checkHeader(t *table) error {
	var known []string
	for _, c := range Schema() {
		known = append(known, c.Name)
	}
	var all mistakes
	for i, name := range t.header {
		if slices.Contains(known, strings.ToLower(name)) {
			continue
		}
		shown := name
		if len(shown) > 60 {
			shown = shown[:60] + "…"
		}
		e := fault.New(fault.Invalid, "unknown column %q", shown).At(t.file, 1, i+1)
		if near := fault.Nearest(name, known); len(near) > 0 {
			e.Hint("did you mean %s? `destajo catalog schema` lists all", strings.Join(near, " or "))
		} else {
			e.Hint("`destajo catalog schema` lists the columns; other formats are read by `destajo catalog import`")
		}
		all = append(all, e)
	}
	for _, c := range Schema() {
		if c.Required && !t.has(c.Name) {
			all = append(all, fault.New(fault.Invalid, "the column %s is missing", c.Name).At(t.file, 1, 0).Hint("`destajo catalog schema` lists the columns"))
		}
	}
	if len(all) > 0 {
		return all.join(t.file)
	}
	return nil
}

// reader turns the rows of a table into offers and notes mistakes.
type reader struct {
	*table
	words  intern
	faults []error
	cards  map[cardKey]cardFound
	last   [8]*offer.Price // price parts of the row before, to share equal ones
}

type cardKey struct {
	name, hint string
	memory     float64
}

type cardFound struct {
	model *gpu.Model
	err   error
}

func (r *reader) fail(column, format string, args ...any) *fault.Error {
	e := r.table.fail(column, format, args...)
	r.faults = append(r.faults, e)
	return e
}

// card resolves a GPU, once for each spelling.
func (r *reader) card(name string, memory float64, hint string) (*gpu.Model, error) {
	key := cardKey{name, hint, memory}
	found, ok := r.cards[key]
	if !ok {
		found.model, found.err = gpu.Resolve(name, memory, hint)
		key.name, key.hint = strings.Clone(name), strings.Clone(hint)
		r.cards[key] = found
	}
	return found.model, found.err
}

func (r *reader) offer() *offer.Offer {
	o := &offer.Offer{
		ID: r.words.of(r.get("id")), Provider: r.words.of(strings.ToLower(r.get("provider"))),
		Region: r.words.of(r.get("region")), Zone: r.words.of(r.get("zone")), Country: r.words.of(strings.ToUpper(r.get("country"))),
		InstanceType: r.words.of(r.get("instance_type")), Currency: r.words.of(strings.ToUpper(r.get("currency"))),
		Interconnect: r.words.of(r.get("interconnect")), Source: r.words.of(r.get("source")), AsOf: offer.Date(r.words.of(r.get("as_of"))),
	}
	if o.Provider == "" {
		r.fail("provider", "is empty").Hint("name who sells")
	} else if !providerName().MatchString(o.Provider) {
		r.fail("provider", "%q is no short name", o.Provider).Hint("use letters, digits, points, spaces and -, as in runpod or vast.ai")
	}
	if o.Currency == "" {
		o.Currency = "USD"
	}
	if len(o.Currency) != 3 {
		r.fail("currency", "%q is no currency code", o.Currency).Hint("write an ISO 4217 code such as USD or EUR")
	}
	if o.Country != "" && !job.IsCountry(o.Country) {
		r.fail("country", "%q is no country", o.Country).Hint("write an ISO 3166-1 code of two letters, such as DE")
	}
	o.Class = offer.Class(r.word("class", string(offer.Neocloud), strs(offer.Classes())))
	if r.get("class") == "" {
		if c, ok := CardOf(o.Provider); ok {
			o.Class = c.Class
		}
	}
	o.Terms = offer.Terms(r.word("terms", string(offer.OnDemand), strs(offer.AllTerms())))
	if o.AsOf != "" {
		if _, ok := o.AsOf.Time(); !ok {
			r.fail("as_of", "%q is no date", string(o.AsOf)).Hint("write it as 2026-07-01")
		}
	}
	r.machine(o)
	r.prices(o)
	r.billing(o)
	if o.ID == "" && len(r.faults) == 0 {
		o.ID = r.words.of(o.DeriveID())
	}
	return o
}

// machine reads what is rented.
func (r *reader) machine(o *offer.Offer) {
	o.GPUCount = 1
	if n, ok := r.number("gpu_count", 0, 100_000); ok {
		o.GPUCount = int(n)
		if n != math.Trunc(n) {
			r.fail("gpu_count", "%v is no whole number", n).Hint("for a part of a card write gpu_count 1 and partition %v", n)
		}
	}
	memory, _ := r.number("gpu_memory_gb", 0, 10_000)
	name := r.get("gpu")
	switch {
	case name == "" || name == "0" || strings.EqualFold(name, "none"):
		o.GPUCount = 0
	case o.GPUCount == 0:
		r.fail("gpu_count", "0, but the row names a GPU").Hint("write how many, or leave gpu empty")
	default:
		m, err := r.card(name, memory, r.get("instance_type"))
		if err != nil {
			e := r.fail("gpu", "%s", err.Error())
			e.Next = fault.HintOf(err)
		}
		o.GPU = m
	}
	if p := r.get("partition"); p != "" && o.GPU != nil {
		r.partition(o, p)
	}
	o.VCPUs = r.known("vcpus", 0, 1e6)
	o.MemoryGB = r.known("memory_gb", 0, 1e7)
	o.DiskIncludedGB = r.known("disk_included_gb", 0, 1e9)
	o.DownloadMbps = r.known("download_mbps", 1e-3, 1e8)
	o.Available, o.Verified, o.EncryptedDisk = r.flag("available"), r.flag("verified"), r.flag("encrypted_disk")
	if c := r.get("certificates"); c != "" {
		o.Certificates = strings.Fields(c)
	}
}

func (r *reader) partition(o *offer.Offer, p string) {
	if share, err := strconv.ParseFloat(p, 64); err == nil {
		if !(share > 0 && share <= 1) {
			r.fail("partition", "%s is no share of a card", p).Hint("write a number above 0 and up to 1, or a MIG profile")
		} else if share < 1 {
			o.Partition.Share = share
		}
		return
	}
	profile, ok := o.GPU.Profile(p)
	if !ok {
		var have []string
		for _, q := range o.GPU.MIG {
			have = append(have, q.Name)
		}
		e := r.fail("partition", "%s has no MIG profile %q", o.GPU.Name, p)
		if len(have) > 0 {
			e.Hint("it has %s", strings.Join(have, ", "))
		} else {
			e.Hint("it cannot be cut with MIG: write a share such as 0.5")
		}
		return
	}
	o.Partition.Profile = profile.Name
}

// prices reads the price parts.
func (r *reader) prices(o *offer.Offer) {
	months, ok := r.number("term_months", 0, 600)
	if ok {
		o.TermMonths = int(months)
	}
	if o.Terms == offer.Reserved && o.TermMonths == 0 {
		r.fail("term_months", "a reservation without its term").Hint("write the number of months")
	}
	part := func(i int, column string, zero bool) *offer.Price {
		text := r.get(column)
		if text == "" {
			return nil
		}
		a, ok := r.money(column, text)
		if !ok {
			return nil
		}
		if a == 0 && !zero {
			r.fail(column, "a price of 0").Hint("leave the cell empty when the price is unknown; only machines of the class own may cost 0")
			return nil
		}
		return r.share(i, offer.Price{Amount: a, Source: o.Source, AsOf: o.AsOf})
	}
	p := &o.Prices
	p.Compute = part(0, "price_hour", o.Class == offer.Own || o.Terms == offer.Owned)
	p.Upfront = part(1, "upfront", true)
	p.DiskRunning = part(2, "disk_gb_month", true)
	p.DiskStopped = part(3, "disk_stopped_gb_month", true)
	p.Ingress = part(4, "ingress_gb", true)
	p.Address = part(5, "address_hour", true)
	p.Fee = part(6, "fee", true)
	if text := r.get("egress_gb"); text != "" {
		if e := r.egress(text); e != nil {
			e.Source, e.AsOf = o.Source, o.AsOf
			p.Egress = r.share(7, *e)
		}
	}
}

// share gives the price of the row before when it is equal.
func (r *reader) share(i int, p offer.Price) *offer.Price {
	if l := r.last[i]; l != nil && l.Amount == p.Amount && l.Source == p.Source && l.AsOf == p.AsOf && slices.Equal(l.Tiers, p.Tiers) {
		return l
	}
	r.last[i] = &p
	return &p
}

// egress reads one price, or tiers FROM_GB:PRICE.
func (r *reader) egress(text string) *offer.Price {
	if !strings.Contains(text, ":") {
		if a, ok := r.money("egress_gb", text); ok {
			return &offer.Price{Amount: a}
		}
		return nil
	}
	var p offer.Price
	for i, word := range strings.Fields(text) {
		from, price, ok := strings.Cut(word, ":")
		gb, err := strconv.ParseFloat(from, 64)
		if !ok || err != nil || !(gb >= 0) || gb > 1e12 || i == 0 && gb != 0 || i > 0 && gb <= p.Tiers[i-1].FromGB {
			r.fail("egress_gb", "%q is no tier", word).Hint("write FROM_GB:PRICE, ascending from 0, as in 0:0 100:0.09 10340:0.085")
			return nil
		}
		a, ok := r.money("egress_gb", price)
		if !ok {
			return nil
		}
		p.Tiers = append(p.Tiers, offer.Tier{FromGB: gb, Amount: a})
	}
	return &p
}

func (r *reader) money(column, text string) (money.Amount, bool) {
	a, err := money.Parse(text)
	switch {
	case err != nil:
		e := r.fail(column, "%s", err.Error())
		e.Next = fault.HintOf(err)
	case a < 0:
		r.fail(column, "%s is negative", text).Hint("a price is 0 or more")
	case a > maxPrice:
		r.fail(column, "%s is beyond any price", text).Hint("look for a missing point")
	default:
		return a, true
	}
	return 0, false
}

// billing reads how time is counted and what interrupts.
func (r *reader) billing(o *offer.Offer) {
	o.Billing.Increment = r.seconds("billing_increment_s")
	o.Billing.Minimum = r.seconds("billing_minimum_s")
	o.Billing.Starts = offer.BillingStart(r.word("billing_starts", "", []string{"request", "boot", "running", "job"}))
	o.Startup = r.seconds("startup_s")
	o.Notice = r.seconds("notice_s")
	o.InterruptionsPerHour = r.known("interruptions_per_hour", 0, 1000)
}

func (r *reader) word(column, other string, known []string) string {
	s := strings.ToLower(r.get(column))
	if s == "" {
		return other
	}
	if !slices.Contains(known, s) {
		e := r.fail(column, "%q is not one of %s", s, strings.Join(known, ", "))
		if near := fault.Nearest(s, known); len(near) > 0 {
			e.Hint("did you mean %s?", near[0])
		} else {
			e.Hint("write one of these words, or leave the cell empty")
		}
		return other
	}
	return r.words.of(s)
}

// number reads a number within bounds; false when the cell is empty or wrong.
func (r *reader) number(column string, least, most float64) (float64, bool) {
	s := r.get(column)
	if s == "" {
		return 0, false
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		if len(s) > 40 {
			s = s[:40] + "…"
		}
		e := r.fail(column, "%q is no number", s)
		if strings.Contains(s, ",") {
			e.Hint("write a point for decimals and no separators")
		} else {
			e.Hint("write digits with at most one point, or leave the cell empty when it is unknown")
		}
		return 0, false
	}
	if x < least || x > most {
		r.fail(column, "%s is out of range", s).Hint("it lies between %v and %v", least, most)
		return 0, false
	}
	return x, true
}

func (r *reader) known(column string, least, most float64) offer.Opt[float64] {
	if x, ok := r.number(column, least, most); ok {
		return offer.Some(x)
	}
	return offer.Opt[float64]{}
}

func (r *reader) seconds(column string) offer.Opt[time.Duration] {
	if x, ok := r.number(column, 0, 366*24*3600); ok {
		return offer.Some(time.Duration(x * float64(time.Second)))
	}
	return offer.Opt[time.Duration]{}
}

func (r *reader) flag(column string) offer.Opt[bool] {
	switch strings.ToLower(r.get(column)) {
	case "":
		return offer.Opt[bool]{}
	case "true", "yes", "1":
		return offer.Some(true)
	case "false", "no", "0":
		return offer.Some(false)
	}
	r.fail(column, "%q is neither true nor false", r.get(column)).Hint("write true or false, or leave the cell empty when it is unknown")
	return offer.Opt[bool]{}
}

func strs[T ~string](all []T) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = string(s)
	}
	return out
}

// WriteOffers writes an offer file with all columns.
func WriteOffers(offers []*offer.Offer) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	var header []string
	for _, c := range Schema() {
		header = append(header, c.Name)
	}
	if err := w.Write(header); err != nil {
		return nil, err
	}
	for _, o := range offers {
		if err := w.Write(cells(o)); err != nil {
			return nil, err
		}
	}
	w.Flush()
	return b.Bytes(), w.Error()
}

func cells(o *offer.Offer) []string {
	price := func(p *offer.Price) string {
		if p == nil {
			return ""
		}
		if p.Tiers == nil {
			return p.Amount.String()
		}
		var tiers []string
		for _, t := range p.Tiers {
			tiers = append(tiers, num(t.FromGB)+":"+t.Amount.String())
		}
		return strings.Join(tiers, " ")
	}
	known := func(x offer.Opt[float64]) string {
		if !x.Known {
			return ""
		}
		return num(x.Value)
	}
	seconds := func(x offer.Opt[time.Duration]) string {
		if !x.Known {
			return ""
		}
		return num(x.Value.Seconds())
	}
	flag := func(x offer.Opt[bool]) string {
		if !x.Known {
			return ""
		}
		return strconv.FormatBool(x.Value)
	}
	name, memory, months := "", "", ""
	if o.GPU != nil {
		name, memory = o.GPU.Name, num(o.GPU.MemoryGB)
	}
	if o.TermMonths > 0 {
		months = strconv.Itoa(o.TermMonths)
	}
	p := &o.Prices
	return []string{o.ID, o.Provider, string(o.Class), o.Region, o.Zone, o.Country, o.InstanceType, name, strconv.Itoa(o.GPUCount), memory,
		o.Partition.String(), known(o.VCPUs), known(o.MemoryGB), string(o.Terms), months, price(p.Compute), price(p.Upfront), o.Currency,
		known(o.DiskIncludedGB), price(p.DiskRunning), price(p.DiskStopped), price(p.Egress), price(p.Ingress), price(p.Address), price(p.Fee),
		seconds(o.Billing.Increment), seconds(o.Billing.Minimum), string(o.Billing.Starts), seconds(o.Startup), known(o.InterruptionsPerHour), seconds(o.Notice),
		flag(o.Available), flag(o.Verified), flag(o.EncryptedDisk), strings.Join(o.Certificates, " "), o.Interconnect, known(o.DownloadMbps), o.Source, string(o.AsOf)}
}

func num(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
