// Package devicestest makes GPUs out of documents: scripts that stand for the
// drivers' tools, for tests of what reads them.
package devicestest

import (
	"os"
	"path/filepath"
	"testing"
)

// FakeNvidiaSMI writes a script named nvidia-smi into dir that prints the
// document for `-q -x`, the list for `-L` (empty: it fails), and fails for all
// else, as a driver does that does not know a field. It gives dir's path, for
// PATH.
func FakeNvidiaSMI(t testing.TB, dir string, document, list []byte) string {
	t.Helper()
	write(t, filepath.Join(dir, "nvidia-smi.xml"), document, 0o644)
	write(t, filepath.Join(dir, "nvidia-smi.list"), list, 0o644)
	// Beside the script, so that a folder can be moved to another host.
	return FakeTool(t, dir, "nvidia-smi", `here=$(dirname "$0")
case "$*" in
"-q -x" | "-x -q") exec cat "$here/nvidia-smi.xml" ;;
"-L") test -s "$here/nvidia-smi.list" && exec cat "$here/nvidia-smi.list" ;;
esac
echo "Invalid combination of input arguments." >&2
exit 2`)
}

// FakeTool writes a script of that name into dir that runs lines of shell, and
// gives dir's path, for PATH.
func FakeTool(t testing.TB, dir, name, shell string) string {
	t.Helper()
	write(t, filepath.Join(dir, name), []byte("#!/bin/sh\n"+shell+"\n"), 0o755)
	here, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return here
}

func write(t testing.TB, path string, text []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, text, mode); err != nil {
		t.Fatal(err)
	}
}
