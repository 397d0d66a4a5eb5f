// Command snapshot makes the embedded snapshot of offers and the history of
// their prices from a folder of collected price lists:
//
//	go run ./tools/snapshot PATH
//
// PATH holds the folder catalog/ of lists that internal/catalog reads. Of
// several prices of one offer the newest enters the snapshot and the others
// the history. The result is facts in our own schema, with source and date in
// each row.
package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// list is one collected price list with what it does not say itself.
type list struct {
	path   string
	origin catalog.Origin
}

var lists = []list{
	{"aws/ondemand-gpu.csv", catalog.Origin{Source: "AWS price list, by karpenter-provider-aws 1d927085d"}},
	{"azure/ondemand-gpu.csv", catalog.Origin{Source: "Azure retail prices, by karpenter-provider-azure 352646f5"}},
	{"gcp/gpu-machine-types.csv", catalog.Origin{Source: "Google Cloud prices, by karpenter-provider-gcp 417f047b", AsOf: "2026-08-03"}},
	{"oci/pricelist-usd-gpu.json", catalog.Origin{Source: "Oracle price list, by opencost 5f653330", AsOf: "2024-10-24"}},
	{"others/gpu-pricing-offerings-2026-05-24.json", catalog.Origin{AsOf: "2026-05-24"}},
	{"others/gpu-pricing-tracker-2026-08-21.csv", catalog.Origin{Source: "gpu-pricing-tracker ecc93276"}},
	{"others/list-prices-2026.csv", catalog.Origin{}},
	{"others/fsdl-cloud-gpus-2025-04.csv", catalog.Origin{Source: "Full Stack Deep Learning cloud GPU table 2bddc6d5", AsOf: "2025-04-21"}},
	{"others/lyceum-vms.csv", catalog.Origin{Source: "skypilot-lyceum 69947998", AsOf: "2026-08-07"}},
	{"skypilot/lambda.csv", sky("0f407038", "2026")},
	{"skypilot/jarvislabs.csv", sky("57d65781", "2026")},
	{"skypilot/oci.csv", sky("05887511", "2026")},
	{"skypilot/verda.csv", sky("000c1d0b", "2026")},
	{"skypilot/runpod-sample.csv", sky("01acdfd4", "2026")},
	{"skypilot/nebius.csv", sky("0082b043", "2026")},
	{"skypilot/vast.csv", sky("01b8cdda", "2026")},
	{"skypilot/hyperstack.csv", sky("fdc9d908", "2026")},
	{"skypilot/ibm-v5.csv", sky("6cd128a5, schema v5", "2024")},
	{"skypilot/paperspace-v6.csv", sky("e5200541, schema v6", "2025")},
}

// sky is the origin of a SkyPilot catalogue. Its files have no date: the year
// is that in which the schema of the file was current.
func sky(commit string, year offer.Date) catalog.Origin {
	return catalog.Origin{Source: "SkyPilot catalogue " + commit + ", read 2026-11-30", AsOf: year}
}

// spread keeps of the providers that sell one price list in dozens of regions
// enough of them for each part of the world.
var spread = map[string][]string{
	"azure": {"eastus", "eastus2", "southcentralus", "westus2", "westus3", "canadacentral", "northeurope", "westeurope", "swedencentral", "uksouth",
		"germanywestcentral", "francecentral", "spaincentral", "italynorth", "japaneast", "southeastasia", "australiaeast", "centralindia", "brazilsouth"},
	"gcp": {"us-central1", "us-east1", "us-east4", "us-west1", "us-west4", "northamerica-northeast1", "europe-west1", "europe-west2", "europe-west3", "europe-west4",
		"europe-southwest1", "asia-east1", "asia-northeast1", "asia-southeast1", "asia-south1", "australia-southeast1", "me-west1", "southamerica-east1"},
	"lambda": {"us-east-1", "us-west-1", "us-south-1", "europe-central-1", "europe-south-1", "asia-south-1", "asia-northeast-1", "me-west-1"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: snapshot PATH-OF-COLLECTED-DATA")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "snapshot:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	byID := map[string][]*offer.Offer{}
	for _, l := range lists {
		data, err := os.ReadFile(filepath.Join(root, "catalog", l.path))
		if err != nil {
			return err
		}
		got, err := catalog.Read("", l.path, data, l.origin)
		if err != nil {
			return err
		}
		fmt.Printf("%-48s %5d rows, %5d used, %5d dropped\n", l.path, got.Rows, got.Used, len(got.Dropped))
		for _, o := range got.Offers {
			if keep, ok := spread[o.Provider]; ok && o.Region != "" && !slices.Contains(keep, o.Region) {
				continue
			}
			if _, ok := catalog.CardOf(o.Provider); !ok {
				continue
			}
			if o.Provider == "runpod" && o.Terms == offer.OnDemand && (o.InstanceType == "" || o.InstanceType == "pods") {
				// The lists of August and October name the secure cloud's price thus.
				o.InstanceType, o.Verified = "secure", offer.Some(true)
				o.ID = o.DeriveID()
			}
			byID[o.ID] = append(byID[o.ID], o)
		}
	}
	settle(byID)
	spot, err := awsSpot(root, byID)
	if err != nil {
		return err
	}
	for _, o := range spot {
		byID[o.ID] = append(byID[o.ID], o)
	}
	settle(byID) // the spot offers that were just derived are homes too
	var offers []*offer.Offer
	var history [][]string
	for _, all := range byID {
		slices.SortStableFunc(all, func(a, b *offer.Offer) int { return cmp.Compare(b.AsOf, a.AsOf) })
		newest := *all[0]
		for _, o := range all[1:] { // an older list may know more of the machine
			if !newest.VCPUs.Known {
				newest.VCPUs, newest.MemoryGB = o.VCPUs, o.MemoryGB
			}
			if o.AsOf != newest.AsOf && o.Prices.Compute.Amount != newest.Prices.Compute.Amount {
				history = append(history, []string{o.ID, o.Prices.Compute.Amount.String(), string(o.AsOf), o.Source})
			}
		}
		offers = append(offers, &newest)
	}
	slices.SortFunc(offers, func(a, b *offer.Offer) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(history, func(a, b []string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[2], b[2])) })
	history = slices.CompactFunc(history, func(a, b []string) bool { return slices.Equal(a, b) })
	var table [][]string
	count := map[string]int{}
	for _, o := range offers {
		table = append(table, row(o))
		count[o.Provider]++
	}
	for _, p := range slices.Sorted(func(yield func(string) bool) {
		for p := range count {
			if !yield(p) {
				return
			}
		}
	}) {
		fmt.Printf("%-20s %5d offers\n", p, count[p])
	}
	fmt.Printf("%d offers, %d earlier prices\n", len(table), len(history))
	if err := write("internal/catalog/snapshot.tsv", catalog.SnapshotColumns, table); err != nil {
		return err
	}
	return write("internal/catalog/history.tsv", []string{"id", "price_hour", "as_of", "source"}, history)
}

// home is the region for which lists without regions quote a large cloud.
var home = map[string]string{"aws": "us-east-1", "azure": "eastus", "gcp": "us-central1"}

// settle gives an offer of a large cloud without a region the id of the same
// machine in the home region, where there is one: it is an earlier price of it.
func settle(byID map[string][]*offer.Offer) {
	for id, all := range byID {
		o := all[0]
		region, ok := home[o.Provider]
		if !ok || o.Region != "" {
			continue
		}
		at := *o
		at.Region = region
		there := at.DeriveID()
		if len(byID[there]) == 0 {
			continue
		}
		for _, old := range all {
			old.ID, old.Region = there, region
			old.Source += " (region not stated)"
			byID[there] = append(byID[there], old)
		}
		delete(byID, id)
	}
}

// awsSpot derives spot offers of AWS from the on-demand prices and the savings
// of the Spot Advisor; each says that it is derived. The advisor's monthly
// bands only rank types: the rate of interruptions stays the provider's
// default, which is far more careful.
func awsSpot(root string, byID map[string][]*offer.Offer) ([]*offer.Offer, error) {
	f, err := os.Open(filepath.Join(root, "catalog", "aws", "spot-advisor-gpu.csv"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for i, c := range all[0] {
		at[c] = i
	}
	var out []*offer.Offer
	for _, r := range all[1:] {
		if r[at["region"]] != "us-east-1" || r[at["os"]] != "Linux" {
			continue
		}
		saving, err := strconv.ParseInt(r[at["savings_percent"]], 10, 64)
		if err != nil || saving <= 0 || saving >= 100 {
			continue
		}
		for _, same := range byID {
			o := same[0]
			if o.Provider != "aws" || o.InstanceType != r[at["instance_type"]] || o.Terms != offer.OnDemand || o.Region != "us-east-1" {
				continue
			}
			for _, p := range same { // the newest price of the machine
				if p.AsOf > o.AsOf {
					o = p
				}
			}
			if cores, err := strconv.ParseFloat(r[at["cores"]], 64); err == nil {
				o.VCPUs = offer.Some(cores)
			}
			if gib, err := strconv.ParseFloat(r[at["ram_gb"]], 64); err == nil {
				o.MemoryGB = offer.Some(gib * 1.073741824)
			}
			c := *o
			a, err := o.Prices.Compute.Amount.MulDiv(100-saving, 100)
			if err != nil {
				return nil, err
			}
			c.Terms = offer.Spot
			c.Source = "AWS Spot Advisor of 2025-07-28: saving against on-demand"
			c.AsOf = "2025-07-28"
			c.Note = fmt.Sprintf("derived: on-demand less %d %%; interruption band %s a month", saving, r[at["interruption_range_label"]])
			c.Prices.Compute = &offer.Price{Amount: a, Source: c.Source, AsOf: c.AsOf}
			c.ID = c.DeriveID()
			out = append(out, &c)
		}
	}
	return out, nil
}

func row(o *offer.Offer) []string {
	known := func(x offer.Opt[float64]) string {
		if !x.Known {
			return ""
		}
		return strconv.FormatFloat(x.Value, 'f', -1, 64)
	}
	whole := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	verified := ""
	if o.Verified.Known {
		verified = strconv.FormatBool(o.Verified.Value)
	}
	class := ""
	if c, ok := catalog.CardOf(o.Provider); ok && c.Class != o.Class {
		class = string(o.Class)
	}
	upfront := money.Amount(0)
	if o.Prices.Upfront != nil {
		upfront = o.Prices.Upfront.Amount
	}
	up := ""
	if upfront != 0 {
		up = upfront.String()
	}
	share := ""
	if o.Partition.Share > 0 {
		share = strconv.FormatFloat(o.Partition.Share, 'f', -1, 64)
	}
	host := o.MemoryGB
	if host.Known {
		host.Value = float64(int64(host.Value*10+0.5)) / 10
	}
	return []string{o.ID, o.Provider, o.Region, o.Zone, o.Country, o.InstanceType, o.GPU.ID, strconv.Itoa(o.GPUCount), share, known(o.VCPUs), known(host),
		string(o.Terms), whole(o.TermMonths), o.Prices.Compute.Amount.String(), up, known(o.InterruptionsPerHour), verified, class, string(o.AsOf), o.Source, o.Note}
}

// write makes a table whose cells hold neither tabs nor line breaks.
func write(path string, header []string, table [][]string) error {
	clean := strings.NewReplacer("\t", " ", "\n", " ", "\r", " ")
	var b strings.Builder
	b.WriteString(strings.Join(header, "\t") + "\n")
	for _, r := range table {
		for i, c := range r {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(clean.Replace(c))
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
