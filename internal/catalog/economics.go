package catalog

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

// Tables of economics. Each is parsed when it is first asked for.
var (
	//go:embed exchange.csv
	exchangeCSV string
	//go:embed grid.csv
	gridCSV string
	//go:embed electricity.csv
	electricityCSV string
	//go:embed tokens.csv
	tokensCSV string
	//go:embed purchase.csv
	purchaseCSV string
	//go:embed transfer.csv
	transferCSV string
)

func embeddedAmount(text string) money.Amount {
	a, err := money.Parse(text)
	if err != nil {
		panic("catalog: embedded table: " + err.Error())
	}
	return a
}

// Exchange is the embedded table of exchange rates.
func Exchange() (money.Exchange, error) { return exchange() }

var exchange = sync.OnceValues(func() (money.Exchange, error) {
	var all []money.ExchangeRate
	for _, row := range rows("exchange", exchangeCSV) {
		x, _ := strconv.ParseFloat(row("usd_per_unit"), 64)
		all = append(all, money.ExchangeRate{Currency: row("currency"), USDPerUnit: x, Date: row("date"), Source: row("source")})
	}
	return money.NewExchange(all)
})

// ReadExchange reads a user's table of rates: currency, usd_per_unit, date and
// source. Currencies that it lacks keep the embedded rate.
func ReadExchange(file string, data []byte) (money.Exchange, error) {
	t, err := openTable(file, data, ',')
	if err != nil {
		return money.Exchange{}, err
	}
	if !t.has("currency", "usd_per_unit") {
		return money.Exchange{}, fault.New(fault.Invalid, "the columns currency and usd_per_unit are missing").At(file, 1, 0).Hint("a rate table has the header currency,usd_per_unit,date,source")
	}
	base, err := Exchange()
	if err != nil {
		return money.Exchange{}, err
	}
	var all []money.ExchangeRate
	for _, c := range base.Currencies() {
		if r, ok := base.Rate(c); ok {
			all = append(all, r)
		}
	}
	for {
		more, err := t.next()
		if err != nil {
			return money.Exchange{}, err
		}
		if !more {
			return money.NewExchange(all)
		}
		code := strings.ToUpper(t.get("currency"))
		x, err := strconv.ParseFloat(t.get("usd_per_unit"), 64)
		if err != nil || !(x > 0) || x > 1e9 {
			return money.Exchange{}, t.fail("usd_per_unit", "%q is no rate", t.get("usd_per_unit")).Hint("write US dollars for one unit, a number above 0")
		}
		if len(code) != 3 {
			return money.Exchange{}, t.fail("currency", "%q is no currency code", code).Hint("write an ISO 4217 code such as EUR")
		}
		all = append(all, money.ExchangeRate{Currency: code, USDPerUnit: x, Date: strings.Clone(t.get("date")), Source: strings.Clone(t.get("source"))})
	}
}

// World is what the catalogue knows beside offers, for a plan.
func World() plan.World {
	return plan.World{Transfer: Transfer, GridGrams: GridGrams, PowerPrice: PowerPrice, Tokens: Tokens()}
}

var grid = sync.OnceValue(func() map[string]float64 {
	t := map[string]float64{}
	for _, row := range rows("grid", gridCSV) {
		t[row("country")], _ = strconv.ParseFloat(row("grams_per_kwh"), 64)
	}
	return t
})

// GridGrams is the CO2 intensity of a country's grid in g per kWh
// (life cycle of generation, yearly average).
func GridGrams(country string) (float64, bool) {
	g, ok := grid()[country]
	return g, ok
}

var electricity = sync.OnceValue(func() map[string]money.Amount {
	t := map[string]money.Amount{}
	for _, row := range rows("electricity", electricityCSV) {
		if _, ok := t[row("country")]; !ok {
			t[row("country")] = embeddedAmount(row("usd_per_kwh"))
		}
	}
	return t
})

// PowerPrice is what large customers pay for a kWh in a country, in USD.
func PowerPrice(country string) (money.Amount, bool) {
	a, ok := electricity()[country]
	return a, ok
}

// Tokens lists what tokens cost from APIs.
func Tokens() []plan.TokenPrice { return tokens() }

var tokens = sync.OnceValue(func() []plan.TokenPrice {
	var all []plan.TokenPrice
	for _, row := range rows("tokens", tokensCSV) {
		all = append(all, plan.TokenPrice{Provider: row("provider"), Model: row("model"), Input: embeddedAmount(row("input_usd_mtok")),
			Output: embeddedAmount(row("output_usd_mtok")), Source: row("source"), AsOf: offer.Date(row("as_of"))})
	}
	return all
})

// Purchase is what a card, or a server with several, was sold for.
type Purchase struct {
	GPU       string // id of the model
	Count     int
	Kind      string // gpu, server
	Condition string
	Price     money.Amount // in USD, of all
	Date      offer.Date
	Source    string
	Rough     bool // a rough public estimate
}

// Purchases lists purchase prices, as published.
func Purchases() []Purchase {
	var all []Purchase
	for _, row := range rows("purchase", purchaseCSV) {
		n, _ := strconv.Atoi(row("gpu_count"))
		all = append(all, Purchase{GPU: row("gpu"), Count: n, Kind: row("kind"), Condition: row("condition"), Price: embeddedAmount(row("usd")),
			Date: offer.Date(row("date")), Source: row("source"), Rough: strings.Contains(row("confidence"), "rough")})
	}
	return all
}

var transfers = sync.OnceValue(func() map[string]*offer.Price {
	t := map[string]*offer.Price{}
	shared := map[string]*offer.Price{}
	for _, row := range rows("transfer", transferCSV) {
		p, ok := shared[row("usd_gb")]
		if !ok {
			p = &offer.Price{Amount: embeddedAmount(row("usd_gb")), Source: "egress grid between AWS, Azure and Google regions (Skyplane measurements)", AsOf: "2026-01-19"}
			shared[row("usd_gb")] = p
		}
		t[row("from")+">"+row("to_provider")+":"+row("to_region")] = p
	}
	return t
})

// Transfer is what a GB costs from one place to another: by the grid between
// the regions of the large clouds, else as egress of the source to the
// internet. Nil is unknown.
func Transfer(fromProvider, fromRegion, toProvider, toRegion string) *offer.Price {
	t, from := transfers(), fromProvider+":"+fromRegion
	if p, ok := t[from+">"+toProvider+":"+toRegion]; ok {
		return p
	}
	if p, ok := t[from+">"+toProvider+":"]; ok && toProvider != "" && toRegion != "" {
		return p
	}
	c, ok := CardOf(fromProvider)
	if !ok {
		return nil
	}
	return c.egressFrom(fromRegion, CountryOf(fromProvider, fromRegion))
}
