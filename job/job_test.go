package job

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

var update = flag.Bool("update", false, "rewrite the expected messages in testdata/bad")

// TestBad reads files of a bad job, a line of dashes and the messages that it
// must give, each with its hint.
func TestBad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.test")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".test"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(data), "\n----------\n")
			s, err := Parse("job.yml", []byte(input+"\n"))
			if s != nil && err != nil {
				t.Error("both a job and an error")
			}
			got := messages(err)
			if *update {
				if err := os.WriteFile(file, []byte(input+"\n----------\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("kind %q", fault.KindOf(err))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func messages(err error) string {
	var b strings.Builder
	all := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		all = j.Unwrap()
	}
	for _, e := range all {
		if e == nil {
			b.WriteString("no error\n")
			continue
		}
		b.WriteString(e.Error() + "\n    " + fault.HintOf(e) + "\n")
	}
	return b.String()
}

const full = `version: 1
name: lora-7b
kind: task
image: ghcr.io/acme/train:1
env: {HF_HOME: /data/hf}
secrets: [HF_TOKEN]
labels: {team: vision, stage: development}
workdir: .
run: python train.py
outputs: [out/]
resources:
  gpus: [RTX4090, "A100-80GB", "H100"]
  nodes: 1
  cpus: 8+
  memory: 32GB+
  disk: 100GB
work:
  hours: {RTX4090: 6.0, "A100-80GB": 2.5, "H100:8": 0.3}
startup: 12m
data: {download: 20GB, from: "aws:us-east-1", upload: 5GB, to: internet, keep: 40GB, keep_for: 1mo}
checkpoint: {dir: /ckpt, every: 15m, write: 1m, restart: 5m}
limits: {cost: 10 USD, price: 3 USD/h, duration: 8h, deadline: 24h, idle: 15m}
place: {terms: [on-demand, spot], classes: [], providers: [], exclude: [], countries: [DE, ES, NO], regions: [], verified: true, consumer: false}
array: 1
after: []
priority: 0
retries: 0
`

func request(t testing.TB, text string) gpu.Request {
	t.Helper()
	r, err := gpu.ParseRequest(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func of[T any](v T) *T { return &v }

func TestParseFull(t *testing.T) {
	t.Parallel()
	got, err := Parse("x.yml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := &Spec{
		Version: 1, Name: "lora-7b", Kind: Task, Image: "ghcr.io/acme/train:1",
		Env: map[string]string{"HF_HOME": "/data/hf"}, Secrets: []string{"HF_TOKEN"},
		Labels: map[string]string{"team": "vision", "stage": "development"}, Workdir: ".", Run: "python train.py", Outputs: []string{"out/"},
		Resources: Resources{GPUs: []gpu.Request{request(t, "RTX4090"), request(t, "A100-80GB"), request(t, "H100")},
			Nodes: 1, CPUs: 8, Memory: 32e9, Disk: 100e9},
		Work:       &Work{Hours: []Hours{{request(t, "RTX4090"), 6}, {request(t, "A100-80GB"), 2.5}, {request(t, "H100:8"), 0.3}}},
		Startup:    of(12 * time.Minute),
		Data:       Data{Download: 20e9, From: "aws:us-east-1", Upload: 5e9, To: "internet", Keep: 40e9, KeepFor: 730 * time.Hour},
		Checkpoint: &Checkpoint{Dir: "/ckpt", Every: of(15 * time.Minute), Write: of(time.Minute), Restart: of(5 * time.Minute)},
		Limits:     Limits{Cost: &Money{10e9, "USD"}, Price: &Money{3e9, "USD"}, Duration: of(8 * time.Hour), Deadline: &Deadline{After: 24 * time.Hour}, Idle: of(15 * time.Minute)},
		Place:      Place{Terms: []string{"on-demand", "spot"}, Countries: []string{"DE", "ES", "NO"}, Verified: of(true), Consumer: of(false)},
		Array:      1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	again, err := Parse("x.yml", []byte("\ufeff"+strings.ReplaceAll(full, "\n", "\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("with BOM and CRLF: %s", diff)
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*Work{
		"finetune: {model: llama-3-8b, method: lora, tokens: 10M, epochs: 3, sequence: 2048, stack: peft}":                          {Finetune: &Finetune{Model: Model{Name: "llama-3-8b"}, Method: "lora", Tokens: 1e7, Epochs: 3, Sequence: 2048, Stack: "peft"}},
		"train: {model: {params: 7B, layers: 32}, tokens: 1T, precision: bf16}":                                                     {Train: &Train{Model: Model{Params: 7e9, Layers: 32}, Tokens: 1e12, Precision: "bf16"}},
		"generate: {model: x, input_tokens: 1e6, output_tokens: 5_000, context: 8K, precision: FP8, engine: vllm, concurrency: 64}": {Generate: &Generate{Model: Model{Name: "x"}, InputTokens: 1e6, OutputTokens: 5000, Context: 8000, Precision: "fp8", Engine: "vllm", Concurrency: 64}},
		"images: {model: resnet50, mode: infer, images: 500}":                                                                       {Images: &Images{Model: Model{Name: "resnet50"}, Mode: "infer", Images: 500, Epochs: 1}},
		"units: {count: 5000, unit: frame, rate: {RTX4090: 2/min}}":                                                                 {Units: &Units{Count: 5000, Unit: "frame", Rates: []Rate{{request(t, "RTX4090"), 120}}}},
		"traffic: {model: x, requests_per_day: 10K, input_tokens: 500, output_tokens: 200, peak: 3x}":                               {Traffic: &Traffic{Model: Model{Name: "x"}, RequestsPerDay: 1e4, InputTokens: 500, OutputTokens: 200, Peak: 3}},
	} {
		s, err := Parse("my job.yml", []byte("work:\n  "+text+"\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, s.Work); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
		if s.Name != "my-job" {
			t.Errorf("name %q", s.Name)
		}
	}
}

func TestGPUForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Resources{
		"0":            {NoGPU: true},
		"24GB+":        {GPUs: []gpu.Request{request(t, "24GB+")}},
		"[H100:8, L4]": {GPUs: []gpu.Request{request(t, "H100:8"), request(t, "L4")}},
		"A100@3g.40gb": {GPUs: []gpu.Request{request(t, "A100@3g.40gb")}},
	} {
		s, err := Parse("j.yml", []byte("resources: {gpus: "+text+"}\nrun: x\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want.Nodes = 1
		if diff := cmp.Diff(want, s.Resources); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	s, err := Parse("j.yml", []byte("resources:\n  gpus:\n    - {model: H100, form: SXM, memory: 80GB+, count: 8}\n    - {memory: 40GB+, compute: \"8.0+\"}\nrun: x\nlimits: {idle: off}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Resources.GPUs); n != 2 || s.Resources.GPUs[0].Count != 8 || !s.Limits.IdleOff {
		t.Errorf("%+v", s.Resources)
	}
}

func TestDeadlineInThePast(t *testing.T) {
	t.Parallel()
	s, err := Parse("j.yml", []byte("run: x\nlimits: {deadline: 2026-01-01T00:00:00Z}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)); fault.KindOf(err) != fault.Invalid {
		t.Errorf("%v", err)
	}
	if err := s.Check(time.Date(2025, 1, 2, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Errorf("%v", err)
	}
}

func TestSchemaKnowsEveryKey(t *testing.T) {
	t.Parallel()
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Properties map[string]any }
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(full, "\n") {
		if key, _, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, " ") {
			if s.Properties[key] == nil {
				t.Errorf("the schema does not know %q", key)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("work: {hours: {H100: -1}}"))
	f.Add([]byte("a: &x [*x]"))
	f.Add([]byte("resources: {gpus: [{memory: 24GB+}]}\nrun: |\n  x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f.yml", data)
		if (s == nil) == (err == nil) {
			t.Errorf("%v, %v", s, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	data := []byte(full)
	for b.Loop() {
		if _, err := Parse("x.yml", data); err != nil {
			b.Fatal(err)
		}
	}
}
