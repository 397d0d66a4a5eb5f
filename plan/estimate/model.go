package estimate

import (
	_ "embed"
	"encoding/csv"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
)

// models.csv holds published shapes of open models, one row per shape, with
// the source of each row. gflops is one forward pass (two per multiply-add)
// over one image of pixels x pixels; for diffusion models all steps of one
// image count. width is the width of one expert where there are experts.
//
//go:embed models.csv
var modelsCSV string

// Model is the shape of a neural network as far as its time and memory need
// it. A figure that is 0 is unknown or does not apply; Described fills in what
// a description leaves open.
type Model struct {
	ID       string
	Kind     Kind
	Params   float64 // total parameters, 1e9
	Active   float64 // parameters that one token uses, 1e9
	Layers   float64
	Hidden   float64
	KVHeads  float64
	HeadDim  float64
	Width    float64 // of the feed-forward part, of one expert where there are experts
	Vocab    float64
	Context  float64 // longest, tokens
	Tied     bool    // embedding and head are one matrix
	KVLayers float64 // layers whose cache grows with the whole context
	Window   float64 // tokens that the other layers keep; 0: they keep none
	KVBytes  float64 // one token in a 16-bit cache while inside every window
	Experts  float64
	Routed   float64 // experts that one token uses
	GFLOPs   float64 // forward, one image of Pixels x Pixels
	Pixels   float64
	Checked  string // verified, one source, derived
	Source   string

	WeightsGB float64 // exact, of a file that holds the model; 0: parameters times the bytes of a precision
	Format    string  // of the weights in that file, such as q4_k_m

	family string // models of one shape share it
}

// Kind is what sort of network a model is.
type Kind string

// The kinds.
const (
	Language  Kind = "llm"
	Mixture   Kind = "moe"
	Encoder   Kind = "encoder"
	Diffusion Kind = "diffusion"
	Vision    Kind = "vision"
	Speech    Kind = "speech"
)

// tokens says whether the kind reads or writes text.
func (k Kind) tokens() bool { return k == Language || k == Mixture || k == Encoder }

type modelTable struct {
	models []*Model
	byName map[string]*Model // lower case
	names  []string
}

var knownModels = sync.OnceValue(func() *modelTable {
	rows, err := csv.NewReader(strings.NewReader(modelsCSV)).ReadAll()
	if err != nil {
		panic("estimate: embedded table of models: " + err.Error())
	}
	at := map[string]int{}
	for i, c := range rows[0] {
		at[c] = i
	}
	t := &modelTable{byName: make(map[string]*Model, 4*len(rows))}
	shapes := map[string]string{}
	var short []string
	for _, row := range rows[1:] {
		number := func(column string) float64 {
			x, _ := strconv.ParseFloat(row[at[column]], 64)
			return x
		}
		m := &Model{
			ID: row[at["id"]], Kind: Kind(row[at["kind"]]), Params: number("params_b"), Active: number("active_b"),
			Layers: number("layers"), Hidden: number("hidden"), KVHeads: number("kv_heads"), HeadDim: number("head_dim"),
			Width: number("width"), Vocab: number("vocab"), Context: number("context"), Tied: row[at["tied"]] == "1",
			KVLayers: number("kv_layers"), Window: number("window"), KVBytes: number("kv_bytes"),
			Experts: number("experts"), Routed: number("experts_active"), GFLOPs: number("gflops"), Pixels: number("pixels"),
			Checked: row[at["checked"]], Source: row[at["source"]],
		}
		m.family = m.ID
		if m.Layers > 0 {
			shape := strings.Join([]string{row[at["layers"]], row[at["hidden"]], row[at["kv_heads"]], row[at["head_dim"]], row[at["width"]], row[at["experts"]]}, "/")
			if first, ok := shapes[shape]; ok {
				m.family = first
			} else {
				shapes[shape] = m.ID
			}
		}
		if m.Kind != Vision && m.Kind != Diffusion {
			m.fill()
		}
		t.models = append(t.models, m)
		t.names = append(t.names, m.ID)
		for _, n := range append(strings.Split(row[at["names"]], "|"), m.ID) {
			if n == "" {
				continue
			}
			t.byName[strings.ToLower(n)] = m
			if _, after, ok := strings.Cut(n, "/"); ok {
				short = append(short, strings.ToLower(after), m.ID)
			}
		}
	}
	// A name without its owner counts where no model has it as its own name.
	byID := make(map[string]*Model, len(t.models))
	for _, m := range t.models {
		byID[m.ID] = m
	}
	for i := 0; i < len(short); i += 2 {
		if _, taken := t.byName[short[i]]; !taken {
			t.byName[short[i]] = byID[short[i+1]]
		}
	}
	return t
})

// Models lists the models of the table. They are shared: do not change them.
func Models() []*Model { return knownModels().models }

// describe is how to name the shape of a model that the table lacks.
const describe = "describe it as model: {params: 7B, layers: 32, hidden: 4096, kv_heads: 8, vocab: 128000}; params alone is enough"

// FindModel finds a model by id, repository name or alias, without regard to
// case. An unknown name is a fault of the kind Invalid whose hint gives the
// nearest names and how to describe a model.
func FindModel(name string) (*Model, error) {
	t := knownModels()
	if m, ok := t.byName[strings.ToLower(strings.TrimSpace(name))]; ok {
		return m, nil
	}
	e := fault.New(fault.Invalid, "unknown model %q", name)
	if _, short, ok := strings.Cut(name, "/"); ok {
		name = short
	}
	if near := fault.Nearest(name, t.names); len(near) > 0 {
		return nil, e.Hint("did you mean %s? Else %s", strings.Join(near, " or "), describe)
	}
	return nil, e.Hint("%s", describe)
}

// ornaments are parts of names in tables of measurements that leave the shape
// as it is: notes in brackets, file endings, methods and image sizes.
var ornaments = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\s*\(.*\)$|[-.](gguf|awq|gptq|fp8|nvfp4|4bit|8bit|bf16|q\d[_a-z0-9]*|lora|qlora|full|squad)$|-\d+step$|-\d{3,4}$|-(instruct|it|chat|base|hf)$`)
})

// findLoosely finds the model that a row of measurements means, without the
// owner in front (as owner/ or owner_) and ornaments behind.
func findLoosely(name string) *Model {
	t := knownModels()
	n := strings.ToLower(strings.TrimSpace(name))
	for range 6 {
		if m, ok := t.byName[n]; ok {
			return m
		}
		if _, short, ok := strings.Cut(n, "_"); ok {
			if m, ok := t.byName[short]; ok {
				return m
			}
		}
		stripped := ornaments().ReplaceAllString(n, "")
		if stripped == n {
			break
		}
		n = stripped
	}
	return nil
}

// Described makes a model of a description and fills in what it leaves open:
// as in the model of the table that has its shape, else as in models of its
// size. Without parameters, layers and hidden size must be
// there; a figure that cannot be is a fault of the kind Invalid.
func Described(d Model) (*Model, error) {
	m := d
	for _, f := range []struct {
		name string
		x    float64
	}{{"params", m.Params}, {"active", m.Active}, {"layers", m.Layers}, {"hidden", m.Hidden}, {"kv_heads", m.KVHeads}, {"head_dim", m.HeadDim}, {"vocab", m.Vocab}, {"context", m.Context}} {
		if f.x < 0 || math.IsNaN(f.x) || math.IsInf(f.x, 0) {
			return nil, fault.New(fault.Invalid, "model.%s cannot be %v", f.name, f.x).Hint("%s", describe)
		}
	}
	if m.Params == 0 && (m.Layers == 0 || m.Hidden == 0) {
		return nil, fault.New(fault.Invalid, "the model's size is missing").Hint("%s", describe)
	}
	if m.Params > 100_000 {
		return nil, fault.New(fault.Invalid, "a model of %.4g billion parameters is larger than any", m.Params).Hint("params counts single parameters in a job file: 7B or 7e9")
	}
	if m.Active > m.Params && m.Params > 0 {
		return nil, fault.New(fault.Invalid, "a token cannot use %.4g of %.4g billion parameters", m.Active, m.Params).Hint("model.active is at most model.params")
	}
	if m.Kind == "" {
		m.Kind = Language
		if m.Active > 0 && m.Active < 0.9*m.Params {
			m.Kind = Mixture
		}
	}
	m.recognise()
	m.fill()
	if m.ID == "" {
		m.ID = strconv.FormatFloat(m.Params, 'g', 3, 64) + "B"
	}
	if m.family == "" {
		m.family = m.ID
	}
	return &m, nil
}

// recognise takes over what a description leaves open from the model of the
// table with the same layers, width and words and, within 2 %, parameters: what
// was measured of that one then counts for this one.
func (m *Model) recognise() {
	near := func(a, b float64) bool { return math.Abs(a-b) <= .02*b }
	if m.Params == 0 || m.Layers == 0 || m.Hidden == 0 || m.Vocab == 0 {
		return
	}
	for _, k := range Models() {
		if m.Layers != k.Layers || m.Hidden != k.Hidden || !near(m.Vocab, k.Vocab) || !near(m.Params, k.Params) || m.KVHeads > 0 && m.KVHeads != k.KVHeads {
			continue
		}
		m.family, m.Kind = k.family, k.Kind
		for _, f := range []struct {
			to   *float64
			from float64
		}{{&m.Active, k.Active}, {&m.KVHeads, k.KVHeads}, {&m.HeadDim, k.HeadDim}, {&m.Width, k.Width}, {&m.Context, k.Context}, {&m.Experts, k.Experts}, {&m.Routed, k.Routed}} {
			if *f.to == 0 {
				*f.to = f.from
			}
		}
		if m.HeadDim == k.HeadDim {
			m.KVLayers, m.Window, m.KVBytes = k.KVLayers, k.Window, k.KVBytes
		}
		m.Tied = m.Tied || k.Tied
		return
	}
}

// fill infers what is not known. A dense transformer has about 12 x layers x
// hidden^2 parameters, and hidden is about 128 times the number of layers in
// published models from 1B to 100B.
func (m *Model) fill() {
	if m.Params == 0 {
		m.Params = 12 * m.Layers * m.Hidden * m.Hidden / 1e9
	}
	if m.Active == 0 {
		m.Active = m.Params
	}
	body := math.Max(m.Params, 1e-6) * 1e9
	if m.Layers == 0 && m.Hidden == 0 {
		m.Hidden = math.Max(64, math.Round(math.Cbrt(body*128/12)/64)*64)
	}
	if m.Hidden == 0 {
		m.Hidden = math.Max(64, math.Round(math.Sqrt(body/(12*m.Layers))/64)*64)
	}
	if m.Layers == 0 {
		m.Layers = math.Max(1, math.Round(body/(12*m.Hidden*m.Hidden)))
	}
	if m.HeadDim == 0 {
		m.HeadDim = 128
	}
	if m.KVHeads == 0 {
		m.KVHeads = math.Max(1, math.Round(m.Hidden/m.HeadDim/4))
	}
	if m.KVLayers == 0 && m.Window == 0 {
		m.KVLayers = m.Layers
	}
	if m.KVBytes == 0 {
		m.KVBytes = 4 * m.KVLayers * m.KVHeads * m.HeadDim
	}
	if m.Vocab == 0 {
		m.Vocab = 128_000
	}
}

// cacheBytes is the 16-bit cache of one sequence of so many tokens: the layers
// with a window stop growing at it.
func (m *Model) cacheBytes(tokens float64) float64 {
	if m.Window <= 0 || tokens <= m.Window {
		return m.KVBytes * tokens
	}
	full := m.KVLayers / math.Max(1, m.Layers)
	return m.KVBytes * (full*tokens + (1-full)*m.Window)
}

// embedding is the part of the parameters in embedding and head, which stays
// at 16 bit in quantised models, in 1e9.
func (m *Model) embedding() float64 {
	matrices := 2.0
	if m.Tied {
		matrices = 1
	}
	return math.Min(matrices*m.Vocab*m.Hidden/1e9, m.Params/2)
}

// touched is the share of the weights that a step over so many tokens reads.
func (m *Model) touched(tokens float64) float64 {
	if m.Experts <= 0 || m.Routed <= 0 {
		return 1
	}
	return math.Min(1, math.Max(m.Active/m.Params, 1-math.Pow(1-m.Routed/m.Experts, math.Max(1, tokens))))
}
