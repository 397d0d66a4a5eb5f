package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/destajo/destajo/internal/gguf/gguftest"
)

// fixed is the environment of the process on a fixed day.
func fixed() Environment {
	env := System()
	env.Now = func() time.Time { return time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC) }
	return env
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"destajo": func() { os.Exit(Main(os.Args[1:], fixed())) },
		"live":    func() { os.Exit(Main(os.Args[1:], System())) }, // jobs run by the clock
	})
}

// TestScripts runs the commands as people do: testdata/script/*.txtar.
func TestScripts(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: false,
		Setup: func(e *testscript.Env) error {
			e.Setenv("DESTAJO_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("EX", examples)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// gguf FILE writes the header of a Llama 3.1 8B at Q4_K_M.
			"gguf": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), gguftest.Llama8B().Bytes(), 0o644))
			},
			// ends CODE ARGUMENT... runs live, which must end with the code.
			"ends": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec("live", args[1:]...)
				code := 0
				if x := (*exec.ExitError)(nil); errors.As(err, &x) {
					code = x.ExitCode()
				}
				if strconv.Itoa(code) != args[0] {
					ts.Fatalf("%v ended with %v, want exit code %s", args[1:], err, args[0])
				}
			},
			// exits CODE COMMAND... runs a command that must end with the code.
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				var out, errs bytes.Buffer
				env := fixed()
				env.Out, env.Err, env.In = &out, &errs, strings.NewReader("")
				env.Terminal, env.Width = false, 0
				env.Getenv = ts.Getenv
				for i, a := range args {
					if i > 1 && !strings.HasPrefix(a, "-") {
						if _, err := os.Stat(ts.MkAbs(a)); err == nil {
							args[i] = ts.MkAbs(a)
						}
					}
				}
				code := Main(args[2:], env)
				if want := args[0]; want != string(rune('0'+code)) {
					ts.Fatalf("exit code %d, want %s\n%s%s", code, want, out.String(), errs.String())
				}
				ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o644))
				ts.Check(os.WriteFile(ts.MkAbs("err"), errs.Bytes(), 0o644))
			},
		},
	})
}

// TestEveryExamplePlans plans the job files that people are shown.
func TestEveryExamplePlans(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*.yml")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		var out bytes.Buffer
		env := fixed()
		env.Out, env.Err = &out, &out
		env.Getenv = func(k string) string { return map[string]string{"DESTAJO_HOME": t.TempDir()}[k] }
		if code := Main([]string{"plan", file, "--top", "1"}, env); code != 0 {
			t.Errorf("%s: exit code %d: %s", file, code, out.String())
		}
	}
}

// TestEveryCommandHelps walks the commands: each has words, and an example
// where it takes arguments.
func TestEveryCommandHelps(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line of %d columns in its help", c.CommandPath(), len(line))
			}
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	a := &app{Environment: fixed()}
	walk(a.root())
}

// TestTablesFit runs the listings at two widths and measures their lines.
func TestTablesFit(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 200} {
		for _, args := range [][]string{
			{"plan", "../../examples/lora-7b.yml"}, {"plan", "../../examples/country.yml"}, {"offers", "H100"}, {"offers", "24GB+", "--by", "memory"},
			{"gpus"}, {"providers"}, {"providers", "aws"}, {"catalog", "status"}, {"catalog", "schema"}, {"rent-or-buy", "H100-SXM"}, {"offers", "H100", "--history"},
			{"plan", "../../examples/lora-7b.yml", "--why", "verda"},
			{"jobs", "--all"}, {"machines"}, {"machines", "places"}, {"cost"}, {"doctor"},
		} {
			var out bytes.Buffer
			env := fixed()
			env.Out, env.Err, env.Terminal, env.Width = &out, &out, true, width
			env.Getenv = func(k string) string {
				return map[string]string{"DESTAJO_HOME": t.TempDir(), "NO_COLOR": "1"}[k]
			}
			if code := Main(args, env); code != 0 {
				t.Errorf("%v: exit code %d: %s", args, code, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); n > min(width, 100) {
					t.Errorf("%v at %d columns: a line of %d: %s", args, width, n, line)
				}
			}
		}
	}
}
