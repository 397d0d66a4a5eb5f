//go:build linux

package ssh_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/backendtest"
	"github.com/destajo/destajo/internal/backend/ssh"
	"github.com/destajo/destajo/machine"
)

// lab is three hosts on one bridge, each with a real sshd in namespaces of its
// own for network, processes, mounts and name.
type lab struct {
	dir   string
	name  string
	known string
	hosts []*labHost
}

type labHost struct {
	lab  *lab
	n    int
	addr string
	key  string
	cmd  *exec.Cmd
}

// newLab needs root, and programs that a plain machine may lack.
func newLab(t *testing.T) *lab {
	if os.Getuid() != 0 {
		t.Skip("hosts in network namespaces need root")
	}
	for _, p := range []string{"/usr/sbin/sshd", "ip", "unshare", "ssh-keygen"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("there is no %s on this machine", p)
		}
	}
	l := &lab{dir: t.TempDir(), name: fmt.Sprintf("dj%d", os.Getpid()%100000)}
	l.known = filepath.Join(l.dir, "known_hosts")
	newKey(t, filepath.Join(l.dir, "id"))
	l.must(t, "cp", l.dir+"/id.pub", l.dir+"/authorized_keys")
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		t.Skip(err)
	}
	net := 64 + os.Getpid()%128
	if out, err := exec.Command("ip", "link", "add", l.name, "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %s", out)
	}
	t.Cleanup(func() { l.close() })
	l.must(t, "ip", "addr", "add", fmt.Sprintf("10.77.%d.1/24", net), "dev", l.name)
	l.must(t, "ip", "link", "set", l.name, "up")
	for n := 1; n <= 3; n++ {
		h := &labHost{lab: l, n: n, addr: fmt.Sprintf("10.77.%d.1%d", net, n), key: filepath.Join(l.dir, fmt.Sprintf("hostkey%d", n))}
		l.hosts = append(l.hosts, h)
		newKey(t, h.key)
		l.must(t, "ip", "netns", "add", h.ns())
		l.must(t, "ip", "link", "add", h.link(), "type", "veth", "peer", "name", "eth0", "netns", h.ns())
		l.must(t, "ip", "link", "set", h.link(), "master", l.name, "up")
		l.must(t, "ip", "-n", h.ns(), "addr", "add", h.addr+"/24", "dev", "eth0")
		l.must(t, "ip", "-n", h.ns(), "link", "set", "lo", "up")
		l.must(t, "ip", "-n", h.ns(), "link", "set", "eth0", "up")
		h.boot(t)
		pub, err := os.ReadFile(h.key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(l.known, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%s %s", h.addr, pub)
		f.Close()
	}
	return l
}

func (l *lab) must(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

func (l *lab) close() {
	for _, h := range l.hosts {
		h.kill()
		_ = exec.Command("ip", "netns", "del", h.ns()).Run()
	}
	_ = exec.Command("ip", "link", "del", l.name).Run()
}

func (h *labHost) ns() string   { return fmt.Sprintf("%sn%d", h.lab.name, h.n) }
func (h *labHost) link() string { return fmt.Sprintf("%sv%d", h.lab.name, h.n) }

// boot starts the host. It has no systemd and nothing in the home of root,
// whatever this machine has: its .bashrc would be read with every command.
func (h *labHost) boot(t *testing.T) {
	t.Helper()
	h.cmd = exec.Command("ip", "netns", "exec", h.ns(), "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		fmt.Sprintf("hostname h%[1]d; [ -d /run/systemd ] && mount -t tmpfs none /run/systemd; case %[3]s in /root/*) ;; *) mount -t tmpfs none /root ;; esac; exec /usr/sbin/sshd -D -e -f /dev/null -h %[2]s -p 22 -o AuthorizedKeysFile=%[3]s/authorized_keys -o StrictModes=no -o UsePAM=no "+
			"-o PasswordAuthentication=no -o PermitRootLogin=yes -o PidFile=none -o MaxStartups=100:30:200", h.n, h.key, h.lab.dir))
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", h.addr+":22", time.Second)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("host %d does not come up: %v", h.n, err)
		}
	}
}

// kill is a power failure.
func (h *labHost) kill() {
	if h.cmd != nil {
		_ = h.cmd.Process.Signal(syscall.SIGKILL)
		_ = h.cmd.Wait()
	}
	// Its processes die a moment later.
	for range 500 {
		c, err := net.DialTimeout("tcp", h.addr+":22", 100*time.Millisecond)
		if err != nil {
			return
		}
		c.Close()
		time.Sleep(10 * time.Millisecond)
	}
}

func (h *labHost) cut(t *testing.T, off bool) {
	h.lab.must(t, "ip", "link", "set", h.link(), map[bool]string{true: "down", false: "up"}[off])
}

func (h *labHost) host() ssh.Host {
	return ssh.Host{Host: h.addr, User: "root", IdentityFiles: []string{filepath.Join(h.lab.dir, "id")}, Name: fmt.Sprintf("h%d", h.n), Home: filepath.Join(h.lab.dir, fmt.Sprintf("home%d", h.n))}
}

func TestRealHosts(t *testing.T) {
	l := newLab(t)
	var hosts []ssh.Host
	for _, h := range l.hosts {
		hosts = append(hosts, h.host())
	}
	began := time.Now()
	first(t, open(t, l.known, hosts[0]), "warm")
	t.Logf("first launch with upload, hello and end: %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	first(t, open(t, l.known, hosts[0]), "warm2")
	t.Logf("a launch, hello and end without: %v", time.Since(began).Round(time.Millisecond))

	n := 0
	t.Run("suite", func(t *testing.T) {
		backendtest.Suite(t, func(*testing.T) backendtest.Harness {
			n++
			turned := append(append([]ssh.Host{}, hosts[n%3:]...), hosts[:n%3]...)
			return backendtest.Harness{Proc: "/proc", Patience: 20 * time.Second, Open: func(t *testing.T) backend.Backend { return open(t, l.known, turned...) }}
		})
	})
	t.Run("one host is cut off", func(t *testing.T) { oneCutOff(t, l, hosts) })
	t.Run("power failure", func(t *testing.T) { powerFailure(t, l, hosts) })
	t.Run("ssh_command through a bastion", func(t *testing.T) { bastion(t, l, hosts) })
	t.Run("wrong user", func(t *testing.T) {
		h := hosts[0]
		h.User = "daemon"
		_, err := open(t, l.known, h).List(t.Context(), "p")
		if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), `"daemon"`) {
			t.Error(err)
		}
	})
	t.Run("host key changed", func(t *testing.T) {
		l.hosts[2].kill()
		newKey(t, l.hosts[2].key)
		l.hosts[2].boot(t)
		h := hosts[2]
		_, err := open(t, l.known, h).List(t.Context(), "p")
		if fault.KindOf(err) != fault.Denied || !strings.Contains(err.Error(), l.known+":3") {
			t.Error(err)
		}
	})
}

// launchAll starts a machine on each host.
func launchAll(t *testing.T, b *ssh.Backend, plane string) []backend.Found {
	t.Helper()
	offers, err := b.Offers(t.Context())
	if err != nil || len(offers) != 3 {
		t.Fatalf("%d offers: %v", len(offers), err)
	}
	var out []backend.Found
	for i, o := range offers {
		f, err := b.Launch(t.Context(), backend.Request{Tag: fmt.Sprintf("%s-m%d", plane, i), Plane: plane, Offer: o})
		if err != nil {
			t.Fatal(err)
		}
		hello(t, b, f)
		out = append(out, f)
	}
	return out
}

func end(t *testing.T, b *ssh.Backend, plane string, all ...backend.Found) {
	t.Helper()
	for _, f := range all {
		if err := b.End(t.Context(), f.Tag, f.Handle); err != nil {
			t.Error(err)
		}
	}
	if left, err := b.List(t.Context(), plane); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func oneCutOff(t *testing.T, l *lab, hosts []ssh.Host) {
	b := open(t, l.known, hosts...)
	all := launchAll(t, b, "cut")
	conn, err := b.Dial(t.Context(), &machine.Machine{Handle: all[1].Handle})
	if err != nil {
		t.Fatal(err)
	}
	l.hosts[1].cut(t, true)
	began := time.Now()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("something came over a cut line")
	}
	t.Logf("a cut line was noticed after %v", time.Since(began).Round(time.Millisecond))
	conn.Close()
	list, err := b.List(t.Context(), "cut")
	var p *backend.Partial
	if len(list) != 2 || !errors.As(err, &p) {
		t.Fatalf("of three hosts, one of them cut off: %v, %v", list, err)
	}
	for i, f := range all {
		if p.Unknown(f.Handle) != (i == 1) {
			t.Errorf("unknown of host %d: %v", i+1, p.Unknown(f.Handle))
		}
	}
	if err := b.End(t.Context(), all[1].Tag, all[1].Handle); fault.KindOf(err) != fault.Unreachable {
		t.Errorf("the end of a machine that nobody can reach: %v", err)
	}
	offers, err := b.Offers(t.Context())
	if err != nil || len(offers) != 3 || offers[1].Available.Value || !offers[0].Available.Value {
		t.Errorf("offers with a host down: %v", err)
	}
	for _, i := range []int{0, 2} {
		if err := b.End(t.Context(), all[i].Tag, all[i].Handle); err != nil {
			t.Error(err)
		}
	}
	l.hosts[1].cut(t, false)
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if list, err = b.List(t.Context(), "cut"); err == nil || time.Now().After(until) {
			break
		}
	}
	if err != nil || len(list) != 1 || list[0].Handle != all[1].Handle {
		t.Fatalf("after the host came back: %v, %v", list, err)
	}
	hello(t, b, all[1])
	end(t, b, "cut", all[1])
}

func powerFailure(t *testing.T, l *lab, hosts []ssh.Host) {
	b := open(t, l.known, hosts...)
	all := launchAll(t, b, "power")
	l.hosts[0].kill()
	l.hosts[0].boot(t)
	var err error
	for range 100 { // the old connection must first be found dead
		var conn net.Conn
		if conn, err = b.Dial(t.Context(), &machine.Machine{Handle: all[0].Handle}); err == nil {
			_, err = backendtest.Hello(t.Context(), conn)
			conn.Close()
			if err == nil {
				break
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("the agent does not come back with its host: %v", err)
	}
	end(t, b, "power", all...)
}

// bastion reaches the second host through the first with the system's own ssh.
func bastion(t *testing.T, l *lab, hosts []ssh.Host) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("there is no ssh on this machine")
	}
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("Host *\n User root\n IdentityFile %s/id\n UserKnownHostsFile %s\n BatchMode yes\n ConnectTimeout 5\n", l.dir, l.known)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h := hosts[1]
	h.SSHCommand = fmt.Sprintf("ssh -F %s -J %s %s", config, hosts[0].Host, h.Host)
	first(t, open(t, l.known, h), "bastion")
	// The same through our own client.
	text += fmt.Sprintf("\nHost inner\n HostName %s\n ProxyJump %s\n", h.Host, hosts[0].Host)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b := ssh.New(ssh.Config{Hosts: []ssh.Host{{Host: "inner", Home: h.Home}}, Binary: ssh.FindBinary(exe(t), ""), ConfigFile: config})
	defer b.Close()
	first(t, b, "inner")
}
