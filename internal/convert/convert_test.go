package convert

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
)

var update = flag.Bool("update", false, "write the golden files")

// environment is what the variables that files leave open have.
func environment(name string) string {
	return map[string]string{"WANDB_PROJECT": "demo", "WANDB_API_KEY": "key", "HF_TOKEN": "token"}[name]
}

func convertFile(format, file string, data []byte) ([]Result, error) {
	if format == "dstack" {
		return DStack(file, data, environment)
	}
	return SkyPilot(file, data, environment)
}

// TestGolden compares jobs and notes with what they were. Each must be a job.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			results, err := convertFile(filepath.Base(filepath.Dir(file)), filepath.Base(file), data)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for i, r := range results {
				fmt.Fprintf(&got, "== %d\n%s", i, r.YAML)
				for _, n := range r.Notes {
					fmt.Fprintf(&got, "== %d:%d %s %s fatal=%t\n", n.Line, n.Column, n.Field, n.Text, n.Fatal)
				}
				spec, err := job.Parse(filepath.Base(file), r.YAML)
				if err != nil {
					t.Errorf("job %d is none of ours: %v\n%s", i, err, r.YAML)
					continue
				}
				var mounts []File
				for _, m := range spec.Mounts {
					mounts = append(mounts, File{m.From, m.To})
				}
				if d := cmp.Diff(mounts, r.Files); d != "" {
					t.Errorf("mounts and files differ: %s", d)
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Errorf("-want +got (go test -update writes it anew):\n%s", d)
			}
		})
	}
}

// TestMistakes are told with their place and what to do.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ format, text, want, hint string }{
		{"skypilot", "nam: x\nrun: a", `f.yaml:1:1: nam: unknown key "nam"`, "did you mean name?"},
		{"skypilot", "resources:\n  acelerators: H100\nrun: a", `f.yaml:2:3: resources.acelerators: unknown key "acelerators"`, "did you mean accelerators?"},
		{"skypilot", "resources:\n  any_of:\n    - infr: aws\nrun: a", `f.yaml:3:7: resources.any_of[0].infr: unknown key "infr"`, "did you mean infra?"},
		{"skypilot", "resources: {cloud: awss}\nrun: a", `f.yaml:1:13: resources.cloud: unknown cloud "awss"`, "did you mean aws"},
		{"skypilot", "num_nodes: 0\nrun: a", "f.yaml:1:1: num_nodes: expected a whole number, found the number 0", "from 1"},
		{"skypilot", "resources: {accelerators: 'H100:x'}\nrun: a", `resources.accelerators: "x" is no number of accelerators`, "H100:8"},
		{"skypilot", "resources: {cpus: 4x}\nrun: a", `resources.cpus: expected a number above 0, found the text "4x"`, "8"},
		{"skypilot", "resources: {use_spot: maybe}\nrun: a", "resources.use_spot: expected true or false", "true or false"},
		{"skypilot", "envs: {1A: x}\nrun: a", "no name of an environment variable", "letters"},
		{"skypilot", "run: a\nrun: b", "this is not YAML", "twice"},
		{"skypilot", "- a", "expected keys with values, found a list", "name: train"},
		{"skypilot", "", "the file is empty", "run:"},
		{"skypilot", "run: *x", "alias", "quotes"},
		{"skypilot", "run: [a]", "run: expected text, found a list", "quotes"},
		{"skypilot", "resources: {any_of: [], ordered: []}\nrun: a", "exclude each other", "one of the two"},
		{"skypilot", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]", "too large", "aliases"},
		{"dstack", "type: fleet\nname: a", "f.yaml:1:1: type: fleet", "destajo machines add"},
		{"dstack", "type: volume", "type: volume", "checkpoint.dir"},
		{"dstack", "type: gateway", "type: gateway", "destajo port"},
		{"dstack", "type: tsk", "expected one of task", "did you mean task?"},
		{"dstack", "commands: [a]", "expected one of task", "type: task"},
		{"dstack", "type: task\ncomands: [a]", `f.yaml:2:1: comands: unknown key "comands"`, "did you mean commands?"},
		{"dstack", "type: task", "neither commands nor image", "commands:"},
		{"dstack", "type: service\ncommands: [a]", "a service without port", "port: 8000"},
		{"dstack", "type: task\ncommands: [a]\nresources: {gpu: 'A100::2'}", "an empty part", "A100:80GB:2"},
		{"dstack", "type: task\ncommands: [a]\nmax_duration: soon", "max_duration: expected a time", "2h"},
		{"dstack", "type: task\ncommands: [a]\nnodes: 2\nport: 1", `unknown key "port"`, "ports"},
		{"dstack", "type: task\ncommands: [a]\n---\ntype: task\ncommands: [b]", "a second document", "split"},
	} {
		results, err := convertFile(c.format, "f.yaml", []byte(c.text))
		if err == nil {
			t.Errorf("%q gave %s", c.text, results[0].YAML)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(fault.HintOf(err), c.hint) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q:\n got %v (%s)\nwant %s (%s)", c.text, err, fault.HintOf(err), c.want, c.hint)
		}
	}
}

// TestCommands are the same after the way through YAML, whatever is in them.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, run := range []string{"a", "a\n", "a\nb", "a\n\n", "  a\nb\n", "# x\n\ny: z\n", "a: b", "- x\n- y\n", "tab\there\n", "trailing \nx  \n", "\"q\" 'q' \\ \n%\n", "日本\nx\n", "---\nx\n", "if x; then\n\ty\nfi\n", "a\r\nb\n"} {
		for _, setup := range []bool{false, true} {
			d := &draft{run: run, noGPU: true}
			if setup {
				d.setup = run
			}
			r := &reader{file: "f.yaml"}
			result, err := r.finish(d, "SkyPilot")
			if err != nil {
				t.Errorf("%q: %v", run, err)
				continue
			}
			if spec, err := job.Parse("f.yaml", result.YAML); err != nil || spec.Run != run || setup && spec.Setup != run {
				t.Errorf("%q became %q: %v\n%s", run, spec.Run, err, result.YAML)
			}
		}
	}
}

// Whatever is converted is a job of ours with the commands that it had.
func FuzzConvert(f *testing.F) {
	files, _ := filepath.Glob("testdata/*/*.yaml")
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil {
			f.Add(data)
		}
	}
	f.Add([]byte("run: &a !!str x\nenvs: {<<: {A: *a}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, format := range []string{"skypilot", "dstack"} {
			results, err := convertFile(format, "f.yaml", data)
			if err != nil {
				if fault.KindOf(err) != fault.Invalid {
					t.Errorf("%s: %v is %s", format, err, fault.KindOf(err))
				}
				if strings.Contains(err.Error(), "cannot be written as a job") {
					t.Logf("%s: %v", format, err)
				}
				continue
			}
			for _, r := range results {
				if _, err := job.Parse("f.yaml", r.YAML); err != nil {
					t.Errorf("%s gave no job: %v\n%s", format, err, r.YAML)
				}
			}
		}
	})
}
