package estimate

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// Row is one measured figure.
type Row struct {
	GPU       string // its name in tables of measurements, or the key of package gpu
	Count     int    // GPUs together
	Workload  string // text_inference, ...
	Model     string
	Params    float64 // 1e9, for a model that the table lacks; 0 unknown
	Precision string  // of weights, with -lora, -qlora or -full when fine-tuning
	Engine    string
	Batch     float64 // sequences or images at once; 0: as many as fit, or tuned
	In, Out   float64 // tokens of one sequence
	Metric    Metric
	Value     float64
	Unit      string
	AsOf      string // YYYY-MM
	Source    string
	Provider  string // whose machine it was; published rows do not say
}

// columns that a file of measurements must have. The others may be absent.
var columns = []string{"gpu", "gpu_count", "workload", "model", "params_b", "precision", "engine", "batch", "seq_len_in", "seq_len_out", "metric", "value"}

// ParseRows reads a file of measurements in CSV with a header: gpu, gpu_count,
// workload, model, params_b, precision, engine, batch (a number, or max),
// seq_len_in, seq_len_out, metric, value, and optionally unit, as_of, source, provider.
// Missing columns and values that are no numbers are faults of the kind
// Invalid with their line, all of them at once.
func ParseRows(file string, data []byte) ([]Row, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	header, err := r.Read()
	if err == io.EOF {
		return nil, fault.New(fault.Invalid, "the file is empty").At(file, 0, 0).Hint("its first line must name the columns: %s", strings.Join(columns, ","))
	}
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "no CSV").At(file, 1, 0)
	}
	at := map[string]int{}
	for i, c := range header {
		at[strings.ToLower(strings.TrimSpace(strings.TrimPrefix(c, "\ufeff")))] = i
	}
	var missing []string
	for _, c := range columns {
		if _, ok := at[c]; !ok {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return nil, fault.New(fault.Invalid, "missing columns: %s", strings.Join(missing, ", ")).At(file, 1, 0).
			Hint("the header must name %s", strings.Join(columns, ","))
	}
	width := len(header)
	var rows []Row
	var faults []error
	for {
		rec, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			faults = append(faults, fault.Wrap(fault.Invalid, err, "no CSV").At(file, 0, 0))
			break
		}
		line, _ := r.FieldPos(0)
		if len(rec) != width {
			faults = append(faults, fault.New(fault.Invalid, "%d fields, the header has %d", len(rec), width).At(file, line, 0))
			continue
		}
		text := func(column string) string {
			if i, ok := at[column]; ok {
				return strings.TrimSpace(rec[i])
			}
			return ""
		}
		number := func(column string, must bool) float64 {
			t := text(column)
			if t == "" && !must {
				return 0
			}
			x, err := strconv.ParseFloat(t, 64)
			if err != nil || math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
				faults = append(faults, fault.New(fault.Invalid, "%s is %q, not a number of 0 or more", column, t).At(file, line, at[column]+1))
				return 0
			}
			return x
		}
		row := Row{
			GPU: text("gpu"), Workload: text("workload"), Model: text("model"), Params: number("params_b", false),
			Precision: text("precision"), Engine: text("engine"), In: number("seq_len_in", false), Out: number("seq_len_out", false),
			Metric: Metric(text("metric")), Value: number("value", true), Unit: text("unit"), AsOf: text("as_of"), Source: text("source"), Provider: text("provider"),
		}
		row.Count = int(math.Min(number("gpu_count", false), 1e6))
		if row.Count == 0 {
			row.Count = 1
		}
		if text("batch") != "max" {
			row.Batch = number("batch", false)
		}
		rows = append(rows, row)
		if len(faults) >= 20 {
			break
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rows, nil
}

// card finds the card that a row names.
func (r *Row) card() (*gpu.Model, error) {
	if m, ok := gpu.ByBenchmarkName(r.GPU); ok {
		return m, nil
	}
	if m, ok := gpu.ByID(r.GPU); ok {
		return m, nil
	}
	return gpu.Resolve(r.GPU, 0, "")
}

var pixelsOf = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-(\d{3,4})(?:-\d+step)?$`) })

// network finds the model that a row names, else makes one of its size.
func (r *Row) network() (*Model, error) {
	if m := findLoosely(r.Model); m != nil {
		return m, nil
	}
	if r.Params == 0 {
		_, err := FindModel(r.Model)
		return nil, err
	}
	kind := Language
	if strings.HasPrefix(r.Workload, "image") {
		kind = Vision
	}
	return Described(Model{ID: strings.ToLower(r.Model), Kind: kind, Params: r.Params})
}

// ofRow makes the situation and hardware of a row.
func ofRow(r *Row) (*situation, *hardware, error) {
	card, err := r.card()
	if err != nil {
		return nil, nil, err
	}
	m, err := r.network()
	if err != nil {
		return nil, nil, err
	}
	s := &situation{metric: r.Metric, model: m, method: "full", engine: knownEngine(r.Engine), batch: r.Batch, in: r.In, out: r.Out}
	p := strings.ToLower(r.Precision)
	lower := strings.ToLower(r.Model)
	switch {
	case strings.HasSuffix(p, "-qlora"), p == "qlora":
		s.method, p = "qlora", "int4"
	case strings.HasSuffix(p, "-lora"):
		s.method, p = "lora", strings.TrimSuffix(p, "-lora")
	case strings.HasSuffix(p, "-full"):
		p = strings.TrimSuffix(p, "-full")
	case strings.HasSuffix(lower, "-qlora"):
		s.method = "qlora"
	case strings.HasSuffix(lower, "-lora"):
		s.method = "lora"
	}
	var ok bool
	if s.precision, ok = precisions[p]; !ok {
		return nil, nil, unknownPrecision(r.Precision)
	}
	switch r.Metric {
	case Decode, spilled:
		s.regime = decoding
	case Prefill:
		s.regime = prefilling
	case Total, Output:
		s.regime = serving
	case Trained:
		s.regime = training
	case Imaged:
		s.regime = imageInferring
		if r.Workload == ImageTrain {
			s.regime = imageTraining
		}
		s.pixels = m.Pixels
		if at := pixelsOf().FindStringSubmatch(r.Model); at != nil {
			s.pixels, _ = strconv.ParseFloat(at[1], 64)
		}
	case Peak, Fits:
		s.regime = serving
		if r.Workload == TextFinetune || r.Workload == TextTrain {
			s.regime = training
		}
	default:
		return nil, nil, fault.New(fault.Invalid, "unknown metric %q", r.Metric).Hint("one of decode_tok_s, prefill_tok_s, total_tok_s, output_tok_s, train_tok_s, images_s, peak_mem_gb, fits")
	}
	h, known := newHardware(card, r.Count, gpu.Partition{})
	if !known {
		return nil, nil, fault.New(fault.Invalid, "the speed of %s is not known", card.Name)
	}
	return s, &h, nil
}

func unknownPrecision(name string) error {
	return fault.New(fault.Invalid, "unknown precision %q", name).Hint("one of %s", strings.Join(precisionNames, ", "))
}

// perCard gives a row of memory with its value per card, in GB.
func (r *Row) perCard() Row {
	out := *r
	switch r.Unit {
	case "GiB per GPU":
		out.Value *= 1.073741824
	case "GB (sum)":
		out.Value /= float64(max(1, r.Count))
	}
	out.Unit = "GB per GPU"
	return out
}
