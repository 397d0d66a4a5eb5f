package agent_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/internal/agent/devices/devicestest"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// dock is a Docker daemon of the tests' own and a registry with images.
type dock struct {
	host  string // for DOCKER_HOST
	image string // a busybox whose own command prints all bytes, then a count
	slow  string // the same, but it comes slowly
}

// newDock starts both; the test is skipped where they cannot run.
func newDock(t *testing.T) *dock {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("dockerd needs root")
	}
	for _, tool := range []string{"dockerd", "busybox"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed: apt-get install docker.io busybox-static")
		}
	}
	dir, err := os.MkdirTemp("", "dock")
	if err != nil {
		t.Fatal(err)
	}
	d := &dock{host: "unix://" + dir + "/sock"}
	out, err := os.Create(dir + "/out")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dockerd", "--data-root", dir+"/data", "--exec-root", dir+"/run", "-H", d.host, "--pidfile", dir+"/pid", "--bridge", "none", "--iptables=false")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
		_ = out.Close()
		_ = exec.Command("umount", dir+"/run/netns/default").Run() // dockerd leaves it mounted
		_ = os.RemoveAll(dir)
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", dir+"/sock")
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(dir + "/out")
			t.Skipf("dockerd does not run here: %s", said)
		default:
		}
		if time.Now().After(end) {
			t.Skip("dockerd does not answer")
		}
	}
	registry := httptest.NewServer(registry{"box": newPicture(t, "box"), "slow": newPicture(t, "slow")})
	t.Cleanup(registry.Close)
	address := strings.TrimPrefix(registry.URL, "http://")
	d.image, d.slow = address+"/box:1", address+"/slow:1"
	return d
}

// registry serves images by their names.
type registry map[string]picture

type picture struct {
	manifest, config, layer []byte
}

func newPicture(t *testing.T, mark string) picture {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	put := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(data)
	}
	put(&tar.Header{Name: "bin/busybox", Mode: 0o755}, binary)
	for _, name := range strings.Fields("sh sleep echo cat ls id env tail dd setsid ps wc printf kill touch pwd true") {
		put(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	put(&tar.Header{Name: "bytes", Mode: 0o644}, allBytes())
	put(&tar.Header{Name: "mark", Mode: 0o644}, []byte(mark))
	_ = w.Close()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(plain.Bytes())
	_ = z.Close()
	r := picture{layer: zipped.Bytes()}
	r.config, _ = json.Marshal(map[string]any{"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/bin", "HOME=/home"}, "Cmd": []string{"/bin/sh", "-c", "cat /bytes; i=0; while [ $i -lt ${COUNT:-0} ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit ${CODE:-0}"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(plain.Bytes())}}})
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	r.manifest, _ = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind,
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(r.config), "digest": digest(r.config)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(r.layer), "digest": digest(r.layer)}}})
	return r
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func (all registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // v2 NAME manifests|blobs WHICH
	if len(parts) == 1 {
		return
	}
	g, ok := all[parts[min(1, len(parts)-1)]]
	if len(parts) != 4 || !ok {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
		return
	}
	var data []byte
	switch parts[3] {
	case digest(g.config):
		data = g.config
	case digest(g.layer):
		data = g.layer
	default:
		data = g.manifest
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		w.Header().Set("Docker-Content-Digest", digest(data))
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if r.Method == http.MethodHead {
		return
	}
	for len(data) > 0 {
		n := len(data)
		if parts[1] == "slow" {
			n = min(n, 1<<18)
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = w.Write(data[:n])
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		data = data[n:]
	}
}

// containers counts the daemon's containers of an agent.
func (d *dock) containers(t *testing.T, home string) int {
	t.Helper()
	socket := strings.TrimPrefix(d.host, "unix://")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	r, err := client.Get("http://engine/containers/json?all=1&filters=%7B%22label%22%3A%5B%22destajo.home%3D" + strings.ReplaceAll(home, "/", "%2F") + "%22%5D%7D")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var all []any
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// gone waits until no container of an agent is left.
func (d *dock) gone(t *testing.T, home string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); d.containers(t, home) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a container is left")
		}
	}
}

func TestContainers(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	boxed := func(text string) wire.Task {
		x := run("1-1.0", text)
		x.Image = d.image
		return x
	}
	for name, test := range map[string]func(t *testing.T, n *node){
		"progress": func(t *testing.T, n *node) {
			x := boxed("true")
			x.Image = d.slow
			r := n.say(wire.Sync{Start: []wire.Task{x}})
			said := map[string]bool{}
			for end := time.Now().Add(20 * time.Second); r.Tasks[0].State == machine.TaskPreparing && time.Now().Before(end); {
				said[r.Tasks[0].Detail] = true
				r = n.say(wire.Sync{Seen: n.seen, Wait: time.Second})
			}
			n.until("1-1.0", machine.TaskEnded)
			found := false
			for words := range said {
				found = found || strings.HasPrefix(words, "pulling image: 0 of 1 layers, ") && strings.HasSuffix(words, " MB")
			}
			if !found {
				t.Errorf("said: %v", said)
			}
		},
		"surroundings": func(t *testing.T, n *node) {
			x := boxed("pwd; cat given; cat /mounted/given; cat $DESTAJO_CHECKPOINT/old; echo $DESTAJO_TASK; echo new >$DESTAJO_CHECKPOINT/new; mkdir -p out; echo result >out/r; cat /proc/net/route | wc -l >/dev/null; exit 3")
			x.Bundle, x.Keep, x.KeepDir, x.Outputs = n.packed("data/given", "sent\n"), n.packed("old", "kept\n"), "/ckpt", []string{"out"}
			x.Mounts = []wire.Mount{{Bundle: "data", To: "/mounted"}}
			x.Run = strings.ReplaceAll(x.Run, "cat given", "cat data/given")
			x.Run = strings.ReplaceAll(x.Run, "mkdir -p", "/bin/busybox mkdir -p")
			n.say(wire.Sync{Start: []wire.Task{x}})
			s := n.until("1-1.0", machine.TaskEnded)
			want := "/work\nsent\nsent\nkept\n1-1.0\n"
			if got := n.log("1-1.0"); got != want || s.Exit != 3 || !s.Outputs || !s.Kept || s.Log != int64(len(want)) {
				t.Errorf("%+v\n%s", s, cmp.Diff(want, got))
			}
			r, _, err := n.Keep(context.Background(), "1-1.0", "")
			if err != nil {
				t.Fatal(err)
			}
			if names := unpack(t, r); names["new"] != "new\n" || names["old"] != "kept\n" {
				t.Errorf("kept: %v", names)
			}
		},
		"setup": func(t *testing.T, n *node) {
			x := boxed("cat /installed; exit 4")
			x.Setup, x.Gang = "echo setup; echo there >/installed", true
			n.say(wire.Sync{Start: []wire.Task{x}})
			n.until("1-1.0", machine.TaskPrepared)
			n.kill()
			n.start()
			n.until("1-1.0", machine.TaskPrepared)
			n.say(wire.Sync{Go: []string{"1-1.0"}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 4 || n.log("1-1.0") != "setup\nthere\n" {
				t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
			}
		},
		"stop": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("trap 'echo notice; cat $DESTAJO_NOTICE; exit 9' TERM; (trap '' TERM; sleep 77.7) & setsid sleep 78.7 & echo ready; while :; do sleep 0.05; done")}})
			n.until("1-1.0", machine.TaskRunning)
			n.logged("1-1.0", "ready\n")
			n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "enough", Grace: 5 * time.Second}}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Cancelled || s.Exit != 9 || !strings.HasSuffix(n.log("1-1.0"), "notice\ncancelled\nenough\n") {
				t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
			}
		},
		"kill": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("trap '' TERM; echo ready; while :; do sleep 0.1; done")}})
			n.until("1-1.0", machine.TaskRunning)
			n.logged("1-1.0", "ready\n")
			n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "enough", Grace: 300 * time.Millisecond}}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Cancelled {
				t.Errorf("%+v", s)
			}
		},
		"stop at once": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("sleep 60")}})
			n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled, Reason: "enough"}}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Cancelled {
				t.Errorf("%+v", s)
			}
		},
		"memory": func(t *testing.T, n *node) {
			x := boxed("tail /dev/zero")
			x.Needs.Memory = 32e6
			n.say(wire.Sync{Start: []wire.Task{x}})
			if s := n.until("1-1.0", machine.TaskEnded); !strings.HasPrefix(s.Reason, "out of memory") || !strings.Contains(s.Reason, "32") {
				t.Errorf("%+v", s)
			}
		},
		"killed agent": func(t *testing.T, n *node) {
			var want strings.Builder
			for i := range 150 {
				fmt.Fprintln(&want, i)
			}
			n.say(wire.Sync{Start: []wire.Task{boxed("i=0; while [ $i -lt 150 ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 7")}})
			n.until("1-1.0", machine.TaskRunning)
			n.kill()
			n.start()
			n.until("1-1.0", machine.TaskRunning)
			n.kill()
			time.Sleep(2 * time.Second)
			n.start()
			if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 7 || s.Cause != machine.Exited || n.log("1-1.0") != want.String() {
				t.Errorf("%+v: %s", s, cmp.Diff(want.String(), n.log("1-1.0")))
			}
		},
		"own command": func(t *testing.T, n *node) {
			want := string(allBytes())
			for i := range 100 {
				want += fmt.Sprintln(i)
			}
			x := boxed("")
			x.Env["COUNT"], x.Env["CODE"] = "100", "5"
			n.say(wire.Sync{Start: []wire.Task{x}})
			n.until("1-1.0", machine.TaskRunning)
			for range 3 {
				time.Sleep(200 * time.Millisecond)
				n.kill()
				n.start()
			}
			if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 5 || n.log("1-1.0") != want || s.Log != int64(len(want)) {
				t.Errorf("%+v: %s", s, cmp.Diff(want, n.log("1-1.0")))
			}
		},
		"own command after a setup": func(t *testing.T, n *node) {
			x := boxed("")
			x.Setup, x.Env["CODE"] = "echo setup", "6"
			n.say(wire.Sync{Start: []wire.Task{x}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Exit != 6 || n.log("1-1.0") != "setup\n"+string(allBytes()) {
				t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
			}
		},
		"service": func(t *testing.T, n *node) {
			x := boxed("echo again >>/count; cat /count; exit 1")
			x.Kind, x.Restart = "service", "always"
			n.say(wire.Sync{Start: []wire.Task{x}})
			n.logged("1-1.0", "again\nagain\nagain\n") // one, then two, of the same container
			n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled}}})
			n.until("1-1.0", machine.TaskEnded)
		},
		"removed by hand": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("echo ready; sleep 60")}})
			n.logged("1-1.0", "ready\n")
			d.remove(t, n.home)
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Lost && s.Signal == "" {
				t.Errorf("%+v", s)
			}
		},
		"no such image": func(t *testing.T, n *node) {
			x := boxed("true")
			x.Image = strings.Replace(d.image, "/box:1", "/none:1", 1)
			n.say(wire.Sync{Start: []wire.Task{x}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.NotStarted || !strings.Contains(s.Reason, "there is no image") || !strings.Contains(s.Reason, "check its name") {
				t.Errorf("%+v", s)
			}
		},
		"shell": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("echo here >file; echo ready; sleep 60")}})
			n.logged("1-1.0", "ready\n")
			said, code := n.entered("1-1.0", "cat file; pwd; exit 5")
			if said != "here\r\n/work\r\n" || code != 5 {
				t.Errorf("%q, exit code %d", said, code)
			}
			// A shell whose other end goes away ends.
			c, err := n.Shell(context.Background(), "1-1.0", 80, 24, "sleep 79.9")
			if err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(5 * time.Second); !processRuns("sleep\x0079.9\x00"); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the shell does not run")
				}
			}
			_ = c.Close()
			for end := time.Now().Add(5 * time.Second); processRuns("sleep\x0079.9\x00"); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the shell goes on")
				}
			}
			n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled}}})
			n.until("1-1.0", machine.TaskEnded)
		},
		"idle": func(t *testing.T, n *node) {
			x := boxed("sleep 60")
			x.Idle = 2 * time.Second
			n.say(wire.Sync{Start: []wire.Task{x}})
			if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.Limit {
				t.Errorf("%+v", s)
			}
		},
		"leftovers": func(t *testing.T, n *node) {
			n.say(wire.Sync{Start: []wire.Task{boxed("echo ready; sleep 60")}})
			n.logged("1-1.0", "ready\n")
			n.kill()
			if err := os.RemoveAll(filepath.Join(n.home, "tasks")); err != nil {
				t.Fatal(err)
			}
			n.start()
			d.gone(t, n.home)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "DOCKER_HOST="+d.host)
			test(t, n)
			d.gone(t, n.home)
		})
	}
	t.Run("GPU without its runtime", func(t *testing.T) {
		t.Parallel()
		document, err := os.ReadFile("devices/testdata/rtx4090-535.xml")
		if err != nil {
			t.Fatal(err)
		}
		document = bytes.ReplaceAll(document, []byte("GPU-"), fmt.Appendf(nil, "GPU-b%06x", os.Getpid())) // locks are of the whole host
		n := newNode(t, "DOCKER_HOST="+d.host, "PATH="+devicestest.FakeNvidiaSMI(t, t.TempDir(), document, nil)+":"+os.Getenv("PATH"))
		x := boxed("true")
		x.Needs.GPUs = 1
		n.say(wire.Sync{Start: []wire.Task{x}})
		if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.NotStarted || len(s.Devices) != 1 || !strings.Contains(s.Reason, "cannot get its GPUs") {
			t.Errorf("%+v", s)
		}
		d.gone(t, n.home)
	})
}

func TestNoEngine(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{"/var/run/docker.sock", "/run/podman/podman.sock"} {
		if _, err := os.Stat(socket); err == nil {
			t.Skip("this machine has a container engine")
		}
	}
	n := newNode(t, "DOCKER_HOST=unix:///nowhere")
	x := run("1-1.0", "true")
	x.Image = "busybox"
	n.say(wire.Sync{Start: []wire.Task{x}})
	if s := n.until("1-1.0", machine.TaskEnded); s.Cause != machine.NotStarted || !strings.Contains(s.Reason, "runs no containers") || !strings.Contains(s.Reason, "install one") {
		t.Errorf("%+v", s)
	}
}

// remove deletes the containers of an agent behind its back.
func (d *dock) remove(t *testing.T, home string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", `docker -H "$0" rm -f $(docker -H "$0" ps -aq --filter label=destajo.home="$1")`, d.host, home).CombinedOutput()
	if err != nil {
		t.Skipf("the docker command is missing: %s", out)
	}
}

// packed sends an archive with one file.
func (n *node) packed(name, text string) string {
	n.t.Helper()
	_, data := archive(n.t, map[string]string{name: text})
	return n.put(data)
}

// logged waits until a task's log has some text.
func (n *node) logged(id, text string) {
	n.t.Helper()
	for end := time.Now().Add(15 * time.Second); !strings.Contains(n.log(id), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("the log of %s is %q", id, n.log(id))
		}
	}
}

// entered runs a command in a shell of a task to its end.
func (n *node) entered(id, command string) (said string, code int) {
	n.t.Helper()
	c, err := n.Shell(context.Background(), id, 80, 24, command)
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	frames := wire.NewFrames(c, c)
	for {
		kind, data, err := frames.Read()
		if err != nil {
			n.t.Fatalf("%v after %q", err, said)
		}
		switch kind {
		case wire.FrameData:
			said += string(data)
		case wire.FrameExit:
			return said, wire.ParseExit(data)
		}
	}
}

// processRuns says whether a process with these arguments runs.
func processRuns(line string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if data, err := os.ReadFile(file); err == nil && string(data) == line {
			return true
		}
	}
	return false
}
