package gpu

import (
	_ "embed"
	"encoding/csv"
	"strconv"
	"strings"
	"sync"
)

// models.csv is the table of cards, one row per card as the driver counts it;
// mig.csv their MIG profiles; groups.csv the names that stand for several cards.
var (
	//go:embed models.csv
	modelsCSV string
	//go:embed mig.csv
	migCSV string
	//go:embed groups.csv
	groupsCSV string
)

// table is the parsed list of cards.
type table struct {
	models []*Model
	byID   map[string]*Model
}

var parsed = sync.OnceValue(func() *table {
	rows := records(modelsCSV)
	t := &table{models: make([]*Model, 0, len(rows)), byID: make(map[string]*Model, len(rows))}
	all := make([]Model, len(rows))
	for i, row := range rows {
		number := func(column string) float64 {
			x, _ := strconv.ParseFloat(row(column), 64)
			return x
		}
		m := &all[i]
		*m = Model{
			ID: row("id"), Name: row("name"), Title: row("title"), Vendor: row("vendor"), Family: row("family"),
			Architecture: row("architecture"), Form: row("form"), Class: row("class"),
			MemoryGB: number("memory_gb"), MemoryType: row("memory_type"), BandwidthGBs: number("bandwidth_gb_s"),
			FP16TFLOPS: number("fp16_tflops"), FP32TFLOPS: number("fp32_tflops"), FP8TFLOPS: number("fp8_tflops"),
			FP4TFLOPS: number("fp4_tflops"), INT8TOPS: number("int8_tops"), Watts: number("watts"),
			Compute: row("compute"), Year: int(number("year")), Consumer: row("consumer") == "yes",
			BenchmarkName: row("benchmark_name"), Checked: row("checked"), Source: row("source"),
			index: i, aliases: row("aliases"),
		}
		t.models = append(t.models, m)
		t.byID[m.ID] = m
	}
	for _, row := range records(migCSV) {
		m := t.byID[row("gpu")]
		p := Profile{Name: row("profile"), ComputeSlices: row("compute_slices")}
		p.MemoryGB, _ = strconv.ParseFloat(row("memory_gb"), 64)
		p.Max, _ = strconv.Atoi(row("max"))
		if of, total, ok := strings.Cut(p.ComputeSlices, "/"); ok {
			a, _ := strconv.ParseFloat(of, 64)
			b, _ := strconv.ParseFloat(total, 64)
			if b > 0 {
				p.ComputeShare = a / b
			}
		}
		m.MIG = append(m.MIG, p)
	}
	return t
})

// records reads an embedded table into rows that are asked by column name.
func records(text string) []func(column string) string {
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		panic("gpu: embedded table: " + err.Error())
	}
	at := map[string]int{}
	for i, c := range rows[0] {
		at[c] = i
	}
	out := make([]func(string) string, len(rows)-1)
	for i := range out {
		row := rows[i+1]
		out[i] = func(column string) string { return row[at[column]] }
	}
	return out
}

// Models lists every known card in the order of the table. The list and the
// models are shared: do not change them.
func Models() []*Model { return parsed().models }

// ByID finds a card by the key of the table, such as h100-sxm.
func ByID(id string) (*Model, bool) {
	m, ok := parsed().byID[id]
	return m, ok
}

// ByBenchmarkName finds a card by its name in tables of measurements.
func ByBenchmarkName(name string) (*Model, bool) {
	m, ok := named().benchmark[name]
	return m, ok
}

// cards is a set of cards by their place in the table.
type cards [4]uint64

func (c *cards) add(i int)     { c[i/64] |= 1 << (i % 64) }
func (c cards) has(i int) bool { return c[i/64]&(1<<(i%64)) != 0 }
func (c cards) empty() bool    { return c == cards{} }
func (c cards) or(o cards) cards {
	for i := range c {
		c[i] |= o[i]
	}
	return c
}

// list gives the models of the set in table order.
func (c cards) list() []*Model {
	var out []*Model
	for _, m := range Models() {
		if c.has(m.index) {
			out = append(out, m)
		}
	}
	return out
}

// filter keeps the cards for which keep holds.
func (c cards) filter(keep func(*Model) bool) cards {
	var out cards
	for _, m := range c.list() {
		if keep(m) {
			out.add(m.index)
		}
	}
	return out
}

// names finds cards by every spelling.
type names struct {
	exact     map[string]cards // as written
	folded    map[string]cards // without case and marks
	families  []string         // folded, longest first
	benchmark map[string]*Model
	shown     []string // canonical names and families, for hints
}

var named = sync.OnceValue(func() *names {
	n := &names{exact: map[string]cards{}, folded: map[string]cards{}, benchmark: map[string]*Model{}}
	put := func(in map[string]cards, key string, i int) {
		c := in[key]
		c.add(i)
		in[key] = c
	}
	seen := map[string]bool{}
	for _, m := range Models() {
		spellings := []string{m.ID, m.Name, m.Title}
		if m.BenchmarkName != "" {
			n.benchmark[m.BenchmarkName] = m
			spellings = append(spellings, m.BenchmarkName)
		}
		if m.aliases != "" {
			for _, a := range strings.Split(m.aliases, "|") {
				put(n.exact, a, m.index)
				put(n.folded, fold(a), m.index)
			}
		}
		for _, s := range spellings {
			put(n.folded, fold(s), m.index)
		}
		put(n.exact, m.Name, m.index)
		f := fold(m.Family)
		put(n.folded, f, m.index)
		put(n.folded, f+m.form(), m.index)
		put(n.folded, f+size(m.MemoryGB), m.index)
		put(n.folded, f+m.form()+size(m.MemoryGB), m.index)
		if !seen[f] {
			seen[f] = true
			n.families = append(n.families, f)
			n.shown = append(n.shown, m.Family)
		}
		if m.Name != m.Family {
			n.shown = append(n.shown, m.Name)
		}
	}
	for _, row := range records(groupsCSV) {
		for _, id := range strings.Split(row("gpus"), "|") {
			put(n.folded, fold(row("name")), parsed().byID[id].index)
		}
		n.families = append(n.families, fold(row("name")))
	}
	sortLongestFirst(n.families)
	return n
})

// size is how a folded name spells a memory.
func size(gb float64) string { return strconv.FormatFloat(gb, 'f', -1, 64) + "gb" }

// form is the socket as folded names spell it: sxm, pcie, nvl, oam, se, ...
func (m *Model) form() string { return foldForm(m.Form) }

// foldForm folds a form and drops the generation of SXM sockets.
func foldForm(s string) string {
	f := fold(s)
	if strings.HasPrefix(f, "sxm") || f == "hgx" {
		return "sxm"
	}
	return f
}
