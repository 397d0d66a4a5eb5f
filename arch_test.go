// Package destajo holds nothing but the test of its architecture.
package destajo

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/destajo/destajo"

// pure are the packages of the standard library that floors 0 to 2 must not
// import: they do I/O, read the clock or are random.
var impure = []string{"os", "net", "io/ioutil", "log", "log/slog", "database/sql", "context", "math/rand", "math/rand/v2", "crypto/rand", "os/exec", "net/http", "syscall", "flag"}

// extra are the modules that single packages of floors 0 to 2 may use.
var extra = map[string][]string{"job": {"github.com/goccy/go-yaml"}}

type rule struct {
	floor  string
	allows []string
}

// rules reads the table of docs/architecture.md.
func rules(t *testing.T) map[string]rule {
	t.Helper()
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]rule{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "package" {
			continue
		}
		out[strings.TrimSpace(cells[1])] = rule{strings.TrimSpace(cells[2]), strings.Fields(cells[3])}
	}
	if len(out) == 0 {
		t.Fatal("no table in docs/architecture.md")
	}
	return out
}

func TestImports(t *testing.T) {
	t.Parallel()
	table := rules(t)
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Doc,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Doc  string
			Imports, GoFiles []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if name == "" || len(p.GoFiles) == 0 {
			continue
		}
		seen[name] = true
		if p.Doc == "" {
			t.Errorf("%s has no package comment", name)
		}
		r, ok := table[name]
		if !ok {
			t.Errorf("%s is not in the table of docs/architecture.md: put it on a floor", name)
			continue
		}
		for _, i := range p.Imports {
			own, inner := strings.CutPrefix(i, module+"/")
			switch {
			case inner && !slices.Contains(r.allows, own):
				t.Errorf("%s imports %s, which the table of docs/architecture.md does not allow", name, own)
			case inner || r.floor > "2":
			case slices.Contains(impure, i):
				t.Errorf("%s is on floor %s and imports %s: floors 0 to 2 do no I/O and know neither clock nor chance", name, r.floor, i)
			case strings.Contains(i, ".") && !slices.ContainsFunc(extra[name], func(m string) bool { return strings.HasPrefix(i, m) }):
				t.Errorf("%s is on floor %s and imports the module %s", name, r.floor, i)
			}
		}
	}
	for name := range table {
		if !seen[name] {
			t.Logf("the table names %s, which is not there", name)
		}
	}
}

// TestNoClock finds calls of the clock on floors 0 to 2, which may import time
// for its types.
func TestNoClock(t *testing.T) {
	t.Parallel()
	for name, r := range rules(t) {
		if r.floor > "2" {
			continue
		}
		files, err := os.ReadDir(name)
		if err != nil {
			continue
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			text, err := os.ReadFile(name + "/" + f.Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range []string{"time.Now(", "time.Since(", "time.Sleep(", "time.After(", "time.NewTimer(", "time.Tick("} {
				if bytes.Contains(text, []byte(call)) {
					t.Errorf("%s/%s calls %s: take the time as an argument", name, f.Name(), call)
				}
			}
		}
	}
}
