package estimate

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
)

// measured.csv holds the published figures that the coefficients were fitted
// on, each with its month, its source (by number, in sources.txt) and its
// weight in the learnt part; coefficients.json the rest. tools/fit writes all
// three.
var (
	//go:embed measured.csv
	measuredCSV string
	//go:embed sources.txt
	sourcesText string
	//go:embed coefficients.json
	coefficientsJSON []byte
)

// Coefficients are what the estimator has learnt.
type Coefficients struct {
	Date    string                 `json:"date"` // of the fit, YYYY-MM-DD
	Rows    int                    `json:"rows"` // fitted on
	Regimes map[string]*covariance `json:"regimes"`

	rows    []Row
	weights []float64 // by row; 0 for rows without a rate
}

// base is the estimator's embedded knowledge.
type base struct {
	date   string
	rows   []Row
	learnt [regimes]*learnt
}

var embedded = sync.OnceValue(func() *base {
	c := &Coefficients{}
	if err := json.Unmarshal(coefficientsJSON, c); err != nil {
		panic("estimate: embedded coefficients: " + err.Error())
	}
	if err := c.decodeRows(measuredCSV, sourcesText); err != nil {
		panic("estimate: embedded measurements: " + err.Error())
	}
	b, err := newBase(c)
	if err != nil {
		panic("estimate: embedded coefficients: " + err.Error())
	}
	return b
})

// Date is when the embedded coefficients were fitted, YYYY-MM-DD.
func Date() string { return embedded().date }

// newBase builds the processes of a fit.
func newBase(c *Coefficients) (*base, error) {
	b := &base{date: c.Date, rows: c.rows}
	for r := range regimes {
		v, ok := c.Regimes[r.String()]
		if !ok {
			return nil, fault.New(fault.Internal, "coefficients lack %s", r)
		}
		var err error
		if b.learnt[r], err = newLearnt(v); err != nil {
			return nil, err
		}
	}
	for i := range c.rows {
		row := &c.rows[i]
		if !row.rated() {
			continue
		}
		s, h, err := ofRow(row)
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "measured row %d", i+1)
		}
		b.learnt[s.regime].add(row, s, h, c.weights[i])
	}
	for _, l := range b.learnt {
		l.settle()
	}
	return b, nil
}

// rated says that a row measures a rate that can be learnt from.
func (r *Row) rated() bool {
	switch r.Metric {
	case Decode, Prefill, Total, Output, Trained, Imaged:
		return r.Value > 0
	}
	return false
}

const measuredHeader = "card,count,workload,model,params_b,precision,engine,batch,in,out,metric,value,month,source,weight"

// Encode gives the embedded form of the rows and of their sources.
func (c *Coefficients) Encode() (measured, sources string, err error) {
	var rows, names strings.Builder
	rows.WriteString(measuredHeader + "\n")
	numbers := map[string]int{}
	for i := range c.rows {
		r := &c.rows[i]
		card, err := r.card()
		if err != nil {
			return "", "", err
		}
		n, ok := numbers[r.Source]
		if !ok {
			n = len(numbers)
			numbers[r.Source] = n
			names.WriteString(r.Source + "\n")
		}
		weight := ""
		if c.weights[i] != 0 {
			weight = strconv.FormatFloat(c.weights[i], 'g', 8, 64)
		}
		if r.Unit == "GiB per GPU" || r.Unit == "GB (sum)" {
			*r = r.perCard()
		}
		short := func(x float64) string {
			if x == 0 {
				return ""
			}
			return strconv.FormatFloat(x, 'g', -1, 64)
		}
		fmt.Fprintf(&rows, "%s,%d,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%d,%s\n", card.ID, r.Count, r.Workload, strings.ReplaceAll(r.Model, ",", " "), short(r.Params),
			r.Precision, r.Engine, short(r.Batch), short(r.In), short(r.Out), r.Metric, strconv.FormatFloat(r.Value, 'g', -1, 64), r.AsOf, n, weight)
	}
	return rows.String(), names.String(), nil
}

// decodeRows reads what Encode wrote.
func (c *Coefficients) decodeRows(measured, sources string) error {
	names := strings.Split(strings.TrimSuffix(sources, "\n"), "\n")
	lines := strings.Split(strings.TrimSuffix(measured, "\n"), "\n")
	if lines[0] != measuredHeader {
		return fault.New(fault.Internal, "unexpected header %q", lines[0])
	}
	c.rows = make([]Row, len(lines)-1)
	c.weights = make([]float64, len(lines)-1)
	for i, line := range lines[1:] {
		f := strings.Split(line, ",")
		if len(f) != 15 {
			return fault.New(fault.Internal, "row %d has %d fields", i+1, len(f))
		}
		var bad error
		number := func(t string) float64 {
			if t == "" {
				return 0
			}
			x, err := strconv.ParseFloat(t, 64)
			if err != nil {
				bad = err
			}
			return x
		}
		source := int(number(f[13]))
		if source < 0 || source >= len(names) {
			return fault.New(fault.Internal, "row %d has no source", i+1)
		}
		c.rows[i] = Row{GPU: f[0], Count: int(number(f[1])), Workload: f[2], Model: f[3], Params: number(f[4]), Precision: f[5], Engine: f[6],
			Batch: number(f[7]), In: number(f[8]), Out: number(f[9]), Metric: Metric(f[10]), Value: number(f[11]), AsOf: f[12], Source: names[source]}
		c.weights[i] = number(f[14])
		if bad != nil {
			return fault.Wrap(fault.Internal, bad, "row %d", i+1)
		}
	}
	return nil
}

// knownEngine gives an engine or stack as the table of measurements names it.
// A name that is nobody's stays as it is, in lower case.
func knownEngine(name string) string {
	n := strings.ToLower(strings.TrimSpace(name))
	if other, ok := engineNames[n]; ok {
		return other
	}
	return n
}
