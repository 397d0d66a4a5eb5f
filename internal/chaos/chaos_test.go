package chaos

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestShort is a small chaos; `make test-chaos` is the whole one.
func TestShort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are found in /proc")
	}
	if testing.Short() {
		t.Skip("it takes 15 seconds")
	}
	t.Parallel()
	r, err := Run(t.Context(), Options{Seed: 1, Kills: 10, Jobs: 8, Short: true, Pace: 600 * time.Millisecond, DeadMan: 6 * time.Second, Margin: 5 * time.Second,
		Binary: build(t), Dir: t.TempDir(), Say: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Wrong {
		t.Error(x)
	}
	t.Log(r)
}

// build makes the program once.
func build(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "destajo")
	if out, err := exec.Command("go", "build", "-o", exe, "github.com/destajo/destajo/cmd/destajo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

// TestNumbered checks the check.
func TestNumbered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		ok   bool
	}{
		{"", 0, true},
		{"line 0 of 1-1.0\nline 1 of 1-1.0\n", 2, true},
		{"line 0 of 1-1.0\nline 1 of 1", 1, true},
		{"line 0 of 1-1.0\nsh: not found\n", 1, true},
		{"line 0 of 1-1.0\nline 2 of 1-1.0\n", 1, false},
		{"line 0 of 1-1.0\nline 0 of 1-1.0\n", 1, false},
		{"line 0 of 1-1.0\nline 1 o\nline 2 of 1-1.0\n", 1, false},
		{"line 1 of 1-1.0\n", 0, false},
		{"line 0 of 1-2.0\n", 0, false},
	} {
		if n, _, ok := numbered([]byte(c.text), "1-1.0"); n != c.n || ok != c.ok {
			t.Errorf("%q: %d, %v", c.text, n, ok)
		}
	}
}
