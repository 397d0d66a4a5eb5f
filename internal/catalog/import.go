package catalog

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Origin says of a foreign price list what it does not say itself.
type Origin struct {
	Provider string     // where the format names none; else the file's or folder's name
	AsOf     offer.Date // where the format has no date
	Source   string     // the file's name when empty
}

// Imported is what was read of a price list: every row is either at least one
// offer, or dropped with a reason.
type Imported struct {
	Format  string
	Rows    int
	Used    int // rows that became offers
	Offers  []*offer.Offer
	Dropped []Dropped
}

// Dropped is a row that is no offer.
type Dropped struct {
	Line   int
	Name   string // what the row is about
	Reason string
}

// format is one kind of price list, known by its header.
type format struct {
	name    string
	comma   rune
	columns []string // that it must have
	refuse  string   // what it is, when it is no offer list
	read    func(*importer)
}

// formats lists the kinds of price lists, the most particular header first.
var formats = []format{
	{name: "skypilot", columns: []string{"InstanceType", "AcceleratorName", "AcceleratorCount", "Price"}, read: (*importer).skypilot},
	{name: "aws", columns: []string{"instance_type", "region", "price_usd_hour", "gpu_model", "gpu_count", "gpu_memory_total_gb"}, read: (*importer).aws},
	{name: "azure", columns: []string{"region", "vm_size", "price_usd_hour"}, read: (*importer).azure},
	{name: "gcp", columns: []string{"region", "machine_type", "ondemand_usd_hour", "spot_usd_hour"}, read: (*importer).gcp},
	{name: "tracker", columns: []string{"gpu", "provider", "price_type", "median_usd_per_gpu_hour", "as_of"}, read: (*importer).tracker},
	{name: "list-prices", columns: []string{"provider", "gpu", "gpus", "price_type", "usd_per_hour_total", "as_of"}, read: (*importer).listPrices},
	{name: "cloud-gpus", columns: []string{"Cloud", "GPU Type", "GPUs", "GPU RAM", "On-demand", "Spot"}, read: (*importer).cloudGPUs},
	{name: "serverless-gpus", columns: []string{"Vendor", "GPU Type", "GPUs", "GPU RAM", "Per-Hour"}, read: (*importer).serverlessGPUs},
	{columns: []string{"instance_type", "interruption_range_label"}, refuse: "a table of spot interruption bands (Spot Advisor)"},
	{columns: []string{"src", "dest", "cost"}, refuse: "a grid of egress prices between regions"},
	{comma: ';', columns: []string{"NAME", "ZONE"}, refuse: "a list of accelerators by zone"},
}

// Formats lists the names of the formats that Import reads.
func Formats() []string {
	out := []string{"offers"}
	for _, f := range formats {
		if f.refuse == "" {
			out = append(out, f.name)
		}
	}
	return append(out, "oci", "offerings-json")
}

// Read reads a price list of a format, or of the one that its header tells
// when the format is empty. In an offer file any mistake is an error; in a
// foreign list a row that cannot be used is dropped with its reason.
func Read(formatName, path string, data []byte, from Origin) (*Imported, error) {
	if formatName != "" && !slices.Contains(Formats(), formatName) {
		e := fault.New(fault.Invalid, "unknown format %q", formatName)
		if near := fault.Nearest(formatName, Formats()); len(near) > 0 {
			return nil, e.Hint("did you mean %s?", near[0])
		}
		return nil, e.Hint("one of %s", strings.Join(Formats(), ", "))
	}
	if from.Source == "" {
		from.Source = filepath.Base(path)
	}
	im := &importer{from: from, path: path, seen: map[string]bool{}, result: &Imported{Format: formatName}}
	if looksJSON(data) {
		return im.json(formatName, data)
	}
	comma := ','
	if first, _, _ := strings.Cut(string(data[:min(len(data), 4096)]), "\n"); strings.Count(first, ";") > strings.Count(first, ",") {
		comma = ';'
	}
	t, err := openTable(path, data, comma)
	if err != nil {
		return nil, err
	}
	im.reader = &reader{table: t, words: intern{}, cards: map[cardKey]cardFound{}}
	for _, f := range formats {
		if !t.has(f.columns...) || formatName != "" && formatName != f.name && f.refuse == "" {
			continue
		}
		if f.refuse != "" {
			return nil, fault.New(fault.Invalid, "this is %s, no list of offers", f.refuse).At(path, 1, 0).Hint("import a price list; `destajo catalog import --help` names the formats")
		}
		im.result.Format = f.name
		return im.rows(f)
	}
	if formatName == "offers" || formatName == "" && t.has("provider", "gpu", "price_hour") {
		offers, err := ReadOffers(path, data)
		if err != nil {
			return nil, err
		}
		return &Imported{Format: "offers", Rows: len(offers), Used: len(offers), Offers: offers}, nil
	}
	if formatName != "" {
		return nil, fault.New(fault.Invalid, "the header is not that of the format %s", formatName).At(path, 1, 0).Hint("leave --format out to have it recognised")
	}
	if t.has("provider") || t.has("gpu") || t.has("price_hour") {
		if err := checkHeader(t); err != nil {
			return nil, err
		}
	}
	return nil, fault.New(fault.Invalid, "the header is of no known price list").At(path, 1, 0).Hint("known formats are %s; `destajo catalog schema` shows our own", strings.Join(Formats(), ", "))
}

func looksJSON(data []byte) bool {
	s := strings.TrimLeft(string(data[:min(len(data), 256)]), "\ufeff \t\r\n")
	return strings.HasPrefix(s, "{") || strings.HasPrefix(s, "[")
}

// importer reads one foreign price list.
type importer struct {
	*reader
	from   Origin
	path   string
	seen   map[string]bool
	result *Imported
	hosts  map[string]hostPrice // of GCP machines in SkyPilot's list
	line   int                  // of JSON lists: the number of the element
}

type hostPrice struct{ onDemand, spot money.Amount }

func (im *importer) rows(f format) (*Imported, error) {
	for {
		more, err := im.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		im.result.Rows++
		im.line = im.table.line
		f.read(im)
	}
	if im.result.Rows == 0 {
		return nil, fault.New(fault.Invalid, "the file has a header and no rows").At(im.path, 1, 0).Hint("it may be cut off")
	}
	return im.result, nil
}

// entry is a row of a foreign list in common words. Prices are of the whole
// machine and empty when unknown.
type entry struct {
	provider, region, zone, country, instance string
	gpu, hint                                 string
	memory                                    []float64 // of one card in GB, as several readings of the row allow
	count                                     float64
	vcpus, host                               string
	onDemand, spot, reserved                  string
	perGPU                                    bool // the prices are of one GPU
	months                                    int
	asOf                                      offer.Date
	source, note                              string
	verified                                  offer.Opt[bool]
	class                                     offer.Class
}

func (im *importer) drop(e entry, format string, args ...any) {
	name := e.instance
	if name == "" {
		name = e.gpu
	}
	im.result.Dropped = append(im.result.Dropped, Dropped{Line: im.line, Name: strings.TrimSpace(e.provider + " " + name), Reason: fmt.Sprintf(format, args...)})
}

// add makes offers of an entry, or drops it.
func (im *importer) add(e entry) {
	o := &offer.Offer{Provider: im.words.of(ProviderID(e.provider)), Region: im.words.of(e.region), Zone: im.words.of(e.zone),
		Country: im.words.of(e.country), InstanceType: im.words.of(e.instance), Currency: "USD", Note: im.words.of(e.note),
		Source: im.words.of(e.source), AsOf: offer.Date(im.words.of(string(e.asOf))), Verified: e.verified, Class: e.class}
	if o.Source == "" {
		o.Source = im.words.of(im.from.Source)
	}
	if o.AsOf == "" {
		o.AsOf = im.from.AsOf
	}
	if !providerName().MatchString(o.Provider) {
		im.drop(e, "no provider: name it with --provider")
		return
	}
	if o.Class == "" {
		o.Class = offer.Neocloud
		if c, ok := CardOf(o.Provider); ok {
			o.Class = c.Class
		}
	}
	if !im.identify(o, e) {
		return
	}
	if o.Country == "" {
		o.Country = im.words.of(CountryOf(o.Provider, o.Region))
	}
	number := func(s string) offer.Opt[float64] {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x > 0) || x > 1e9 {
			return offer.Opt[float64]{}
		}
		return offer.Some(x)
	}
	if v := number(e.vcpus); v.Known {
		o.VCPUs = v
	}
	if v := number(e.host); v.Known {
		o.MemoryGB = offer.Some(v.Value * 1.073741824) // the lists count GiB
	}
	used := false
	var why []string
	for _, p := range []struct {
		terms offer.Terms
		price string
	}{{offer.OnDemand, e.onDemand}, {offer.Spot, e.spot}, {offer.Reserved, e.reserved}} {
		if p.price == "" {
			continue
		}
		a, err := money.Parse(p.price)
		if err != nil || a < 0 || a > maxPrice {
			why = append(why, fmt.Sprintf("%q is no price", p.price))
			continue
		}
		if a == 0 {
			why = append(why, "a price of 0 is unknown, not free")
			continue
		}
		if e.perGPU {
			if a, err = a.MulDiv(int64(max(1, o.GPUCount)), 1); err != nil {
				why = append(why, "price too large")
				continue
			}
		}
		c := *o
		c.Terms = p.terms
		if p.terms == offer.Reserved {
			c.TermMonths = max(1, e.months)
			if e.months == 0 {
				c.Note = "the term of the reservation is not stated"
			}
		}
		c.Prices.Compute = &offer.Price{Amount: a, Source: c.Source, AsOf: c.AsOf}
		c.ID = c.DeriveID()
		// A list may hold several zones of a region, and several days of a price.
		key := func() string { return c.ID + "|" + string(c.AsOf) }
		if im.seen[key()] && c.Zone != "" {
			c.ID += "/" + strings.ToLower(c.Zone)
		}
		if im.seen[key()] {
			why = append(why, "the same offer stands in the list twice")
			continue
		}
		im.seen[key()] = true
		c.ID = im.words.of(c.ID)
		im.result.Offers = append(im.result.Offers, &c)
		used = true
	}
	switch {
	case used:
		im.result.Used++
	case len(why) > 0:
		im.drop(e, "%s", why[0])
	default:
		im.drop(e, "no price")
	}
}

// identify finds the card: by what is known of the instance type, else by
// name, memory and hint.
func (im *importer) identify(o *offer.Offer, e entry) bool {
	if k, ok := instanceOf(o.Provider, e.instance); ok {
		if k.note != "" {
			im.drop(e, "%s", k.note)
			return false
		}
		o.GPU, o.GPUCount, o.Partition = k.model, k.count, k.cut
		if o.GPUCount == 0 {
			o.GPUCount = int(e.count)
		}
		if k.vcpus > 0 {
			o.VCPUs, o.MemoryGB = offer.Some(k.vcpus), offer.Some(k.memory)
		}
		if o.GPUCount > 0 {
			return true
		}
	}
	if e.gpu == "" {
		im.drop(e, "no GPU is named, and the instance type is not in the table")
		return false
	}
	if !(e.count > 0) || e.count > 100_000 {
		im.drop(e, "%v GPUs", e.count)
		return false
	}
	o.GPUCount = int(e.count)
	if e.count < 1 {
		o.GPUCount, o.Partition.Share = 1, e.count
	} else if e.count != math.Trunc(e.count) {
		im.drop(e, "%v GPUs: no whole number", e.count)
		return false
	}
	readings := e.memory
	if len(readings) == 0 {
		readings = []float64{0}
	}
	why := fmt.Sprintf("a memory of %v GB", e.memory)
	for i, gb := range readings {
		if gb < 0 || gb > 10_000 {
			continue
		}
		var err error
		if o.GPU, err = im.card(e.gpu, gb, e.hint); err == nil {
			return true
		}
		if i == 0 || strings.Contains(err.Error(), "ambiguous") {
			why = err.Error()
		}
	}
	im.drop(e, "%s", why)
	return false
}

// zoneNumber is what follows the region in the name of a zone.
var zoneNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-[0-9]+$`) })

var versioned = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(-v[0-9]+|-sample|-vms|_vms)+$`) })

// fileProvider is the provider that a SkyPilot file is named for.
func (im *importer) fileProvider() string {
	if im.from.Provider != "" {
		return im.from.Provider
	}
	base := strings.TrimSuffix(filepath.Base(im.path), filepath.Ext(im.path))
	if base == "vms" {
		return filepath.Base(filepath.Dir(im.path))
	}
	return versioned().ReplaceAllString(base, "")
}

var (
	mib     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`SizeInMiB['"]*: *([0-9.]+)`) })
	pyNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`['"]Name['"]: *['"]([^'"]+)['"]`) })
)

// skypilot reads a catalogue of SkyPilot: the columns in any order, four forms
// of GpuInfo, a price of 0 for unknown, the memory of one card or of all.
func (im *importer) skypilot() {
	e := entry{provider: im.fileProvider(), region: im.get("Region"), zone: im.get("AvailabilityZone"), instance: im.get("InstanceType"),
		gpu: im.get("AcceleratorName"), vcpus: im.get("vCPUs"), host: im.get("MemoryGiB"), onDemand: im.get("Price"), spot: im.get("SpotPrice")}
	e.count, _ = strconv.ParseFloat(im.get("AcceleratorCount"), 64)
	e.hint = e.instance
	info := im.get("GpuInfo")
	if m := pyNames().FindStringSubmatch(info); m != nil {
		e.hint += " " + m[1]
	}
	if m := mib().FindStringSubmatch(info); m != nil {
		x, _ := strconv.ParseFloat(m[1], 64)
		if x < 1024 {
			x *= 1024 // the unit is GB there, whatever the name says
		}
		gib := x / 1024
		e.memory = []float64{gib}
		if e.count > 1 {
			e.memory = append(e.memory, gib/e.count)
		}
	}
	id := ProviderID(e.provider)
	if parts := strings.Split(e.region, ", "); id == "vast" && len(parts) == 3 {
		e.country = parts[1]
		if !job.IsCountry(e.country) {
			e.country = ""
		}
	}
	if id == "runpod" && job.IsCountry(e.region) {
		e.country = e.region // its regions are countries
	}
	if e.region == "" && id == "ibm" {
		e.region = zoneNumber().ReplaceAllString(e.zone, "")
	}
	if id == "vast" {
		e.class = offer.Marketplace
		e.note = "median of a bucket of hosts, not one host's price"
		// The instance type keeps the suffix that the accelerator's name lost.
		if parts := strings.Split(e.instance, "-"); len(parts) > 1 {
			if name := strings.ReplaceAll(parts[1], "_", " "); name != "" {
				e.gpu = name
			}
		}
	}
	if id == "gcp" {
		im.gcpParts(e)
		return
	}
	if e.gpu == "" {
		im.drop(e, "a machine without GPU")
		return
	}
	im.add(e)
}

// gcpParts sums Google's rows of hosts and of accelerators. The rows of hosts
// come first in the list; an accelerator without a host is dropped.
func (im *importer) gcpParts(e entry) {
	parse := func(s string) money.Amount {
		a, err := money.Parse(s)
		if err != nil {
			return 0
		}
		return a
	}
	if im.hosts == nil {
		im.hosts = map[string]hostPrice{}
	}
	key := e.region + "/" + e.zone
	if e.gpu == "" {
		h := hostPrice{parse(e.onDemand), parse(e.spot)}
		if old, ok := im.hosts[key]; !ok || h.onDemand < old.onDemand {
			im.hosts[key] = h
		}
		im.drop(e, "a machine without GPU: its price is added to the accelerators of its zone")
		return
	}
	if e.instance != "" {
		im.add(e)
		return
	}
	h, ok := im.hosts[key]
	if !ok || h.onDemand == 0 {
		im.drop(e, "an accelerator without the price of a host in its zone")
		return
	}
	if a := parse(e.onDemand); a > 0 {
		e.onDemand = (a + h.onDemand).String()
	}
	if a := parse(e.spot); a > 0 && h.spot > 0 {
		e.spot = (a + h.spot).String()
	} else {
		e.spot = ""
	}
	e.note = "accelerator and the cheapest host of the zone"
	im.add(e)
}

func (im *importer) aws() {
	e := entry{provider: "aws", region: im.get("region"), instance: im.get("instance_type"), gpu: im.get("gpu_model"), hint: im.get("instance_type"),
		onDemand: im.get("price_usd_hour"), asOf: offer.Date(im.get("as_of"))}
	e.count, _ = strconv.ParseFloat(im.get("gpu_count"), 64)
	if total, err := strconv.ParseFloat(im.get("gpu_memory_total_gb"), 64); err == nil && e.count > 0 {
		e.memory = []float64{total / e.count}
	}
	im.add(e)
}

func (im *importer) azure() {
	im.add(entry{provider: "azure", region: im.get("region"), instance: im.get("vm_size"), onDemand: im.get("price_usd_hour"), asOf: offer.Date(im.get("as_of"))})
}

func (im *importer) gcp() {
	im.add(entry{provider: "gcp", region: im.get("region"), instance: im.get("machine_type"), onDemand: im.get("ondemand_usd_hour"), spot: im.get("spot_usd_hour"), asOf: offer.Date(im.get("as_of"))})
}

// byTerms puts a price into the entry under its terms.
func (e *entry) byTerms(terms, price string) {
	switch strings.ToLower(terms) {
	case "spot", "interruptible":
		e.spot = price
	case "reserved":
		e.reserved = price
	default:
		e.onDemand = price
	}
}

func (im *importer) tracker() {
	e := entry{provider: im.get("provider"), gpu: im.get("gpu"), hint: im.get("gpu"), count: 1, asOf: offer.Date(im.get("as_of")), note: "median of what is asked"}
	e.byTerms(im.get("price_type"), im.get("median_usd_per_gpu_hour"))
	im.add(e)
}

func (im *importer) listPrices() {
	e := entry{provider: im.get("provider"), gpu: im.get("gpu"), hint: im.get("gpu"), source: im.get("source_title"), asOf: dateIn(im.get("as_of"))}
	e.count, _ = strconv.ParseFloat(im.get("gpus"), 64)
	e.byTerms(im.get("price_type"), im.get("usd_per_hour_total"))
	tier := im.get("region_or_tier")
	switch words := strings.Fields(tier); {
	case len(words) >= 2 && strings.Contains(words[0], "-") || len(words) == 2 && strings.HasPrefix(words[1], "Standard_"):
		e.region, e.instance = words[0], words[1]
	case strings.HasSuffix(tier, "Cloud") || tier == "Pods":
		e.instance = strings.ToLower(strings.TrimSuffix(tier, " Cloud"))
		e.verified = offer.Some(!strings.HasPrefix(tier, "Community"))
	case tier != "":
		e.note = tier
	}
	if e.gpu == "GPU Droplets" {
		im.drop(e, "a starting price that names no GPU")
		return
	}
	im.add(e)
}

// dateIn keeps a date, or the year at the start of a remark.
func dateIn(s string) offer.Date {
	if _, ok := offer.Date(s).Time(); ok {
		return offer.Date(s)
	}
	if first, _, _ := strings.Cut(s, " "); len(first) == 4 {
		return offer.Date(first)
	}
	return ""
}

var parens = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` *\(([0-9.]+) GB\)`) })

func (im *importer) cloudGPUs() {
	im.gpuTable(entry{provider: im.get("Cloud"), instance: im.get("Name"), onDemand: im.get("On-demand"), spot: im.get("Spot")})
}

func (im *importer) serverlessGPUs() {
	im.gpuTable(entry{provider: im.get("Vendor"), onDemand: im.get("Per-Hour"), class: offer.Serverless, note: "serverless: billed while it works"})
}

// gpuTable reads the columns that the two tables of Full Stack Deep Learning share.
func (im *importer) gpuTable(e entry) {
	name := im.get("GPU Type")
	e.gpu, e.hint = parens().ReplaceAllString(name, ""), e.instance+" "+name
	e.count, _ = strconv.ParseFloat(im.get("GPUs"), 64)
	if m := parens().FindStringSubmatch(name); m != nil {
		gb, _ := strconv.ParseFloat(m[1], 64)
		e.memory = []float64{gb}
	} else if total, err := strconv.ParseFloat(im.get("GPU RAM"), 64); err == nil && e.count > 0 {
		e.memory = []float64{total / e.count}
	}
	e.vcpus, e.host = im.get("vCPUs"), im.get("RAM")
	e.instance = strings.ReplaceAll(e.instance, " ", "_")
	if ProviderID(e.provider) == "azure" && e.instance != "" {
		e.instance = "Standard_" + e.instance
	}
	im.add(e)
}

// json reads the two JSON lists: Oracle's price list and a set of offerings.
func (im *importer) json(formatName string, data []byte) (*Imported, error) {
	im.reader = &reader{table: &table{file: im.path}, words: intern{}, cards: map[cardKey]cardFound{}}
	bad := func(err error) error {
		e := fault.New(fault.Invalid, "this is no price list in JSON: %v", err).At(im.path, 0, 0)
		return e.Hint("the file may be cut off; read are Oracle's price list and lists of offerings with gpu_model and price_usd_hour")
	}
	if strings.HasPrefix(strings.TrimLeft(string(data[:min(len(data), 256)]), "\ufeff \t\r\n"), "[") {
		if formatName != "" && formatName != "offerings-json" {
			return nil, bad(fmt.Errorf("it is a list, which the format %s is not", formatName))
		}
		var all []offering
		if err := json.Unmarshal(data, &all); err != nil {
			return nil, bad(err)
		}
		im.result.Format = "offerings-json"
		priced := false
		for i, o := range all {
			priced = priced || o.Model != ""
			im.line, im.result.Rows = i+1, im.result.Rows+1
			im.offering(o)
		}
		if !priced {
			return nil, fault.New(fault.Invalid, "this is a JSON list without gpu_model: no list of offers").At(im.path, 0, 0).Hint("a list of providers or zones is not imported")
		}
		return im.result, nil
	}
	var list oracleList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, bad(err)
	}
	if len(list.Items) == 0 || formatName != "" && formatName != "oci" {
		return nil, bad(fmt.Errorf("no items"))
	}
	im.result.Format = "oci"
	for i, item := range list.Items {
		im.line, im.result.Rows = i+1, im.result.Rows+1
		im.oracle(item)
	}
	return im.result, nil
}

type offering struct {
	Provider     string   `json:"provider_id"`
	Model        string   `json:"gpu_model"`
	VRAM         float64  `json:"vram_gb"`
	Interconnect string   `json:"interconnect"`
	Tier         string   `json:"tier"`
	Spot         bool     `json:"is_spot"`
	Price        float64  `json:"price_usd_hour"`
	VCPU         *float64 `json:"vcpu"`
	RAM          *float64 `json:"ram_gb"`
	Source       string   `json:"source_url"`
	Collected    string   `json:"collected_at"`
	Notes        string   `json:"notes"`
}

func (im *importer) offering(o offering) {
	e := entry{provider: o.Provider, gpu: o.Model, hint: o.Model + " " + o.Interconnect, count: 1, source: o.Source, asOf: offer.Date(o.Collected)}
	if o.VRAM > 0 {
		e.memory = []float64{o.VRAM}
	}
	if o.VCPU != nil {
		e.vcpus = num(*o.VCPU)
	}
	if o.RAM != nil {
		e.host = num(*o.RAM)
	}
	if !(o.Price >= 0) || o.Price > 1e6 {
		im.drop(e, "%v is no price", o.Price)
		return
	}
	price := num(o.Price)
	switch o.Tier {
	case "community", "secure", "prototyping", "production", "marketplace":
		e.instance = o.Tier
	}
	switch o.Tier {
	case "community":
		e.verified = offer.Some(false)
	case "secure":
		e.verified = offer.Some(true)
	}
	if o.Spot {
		e.spot = price
	} else {
		e.onDemand = price
	}
	im.add(e)
}

type oracleList struct {
	Items []oracleItem `json:"items"`
}

type oracleItem struct {
	Part     string `json:"partNumber"`
	Name     string `json:"displayName"`
	Metric   string `json:"metricName"`
	Category string `json:"serviceCategory"`
	Prices   []struct {
		Currency string `json:"currencyCode"`
		Prices   []struct {
			Model string  `json:"model"`
			Value float64 `json:"value"`
		} `json:"prices"`
	} `json:"currencyCodeLocalizations"`
}

// oracle reads a product of Oracle's price list: a price per GPU and hour.
func (im *importer) oracle(item oracleItem) {
	e := entry{provider: "oci", instance: item.Name, count: 1, perGPU: true, hint: item.Name}
	if item.Metric != "GPU Per Hour" {
		im.drop(e, "billed %s: no price per GPU", item.Metric)
		return
	}
	for _, c := range item.Prices {
		if c.Currency != "USD" {
			continue
		}
		for _, p := range c.Prices {
			if p.Model == "PAY_AS_YOU_GO" && p.Value > 0 {
				e.onDemand = num(p.Value)
			}
		}
	}
	im.add(e)
}
