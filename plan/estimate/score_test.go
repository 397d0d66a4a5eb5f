package estimate

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
)

const head = "gpu,gpu_count,workload,model,params_b,precision,engine,batch,seq_len_in,seq_len_out,metric,value\n"

func TestParseRows(t *testing.T) {
	t.Parallel()
	rows, err := ParseRows("x.csv", []byte("\ufeff"+head+"L4,2,text_inference,Llama-3-8B,8.03,fp16,vllm,max,128,64,output_tok_s,99.5\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{{GPU: "L4", Count: 2, Workload: TextInference, Model: "Llama-3-8B", Params: 8.03, Precision: "fp16", Engine: "vllm", In: 128, Out: 64, Metric: Output, Value: 99.5}}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRowsBad(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "the file is empty",
		"gpu,model,value\n":                "x.csv:1: missing columns: gpu_count, workload, params_b, precision",
		head + "L4,1,a,b\n":                "x.csv:2: 4 fields, the header has 12",
		head + "L4,1,a,b,,c,d,1,,,m,\n":    "x.csv:2:12: value is \"\", not a number",
		head + "L4,1,a,b,x,c,d,-1,,,m,3\n": "x.csv:2:8: batch is \"-1\"",
		head + "L4,\"1,a\n":                "no CSV",
	} {
		_, err := ParseRows("x.csv", []byte(text))
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseRows(f *testing.F) {
	f.Add([]byte(head + "L4,2,text_inference,Llama-3-8B,8.03,fp16,vllm,max,128,64,output_tok_s,99.5\n"))
	f.Add([]byte(head + "Apple M4,1,text_inference,x,1e9,Q4_K_M,ollama,1,,,decode_tok_s,1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := ParseRows("x", data)
		if err == nil && len(rows) < 100 {
			New().Score(rows)
		}
	})
}

func TestScore(t *testing.T) {
	t.Parallel()
	rows, err := ParseRows("x.csv", []byte(head+
		"RTX 4090,1,text_inference,Llama-3-8B,8.03,Q4_K_M,llama.cpp,1,0,512,decode_tok_s,130\n"+
		"RTX 4090,1,text_inference,Nobodys-11B,11,Q4_K_M,llama.cpp,1,0,512,decode_tok_s,90\n"+
		"RTX 4090,1,text_inference,Nobodys-Model,,Q4_K_M,llama.cpp,1,0,512,decode_tok_s,90\n"+
		"RTX 9999,1,text_inference,Llama-3-8B,8.03,Q4_K_M,llama.cpp,1,0,512,decode_tok_s,90\n"+
		"RTX 2080,1,text_inference,Llama-3-70B,70,Q4_K_M,llama.cpp,1,0,512,decode_tok_s_spill,3\n"+
		"RTX 4080,1,text_inference,Llama-3-8B,8.03,F16,llama.cpp,1,8192,,fits,0\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := New().Score(rows)
	if diff := cmp.Diff([]int{2, 2, 2, 1, 0}, []int{r.Overall.Rows, r.Overall.Groups, r.Overall.Unestimated, r.Memory.OutOfMemory, r.Memory.FitsWrong}); diff != "" {
		t.Errorf("rows, groups, unestimated, out of memory, fits wrong (-want +got):\n%s\n%+v", diff, r)
	}
	if r.Overall.RowP90 > .5 {
		t.Errorf("errors %+v", r.Overall)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"overall", "workloads", "text_inference", "rows", "groups", "row_median", "row_p90", "group_median", "group_p90", "coverage80", "unestimated", "fits_wrong", "refused_wrong"} {
		if !strings.Contains(string(text), `"`+key+`"`) {
			t.Errorf("no %q in %s", key, text)
		}
	}
}

// TestTargets fits on published measurements and holds the promise of
// docs/accuracy.md: rows left out by whole groups.
func TestTargets(t *testing.T) {
	if testing.Short() {
		t.Skip("the fit takes some seconds")
	}
	data, err := os.ReadFile("../../../shared/data/benchmarks/measured.csv")
	if err != nil {
		t.Skip("the published measurements are not here")
	}
	t.Parallel()
	rows, err := ParseRows("measured.csv", data)
	if err != nil {
		t.Fatal(err)
	}
	settings := &Coefficients{}
	if err := json.Unmarshal(coefficientsJSON, settings); err != nil {
		t.Fatal(err)
	}
	fitted, report, err := Learn(rows, settings, settings.Date)
	if err != nil {
		t.Fatal(err)
	}
	g := report.Groups
	if g.Overall.GroupMedian > .119 || g.Overall.GroupP90 > .325 {
		t.Errorf("overall %+v", g.Overall)
	}
	for w, limit := range map[string]float64{TextInference: .15, TextFinetune: .17, TextTrain: .085, ImageTrain: .21, ImageInference: .07} {
		if s := g.Workloads[w]; s.RowMedian > limit || s.Coverage80 < .75 || s.Coverage80 > .88 {
			t.Errorf("%s: %+v, want a row median of %v", w, s, limit)
		}
	}
	if s := report.Cards["text_inference in batches"].Overall; s.RowMedian > .46 {
		t.Errorf("serving on cards never seen: %+v", s)
	}
	e, err := Using(fitted)
	if err != nil {
		t.Fatal(err)
	}
	s := e.Score(rows)
	if m := s.Memory; m.FitsWrong > 0 || m.RefusedWrongPercent > 5 || m.MedianInference > .08 || m.MedianFinetune > .10 {
		t.Errorf("memory %+v", m)
	}
	if float64(s.Overall.Unestimated) > .02*float64(s.Overall.Rows) {
		t.Errorf("unestimated: %v", s.Overall.Reasons)
	}
	// What is embedded is this fit.
	measured, _, err := fitted.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(measured, "\n") != strings.Count(measuredCSV, "\n") {
		t.Errorf("%d rows fitted, %d embedded: run go run ./tools/fit", strings.Count(measured, "\n"), strings.Count(measuredCSV, "\n"))
	}
}

// TestFitIsFresh fails when a formula, a covariance or a table of cards or
// models changed after the fit: the weights belong to what they were fitted on.
func TestFitIsFresh(t *testing.T) {
	t.Parallel()
	r := New().Score(embedded().rows)
	if r.Overall.RowMedian > .06 || r.Overall.RowP90 > .3 {
		t.Errorf("the embedded fit misses its own rows by %v in the median, %v at 90 %%: run go run ./tools/fit MEASURED.csv", r.Overall.RowMedian, r.Overall.RowP90)
	}
}
