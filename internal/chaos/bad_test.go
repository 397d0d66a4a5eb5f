//go:build linux

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBadInput gives jobs that cannot end well, or that are loud, to this
// machine, and reads what is said of them.
func TestBadInput(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	t.Parallel()
	exe := build(t)
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	t.Cleanup(func() { (&rig{home: home, provider: dir}).clear() })
	for _, c := range []struct {
		name, text string
		exit       int
		says       string // on standard error
		out        func() []byte
	}{
		{"too much", "resources: {gpus: \"H100:64\"}\nrun: \"true\"\n", 3, "has no GPU", nil},
		{"no such command", "resources: {gpus: 0}\nrun: no-such-command-anywhere\n", 10, "command was not found", nil},
		{"not executable", "resources: {gpus: 0}\nrun: /etc/passwd\n", 10, "could not be run", nil},
		{"no workdir", "resources: {gpus: 0}\nworkdir: nowhere\nrun: \"true\"\n", 2, "nowhere", nil},
		{"no command", "resources: {gpus: 0}\n", 2, "neither run nor work", nil},
		{"killed by itself", "resources: {gpus: 0}\nrun: kill -9 $$\n", 10, "kill", nil},
		{"one line of 10 MB", "resources: {gpus: 0}\nrun: head -c 10000000 /dev/zero | tr '\\0' x\n", 0, "", func() []byte { return bytes.Repeat([]byte{'x'}, 10_000_000) }},
		{"binary", "resources: {gpus: 0}\nrun: |\n  i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done\n", 0, "", func() []byte {
			b := make([]byte, 256)
			for i := range b {
				b[i] = byte(i)
			}
			return b
		}},
		{"500,000 lines at once", "resources: {gpus: 0}\nrun: seq 500000\n", 0, "", func() []byte {
			var b bytes.Buffer
			for i := range 500_000 {
				fmt.Fprintln(&b, i+1)
			}
			return b.Bytes()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, "job.yml")
			if err := os.WriteFile(path, []byte("name: bad\n"+c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "run", path)
			cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "DESTAJO_HOME=" + home}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			began := time.Now()
			err := cmd.Run()
			var exit *exec.ExitError
			code := 0
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.exit || !strings.Contains(errs.String(), c.says) {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
			if c.out != nil {
				if want := c.out(); !bytes.Equal(out.Bytes(), want) {
					t.Errorf("%d bytes came over, and not %d", out.Len(), len(want))
				}
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	for pid, line := range (&rig{home: home, provider: dir}).left() {
		t.Errorf("process %d is left: %s", pid, line)
	}
}
