package ssh_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	xssh "golang.org/x/crypto/ssh"
)

// server is an SSH server in this process that runs commands on this host, in
// a home folder of its own.
type server struct {
	addr   string
	home   string
	keys   string // folder with the client's key and known_hosts
	signer xssh.Signer
	config *xssh.ServerConfig

	lock  sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	execs int
	user  string // who may log in
}

func newKey(t testing.TB, path string) xssh.Signer {
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := xssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := xssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if path != "" {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := xssh.NewPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".pub", xssh.MarshalAuthorizedKey(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func newServer(t testing.TB) *server {
	s := &server{home: t.TempDir(), keys: t.TempDir(), conns: map[net.Conn]bool{}, user: "tester"}
	client := newKey(t, filepath.Join(s.keys, "id"))
	s.signer = newKey(t, "")
	s.config = &xssh.ServerConfig{PublicKeyCallback: func(c xssh.ConnMetadata, key xssh.PublicKey) (*xssh.Permissions, error) {
		if c.User() != s.user || string(key.Marshal()) != string(client.PublicKey().Marshal()) {
			return nil, os.ErrPermission
		}
		return &xssh.Permissions{}, nil
	}}
	s.config.AddHostKey(s.signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	t.Cleanup(func() { l.Close(); s.setCut(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.lock.Lock()
			if s.cut {
				c.Close()
			} else {
				s.conns[c] = true
				go s.serve(c)
			}
			s.lock.Unlock()
		}
	}()
	return s
}

func (s *server) setCut(off bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.cut = off
	if off {
		for c := range s.conns {
			c.Close()
		}
		s.conns = map[net.Conn]bool{}
	}
}

func (s *server) commands() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.execs
}

func (s *server) serve(c net.Conn) {
	conn, chans, reqs, err := xssh.NewServerConn(c, s.config)
	if err != nil {
		c.Close()
		return
	}
	defer conn.Close()
	go xssh.DiscardRequests(reqs)
	for ch := range chans {
		switch ch.ChannelType() {
		case "session":
			channel, requests, err := ch.Accept()
			if err != nil {
				return
			}
			go s.session(channel, requests)
		case "direct-tcpip": // as a jump host
			var to struct {
				Host string
				Port uint32
				From string
				FP   uint32
			}
			if xssh.Unmarshal(ch.ExtraData(), &to) != nil {
				_ = ch.Reject(xssh.ConnectionFailed, "?")
				continue
			}
			out, err := net.Dial("tcp", net.JoinHostPort(to.Host, uitoa(to.Port)))
			if err != nil {
				_ = ch.Reject(xssh.ConnectionFailed, err.Error())
				continue
			}
			channel, requests, err := ch.Accept()
			if err != nil {
				return
			}
			go xssh.DiscardRequests(requests)
			go func() { _, _ = io.Copy(channel, out); channel.Close() }()
			go func() { _, _ = io.Copy(out, channel); out.Close() }()
		default:
			_ = ch.Reject(xssh.UnknownChannelType, "?")
		}
	}
}

func (s *server) session(ch xssh.Channel, reqs <-chan *xssh.Request) {
	defer ch.Close()
	for r := range reqs {
		var run struct{ Command string }
		if r.Type != "exec" || xssh.Unmarshal(r.Payload, &run) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		s.lock.Lock()
		s.execs++
		s.lock.Unlock()
		go xssh.DiscardRequests(reqs)
		cmd := exec.Command("/bin/sh", "-c", "echo 'Welcome to the test host!'; "+run.Command)
		cmd.Env = []string{"HOME=" + s.home, "PATH=" + os.Getenv("PATH"), "USER=" + s.user}
		cmd.Stdout, cmd.Stderr, cmd.Dir = ch, ch.Stderr(), s.home
		in, err := cmd.StdinPipe()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(in, ch); in.Close() }()
		var status struct{ Status uint32 }
		if err := cmd.Run(); err != nil {
			status.Status = 255
			var e *exec.ExitError
			if errors.As(err, &e) && e.ExitCode() >= 0 {
				status.Status = uint32(e.ExitCode())
			}
		}
		_, _ = ch.SendRequest("exit-status", false, xssh.Marshal(status))
		return
	}
}

func uitoa(n uint32) string {
	if n == 0 {
		return "0"
	}
	var b []byte
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}
