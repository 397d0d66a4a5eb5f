package catalog

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/offer"
)

var now = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

const header = "id,provider,class,region,country,gpu,gpu_count,gpu_memory_gb,terms,price_hour,egress_gb,interruptions_per_hour,as_of\n"

func TestBadOfferFiles(t *testing.T) {
	t.Parallel()
	good := "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,0.34,,,2026-07-01\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":                {"", "o.csv: the file is empty"},
		"only spaces":          {" \n\n", "o.csv: the file is empty"},
		"only a header":        {header, "o.csv:1: the file has a header and no offers"},
		"half a row":           {header + good + "b,vast,mark", "o.csv:3:1: the row has another number of cells"},
		"half a quote":         {header + good + "b,vast,\"mark", "a quote does not end"},
		"bare quote":           {header + `a,va"st,marketplace,r,DE,RTX 4090,1,24,on-demand,0.34,,,2026-07-01`, "o.csv:2:5: a quote stands in a cell"},
		"unknown column":       {"provider,gpu,price_hours\nx,L4,1\n", `o.csv:1:3: unknown column "price_hours"`},
		"missing column":       {"provider,gpu\nx,L4\n", "the column price_hour is missing"},
		"column twice":         {"provider,gpu,gpu,price_hour\nx,L4,L4,1\n", `the column "gpu" stands twice`},
		"price with a comma":   {header + `a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,"1,5",,,2026-07-01`, "o.csv:2:49: price_hour: \"1,5\" is not an amount"},
		"price with a sign":    {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,$1.5,,,2026-07-01\n", `"$1.5" is not an amount`},
		"price NaN":            {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,NaN,,,2026-07-01\n", `"NaN" is not an amount`},
		"price 1e300":          {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,1e300,,,2026-07-01\n", `"1e300" is not an amount`},
		"price negative":       {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,-1,,,2026-07-01\n", "-1 is negative"},
		"price huge":           {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,9999999,,,2026-07-01\n", "beyond any price"},
		"price 0":              {header + "a,vast,marketplace,r,DE,RTX 4090,1,24,on-demand,0,,,2026-07-01\n", "a price of 0"},
		"memory NaN":           {header + "a,vast,marketplace,r,DE,RTX 4090,1,NaN,on-demand,1,,,2026-07-01\n", `gpu_memory_gb: "NaN" is no number`},
		"memory contradicts":   {header + "a,vast,marketplace,r,DE,RTX 4090,1,48,on-demand,1,,,2026-07-01\n", "contradicts what is known"},
		"ambiguous":            {header + "a,vast,marketplace,r,DE,A100,1,,on-demand,1,,,2026-07-01\n", "A100-SXM-80GB (80 GB), A100-SXM-40GB (40 GB)"},
		"unknown card":         {header + "a,vast,marketplace,r,DE,RTX 4091,1,,on-demand,1,,,2026-07-01\n", `unknown GPU "RTX 4091"`},
		"half a card":          {header + "a,vast,marketplace,r,DE,L4,0.5,,on-demand,1,,,2026-07-01\n", "is no whole number"},
		"country":              {header + "a,vast,marketplace,r,XX,L4,1,,on-demand,1,,,2026-07-01\n", `country: "XX" is no country`},
		"terms":                {header + "a,vast,marketplace,r,DE,L4,1,,sport,1,,,2026-07-01\n", `"sport" is not one of`},
		"class":                {header + "a,vast,market,r,DE,L4,1,,spot,1,,,2026-07-01\n", `"market" is not one of`},
		"date":                 {header + "a,vast,marketplace,r,DE,L4,1,,spot,1,,,2026-13-01\n", `"2026-13-01" is no date`},
		"reserved, no term":    {header + "a,vast,marketplace,r,DE,L4,1,,reserved,1,,,2026-07-01\n", "a reservation without its term"},
		"egress tiers":         {header + "a,vast,marketplace,r,DE,L4,1,,spot,1,0:0 50:0.1 20:0.2,,2026-07-01\n", `"20:0.2" is no tier`},
		"hazard":               {header + "a,vast,marketplace,r,DE,L4,1,,spot,1,,1e6,2026-07-01\n", "interruptions_per_hour: 1e6 is out of range"},
		"id twice":             {header + good + good, `o.csv:3:1: id: the offer "a" stands in line 2 too`},
		"no provider":          {header + "a,,marketplace,r,DE,L4,1,,spot,1,,,2026-07-01\n", "provider: is empty"},
		"huge cell":            {header + "a," + strings.Repeat("x", 10_000_000) + ",marketplace,r,DE,L4,1,,spot,1,,,2026-07-01\n", "a line of 10"},
		"huge cell over lines": {header + "a,\"" + strings.Repeat("xxxxxxxxx\n", 100_000) + "\",marketplace,r,DE,L4,1,,spot,1,,,2026-07-01\n", "a cell of 1000000 bytes"},
		"NUL":                  {header + "a\x00", "NUL byte"},
		"not UTF-8":            {header + "a,\xff\xfe", "not UTF-8"},
	} {
		offers, err := ReadOffers("o.csv", []byte(c.text))
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) || len(offers) > 0 {
			t.Errorf("%s: %d offers, %.300v; want %q", name, len(offers), err, c.want)
			continue
		}
		if fault.HintOf(firstOf(err)) == "" && !strings.Contains(c.want, "empty\"") {
			t.Errorf("%s: %v has no hint", name, err)
		}
		if len(err.Error()) > 10_000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

func firstOf(err error) error {
	var j interface{ Unwrap() []error }
	if errors.As(err, &j) {
		return j.Unwrap()[0]
	}
	return err
}

func TestOfferFileIsReadAndWritten(t *testing.T) {
	t.Parallel()
	text := "\ufeff" + strings.ReplaceAll(`provider,gpu,gpu_count,gpu_memory_gb,price_hour,terms,region,egress_gb,disk_gb_month,billing_increment_s,verified,certificates,source,as_of
x,A100,2,40,3.5,spot,"Paris, FR",0:0 100:0.09 10340:0.085,0.1,60,true,SOC2 ISO27001,"a ""quoted"" source
over two lines",2026-07
`, "\n", "\r\n")
	text = strings.Replace(text, "A100", "A100 SXM4", 1)
	offers, err := ReadOffers("o.csv", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := offers[0]
	if o.GPU.ID != "a100-sxm-40" || o.GPUCount != 2 || o.ID != "x/paris--fr/a100-sxm-40gbx2/spot" || len(o.Prices.Egress.Tiers) != 3 || o.Class != offer.Neocloud {
		t.Errorf("%+v", o)
	}
	if a, err := o.Prices.Egress.For(10440); err != nil || a.String() != "930.1" {
		t.Errorf("egress of 10440 GB costs %s, %v", a, err)
	}
	data, err := WriteOffers(offers)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadOffers("again.csv", data)
	if err != nil {
		t.Fatal(err)
	}
	data2, err := WriteOffers(again)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(data), string(data2)); diff != "" {
		t.Error(diff)
	}
}

func TestSkyPilotQuirks(t *testing.T) {
	t.Parallel()
	text := `InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
a_h100_sxm,H100,8.0,88.0,448.0,"{'Gpus': [{'Name': 'H100', 'Manufacturer': null, 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}",20,0.00,"Hafnarfjarðarkaupstaður, IS, EU",
b,L4,2,8,32,"{""Gpus"": [{""Name"": ""L4"", ""Count"": 2, ""MemoryInfo"": {""SizeInMiB"": 49152}}]}",,1.2,,use1-az1
c,V100S,1.0,8,32,V100S,2.5,,r,
d,,0,4,16,,0.2,,r,
e,A100,1,8,32,,3,,r,
f,L4,1,8,32,L4,abc,,r,
`
	im, err := Read("", "neo.csv", []byte(text), Origin{AsOf: "2026-01-01"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range im.Offers {
		got = append(got, fmt.Sprint(o.ID, " ", o.GPU.ID, " ", o.GPUCount, " ", o.Prices.Compute.Amount, " ", o.Zone))
	}
	want := []string{
		"neo/hafnarfjarðarkaupstaður--is--eu/a_h100_sxm/h100-sxmx8/on-demand h100-sxm 8 20 ",
		"neo/b/l4x2/spot l4 2 1.2 use1-az1",
		"neo/r/c/v100sx1/on-demand v100s 1 2.5 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var why []string
	for _, d := range im.Dropped {
		why = append(why, fmt.Sprintf("%d %s", d.Line, d.Reason))
	}
	if im.Rows != 6 || im.Used != 3 || len(why) != 3 || !strings.Contains(why[0], "without GPU") || !strings.Contains(why[1], "ambiguous") || !strings.Contains(why[2], "no price") {
		t.Errorf("%d rows, %d used: %q", im.Rows, im.Used, why)
	}
}

func TestGCPHostAndCardAreSummed(t *testing.T) {
	t.Parallel()
	text := `InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
n1-standard-8,,,8,30,,0.38,0.08,us-central1,us-central1-a
,T4,1,,,T4,0.35,0.11,us-central1,us-central1-a
,T4,1,,,T4,0.35,0.11,us-east1,us-east1-b
`
	im, err := Read("skypilot", "gcp.csv", []byte(text), Origin{AsOf: "2026-01-01"})
	if err != nil {
		t.Fatal(err)
	}
	if len(im.Offers) != 2 || im.Offers[0].Prices.Compute.Amount.String() != "0.73" || im.Offers[1].Prices.Compute.Amount.String() != "0.19" {
		t.Errorf("%+v", im.Offers)
	}
	if len(im.Dropped) != 2 || !strings.Contains(im.Dropped[1].Reason, "without the price of a host") {
		t.Errorf("%+v", im.Dropped)
	}
}

func TestRefusedLists(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"region,os,instance_type,savings_percent,interruption_range_label\nx,Linux,g4dn.xlarge,70,<5%\n": "Spot Advisor",
		"src,dest,cost\na,b,0.1\n":     "grid of egress prices",
		"NAME;ZONE\nct3;us-central1\n": "accelerators by zone",
		"foo,bar\n1,2\n":               "no known price list",
		`[{"id": "runpod"}]`:           "without gpu_model",
		`{"items": []}`:                "no items",
		`[{"gpu_model": "H100"`:        "no price list in JSON",
	} {
		_, err := Read("", "x", []byte(text), Origin{})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %q", text, err, want)
		}
	}
	if _, err := Read("skypilo", "x", nil, Origin{}); !strings.Contains(fault.HintOf(err), "skypilot") {
		t.Errorf("%v", err)
	}
}

// TestCollectedLists imports every list of the collected data: each row is an
// offer or has a reason.
func TestCollectedLists(t *testing.T) {
	t.Parallel()
	root := "../../../shared/data/catalog"
	if _, err := os.Stat(root); err != nil {
		t.Skipf("collected data is not here: %v", err)
	}
	want := map[string]int{ // rows that become offers
		"aws/ondemand-gpu.csv": 82, "azure/ondemand-gpu.csv": 938, "gcp/gpu-machine-types.csv": 384, "oci/pricelist-usd-gpu.json": 5,
		"others/gpu-pricing-offerings-2026-05-24.json": 243, "others/gpu-pricing-tracker-2026-08-21.csv": 66, "others/list-prices-2026.csv": 60,
		"skypilot/lambda.csv": 374, "skypilot/nebius.csv": 21, "skypilot/verda.csv": 18, "skypilot/vast.csv": 65, "skypilot/hyperstack.csv": 25,
		"skypilot/ibm-v5.csv": 27, "skypilot/jarvislabs.csv": 12, "skypilot/oci.csv": 19, "skypilot/runpod-sample.csv": 48, "skypilot/paperspace-v6.csv": 3,
		"others/fsdl-cloud-gpus-2025-04.csv": 151, "others/lyceum-vms.csv": 16,
	}
	for name, used := range want {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		im, err := Read("", name, data, Origin{AsOf: "2026-01-01"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rows := rowsOf(t, name, data)
		if im.Rows != rows || im.Used+len(im.Dropped) != rows {
			t.Errorf("%s: %d rows, read %d, used %d, dropped %d", name, rows, im.Rows, im.Used, len(im.Dropped))
		}
		if im.Used != used {
			t.Errorf("%s: %d rows are offers, want %d", name, im.Used, used)
		}
		for _, o := range im.Offers {
			if o.GPU == nil || o.Prices.Compute == nil || o.Prices.Compute.Amount <= 0 || o.Source == "" || o.AsOf == "" || o.GPUCount < 1 {
				t.Errorf("%s: %+v", name, o)
			}
		}
	}
}

func rowsOf(t *testing.T, name string, data []byte) int {
	t.Helper()
	if strings.HasSuffix(name, ".json") {
		var list []any
		if json.Unmarshal(data, &list) == nil {
			return len(list)
		}
		var object struct{ Items []any }
		if err := json.Unmarshal(data, &object); err != nil {
			t.Fatal(err)
		}
		return len(object.Items)
	}
	all, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return len(all) - 1
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	offers, err := Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	terms := map[offer.Terms]int{}
	seen := map[string]bool{}
	for _, o := range offers {
		count[o.Provider]++
		terms[o.Terms]++
		if seen[o.ID] {
			t.Errorf("%s stands twice", o.ID)
		}
		seen[o.ID] = true
		if _, ok := o.AsOf.Time(); !ok || o.Source == "" || o.Prices.Compute.Amount <= 0 || o.Class == "" {
			t.Errorf("%+v", o)
		}
		if o.Terms == offer.Spot && !o.InterruptionsPerHour.Known && o.Provider == "aws" {
			t.Errorf("%s: no rate of interruptions", o.ID)
		}
	}
	if len(offers) < 400 || terms[offer.Spot] < 50 || terms[offer.Reserved] < 1 {
		t.Errorf("%d offers, %v", len(offers), terms)
	}
	for _, p := range []string{"aws", "azure", "gcp", "oci", "ibm", "coreweave", "lambda", "runpod", "crusoe", "verda", "latitude", "digitalocean", "paperspace",
		"jarvislabs", "vast", "salad", "clore", "kryptex", "together", "nebius", "hyperstack"} {
		c, ok := CardOf(p)
		if !ok {
			t.Errorf("%s has no card", p)
			continue
		}
		if count[p] == 0 && c.Unpriced == "" {
			t.Errorf("%s has neither offers nor a reason", p)
		}
	}
	for _, s := range StatusOf(offers, now) {
		if s.Offers == 0 && s.Unpriced == "" {
			t.Errorf("%+v", s)
		}
	}
}

func TestEgressOfRegions(t *testing.T) {
	t.Parallel()
	c, _ := CardOf("aws")
	p := c.egressFrom("us-east-1", "US")
	if a, err := p.For(60 * 1024); err != nil || a.Float() < 4800 || a.Float() > 5200 {
		t.Errorf("60 TB from AWS cost %s, %v: about 5,100 by marginal tiers", a, err)
	}
	if p := Transfer("aws", "us-east-1", "gcp", "us-central1"); p == nil || p.Amount.String() != "0.09" {
		t.Errorf("aws to gcp %v", p)
	}
	if p := Transfer("nobody", "x", "gcp", "us-central1"); p != nil {
		t.Errorf("%v", p)
	}
}

func importText(t *testing.T, l *Local, rows int, provider, source string, force bool) error {
	t.Helper()
	text := header
	for i := range rows {
		text += fmt.Sprintf("%s-%d,%s,marketplace,r,DE,L4,1,,on-demand,%d.5,,,2026-11-01\n", provider, i, provider, i+1)
	}
	im, err := Read("", source, []byte(text), Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Import(im, source, now, force)
}

func TestImportGateKeepsTheLastGoodOne(t *testing.T) {
	t.Parallel()
	l := OpenLocal(t.TempDir())
	if err := importText(t, l, 10, "x", "a.csv", false); err != nil {
		t.Fatal(err)
	}
	if err := importText(t, l, 6, "x", "a.csv", false); fault.KindOf(err) != fault.Conflict {
		t.Errorf("an import that loses 40 %%: %v", err)
	}
	if err := importText(t, l, 10, "y", "a.csv", false); fault.KindOf(err) != fault.Conflict {
		t.Errorf("an import that loses a provider: %v", err)
	}
	count := func() (n int) {
		offers, err := l.Offers()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range offers {
			if o.Provider == "x" {
				n++
			}
		}
		return n
	}
	if n := count(); n != 10 {
		t.Errorf("%d offers of the last good import", n)
	}
	if err := importText(t, l, 6, "x", "a.csv", true); err != nil {
		t.Error(err)
	}
	if n := count(); n != 6 {
		t.Errorf("%d offers after a forced import", n)
	}
	if err := importText(t, l, 5, "x", "a.csv", false); err != nil {
		t.Errorf("an import that loses 17 %%: %v", err)
	}
	if err := importText(t, l, 5, "y", "a.csv", true); err != nil {
		t.Error(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d offers of a provider that a forced import took away", n)
	}
}

func TestHistoryGrows(t *testing.T) {
	t.Parallel()
	l := OpenLocal(t.TempDir())
	for i, price := range []string{"2.99", "3.49", "3.49", "3.99"} {
		text := fmt.Sprintf("id,provider,gpu,price_hour,as_of\nrp,runpod,H100 SXM,%s,2026-0%d-01\n", price, 6+i)
		im, err := Read("", "a.csv", []byte(text), Origin{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Import(im, "a.csv", now, false); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // a crash leaves half a line, which must cost no later price
			path := filepath.Join(l.dir, "history.tsv")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, append(data, "rp\t9.9"...), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	offers, err := l.Offers()
	if err != nil {
		t.Fatal(err)
	}
	var mine []*offer.Offer
	for _, o := range offers {
		if o.ID == "rp" {
			mine = append(mine, o)
		}
	}
	all, err := l.History(mine)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range all {
		got = append(got, string(o.AsOf)+" "+o.Price.String())
	}
	want := []string{"2026-06-01 2.99", "2026-07-01 3.49", "2026-08-01 3.49", "2026-09-01 3.99"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestKnownMoves finds the price moves that are known in the embedded history.
func TestKnownMoves(t *testing.T) {
	t.Parallel()
	offers, err := Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := OpenLocal(t.TempDir()).History(offers)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range all {
		got[o.ID] += o.Price.String() + " "
	}
	for id, want := range map[string]string{
		"runpod/secure/h100-sxmx1/on-demand":                   "2.99 3.49 3.99 ",
		"aws/us-east-1/p4d.24xlarge/a100-sxm-40gbx8/on-demand": "32.77 21.957642 ",
	} {
		if !strings.HasSuffix(got[id], want) {
			t.Errorf("%s moved %s; want %s", id, got[id], want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "a,vast,marketplace,r,DE,L4,1,,spot,1,0:0 5:1,0.1,2026-07-01\n"))
	f.Add([]byte("InstanceType,AcceleratorName,AcceleratorCount,Price,GpuInfo\na,L4,1,2,\"{'Gpus'\"\n"))
	f.Add([]byte(`[{"provider_id":"x","gpu_model":"L4","price_usd_hour":1}]`))
	f.Add([]byte(`{"items":[{"displayName":"x","metricName":"GPU Per Hour"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		im, err := Read("", "f.csv", data, Origin{AsOf: "2026-01-01"})
		if err != nil {
			return
		}
		if im.Used+len(im.Dropped) != im.Rows {
			t.Errorf("%d rows, %d used, %d dropped", im.Rows, im.Used, len(im.Dropped))
		}
	})
}

func BenchmarkReadOffers(b *testing.B) {
	var text strings.Builder
	text.WriteString(header)
	for i := range 100_000 {
		fmt.Fprintf(&text, "offer-%d,provider-%d,neocloud,region-%d,DE,RTX 4090,1,24,spot,%d.%02d,0:0 100:0.09,0.1,2026-07-01\n", i, i%20, i%50, 1+i%9, i%100)
	}
	data := []byte(text.String())
	b.ReportAllocs()
	for b.Loop() {
		if offers, err := ReadOffers("o.csv", data); err != nil || len(offers) != 100_000 {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	for b.Loop() {
		if _, err := Snapshot(); err != nil {
			b.Fatal(err)
		}
	}
}
