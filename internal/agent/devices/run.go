package devices

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
)

// most is how much of a tool's output is kept: 8 GPUs print 200 KB.
const most = 8 << 20

// elsewhere is where the tools are when the PATH of a service does not say.
var elsewhere = []string{"/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/opt/rocm/bin", "/usr/sbin", "/run/current-system/sw/bin"}

// Exec gives the way to run tools on this machine. It returns when ctx is done
// even if the tool cannot be killed, and does not start a tool again while an
// earlier run of it has not ended.
func Exec() func(ctx context.Context, name string, args ...string) ([]byte, error) {
	var lock sync.Mutex
	stuck := map[string]bool{}
	return func(ctx context.Context, name string, args ...string) ([]byte, error) {
		path, err := find(name)
		if err != nil {
			return nil, err
		}
		lock.Lock()
		before := stuck[name]
		lock.Unlock()
		if before {
			return nil, fault.New(fault.Internal, "%s still hangs since it was run before: the driver or a GPU hangs; see `sudo dmesg`, and restart the machine", name)
		}

		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		cmd.WaitDelay = time.Second
		var stdout, stderr kept
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		done := make(chan error, 1)
		go func() { done <- cmd.Run() }()
		select {
		case err = <-done:
		case <-ctx.Done():
			select {
			case err = <-done:
			case <-time.After(2 * time.Second):
				// It is in the kernel and beyond killing.
				lock.Lock()
				stuck[name] = true
				lock.Unlock()
				go func() {
					<-done //nolint:errcheck // whatever came of it
					lock.Lock()
					delete(stuck, name)
					lock.Unlock()
				}()
				return nil, ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return stdout.Bytes(), fault.Wrap(fault.Internal, err, "%s %s: %s", name, strings.Join(args, " "), firstLines(stderr.Bytes()))
		}
		return stdout.Bytes(), nil
	}
}

// find looks in PATH and in the usual places.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range elsewhere {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, name), nil
		}
	}
	return "", err
}

// kept holds the start of what is written to it.
type kept struct{ bytes.Buffer }

// Write takes all and keeps what fits.
func (k *kept) Write(p []byte) (int, error) {
	if room := most - k.Len(); room < len(p) {
		k.Buffer.Write(p[:max(room, 0)])
	} else {
		k.Buffer.Write(p)
	}
	return len(p), nil
}

// firstLines gives up to 300 bytes of a message on one line.
func firstLines(text []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(text[:min(len(text), 2000)]), "?")), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
