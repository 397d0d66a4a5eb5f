package ssh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/skeema/knownhosts"
	xssh "golang.org/x/crypto/ssh"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/backendtest"
	"github.com/destajo/destajo/internal/backend/ssh"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

func TestMain(m *testing.M) { backendtest.Main(m) }

func exe(t testing.TB) string {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// host is the server as a client knows it.
func (s *server) host() ssh.Host {
	name, port, _ := net.SplitHostPort(s.addr)
	p, _ := strconv.Atoi(port)
	return ssh.Host{Host: name, Port: p, User: s.user, IdentityFiles: []string{filepath.Join(s.keys, "id")}}
}

func (s *server) known(t testing.TB) string {
	file := filepath.Join(s.keys, "known_hosts")
	if err := os.WriteFile(file, []byte(knownhosts.Line([]string{s.addr}, s.signer.PublicKey())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t testing.TB, known string, hosts ...ssh.Host) *ssh.Backend {
	b := ssh.New(ssh.Config{Hosts: hosts, Binary: ssh.FindBinary(exe(t), t.TempDir()), ConfigFile: filepath.Join(t.TempDir(), "none"), KnownHosts: []string{known},
		KeepAlive: 300 * time.Millisecond, Backoff: 20 * time.Millisecond, Timeout: 10 * time.Second, Dial: 3 * time.Second})
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestSuite(t *testing.T) {
	s := newServer(t)
	known := s.known(t)
	t.Run("suite", func(t *testing.T) {
		backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
			return backendtest.Harness{Proc: "/proc", Patience: 15 * time.Second, Open: func(t *testing.T) backend.Backend { return open(t, known, s.host()) }}
		})
	})
}

// TestCutOff has a server of its own, that can be cut off.
func TestCutOff(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	known := s.known(t)
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		if !strings.HasSuffix(t.Name(), "cut_off") {
			t.Skip("elsewhere")
		}
		return backendtest.Harness{Proc: "/proc", Patience: 15 * time.Second, Open: func(t *testing.T) backend.Backend { return open(t, known, s.host()) },
			Cut: func(_ *testing.T, off bool) { s.setCut(off) }}
	})
}

// TestCommand reaches the host with the system's own ssh.
func TestCommand(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	known := s.known(t)
	h := s.host()
	h.SSHCommand = fmt.Sprintf("ssh -F none -o BatchMode=yes -o UserKnownHostsFile=%s -i %s -p %d %s@%s", known, h.IdentityFiles[0], h.Port, h.User, h.Host)
	if _, err := os.Stat("/usr/bin/ssh"); err != nil {
		t.Skip("there is no ssh on this machine")
	}
	b := open(t, known, h)
	first(t, b, "cmd")
	s.setCut(true)
	if _, err := b.List(t.Context(), "cmd"); fault.KindOf(err) != fault.Unreachable {
		t.Errorf("a list over a dead ssh_command: %v", err)
	}
}

// first launches a machine, talks to its agent, and ends it.
func first(t *testing.T, b *ssh.Backend, plane string) {
	t.Helper()
	offers, err := b.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	f, err := b.Launch(t.Context(), backend.Request{Tag: plane + "-m1", Plane: plane, Offer: offers[0], Say: func(w string) { said = append(said, w) }})
	if err != nil {
		t.Fatal(err)
	}
	hello(t, b, f)
	for {
		if err := b.End(t.Context(), f.Tag, f.Handle); err != nil {
			t.Fatal(err)
		}
		if left, err := b.List(t.Context(), plane); err != nil || len(left) == 0 {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}

func hello(t *testing.T, b *ssh.Backend, f backend.Found) {
	t.Helper()
	conn, err := b.Dial(t.Context(), &machine.Machine{Handle: f.Handle})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h, err := backendtest.Hello(t.Context(), conn)
	if err != nil || h.Machine != f.Tag {
		t.Fatalf("%+v, %v", h, err)
	}
}

// TestLogin is what may be wrong with keys and users.
func TestLogin(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	good := s.known(t)
	changed := filepath.Join(t.TempDir(), "changed")
	other := newKey(t, "")
	if err := os.WriteFile(changed, []byte("# keys\n"+knownhosts.Line([]string{s.addr}, other.PublicKey())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	print := xssh.FingerprintSHA256(s.signer.PublicKey())
	empty := filepath.Join(t.TempDir(), ".ssh", "known_hosts")
	for _, test := range []struct {
		name  string
		known string
		edit  func(*ssh.Host)
		kind  fault.Kind
		words []string
	}{
		{name: "all right", known: good},
		{name: "unknown key", known: empty, kind: fault.Denied, words: []string{"is not known", print, "--accept-key " + print}},
		{name: "another key was stated", known: empty, edit: func(h *ssh.Host) { h.AcceptKey = "SHA256:abc" }, kind: fault.Denied, words: []string{print, "not the stated SHA256:abc"}},
		{name: "changed key", known: changed, kind: fault.Denied, words: []string{"has changed", changed + ":2", "ssh-keygen -f"}},
		{name: "changed key that was accepted", known: changed, edit: func(h *ssh.Host) { h.AcceptKey = print }, kind: fault.Denied, words: []string{"has changed"}},
		{name: "wrong user", known: good, edit: func(h *ssh.Host) { h.User = "nobody" }, kind: fault.Denied, words: []string{`does not let "nobody" in`, "ssh-copy-id"}},
		{name: "wrong key", known: good, edit: func(h *ssh.Host) { h.IdentityFiles = []string{"/none/id"} }, kind: fault.Denied, words: []string{"/none/id (not there)"}},
		{name: "nobody there", known: good, edit: func(h *ssh.Host) { h.Port = 1 }, kind: fault.Unreachable, words: []string{"cannot be reached"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := s.host()
			if test.edit != nil {
				test.edit(&h)
			}
			b := open(t, test.known, h)
			_, err := b.List(t.Context(), "p")
			if fault.KindOf(err) != test.kind {
				t.Fatalf("kind %q: %v", fault.KindOf(err), err)
			}
			if err == nil {
				return
			}
			var p *backend.Partial
			if !errors.As(err, &p) || !p.Unknown(h.ID()+"#p-1") || p.Unknown("ssh://other#p-1") || !p.Unknown("") {
				t.Errorf("the error does not say of which machines nothing is known: %v", err)
			}
			all := fmt.Sprint(err, " ", fault.HintOf(err))
			for _, w := range test.words {
				if !strings.Contains(all, w) {
					t.Errorf("no %q in: %s", w, all)
				}
			}
		})
	}
	// The stated key is kept, so that it need not be stated again.
	h := s.host()
	h.AcceptKey = print
	if _, err := open(t, empty, h).List(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, empty, s.host()).List(t.Context(), "p"); err != nil {
		t.Errorf("after the key was accepted: %v", err)
	}
}

// TestConfig reaches a host by its name of ~/.ssh/config, through another one.
func TestConfig(t *testing.T) {
	t.Parallel()
	jump, s := newServer(t), newServer(t)
	jump.user = "jumper"
	known := s.known(t)
	both, _ := os.ReadFile(jump.known(t))
	own, _ := os.ReadFile(known)
	if err := os.WriteFile(known, append(both, own...), 0o600); err != nil {
		t.Fatal(err)
	}
	jh, sh := jump.host(), s.host()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`Host bastion
  HostName %s
  Port %d
  User jumper
  IdentityFile %s
Host lab
  HostName %s
  Port %d
  User tester
  IdentityFile %s
  ProxyJump bastion
Host odd
  ProxyCommand nc %%h %%p
Host *
  UserKnownHostsFile %s
`, jh.Host, jh.Port, jh.IdentityFiles[0], sh.Host, sh.Port, sh.IdentityFiles[0], known)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b := ssh.New(ssh.Config{Hosts: []ssh.Host{{Host: "lab"}}, Binary: ssh.FindBinary(exe(t), ""), ConfigFile: config, KnownHosts: []string{"/none"}})
	defer b.Close()
	first(t, b, "jump")
	odd := ssh.New(ssh.Config{Hosts: []ssh.Host{{Host: "odd"}}, ConfigFile: config})
	if _, err := odd.List(t.Context(), "p"); fault.KindOf(err) != fault.Invalid || !strings.Contains(fault.HintOf(err), "ssh_command") {
		t.Errorf("a ProxyCommand: %v", err)
	}
}

// TestUpload breaks uploads off, and damages them.
func TestUpload(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	known := s.known(t)
	bin := filepath.Join(s.home, ".destajo", "bin")
	first(t, open(t, known, s.host()), "up1")
	all, _ := filepath.Glob(filepath.Join(bin, "destajo-*"))
	if len(all) != 1 {
		t.Fatalf("programs on the host: %v", all)
	}
	want, err := os.ReadFile(exe(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(all[0]); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the program differs: %v", err)
	}
	// It is brought again when someone removed it, while we thought it there.
	b := open(t, known, s.host())
	first(t, b, "up2")
	if err := os.Remove(all[0]); err != nil {
		t.Fatal(err)
	}
	first(t, b, "up3")
	if left, _ := filepath.Glob(filepath.Join(bin, ".destajo-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	// A second process uploads nothing.
	before := s.commands()
	host := s.host()
	b = open(t, known, s.host())
	if _, err := b.Probe(t.Context(), host.ID()); err != nil {
		t.Fatal(err)
	}
	if n := s.commands() - before; n != 2 {
		t.Errorf("a look at a host that has all took %d commands", n)
	}
	// Wrong processor.
	b = ssh.New(ssh.Config{Hosts: []ssh.Host{s.host()}, KnownHosts: []string{known}, Binary: func(string, string) (string, string, error) {
		return ssh.FindBinary("/x/destajo", "/h")("linux", "riscv64")
	}})
	defer b.Close()
	if _, err := b.Probe(t.Context(), host.ID()); fault.KindOf(err) != fault.NotFound || !strings.Contains(fault.HintOf(err), "/h/agents-bin/destajo-linux-riscv64") {
		t.Errorf("no program for the host: %v; %s", err, fault.HintOf(err))
	}
	// A disk where nothing can be written.
	h := s.host()
	h.Home = "/proc/none"
	b = open(t, known, h)
	if _, err := b.Probe(t.Context(), h.ID()); fault.KindOf(err) != fault.Internal || !strings.Contains(err.Error(), "can be written") {
		t.Errorf("a home that cannot be written: %v", err)
	}
}

// TestMany opens more streams to one host than one connection carries.
func TestMany(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := open(t, s.known(t), s.host())
	offers, err := b.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := b.Launch(t.Context(), backend.Request{Tag: "many-1", Plane: "many", Offer: offers[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.End(context.Background(), f.Tag, f.Handle) }()
	var conns []net.Conn
	for range 20 {
		c, err := b.Dial(t.Context(), &machine.Machine{Handle: f.Handle})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		if _, err := backendtest.Hello(t.Context(), c); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	// A deadline is kept, though the far side is silent.
	c, err := b.Dial(t.Context(), &machine.Machine{Handle: f.Handle})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ssh://box": "ssh://box", "ssh://me@box": "ssh://me@box", "ssh://me@box:2222": "ssh://me@box:2222", "ssh://[::1]:22": "ssh://[::1]:22", "ssh://[fe80::1]": "ssh://[fe80::1]",
		"ssh://box/": "ssh://box", "box": "", "http://box": "", "ssh://": "", "ssh://me:secret@box": "", "ssh://box:0": "", "ssh://box:99999": "", "ssh://-oProxyCommand=x": "", "ssh://box/path": "", "ssh://a'b": "",
	} {
		h, err := ssh.ParseURL(text)
		got := ""
		if err == nil {
			got = h.ID()
		}
		if got != want {
			t.Errorf("%s is %q, not %q: %v", text, got, want, err)
		}
		if err == nil {
			if again, err := ssh.ParseURL(got); err != nil || again.ID() != got {
				t.Errorf("%s is not read again: %v", got, err)
			}
		} else if strings.Contains(err.Error(), "secret") {
			t.Error("a password is told")
		}
	}
}

func TestReadHosts(t *testing.T) {
	t.Parallel()
	got, err := ssh.ReadHosts("hosts", []byte("# ours\nssh://me@box:2222 price=0.40 name=big country=ES label.rack=a3\n\nlab identity=~/.ssh/lab home=/data/d # fast\n"))
	if err != nil {
		t.Fatal(err)
	}
	price := money.Amount(400_000_000)
	want := []ssh.Host{{Host: "box", User: "me", Port: 2222, PriceHour: &price, Name: "big", Country: "ES", Labels: map[string]string{"rack": "a3"}},
		{Host: "lab", IdentityFiles: []string{"~/.ssh/lab"}, Home: "/data/d"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for text, words := range map[string]string{"": "no host", "box\nbox\n": "hosts:2: ", "box speed=3\n": `no "speed"`, "box price=cheap\n": "hosts:1: ", "ssh://a b=\n": "no value", "a/b\n": "after the host"} {
		if _, err := ssh.ReadHosts("hosts", []byte(text)); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadNodePools(t *testing.T) {
	t.Parallel()
	hosts, ignored, err := ssh.ReadNodePools("pools", []byte(`lab:
  user: ubuntu
  identity_file: ~/.ssh/lab
  password: sesame
  hosts:
    - 10.0.0.1
    - ip: 10.0.0.2
      user: root
      port: 2222
      gpus: H100
other:
  hosts: [gpu-box]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []ssh.Host{{Host: "10.0.0.1", User: "ubuntu", IdentityFiles: []string{"~/.ssh/lab"}, Labels: map[string]string{"pool": "lab"}},
		{Host: "10.0.0.2", User: "root", Port: 2222, IdentityFiles: []string{"~/.ssh/lab"}, Labels: map[string]string{"pool": "lab"}},
		{Host: "gpu-box", Labels: map[string]string{"pool": "other"}}}
	if d := cmp.Diff(want, hosts); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"lab.password: nothing is installed with sudo, and logging in needs a key", "lab.hosts[1].gpus: not known here"}, ignored); d != "" {
		t.Error(d)
	}
	for _, text := range []string{"", "a: b", "a: {hosts: []}", "[1", "a: {hosts: [{ip: '-x'}]}", "a: {hosts: [{}]}"} {
		if _, _, err := ssh.ReadNodePools("pools", []byte(text)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzReadNodePools(f *testing.F) {
	f.Add([]byte("a:\n  hosts: [x]\n"))
	f.Add([]byte("a: {hosts: [{ip: 1.2.3.4, port: x}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hosts, _, err := ssh.ReadNodePools("pools", data)
		if (err == nil) != (len(hosts) > 0) {
			t.Errorf("%d hosts, %v", len(hosts), err)
		}
	})
}
