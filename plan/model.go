package plan

import (
	_ "embed"
	"encoding/csv"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
)

// models.csv holds published facts of open models, with a source per row.
//
//go:embed models.csv
var modelsCSV string

// Model is the shape of a neural network, as far as time and memory need it.
// A figure that is 0 is unknown or does not apply.
type Model struct {
	ID       string
	Kind     string  // llm, moe, encoder, diffusion, vision, speech
	Params   float64 // total parameters, 1e9
	Active   float64 // parameters that one token uses, 1e9
	Layers   float64
	Hidden   float64
	KVHeads  float64
	HeadDim  float64
	Vocab    float64
	Context  float64 // longest, tokens
	KVLayers float64 // layers whose cache grows with the whole context
	Experts  float64
	Routed   float64 // experts that one token uses
	GFLOPs   float64 // forward, for one image of Pixels x Pixels
	Pixels   float64
	Source   string
}

type modelTable struct {
	models []*Model
	byName map[string]*Model
	names  []string
}

var knownModels = sync.OnceValue(func() *modelTable {
	rows, err := csv.NewReader(strings.NewReader(modelsCSV)).ReadAll()
	if err != nil {
		panic("plan: embedded table of models: " + err.Error())
	}
	at := map[string]int{}
	for i, c := range rows[0] {
		at[c] = i
	}
	t := &modelTable{byName: map[string]*Model{}}
	for _, row := range rows[1:] {
		number := func(column string) float64 {
			x, _ := strconv.ParseFloat(row[at[column]], 64)
			return x
		}
		m := &Model{ID: row[at["id"]], Kind: row[at["kind"]], Params: number("params_b"), Active: number("active_b"),
			Layers: number("layers"), Hidden: number("hidden"), KVHeads: number("kv_heads"), HeadDim: number("head_dim"),
			Vocab: number("vocab"), Context: number("context"), KVLayers: number("kv_layers"),
			Experts: number("experts"), Routed: number("experts_active"), GFLOPs: number("gflops"), Pixels: number("pixels"),
			Source: row[at["source"]]}
		t.models = append(t.models, m)
		t.names = append(t.names, m.ID)
		for _, n := range append(strings.Split(row[at["names"]], "|"), m.ID) {
			t.byName[strings.ToLower(n)] = m
			if _, short, ok := strings.Cut(n, "/"); ok {
				if _, taken := t.byName[strings.ToLower(short)]; !taken {
					t.byName[strings.ToLower(short)] = m
				}
			}
		}
	}
	return t
})

// Models lists the models of the table. They are shared: do not change them.
func Models() []*Model { return knownModels().models }

// FindModel finds a model by id, repository name or alias, without regard to
// case. An unknown name is a fault of the kind Invalid with the nearest ones.
func FindModel(name string) (*Model, error) {
	t := knownModels()
	if m, ok := t.byName[strings.ToLower(strings.TrimSpace(name))]; ok {
		return m, nil
	}
	e := fault.New(fault.Invalid, "unknown model %q", name)
	const describe = "describe it as model: {params: 7B, layers: 32, hidden: 4096}"
	if near := fault.Nearest(name, t.names); len(near) > 0 {
		return nil, e.Hint("did you mean %s? Else %s", strings.Join(near, " or "), describe)
	}
	return nil, e.Hint("%s", describe)
}

// modelOf finds the model that a job names, or makes one of its description.
// What the description leaves open is filled in as in models of its size.
func modelOf(ref job.Model) (*Model, error) {
	m := &Model{}
	if ref.Name != "" {
		found, err := FindModel(ref.Name)
		if err != nil && ref.Params == 0 {
			return nil, err
		}
		if err == nil {
			*m = *found
		} else {
			m.ID = ref.Name
		}
	}
	override := func(into *float64, x float64) {
		if x > 0 {
			*into = x
		}
	}
	override(&m.Params, ref.Params/1e9)
	override(&m.Active, ref.Active/1e9)
	override(&m.Layers, float64(ref.Layers))
	override(&m.Hidden, float64(ref.Hidden))
	override(&m.KVHeads, float64(ref.KVHeads))
	override(&m.HeadDim, float64(ref.HeadDim))
	override(&m.Vocab, float64(ref.Vocab))
	override(&m.Context, float64(ref.Context))
	if m.ID == "" {
		m.ID = strconv.FormatFloat(m.Params, 'g', 3, 64) + "B model"
	}
	if m.Kind == "" {
		m.Kind = "llm"
	}
	if m.Active == 0 {
		m.Active = m.Params
	}
	// A dense transformer has about 12 layers x hidden^2 parameters, and hidden
	// is about 128 times the number of layers in models from 1B to 100B.
	if m.Layers == 0 && m.Hidden == 0 {
		m.Layers = math.Round(math.Cbrt(m.Params * 1e9 / (12 * 128 * 128)))
	}
	if m.Layers == 0 {
		m.Layers = math.Max(1, math.Round(m.Params*1e9/(12*m.Hidden*m.Hidden)))
	}
	if m.Hidden == 0 {
		m.Hidden = math.Round(math.Sqrt(m.Params * 1e9 / (12 * m.Layers)))
	}
	if m.HeadDim == 0 {
		m.HeadDim = 128
	}
	if m.KVHeads == 0 {
		m.KVHeads = math.Max(1, math.Round(m.Hidden/m.HeadDim/4))
	}
	if m.KVLayers == 0 {
		m.KVLayers = m.Layers
	}
	if m.Vocab == 0 {
		m.Vocab = 128_000
	}
	return m, nil
}

// kvBytes is what one token adds to a 16-bit cache.
func (m *Model) kvBytes() float64 { return 2 * m.KVLayers * m.KVHeads * m.HeadDim * 2 }

// embedding is the part of the parameters in embedding and head, which stays
// at 16 bit in quantised models, in 1e9.
func (m *Model) embedding() float64 { return math.Min(2*m.Vocab*m.Hidden/1e9, m.Params/2) }
