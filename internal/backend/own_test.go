package backend_test

import (
	"strings"
	"testing"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

func TestOwnPrice(t *testing.T) {
	t.Parallel()
	stated := money.FromUnits(2)
	buy := func(id string) (money.Amount, string, bool) {
		return money.FromUnits(1600), "launch list", id == "rtx-4090"
	}
	memory := int64(20e9)
	for _, test := range []struct {
		name    string
		host    machine.Host
		stated  *money.Amount
		costs   backend.OwnCosts
		want    string
		assumed bool
		words   string
	}{
		{name: "stated", stated: &stated, host: machine.Host{CPUs: 8}, want: "2", words: "stated"},
		// 8 x 100 USD x 0.9 / 48 / 730 + 40 W x 0.25 USD/kWh
		{name: "cores", host: machine.Host{CPUs: 8}, want: "0.030548", assumed: true, words: "8 cores at 5 W and 100 USD"},
		{name: "dear power", host: machine.Host{CPUs: 8}, costs: backend.OwnCosts{PowerPrice: money.FromUnits(1), PowerSource: "bill"}, want: "0.060548", assumed: true, words: "(bill)"},
		// and 2 x 1600 USD, 900 W
		{name: "cards", host: machine.Host{CPUs: 8, Devices: []machine.Device{{GPU: "rtx-4090"}, {GPU: "rtx-4090"}}}, costs: backend.OwnCosts{Buy: buy}, want: "0.337740", assumed: true, words: "2 x RTX4090 for 1600 USD (launch list) at 450 W"},
		{name: "unknown card", host: machine.Host{CPUs: 8, Devices: []machine.Device{{Model: "Odd", MemoryBytes: &memory}}}, want: "0.144418", assumed: true, words: "Odd for 2000 USD (100 USD/GB assumed)"},
		{name: "nothing known", want: "0.003818", assumed: true},
	} {
		p, assumed, source := backend.OwnPrice(test.host, test.stated, test.costs)
		if want, _ := money.Parse(test.want); p != want || assumed != test.assumed || !strings.Contains(source, test.words) {
			t.Errorf("%s: %s, %v, %s", test.name, p, assumed, source)
		}
	}
}

func TestOwnOffer(t *testing.T) {
	t.Parallel()
	o := backend.OwnOffer("ssh", "Big Box", machine.Host{CPUs: 8, MemoryBytes: 64e9, Devices: []machine.Device{{GPU: "l4"}, {GPU: "rtx-4090"}, {GPU: "rtx-4090"}, {Model: "Odd"}}}, money.FromUnits(1), true, "why", "2026-12-01")
	if o.GPU == nil || o.GPU.ID != "rtx-4090" || o.GPUCount != 2 || o.VCPUs.Value != 8 || o.MemoryGB.Value != 64 || !o.Shared || !o.PriceAssumed || !strings.Contains(o.Note, "Odd") || strings.ContainsAny(o.ID, " ,") {
		t.Errorf("%+v", o.Offer)
	}
}
