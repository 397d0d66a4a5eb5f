package ssh

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
)

// FindBinary gives our program for other hosts: this very program where system
// and processor are the same, else destajo-SYSTEM-PROCESSOR beside it or in the
// folder agents-bin of home. It reads a program once.
func FindBinary(exe, home string) func(system, arch string) (path, sha string, err error) {
	var lock sync.Mutex
	sums := map[string]string{}
	return func(system, arch string) (string, string, error) {
		path := exe
		if system != runtime.GOOS || arch != runtime.GOARCH {
			name := "destajo-" + system + "-" + arch
			places := []string{filepath.Join(filepath.Dir(exe), name), filepath.Join(home, "agents-bin", name)}
			if path = places[0]; !isFile(path) {
				path = places[1]
			}
			if !isFile(path) {
				return "", "", fault.New(fault.NotFound, "the host is %s/%s, this program is %s/%s, and there is none for it", system, arch, runtime.GOOS, runtime.GOARCH).
					Hint("put the release for %s/%s at %s, or build it: GOOS=%s GOARCH=%s CGO_ENABLED=0 go build -o %s ./cmd/destajo", system, arch, places[1], system, arch, places[1])
			}
		}
		lock.Lock()
		defer lock.Unlock()
		if sum, ok := sums[path]; ok {
			return path, sum, nil
		}
		f, err := os.Open(path)
		if err != nil {
			return "", "", fault.Wrap(fault.Internal, err, "our program cannot be read")
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return "", "", fault.Wrap(fault.Internal, err, "our program cannot be read")
		}
		sums[path] = hex.EncodeToString(h.Sum(nil))
		return path, sums[path], nil
	}
}

func isFile(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().IsRegular()
}

// processor reads what uname says as Go names it.
func processor(system, name string) (goos, goarch string, err error) {
	switch strings.ToLower(system) {
	case "linux":
		goos = "linux"
	default:
		return "", "", fault.New(fault.Invalid, "it runs %s, and agents run on Linux", system)
	}
	switch strings.ToLower(name) {
	case "x86_64", "amd64":
		return goos, "amd64", nil
	case "aarch64", "arm64":
		return goos, "arm64", nil
	}
	return "", "", fault.New(fault.Invalid, "it has a processor %q, and agents are built for amd64 and arm64", name)
}
