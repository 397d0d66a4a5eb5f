// Package catalog knows what GPUs cost: an embedded snapshot of dated offers,
// a card for each provider, price lists that users import, the history of
// prices, and the figures of economics around them. It fills in what a
// provider's card says about all its offers; what nobody says stays unknown.
package catalog

import (
	_ "embed"
	"encoding/csv"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// The embedded tables, facts with their sources in our own schema.
var (
	//go:embed providers.csv
	providersCSV string
	//go:embed regions.csv
	regionsCSV string
	//go:embed egress.csv
	egressCSV string
	//go:embed interruptions.csv
	interruptionsCSV string
	//go:embed instances.csv
	instancesCSV string
)

// rows reads an embedded table into rows that are asked by column name.
func rows(name, text string) []func(column string) string {
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		panic("catalog: embedded table " + name + ": " + err.Error())
	}
	at := map[string]int{}
	for i, c := range all[0] {
		at[c] = i
	}
	out := make([]func(string) string, len(all)-1)
	for i := range out {
		row := all[i+1]
		out[i] = func(column string) string {
			j, ok := at[column]
			if !ok {
				panic("catalog: embedded table " + name + " has no column " + column)
			}
			return row[j]
		}
	}
	return out
}

// Card is what a provider says about all its offers. An Opt that is not
// Known, a nil price and an empty text are unknown.
type Card struct {
	ID           string
	Title        string
	Class        offer.Class
	Jurisdiction string // country whose law binds the seller
	Certificates []string
	Billing      offer.Billing
	DiskRunning  *offer.Price // per GB and month
	DiskStopped  *offer.Price
	Ingress      *offer.Price
	Address      *offer.Price
	Stopped      string // what a stopped machine costs, in words
	Notice       offer.Opt[time.Duration]
	Startup      offer.Opt[time.Duration]
	PriceAPI     offer.Opt[bool]
	Unpriced     string // why no price is known; empty when there are prices
	Source       string
	AsOf         offer.Date
	Confidence   string
	egress       []egressRegion
	rates        [2]interruptionRate // single GPU, 8-GPU node
}

type egressRegion struct {
	regions string // names, or a part of the world; "all"
	price   *offer.Price
}

type interruptionRate struct {
	perHour, recoveries float64
	known               bool
}

type cardTable struct {
	cards []*Card
	byID  map[string]*Card
	alias map[string]string
}

var cards = sync.OnceValue(func() *cardTable {
	t := &cardTable{byID: map[string]*Card{}, alias: map[string]string{}}
	for _, row := range rows("providers", providersCSV) {
		c := &Card{ID: row("id"), Title: row("title"), Class: offer.Class(row("class")), Jurisdiction: row("jurisdiction"),
			Certificates: strings.Fields(row("certificates")), Stopped: row("stopped"), Unpriced: row("unpriced"),
			Source: row("source"), AsOf: offer.Date(row("as_of")), Confidence: row("confidence")}
		price := func(column string) *offer.Price {
			if row(column) == "" {
				return nil
			}
			a, err := money.Parse(row(column))
			if err != nil {
				panic("catalog: card of " + c.ID + ": " + err.Error())
			}
			return &offer.Price{Amount: a, Source: c.Source, AsOf: c.AsOf}
		}
		seconds := func(column string) offer.Opt[time.Duration] {
			n, err := strconv.ParseFloat(row(column), 64)
			if err != nil {
				return offer.Opt[time.Duration]{}
			}
			return offer.Some(time.Duration(n * float64(time.Second)))
		}
		c.DiskRunning, c.DiskStopped = price("disk_running"), price("disk_stopped")
		c.Ingress, c.Address = price("ingress"), price("address_hour")
		c.Billing = offer.Billing{Increment: seconds("increment_s"), Minimum: seconds("minimum_s"),
			Starts: offer.BillingStart(row("billing_starts")), StoppedFull: row("stopped_full") == "yes"}
		c.Notice, c.Startup = seconds("notice_s"), seconds("startup_s")
		if a := row("price_api"); a != "" {
			c.PriceAPI = offer.Some(a == "yes")
		}
		t.cards = append(t.cards, c)
		t.byID[c.ID] = c
		t.alias[strings.ToLower(c.Title)] = c.ID
		for _, a := range strings.Split(row("aliases"), "|") {
			t.alias[strings.ToLower(a)] = c.ID
		}
	}
	for _, row := range rows("egress", egressCSV) {
		c := t.byID[row("provider")]
		if c == nil {
			continue
		}
		r := &reader{table: &table{}, words: intern{}}
		p := r.egress(row("price_gb"))
		if p == nil {
			panic("catalog: egress of " + c.ID)
		}
		p.Source, p.AsOf = row("source"), offer.Date(row("as_of"))
		if len(p.Tiers) == 1 {
			p.Amount, p.Tiers = p.Tiers[0].Amount, nil
		}
		c.egress = append(c.egress, egressRegion{row("regions"), p})
	}
	for _, row := range rows("interruptions", interruptionsCSV) {
		c := t.byID[row("provider")]
		kind := map[string]int{"spot single GPU": 0, "spot 8-GPU node": 1}
		i, ok := kind[row("kind")]
		if c == nil || !ok {
			continue
		}
		c.rates[i].perHour, _ = strconv.ParseFloat(row("interruptions_per_hour"), 64)
		c.rates[i].recoveries, _ = strconv.ParseFloat(row("recoveries_per_hour"), 64)
		c.rates[i].known = true
	}
	return t
})

// Cards lists the providers in the order of the table.
func Cards() []*Card { return cards().cards }

// CardOf finds the card of a provider by its short name.
func CardOf(provider string) (*Card, bool) {
	c, ok := cards().byID[provider]
	return c, ok
}

// ProviderID is the short name of a provider that is written in any way.
func ProviderID(name string) string {
	n := strings.ToLower(strings.TrimSpace(name))
	t := cards()
	if _, ok := t.byID[n]; ok {
		return n
	}
	if id, ok := t.alias[n]; ok && n != "" {
		return id
	}
	return strings.ReplaceAll(n, " ", "-")
}

var regions = sync.OnceValue(func() map[string]string {
	t := map[string]string{}
	for _, row := range rows("regions", regionsCSV) {
		t[row("provider")+":"+strings.ToLower(row("region"))] = row("country")
	}
	return t
})

// CountryOf is the country of a provider's region; empty when unknown.
func CountryOf(provider, region string) string {
	r := strings.ToLower(region)
	t := regions()
	if c, ok := t[provider+":"+r]; ok {
		return c
	}
	return ""
}

// continents name the parts of the world that egress tables speak of.
var continents = map[string]string{
	"US": "North America", "CA": "North America", "MX": "North America",
	"DE": "Europe", "FR": "Europe", "ES": "Europe", "IT": "Europe", "NL": "Europe", "SE": "Europe", "NO": "Europe", "FI": "Europe", "PL": "Europe",
	"GB": "Europe", "IE": "Europe", "CH": "Europe", "AT": "Europe", "BE": "Europe", "DK": "Europe", "GR": "Europe", "IS": "Europe",
	"BR": "South America", "CL": "South America", "CO": "South America",
	"JP": "Asia", "KR": "Asia", "SG": "Asia", "IN": "Asia", "ID": "Asia", "MY": "Asia", "HK": "Asia", "TW": "Asia", "TH": "Asia", "AU": "Oceania", "NZ": "Oceania",
	"AE": "Middle East", "QA": "Middle East", "SA": "Middle East", "IL": "Middle East", "ZA": "Africa",
}

// egressFrom is the price of egress from a region of the provider.
func (c *Card) egressFrom(region, country string) *offer.Price {
	for _, e := range c.egress {
		if e.regions == "all" || len(c.egress) == 1 {
			return e.price
		}
		for r := range strings.FieldsSeq(e.regions) {
			if r == region {
				return e.price
			}
		}
	}
	part := continents[country]
	if part == "" {
		return nil
	}
	for _, e := range c.egress {
		if strings.Contains(e.regions, part) || strings.Contains(e.regions, "Asia-Pacific") && (part == "Asia" || part == "Oceania") {
			return e.price
		}
	}
	return nil
}

// Egress lists the prices of egress by part of the world.
func (c *Card) Egress() []string {
	var out []string
	for _, e := range c.egress {
		text := e.price.Amount.String()
		if e.price.Tiers != nil {
			var tiers []string
			for _, t := range e.price.Tiers {
				tiers = append(tiers, num(t.FromGB)+":"+t.Amount.String())
			}
			text = strings.Join(tiers, " ")
		}
		out = append(out, e.regions+" "+text)
	}
	return out
}

// Fill gives an offer what its provider's card says and it does not say itself.
func Fill(o *offer.Offer) {
	c, ok := CardOf(o.Provider)
	if !ok {
		return
	}
	c.fill(o)
}

func (c *Card) fill(o *offer.Offer) {
	p := &o.Prices
	if p.DiskRunning == nil {
		p.DiskRunning = c.DiskRunning
	}
	if p.DiskStopped == nil {
		p.DiskStopped = c.DiskStopped
	}
	if p.Ingress == nil {
		p.Ingress = c.Ingress
	}
	if p.Address == nil {
		p.Address = c.Address
	}
	if p.Egress == nil && c.egress != nil {
		p.Egress = c.egressFrom(o.Region, o.Country)
	}
	if !o.Billing.Increment.Known {
		o.Billing.Increment = c.Billing.Increment
	}
	if !o.Billing.Minimum.Known {
		o.Billing.Minimum = c.Billing.Minimum
	}
	if o.Billing.Starts == "" {
		o.Billing.Starts = c.Billing.Starts
	}
	o.Billing.StoppedFull = o.Billing.StoppedFull || c.Billing.StoppedFull
	if !o.Startup.Known {
		o.Startup = c.Startup
	}
	if o.Certificates == nil {
		o.Certificates = c.Certificates
	}
	if o.Terms != offer.Spot {
		return
	}
	if !o.Notice.Known {
		o.Notice = c.Notice
	}
	rate := c.rates[0]
	if o.GPUCount >= 8 && c.rates[1].known {
		rate = c.rates[1]
	}
	if !o.InterruptionsPerHour.Known && rate.known {
		o.InterruptionsPerHour, o.InterruptionsAssumed = offer.Some(rate.perHour), true
		o.RecoveriesPerHour = offer.Some(rate.recoveries)
	}
}

// instance is what is known of a provider's instance type.
type instance struct {
	model         *gpu.Model
	count         int
	cut           gpu.Partition
	vcpus, memory float64
	note          string // why it cannot be used
	pattern       string
}

type instanceTable struct {
	exact    map[string]instance
	patterns map[string][]instance
}

var instances = sync.OnceValue(func() *instanceTable {
	t := &instanceTable{exact: map[string]instance{}, patterns: map[string][]instance{}}
	for _, row := range rows("instances", instancesCSV) {
		k := instance{note: row("note"), pattern: strings.ToLower(row("instance_type"))}
		if id := row("gpu"); id != "" {
			m, ok := gpu.ByID(id)
			if !ok {
				panic("catalog: instance type of an unknown card " + id)
			}
			k.model = m
		}
		k.count, _ = strconv.Atoi(row("count"))
		k.cut.Share, _ = strconv.ParseFloat(row("partition"), 64)
		k.vcpus, _ = strconv.ParseFloat(row("vcpus"), 64)
		gib, _ := strconv.ParseFloat(row("memory_gib"), 64)
		k.memory = gib * 1.073741824
		if strings.Contains(k.pattern, "*") {
			t.patterns[row("provider")] = append(t.patterns[row("provider")], k)
		} else {
			t.exact[row("provider")+":"+k.pattern] = k
		}
	}
	return t
})

// instanceOf finds what the table knows of an instance type.
func instanceOf(provider, name string) (instance, bool) {
	if name == "" {
		return instance{}, false
	}
	t, low := instances(), strings.ToLower(name)
	if k, ok := t.exact[provider+":"+low]; ok {
		return k, true
	}
	for _, k := range t.patterns[provider] {
		if ok, err := path.Match(k.pattern, low); err == nil && ok {
			return k, true
		}
	}
	return instance{}, false
}
