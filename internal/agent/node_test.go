package agent_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/agent/devices/devicestest"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// archive makes a tar.gz of files and, where the content begins with "-> ", links.
func archive(t testing.TB, files map[string]string) (name string, data []byte) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	for name, text := range files {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = io.WriteString(tw, text)
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:]), b.Bytes()
}

// unpack reads the files of a tar.gz.
func unpack(t testing.TB, r io.ReadCloser) map[string]string {
	t.Helper()
	if r == nil {
		return nil
	}
	defer r.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(tr)
		if h.Typeflag == tar.TypeReg {
			out[h.Name] = string(data)
		}
	}
}

func (n *node) put(data []byte) string {
	n.t.Helper()
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	if err := n.PutBlob(context.Background(), name, bytes.NewReader(data), int64(len(data))); err != nil {
		n.t.Fatal(err)
	}
	return name
}

func TestFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx := context.Background()
	bundle, data := archive(t, map[string]string{"in.txt": "input", "sub/x": "y"})
	if there, err := n.HasBlob(ctx, bundle); there || err != nil {
		t.Fatal(there, err)
	}
	if err := n.PutBlob(ctx, bundle, bytes.NewReader(data[1:]), int64(len(data)-1)); err == nil {
		t.Error("half a file was taken")
	}
	n.put(data)
	if there, err := n.HasBlob(ctx, bundle); !there || err != nil {
		t.Fatal(there, err)
	}
	_, old := archive(t, map[string]string{"step": "7"})
	x := run("1-1.0", `cat in.txt sub/x "$DESTAJO_CHECKPOINT/step"; echo 8 >$DESTAJO_CHECKPOINT/step
mkdir -p out; echo result >out/r; ln -s /etc out/etc; ln -s /etc outside; echo $DESTAJO_OUT`)
	x.Bundle, x.Keep, x.KeepDir = bundle, n.put(old), "ckpt"
	x.Outputs = []string{"out/", "outside/*", "../../../*", "*.txt"}
	n.say(wire.Sync{Start: []wire.Task{x}})
	s := n.until("1-1.0", machine.TaskEnded)
	work := filepath.Join(n.home, "tasks", "1-1.0", "work")
	if want := "inputy7" + filepath.Join(work, "out") + "\n"; n.log("1-1.0") != want || !s.Outputs || !s.Kept {
		t.Errorf("%+v with the log %q, want %q", s, n.log("1-1.0"), want)
	}
	r, err := n.Outputs(ctx, "1-1.0")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"out/r": "result\n", "in.txt": "input"}, unpack(t, r)); d != "" {
		t.Error(d)
	}
	r, tag, err := n.Keep(ctx, "1-1.0", "")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"step": "8\n"}, unpack(t, r)); d != "" || tag == "" {
		t.Errorf("%q %s", tag, d)
	}
	if r, _, err := n.Keep(ctx, "1-1.0", tag); r != nil || err != nil {
		t.Errorf("the same was sent again: %v", err)
	}
}

// TestLinksLeadNowhere has files that would be written or read outside the
// task's folder.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	outside := t.TempDir()
	_, bundle := archive(t, map[string]string{"ckpt": "-> " + outside})
	_, keep := archive(t, map[string]string{"evil": "x"})
	x := run("1-1.0", "true")
	x.Bundle, x.Keep, x.KeepDir = n.put(bundle), n.put(keep), "ckpt"
	y := run("2-1.0", "true")
	y.KeepDir = "../../.."
	n.say(wire.Sync{Start: []wire.Task{x, y}})
	for _, id := range []string{"1-1.0", "2-1.0"} {
		if s := n.until(id, machine.TaskEnded); s.Cause != machine.NotStarted {
			t.Errorf("%+v", s)
		}
	}
	if all, _ := os.ReadDir(outside); len(all) > 0 {
		t.Errorf("%s was written outside", all[0].Name())
	}
}

// TestOrder has a task that waits for all CPUs: what came after it must not
// keep it waiting for ever.
func TestOrder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	h, err := n.Hello(context.Background())
	if err != nil || h.Host.CPUs < 2 {
		t.Skip("this needs two CPUs")
	}
	all := float64(h.Host.CPUs)
	order := filepath.Join(n.home, "order")
	task := func(id string, cpus float64, seconds string) wire.Task {
		x := run(id, "echo "+id+" >>"+order+"; sleep "+seconds)
		x.Needs = machine.Needs{CPUs: cpus}
		return x
	}
	n.say(wire.Sync{Start: []wire.Task{task("1-1.0", all/2, "0.4"), task("2-1.0", all, "0"), task("3-1.0", all/2, "0"), task("4-1.0", 0, "0"), task("5-1.0", all+1, "0")}})
	if s := n.until("5-1.0", machine.TaskEnded); s.Cause != machine.NotStarted {
		t.Errorf("%+v", s)
	}
	n.until("3-1.0", machine.TaskEnded)
	n.until("4-1.0", machine.TaskEnded)
	data, _ := os.ReadFile(order)
	lines := strings.Fields(string(data))
	at := map[string]int{}
	for i, l := range lines {
		at[l] = i
	}
	if len(lines) != 4 || at["2-1.0"] > at["3-1.0"] || at["4-1.0"] > at["2-1.0"] {
		t.Errorf("they started in the order %v", lines)
	}
}

// TestDevices has two agents on a host with GPUs.
func TestDevices(t *testing.T) {
	document, err := os.ReadFile("devices/testdata/a100-mig-470.xml")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile("devices/testdata/a100-mig-470.list")
	if err != nil {
		t.Fatal(err)
	}
	// UUIDs of this test alone: locks are of the whole host.
	own := fmt.Sprintf("%06x", os.Getpid())
	mark := func(b []byte) []byte {
		return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("GPU-"), []byte("GPU-"+own)), []byte("MIG-"), []byte("MIG-"+own))
	}
	t.Setenv("PATH", devicestest.FakeNvidiaSMI(t, t.TempDir(), mark(document), mark(list))+":"+os.Getenv("PATH"))
	n, other := newNode(t), newNode(t)
	h, err := n.Hello(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	units := 0
	for _, d := range h.Host.Devices {
		units += max(1, len(d.MIG))
	}
	if units < 2 {
		t.Fatalf("the fake has %d units", units)
	}
	show := `echo "$CUDA_VISIBLE_DEVICES|$NVIDIA_VISIBLE_DEVICES"; `
	big := run("1-1.0", show+"sleep 30")
	big.Needs, big.Env = machine.Needs{GPUs: units}, map[string]string{"CUDA_VISIBLE_DEVICES": "0"}
	n.say(wire.Sync{Start: []wire.Task{big, run("2-1.0", show)}})
	s := n.until("1-1.0", machine.TaskRunning)
	n.until("2-1.0", machine.TaskEnded)
	for n.log("1-1.0") == "" {
		time.Sleep(5 * time.Millisecond)
	}
	names := strings.Join(s.Devices, ",")
	if len(s.Devices) != units || n.log("1-1.0") != names+"|"+names+"\n" {
		t.Errorf("it holds %v and sees %q", s.Devices, n.log("1-1.0"))
	}
	if n.log("2-1.0") != "|void\n" {
		t.Errorf("a task without GPUs sees %q", n.log("2-1.0"))
	}
	small := run("3-1.0", show)
	small.Needs = machine.Needs{GPUs: 1}
	other.say(wire.Sync{Start: []wire.Task{small}})
	// The devices stay locked through the death of the agent that gave them out.
	n.kill()
	time.Sleep(50 * time.Millisecond)
	if r := other.say(wire.Sync{}); r.Tasks[0].State != machine.TaskQueued {
		t.Errorf("two agents gave out one GPU: %+v", r.Tasks[0])
	}
	n.start()
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled}}})
	n.until("1-1.0", machine.TaskEnded)
	if s := other.until("3-1.0", machine.TaskEnded); len(s.Devices) != 1 {
		t.Errorf("%+v", s)
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	h, err := n.Hello(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(h.Host.Limits, "cgroup") {
		t.Skipf("limits are by %s here", h.Host.Limits)
	}
	x := run("1-1.0", `head -c 60000000 /dev/zero | tail -c 60000000 >/dev/null`)
	x.Needs.Memory = 20_000_000
	y := run("2-1.0", `head -c 60000000 /dev/zero | tail -c 60000000 | wc -c`)
	y.Needs.Memory = 200_000_000
	// One that leaves its session, hides its name and stays.
	z := run("3-1.0", `setsid env -i /bin/sh -c 'echo $$ >pid; exec sleep 99.5' & while [ ! -s pid ]; do sleep 0.01; done`)
	z.Needs.Memory = 100_000_000
	n.say(wire.Sync{Start: []wire.Task{x, y, z}})
	if s := n.until("1-1.0", machine.TaskEnded); !strings.Contains(s.Reason, "out of memory: it used all of the 20 MB") || s.PeakMem < 19_000_000 {
		t.Errorf("%+v", s)
	}
	if s := n.until("2-1.0", machine.TaskEnded); s.Exit != 0 || n.log("2-1.0") != "60000000\n" || s.PeakMem < 30_000_000 {
		t.Errorf("%+v %q", s, n.log("2-1.0"))
	}
	n.until("3-1.0", machine.TaskEnded)
	pid, err := os.ReadFile(filepath.Join(n.home, "tasks", "3-1.0", "work", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _ := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline")
	if bytes.Contains(line, []byte("99.5")) {
		t.Error("a process that hid itself is left")
	}
}

func TestService(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // it stands for the service
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello "+r.URL.Path) })}
	go func() { _ = server.Serve(l) }()
	x := run("1-1.0", "echo up; sleep 60")
	x.Kind, x.Health = "service", &wire.Health{Port: port, Path: "/health", Every: time.Second, Start: time.Second}
	n.say(wire.Sync{Start: []wire.Task{x}})
	healthy := func(want bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; {
			s := n.say(wire.Sync{Seen: n.seen, Wait: time.Second}).Tasks[0]
			if s.Healthy == want && s.State == machine.TaskRunning {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", s)
			}
		}
	}
	healthy(true)
	conn, err := n.Forward(context.Background(), "1-1.0", port)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /x HTTP/1.0\r\n\r\n")
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "hello /x") {
		t.Errorf("%q %v", answer, err)
	}
	_ = conn.Close()
	_ = server.Close()
	if _, err := n.Forward(context.Background(), "1-1.0", port); fault.KindOf(err) != fault.Unreachable {
		t.Errorf("a port where nobody listens: %v", err)
	}
	healthy(false)
	for end := time.Now().Add(10 * time.Second); strings.Count(n.log("1-1.0"), "up") < 2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a service that does not answer was not started again")
		}
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("1-1.0", "")
	x.Kind, x.Env["WORD"] = "notebook", "forty-two"
	n.say(wire.Sync{Start: []wire.Task{x}})
	n.until("1-1.0", machine.TaskRunning)
	conn, err := n.Shell(context.Background(), "1-1.0", 100, 30, "")
	if err != nil {
		t.Fatal(err)
	}
	frames := wire.NewFrames(conn, conn)
	_ = frames.Size(111, 40)
	time.Sleep(50 * time.Millisecond)
	_ = frames.Write(wire.FrameData, []byte("echo $WORD-$DESTAJO_TASK; stty size; exit 3\n"))
	var out strings.Builder
	for {
		kind, data, err := frames.Read()
		if err != nil {
			t.Fatal(err, out.String())
		}
		if kind == wire.FrameExit {
			if code := wire.ParseExit(data); code != 3 {
				t.Errorf("exit code %d", code)
			}
			break
		}
		out.Write(data)
	}
	if !strings.Contains(out.String(), "forty-two-1-1.0") || !strings.Contains(out.String(), "40 111") {
		t.Errorf("%q", out.String())
	}
	_ = conn.Close()
	// What a shell leaves behind ends with the task, and so does the shell.
	conn, err = n.Shell(context.Background(), "1-1.0", 100, 30, "setsid sleep 88.5 & sleep 88.5")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.Sleep(200 * time.Millisecond)
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "1-1.0", Cause: machine.Cancelled}}})
	n.until("1-1.0", machine.TaskEnded)
	time.Sleep(100 * time.Millisecond)
	if left := sleeping("88.5"); left != 0 {
		t.Errorf("%d processes are left", left)
	}
}

// sleeping counts the processes that sleep so long.
func sleeping(seconds string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, p := range all {
		if line, _ := os.ReadFile(p); string(line) == "sleep\x00"+seconds+"\x00" {
			n++
		}
	}
	return n
}

func TestSamples(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := run("7-1.0", "while :; do :; done")
	x.Job, x.Idle = 7, 30*time.Second // short: measured every second
	n.say(wire.Sync{Start: []wire.Task{x}})
	var first *wire.Samples
	for end := time.Now().Add(25 * time.Second); first == nil || len(first.Samples) == 0; time.Sleep(100 * time.Millisecond) {
		var err error
		if first, err = n.Samples(context.Background(), 0); err != nil || time.Now().After(end) {
			t.Fatalf("no samples: %v", err)
		}
	}
	if s := first.Samples[0]; s.Job != 7 || s.Attempt != "7-1" || s.Memory == 0 {
		t.Errorf("%+v", s)
	}
	n.say(wire.Sync{Stop: []wire.Stop{{ID: "7-1.0", Cause: machine.Cancelled}}})
	n.until("7-1.0", machine.TaskEnded)
	n.kill()
	n.start()
	again, err := n.Samples(context.Background(), first.Next-int64(len(first.Samples)))
	if err != nil || len(again.Samples) < len(first.Samples) || again.Next < first.Next {
		t.Fatalf("after a restart: %+v %v", again, err)
	}
	if d := cmp.Diff(first.Samples[0], again.Samples[0]); d != "" {
		t.Error(d)
	}
	if later, err := n.Samples(context.Background(), again.Next); err != nil || len(later.Samples) != 0 {
		t.Errorf("%+v %v", later, err)
	}
}

// TestLog has output that is fast, long and no text.
func TestLog(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", `head -c 10000000 /dev/zero; printf '\377\000\n'; i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done`)}})
	s := n.until("1-1.0", machine.TaskEnded)
	var all []byte
	for int64(len(all)) < s.Log {
		part, err := n.Log(context.Background(), "1-1.0", int64(len(all)), 1<<20)
		if err != nil || len(part) == 0 {
			t.Fatalf("at %d of %d: %v", len(all), s.Log, err)
		}
		all = append(all, part...)
	}
	if !bytes.HasPrefix(all[10_000_000:], []byte("\xff\x00\nline 0\n")) || !bytes.HasSuffix(all, []byte("line "+strconv.Itoa(19999)+"\n")) {
		t.Error("the log is not what was written")
	}
	if part, err := n.Log(context.Background(), "1-1.0", s.Log+5, 10); err != nil || len(part) != 0 {
		t.Errorf("beyond the end: %q %v", part, err)
	}
}
