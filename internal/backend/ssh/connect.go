package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kevinburke/ssh_config"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	xknown "golang.org/x/crypto/ssh/knownhosts"

	"github.com/destajo/destajo/fault"
)

const mostJumps = 4

// target is where a host is, after ~/.ssh/config was asked.
type target struct {
	host, user string
	port       int
	keys       []string // identity files
	jumps      []string
	known      []string // files of known hosts; the first is written to
	alias      string   // under which its key is known; empty: host
	agent      string   // socket of the ssh agent
	only       bool     // no other keys than keys
}

func (t *target) address() string { return net.JoinHostPort(t.host, strconv.Itoa(t.port)) }

func (t *target) String() string { return t.user + "@" + t.address() }

// resolve asks ~/.ssh/config as ssh does: what the host itself states wins.
func (b *Backend) resolve(h *Host) (*target, error) {
	cfg := &ssh_config.Config{}
	if data, err := os.ReadFile(b.c.ConfigFile); err == nil {
		if cfg, err = ssh_config.DecodeBytes(data); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "%s is not understood", b.c.ConfigFile).Hint("give the host an ssh_command, such as: ssh %s", h.Host)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fault.Wrap(fault.Invalid, err, "the SSH configuration cannot be read")
	}
	get := func(key string) string {
		v, err := cfg.Get(h.Host, key)
		if err != nil {
			return ""
		}
		return strings.Trim(v, `"`)
	}
	me, err := user.Current()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "this user has no name")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = me.HomeDir
	}
	t := &target{host: h.Host, user: h.User, port: h.Port, agent: os.Getenv("SSH_AUTH_SOCK"), known: b.c.KnownHosts, alias: get("HostKeyAlias")}
	if v := get("HostName"); v != "" {
		t.host = strings.ReplaceAll(v, "%h", h.Host)
	}
	if t.user == "" {
		if t.user = get("User"); t.user == "" {
			t.user = me.Username
		}
	}
	if t.port == 0 {
		t.port = 22
		if v := get("Port"); v != "" {
			if t.port, err = strconv.Atoi(v); err != nil {
				return nil, fault.New(fault.Invalid, "%s: Port %q of %s", b.c.ConfigFile, v, h.Host)
			}
		}
	}
	expand := func(path string) string {
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			path = filepath.Join(home, rest)
		}
		return strings.NewReplacer("%%", "%", "%d", home, "%h", t.host, "%r", t.user, "%u", me.Username).Replace(path)
	}
	if files := get("UserKnownHostsFile"); files != "" {
		t.known = nil
		for _, f := range strings.Fields(files) {
			t.known = append(t.known, expand(f))
		}
	}
	files := h.IdentityFiles
	if len(files) == 0 {
		if files, err = cfg.GetAll(h.Host, "IdentityFile"); err != nil {
			files = nil
		}
	}
	if len(files) == 0 {
		files = []string{"~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"}
	}
	for _, f := range files {
		t.keys = append(t.keys, expand(strings.Trim(f, `"`)))
	}
	t.only = strings.EqualFold(get("IdentitiesOnly"), "yes")
	switch v := get("IdentityAgent"); v {
	case "":
	case "none":
		t.agent = ""
	case "SSH_AUTH_SOCK":
	default:
		t.agent = expand(v)
	}
	if v := get("ProxyCommand"); v != "" && v != "none" {
		return nil, fault.New(fault.Invalid, "%s: %s has a ProxyCommand", b.c.ConfigFile, h.Host).Hint("give the host an ssh_command: ssh %s", h.Host)
	}
	if v := get("ProxyJump"); v != "" && v != "none" {
		t.jumps = strings.Split(v, ",")
	}
	return t, nil
}

// dial logs in at a host, through its jump hosts.
func (b *Backend) dial(ctx context.Context, h *Host, depth int) (*ssh.Client, error) {
	t, err := b.resolve(h)
	if err != nil {
		return nil, err
	}
	if depth > mostJumps {
		return nil, fault.New(fault.Invalid, "%s is reached through more than %d hosts", h.Host, mostJumps).Hint("give the host an ssh_command")
	}
	ctx, cancel := context.WithTimeout(ctx, b.c.Dial)
	defer cancel()
	config, tried, closeAgent, err := b.config(h, t)
	if err != nil {
		return nil, err
	}
	defer closeAgent()

	var conn net.Conn
	var through []*ssh.Client
	drop := func() {
		for _, c := range through {
			_ = c.Close()
		}
	}
	for i, jump := range t.jumps {
		j, err := ParseURL("ssh://" + strings.TrimPrefix(strings.TrimSpace(jump), "ssh://"))
		if err != nil {
			drop()
			return nil, err
		}
		j.IdentityFiles = nil
		var c *ssh.Client
		if i == 0 {
			c, err = b.dial(ctx, &j, depth+1)
		} else {
			c, err = b.dialThrough(ctx, through[i-1], &j)
		}
		if err != nil {
			drop()
			return nil, fault.Wrap(fault.KindOf(err), err, "the way to %s", h.Host).Hint("%s", fault.HintOf(err))
		}
		through = append(through, c)
	}
	if n := len(through); n > 0 {
		conn, err = through[n-1].DialContext(ctx, "tcp", t.address())
	} else {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp", t.address())
	}
	if err != nil {
		drop()
		return nil, fault.Wrap(fault.Unreachable, err, "%s cannot be reached", h.ID()).Hint("is the host up, and is this its address? try: ssh %s -p %d", t.user+"@"+t.host, t.port)
	}
	client, err := b.handshake(ctx, conn, h, t, config, tried)
	if err != nil {
		drop()
		return nil, err
	}
	if len(through) > 0 {
		go func() {
			_ = client.Wait()
			drop()
		}()
	}
	return client, nil
}

// dialThrough logs in at a jump host behind another one.
func (b *Backend) dialThrough(ctx context.Context, via *ssh.Client, h *Host) (*ssh.Client, error) {
	t, err := b.resolve(h)
	if err != nil {
		return nil, err
	}
	config, tried, closeAgent, err := b.config(h, t)
	if err != nil {
		return nil, err
	}
	defer closeAgent()
	conn, err := via.DialContext(ctx, "tcp", t.address())
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "%s cannot be reached", h.ID())
	}
	return b.handshake(ctx, conn, h, t, config, tried)
}

// handshake logs in on an open stream, and says in words why it cannot.
func (b *Backend) handshake(ctx context.Context, conn net.Conn, h *Host, t *target, config *ssh.ClientConfig, tried *[]string) (*ssh.Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	name := t.host
	if t.alias != "" {
		name = t.alias
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, net.JoinHostPort(name, strconv.Itoa(t.port)), config)
	if !stop() || err != nil {
		_ = conn.Close()
	}
	var f *fault.Error
	switch {
	case err == nil:
		return ssh.NewClient(c, chans, reqs), nil
	case errors.As(err, &f): // of the host key
		return nil, f
	case ctx.Err() != nil:
		return nil, fault.Wrap(fault.Unreachable, ctx.Err(), "%s does not greet as an SSH server", h.ID())
	case strings.Contains(err.Error(), "unable to authenticate"):
		return nil, fault.New(fault.Denied, "%s does not let %q in", h.ID(), t.user).
			Hint("tried: %s. Is %q the right user? Its ~/.ssh/authorized_keys needs your public key: ssh-copy-id -p %d %s", strings.Join(*tried, ", "), t.user, t.port, t.user+"@"+t.host)
	}
	return nil, fault.Wrap(fault.Unreachable, err, "%s does not let us in", h.ID())
}

// config is how to log in at a target. What was tried is filled in as it is.
func (b *Backend) config(h *Host, t *target) (config *ssh.ClientConfig, tried *[]string, closeAgent func(), err error) {
	tried, closeAgent = &[]string{}, func() {}
	var signers []ssh.Signer
	say := func(format string, args ...any) { *tried = append(*tried, fmt.Sprintf(format, args...)) }
	for _, path := range t.keys {
		data, err := os.ReadFile(path)
		if err != nil {
			say("%s (not there)", path)
			continue
		}
		s, err := ssh.ParsePrivateKey(data)
		var locked *ssh.PassphraseMissingError
		switch {
		case errors.As(err, &locked):
			say("%s (locked by a passphrase: ssh-add it)", path)
		case err != nil:
			say("%s (no private key)", path)
		default:
			say("%s", path)
			signers = append(signers, s)
		}
	}
	var conn net.Conn
	if t.agent != "" && !t.only {
		if conn, err = net.Dial("unix", t.agent); err == nil {
			closeAgent = func() { _ = conn.Close() }
			held, err := agent.NewClient(conn).Signers()
			if err != nil {
				say("the ssh agent (%v)", err)
			} else {
				say("%d keys of the ssh agent", len(held))
				signers = append(held, signers...)
			}
		} else {
			say("the ssh agent (it does not answer)")
		}
	} else if t.agent == "" {
		say("no ssh agent")
	}
	db, err := b.known(t)
	if err != nil {
		closeAgent()
		return nil, nil, nil, err
	}
	name := t.host
	if t.alias != "" {
		name = t.alias
	}
	return &ssh.ClientConfig{User: t.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signers...)}, Timeout: b.c.Dial,
		HostKeyCallback:   b.checkKey(h, t, db),
		HostKeyAlgorithms: db.HostKeyAlgorithms(net.JoinHostPort(name, strconv.Itoa(t.port)))}, tried, closeAgent, nil
}

// known reads the files of known hosts that are there.
func (b *Backend) known(t *target) (*knownhosts.HostKeyDB, error) {
	var files []string
	for _, f := range t.known {
		if _, err := os.Stat(f); err == nil {
			files = append(files, f)
		}
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the known host keys cannot be read")
	}
	return db, nil
}

// checkKey holds a host's key against known_hosts. An unknown one is taken when
// its fingerprint was stated; a changed one never.
func (b *Backend) checkKey(h *Host, t *target, db *knownhosts.HostKeyDB) ssh.HostKeyCallback {
	check := db.HostKeyCallback()
	return func(name string, remote net.Addr, key ssh.PublicKey) error {
		err := check(name, remote, key)
		print := ssh.FingerprintSHA256(key)
		var wrong *xknown.KeyError
		var revoked *xknown.RevokedError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &revoked):
			return fault.New(fault.Denied, "the host key of %s was revoked (%s:%d)", h.ID(), revoked.Revoked.Filename, revoked.Revoked.Line)
		case errors.As(err, &wrong) && len(wrong.Want) > 0:
			w := wrong.Want[0]
			return fault.New(fault.Denied, "the host key of %s has changed: it is %s %s, and %s:%d has another: someone may be listening, or the host was installed anew",
				h.ID(), key.Type(), print, w.Filename, w.Line).
				Hint("ask who runs the host; if the key is right, remove the old one: ssh-keygen -f %s -R '%s'", w.Filename, knownhosts.Normalize(name))
		case !errors.As(err, &wrong):
			return fault.Wrap(fault.Denied, err, "the host key of %s", h.ID())
		case h.AcceptKey == "":
			return fault.New(fault.Denied, "the host key of %s is not known: it is %s %s", h.ID(), key.Type(), print).
				Hint("compare it with what ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub prints on the host, then: destajo machines add --accept-key %s %s", keyName(key), print, h.ID())
		case h.AcceptKey != print:
			return fault.New(fault.Denied, "the host key of %s is %s %s, not the stated %s", h.ID(), key.Type(), print, h.AcceptKey).
				Hint("compare it with what ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub prints on the host", keyName(key))
		}
		return b.remember(t, name, key)
	}
}

// keyName is how the file of a host key of this type is called.
func keyName(key ssh.PublicKey) string {
	switch {
	case strings.Contains(key.Type(), "ecdsa"):
		return "ecdsa"
	case strings.Contains(key.Type(), "rsa"):
		return "rsa"
	}
	return "ed25519"
}

// remember adds a host's key to the first file of known hosts.
func (b *Backend) remember(t *target, name string, key ssh.PublicKey) error {
	if len(t.known) == 0 {
		return nil
	}
	file := t.known[0]
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fault.Wrap(fault.Internal, err, "the host key cannot be kept")
	}
	b.keys.Lock()
	defer b.keys.Unlock()
	line := knownhosts.Line([]string{name}, key) + "\n"
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault.Wrap(fault.Internal, err, "the host key cannot be kept")
	}
	if bytes.Contains(old, []byte(line)) {
		return nil
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the host key cannot be kept")
	}
	_, err = io.WriteString(f, line)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the host key cannot be kept")
	}
	return nil
}
