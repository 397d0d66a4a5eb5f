package estimate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/destajo/destajo/gpu"
)

// Effect is what the user's own rows say of one provider's machines with a
// card, beside other providers' machines with the same card at the same work.
type Effect struct {
	Provider string
	Factor   float64  // on the rate that all providers have in the mean; 1 when nothing says otherwise
	Rows     int      // of this provider that were compared
	Others   []string // providers that they were compared with, sorted
}

func (e Effect) String() string {
	if e.Rows == 0 {
		return e.Provider + ": no measurement of yours compares it with another on this GPU"
	}
	rows := "rows"
	if e.Rows == 1 {
		rows = "row"
	}
	return fmt.Sprintf("%s runs at %.3g of the mean in your measurements (%d %s, beside %s)", e.Provider, e.Factor, e.Rows, rows, strings.Join(e.Others, ", "))
}

// At gives the job at a provider: on cards where own rows compare it with
// others, its estimates are those of that provider's machines. Published rows
// name no providers.
func (j *Job) At(provider string) *Job {
	c := *j
	c.provider = provider
	return &c
}

// Effect is what own rows say of a provider's machines with a card.
func (j *Job) Effect(provider string, card *gpu.Model) Effect {
	if len(j.effects) > 0 {
		if e, ok := j.effects[placed{strings.ToLower(provider), card}]; ok {
			return e
		}
	}
	return Effect{Provider: provider, Factor: 1}
}

// placed is a card at a provider, whose name is in lower case.
type placed struct {
	provider string
	card     *gpu.Model
}

// pull draws a provider's effect towards none, as so many rows that show none
// would: machines of one provider differ by about 7 %, those of two by 10 %,
// and (7/10)^2 is a half.
const pull = .5

// effectsOf compares providers wherever two or more were measured with the
// same card, count, model, stack and setting.
func effectsOf(own []Row) map[placed]Effect {
	type setting struct {
		card                               *gpu.Model
		count                              int
		workload, family, precision, stack string
		metric                             Metric
		batch, in, out                     float64
	}
	type tally struct {
		name string
		sum  float64 // of log rates
		rows float64
	}
	settings := map[setting]map[string]tally{}
	var order []setting // sums must not depend on the order of a map
	for i := range own {
		r := &own[i]
		if r.Provider == "" {
			continue
		}
		s, h, err := ofRow(r)
		if err != nil {
			continue
		}
		key := setting{h.card, r.Count, r.Workload, s.model.family, r.Precision, s.engine, r.Metric, r.Batch, r.In, r.Out}
		if settings[key] == nil {
			settings[key] = map[string]tally{}
			order = append(order, key)
		}
		at := strings.ToLower(r.Provider)
		t := settings[key][at]
		settings[key][at] = tally{r.Provider, t.sum + math.Log(r.Value), t.rows + 1}
	}
	var all map[placed]Effect
	sums := map[placed]float64{}
	for _, key := range order {
		at := settings[key]
		if len(at) < 2 {
			continue
		}
		if all == nil {
			all = map[placed]Effect{}
		}
		ids := slices.Sorted(maps.Keys(at))
		mean := 0.0
		for _, id := range ids {
			mean += at[id].sum / at[id].rows / float64(len(at))
		}
		for _, id := range ids {
			t := at[id]
			p := placed{id, key.card}
			e := all[p]
			e.Provider = t.name
			e.Rows += int(t.rows)
			for _, other := range ids {
				if name := at[other].name; other != id && !slices.Contains(e.Others, name) {
					e.Others = append(e.Others, name)
				}
			}
			sums[p] += t.sum - t.rows*mean
			all[p] = e
		}
	}
	for p, e := range all {
		e.Factor = math.Exp(sums[p] / (float64(e.Rows) + pull))
		slices.Sort(e.Others)
		all[p] = e
	}
	return all
}

// times scales all of it.
func (q Quantiles) times(f float64) Quantiles {
	return Quantiles{q.P10 * f, q.P50 * f, q.P90 * f, q.Expected * f}
}
