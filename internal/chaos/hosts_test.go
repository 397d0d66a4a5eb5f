//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/agent/devices/devicestest"
)

// lab is three hosts on one bridge, each with a real sshd and cards of its own,
// in namespaces for network, processes, mounts and name, and a user's account
// from which they are used.
type lab struct {
	t     *testing.T
	dir   string
	name  string
	exe   string
	serve *exec.Cmd
	hosts []*host
}

type host struct {
	lab  *lab
	n    int
	addr string
	cmd  *exec.Cmd
}

// cards are the documents that the hosts' nvidia-smi print, and what is asked
// for to get them.
var cards = []struct{ document, gpu string }{{"rtx4090-535.xml", "RTX4090"}, {"v100-418.xml", "V100-SXM-16GB"}, {"quadro-460.xml", "RTX6000-TURING"}}

// newLab needs root, and programs that a plain machine may lack.
func newLab(t *testing.T) *lab {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	if os.Getuid() != 0 {
		t.Skip("hosts in network namespaces need root")
	}
	for _, p := range []string{"/usr/sbin/sshd", "ip", "unshare", "ssh-keygen"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("there is no %s on this machine", p)
		}
	}
	l := &lab{t: t, dir: t.TempDir(), name: fmt.Sprintf("dc%d", os.Getpid()%100000)}
	subnet := 64 + os.Getpid()%128
	if out, err := exec.Command("ip", "link", "add", l.name, "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %s", out)
	}
	t.Cleanup(l.close)
	l.exe = build(t)
	for _, d := range []string{"/run/sshd", l.dir + "/.ssh"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Skip(err)
		}
	}
	l.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", l.dir+"/id")
	l.must("cp", l.dir+"/id.pub", l.dir+"/authorized_keys")
	l.must("ip", "addr", "add", fmt.Sprintf("10.78.%d.1/24", subnet), "dev", l.name)
	l.must("ip", "link", "set", l.name, "up")
	for n := range 3 {
		h := &host{lab: l, n: n, addr: fmt.Sprintf("10.78.%d.1%d", subnet, n)}
		l.hosts = append(l.hosts, h)
		document, err := os.ReadFile(filepath.Join("..", "agent", "devices", "testdata", cards[n].document))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(h.path("bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		devicestest.FakeNvidiaSMI(t, h.path("bin"), document, nil)
		l.must("ip", "netns", "add", h.ns())
		l.must("ip", "link", "add", h.link(), "type", "veth", "peer", "name", "eth0", "netns", h.ns())
		l.must("ip", "link", "set", h.link(), "master", l.name, "up")
		l.must("ip", "-n", h.ns(), "addr", "add", h.addr+"/24", "dev", "eth0")
		l.must("ip", "-n", h.ns(), "link", "set", "lo", "up")
		l.must("ip", "-n", h.ns(), "link", "set", "eth0", "up")
		h.newKey()
		h.boot()
	}
	l.know()
	return l
}

func (l *lab) must(name string, args ...string) {
	l.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

func (l *lab) close() {
	l.stopServe(syscall.SIGKILL)
	for _, h := range l.hosts {
		h.kill()
		_ = exec.Command("ip", "netns", "del", h.ns()).Run()
	}
	_ = exec.Command("ip", "link", "del", l.name).Run()
}

// know writes the hosts' keys into the user's known_hosts.
func (l *lab) know() {
	var text bytes.Buffer
	for _, h := range l.hosts {
		pub, err := os.ReadFile(h.path("key.pub"))
		if err != nil {
			l.t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s %s", h.addr, pub)
	}
	if err := os.WriteFile(l.dir+"/.ssh/known_hosts", text.Bytes(), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (h *host) ns() string   { return fmt.Sprintf("%sn%d", h.lab.name, h.n) }
func (h *host) link() string { return fmt.Sprintf("%sv%d", h.lab.name, h.n) }

func (h *host) path(name string) string {
	return filepath.Join(h.lab.dir, fmt.Sprintf("host%d", h.n), name)
}

func (h *host) newKey() {
	_, _ = os.Remove(h.path("key")), os.Remove(h.path("key.pub"))
	h.lab.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", h.path("key"))
}

// boot starts the host: with a home of its own that is soon full, no systemd, and its tools where
// root finds them.
func (h *host) boot() {
	script := fmt.Sprintf("hostname h%d; [ -d /run/systemd ] && mount -t tmpfs none /run/systemd; case %[2]s in /root/*) ;; *) mount -t tmpfs -o size=90m none /root ;; esac; mount --bind %[3]s /usr/local/sbin && "+
		"exec /usr/sbin/sshd -D -e -f /dev/null -h %[4]s -p 22 -o AuthorizedKeysFile=%[2]s/authorized_keys -o StrictModes=no -o UsePAM=no "+
		"-o PasswordAuthentication=no -o PermitRootLogin=yes -o PidFile=none -o MaxStartups=100:30:200", h.n, h.lab.dir, h.path("bin"), h.path("key"))
	h.cmd = exec.Command("ip", "netns", "exec", h.ns(), "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script)
	if err := h.cmd.Start(); err != nil {
		h.lab.t.Fatal(err)
	}
	h.lab.until(10*time.Second, "the host comes up", func() bool {
		c, err := net.DialTimeout("tcp", h.addr+":22", time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// kill is a power failure.
func (h *host) kill() {
	if h.cmd != nil {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	}
	for range 200 {
		c, err := net.DialTimeout("tcp", h.addr+":22", 100*time.Millisecond)
		if err != nil {
			return
		}
		c.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

func (h *host) cut(off bool) {
	h.lab.must("ip", "link", "set", h.link(), map[bool]string{true: "down", false: "up"}[off])
}

// The user's times.
const (
	deadMan = 4 * time.Second
	margin  = 4 * time.Second
)

func (l *lab) command(args ...string) *exec.Cmd {
	cmd := exec.Command(l.exe, args...)
	cmd.Env = []string{"HOME=" + l.dir, "DESTAJO_HOME=" + l.dir + "/state", "PATH=" + os.Getenv("PATH"), "DESTAJO_DEAD_MAN=" + deadMan.String(), "DESTAJO_MARGIN=" + margin.String(),
		"DESTAJO_GRACE=1s", "DESTAJO_LINGER=2s", "DESTAJO_SWEEP=1s", "DESTAJO_COOLDOWN=3s", "DESTAJO_LOG=info"}
	cmd.Dir = l.dir
	return cmd
}

// run runs the program to its end and gives what it printed.
func (l *lab) run(args ...string) string {
	l.t.Helper()
	cmd := l.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		l.t.Fatalf("destajo %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}

func (l *lab) startServe() {
	l.t.Helper()
	out, err := os.OpenFile(l.dir+"/serve.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer out.Close()
	l.until(10*time.Second, "destajo serve starts", func() bool { // the lease of a killed one lasts a moment
		l.serve = l.command("serve")
		l.serve.Stdout, l.serve.Stderr = out, out
		if err := l.serve.Start(); err != nil {
			l.t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- l.serve.Wait() }()
		select {
		case <-ended:
			return false
		case <-time.After(500 * time.Millisecond):
			return true
		}
	})
}

func (l *lab) stopServe(s os.Signal) {
	if l.serve != nil {
		_ = l.serve.Process.Signal(s)
		l.serve = nil
	}
}

func (l *lab) until(most time.Duration, what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(most); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile(l.dir + "/serve.log")
			l.t.Fatalf("not within %s: %s\n%s%s\n%s", most, what, l.run("jobs", "--all"), l.run("machines"), tailOf(log, 3000))
		}
	}
}

func tailOf(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// row is a job as `destajo jobs -o json` prints it.
type row struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
}

func (l *lab) job(id int64) row {
	l.t.Helper()
	var all []row
	if err := json.Unmarshal([]byte(l.run("jobs", "--all", "-o", "json")), &all); err != nil {
		l.t.Fatal(err)
	}
	for _, r := range all {
		if r.ID == number(id) {
			return r
		}
	}
	l.t.Fatalf("no job %d in %+v", id, all)
	return row{}
}

// submit hands in a job that writes beats to its trace.
func (l *lab) submit(name, resources string, seconds int) int64 {
	l.t.Helper()
	return l.raw(name, resources, fmt.Sprintf("say() { echo \"$DESTAJO_TASK $1 $(date +%%s%%N)\" >> %s; }\nsay start; echo \"on $(hostname) with ${CUDA_VISIBLE_DEVICES:-nothing}\"\n"+
		"i=0; while [ $i -lt %d ]; do sleep 0.1; say beat; i=$((i+1)); done; say end\n", l.trace(name), seconds*10))
}

// raw hands in a job that runs a script.
func (l *lab) raw(name, resources, script string) int64 {
	l.t.Helper()
	text := fmt.Sprintf("name: %s\nresources: {%s}\nrun: |\n  %s\n", name, resources, strings.ReplaceAll(strings.TrimSpace(script), "\n", "\n  "))
	path := filepath.Join(l.dir, name+".yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	id, err := strconv.ParseInt(strings.TrimSpace(l.run("run", "--detach", path)), 10, 64)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

func (l *lab) trace(name string) string { return filepath.Join(l.dir, name+".trace") }

func (l *lab) marks(name string) map[string]*marks {
	l.t.Helper()
	m, err := readTrace(l.trace(name))
	if err != nil {
		return nil // half a line
	}
	return m
}

// running waits until a job's command runs.
func (l *lab) running(name, task string) {
	l.t.Helper()
	l.until(20*time.Second, task+" runs", func() bool { m := l.marks(name)[task]; return m != nil && m.last > m.first })
}

func (l *lab) done(id int64, most time.Duration, attempts int) {
	l.t.Helper()
	l.until(most, fmt.Sprintf("job %d is done", id), func() bool { s := l.job(id).State; return s == "done" || s == "failed" || s == "stopped" })
	if r := l.job(id); r.State != "done" || attempts != 0 && r.Attempts != attempts {
		l.t.Errorf("job %d is %s after %d attempts: %s", id, r.State, r.Attempts, r.Reason)
	}
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// hostOf is the host on which a job runs, by its log.
func (l *lab) hostOf(id int64) *host {
	l.t.Helper()
	log := l.run("logs", number(id))
	i := strings.LastIndex(log, "on h")
	if i < 0 {
		l.t.Fatalf("the log of job %d is %q", id, log)
	}
	return l.hosts[log[i+4]-'0']
}
