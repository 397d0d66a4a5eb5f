// Package ssh makes machines of hosts that are reached over SSH. It uploads our
// own program, lets it keep the agent there (package node), and talks to the
// agent through the SSH connection only: nothing listens on the host but a unix
// socket.
package ssh

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/node"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/offer"
)

// Name of the backend and of the provider of its offers.
const Name = "ssh"

// Config is what the backend needs to know.
type Config struct {
	Hosts []Host
	// Binary gives our program for a system and a processor, and its SHA-256 in
	// hex. See FindBinary.
	Binary func(os, arch string) (path, sha string, err error)

	ConfigFile string        // of ssh; empty: ~/.ssh/config
	KnownHosts []string      // files; nil: ~/.ssh/known_hosts and that of the system. Accepted keys go into the first
	KeepAlive  time.Duration // between two questions whether a host is there, and for its answer; 0: 5 s
	Backoff    time.Duration // after a host was not reached, doubled up to 30 s; 0: 0.5 s
	Timeout    time.Duration // of one command; 0: 30 s
	Dial       time.Duration // to reach a host and log in; 0: 10 s
	Costs      backend.OwnCosts
	Now        func() time.Time // for the date of prices; nil: time.Now
}

// Backend is a number of hosts.
type Backend struct {
	c     Config
	keys  sync.Mutex // for known_hosts
	lock  sync.Mutex
	id    string // of this one, among those that upload
	lines map[string]*line
	seen  map[string]*machine.Host
}

var _ backend.Backend = (*Backend)(nil)

// New makes the backend. It reaches no host yet.
func New(c Config) *Backend {
	home, _ := os.UserHomeDir() // without one there are no such files
	c.ConfigFile = cmp.Or(c.ConfigFile, filepath.Join(home, ".ssh", "config"))
	if c.KnownHosts == nil {
		c.KnownHosts = []string{filepath.Join(home, ".ssh", "known_hosts"), "/etc/ssh/ssh_known_hosts"}
	}
	c.KeepAlive, c.Backoff, c.Timeout = cmp.Or(c.KeepAlive, 5*time.Second), cmp.Or(c.Backoff, time.Second/2), cmp.Or(c.Timeout, 30*time.Second)
	c.Dial = cmp.Or(c.Dial, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	b := &Backend{c: c, id: rand.Text()[:8], lines: map[string]*line{}, seen: map[string]*machine.Host{}}
	for _, h := range c.Hosts {
		b.lines[h.ID()] = &line{b: b, host: h}
		b.seen[h.ID()] = h.Seen
	}
	return b
}

// Name is ssh.
func (b *Backend) Name() string { return Name }

// Capabilities of hosts that exist already.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{SelfEnd: true, Owned: true, StopsBilling: true, Multiple: false, LaunchTimeout: 5 * time.Minute}
}

// Offers are the hosts. One that was never looked at is looked at; one that did
// not answer a moment ago is offered as not available.
func (b *Backend) Offers(ctx context.Context) ([]backend.Offer, error) {
	out := make([]*backend.Offer, len(b.c.Hosts))
	fails := make([]error, len(b.c.Hosts))
	var all sync.WaitGroup
	for i := range b.c.Hosts {
		h := &b.c.Hosts[i]
		if h.Removed {
			continue
		}
		all.Go(func() {
			b.lock.Lock()
			seen := b.seen[h.ID()]
			b.lock.Unlock()
			if seen == nil {
				host, err := b.Probe(ctx, h.ID())
				if err != nil {
					fails[i] = err
					return
				}
				seen = &host
			}
			price, assumed, source := backend.OwnPrice(*seen, h.PriceHour, b.c.Costs)
			o := backend.OwnOffer(Name, h.name(), *seen, price, assumed, source, offer.Date(b.c.Now().UTC().Format("2006-01-02")))
			o.ID, o.Config, o.Country = h.ID(), h.ID(), h.Country // two hosts may have one name
			if err := b.line(h.ID()).down(); err != nil {
				o.Available, o.Note = offer.Some(false), err.Error()
			}
			out[i] = &o
		})
	}
	all.Wait()
	var known []backend.Offer
	for _, o := range out {
		if o != nil {
			known = append(known, *o)
		}
	}
	err := errors.Join(fails...)
	if len(known) == 0 || err == nil {
		return known, err
	}
	return known, &backend.Partial{Cause: err}
}

// Probe logs in at a host, uploads our program and looks at what the host has.
func (b *Backend) Probe(ctx context.Context, id string) (machine.Host, error) {
	l := b.line(id)
	if l == nil {
		return machine.Host{}, fault.New(fault.NotFound, "there is no host %s", id)
	}
	r, err := l.node(ctx, nil, "probe")
	switch {
	case err != nil:
		return machine.Host{}, err
	case r.Host == nil:
		return machine.Host{}, fault.New(fault.Internal, "%s does not say what it has", id)
	}
	b.lock.Lock()
	b.seen[id] = r.Host
	b.lock.Unlock()
	return *r.Host, nil
}

// Launch brings our program to the host and starts the agent.
func (b *Backend) Launch(ctx context.Context, r backend.Request) (backend.Found, error) {
	if err := node.CheckTag(r.Tag); err != nil {
		return backend.Found{}, err
	}
	l := b.line(r.Offer.Config)
	if l == nil {
		return backend.Found{}, fault.New(fault.Invalid, "there is no host %q", r.Offer.Config)
	}
	reply, err := l.node(ctx, r.Say, "start", "--root", l.root(), "--tag", r.Tag, "--plane", r.Plane)
	if err != nil {
		return backend.Found{}, err
	}
	f := reply.Found
	f.Handle = handle(r.Offer.Config, r.Tag)
	return f, nil
}

// List asks every host. Hosts that do not answer make it a *backend.Partial.
func (b *Backend) List(ctx context.Context, plane string) ([]backend.Found, error) {
	b.lock.Lock()
	lines := make(map[string]*line, len(b.lines))
	for id, l := range b.lines {
		lines[id] = l
	}
	b.lock.Unlock()
	var lock sync.Mutex
	var out []backend.Found
	var fails []error
	dark := map[string]bool{}
	var all sync.WaitGroup
	for id, l := range lines {
		all.Go(func() {
			found, err := l.list(ctx, plane)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				fails, dark[id] = append(fails, err), true
				return
			}
			for _, f := range found {
				f.Handle = handle(id, f.Tag)
				out = append(out, f)
			}
		})
	}
	all.Wait()
	if len(fails) == 0 {
		return out, nil
	}
	return out, &backend.Partial{Cause: errors.Join(fails...), Unknown: func(h string) bool {
		id, _, ok := cutHandle(h)
		return !ok || dark[id]
	}}
}

// End stops the tasks and the agent, and returns nil only after the host said
// so. A host that does not answer has not ended anything.
func (b *Backend) End(ctx context.Context, tag, h string) error {
	if err := node.CheckTag(tag); err != nil {
		return err
	}
	if id, _, ok := cutHandle(h); ok {
		if b.line(id) == nil {
			return fault.New(fault.Invalid, "%q names no host", h)
		}
		return b.line(id).end(ctx, tag)
	}
	// Nobody wrote down where it is: it may be on any.
	b.lock.Lock()
	var lines []*line
	for _, l := range b.lines {
		lines = append(lines, l)
	}
	b.lock.Unlock()
	errs := make([]error, len(lines))
	var all sync.WaitGroup
	for i, l := range lines {
		all.Go(func() { errs[i] = l.end(ctx, tag) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Dial opens a session on the host that is a stream to the agent.
func (b *Backend) Dial(ctx context.Context, m *machine.Machine) (net.Conn, error) {
	id, tag, ok := cutHandle(m.Handle)
	if !ok {
		return nil, fault.New(fault.NotFound, "the machine %s has no host yet", m.ID)
	}
	l := b.line(id)
	if l == nil {
		return nil, fault.New(fault.Invalid, "%q names no host", m.Handle)
	}
	return l.dialAgent(ctx, tag)
}

// Close ends the connections. Agents go on.
func (b *Backend) Close() error {
	b.lock.Lock()
	defer b.lock.Unlock()
	for _, l := range b.lines {
		l.close()
	}
	return nil
}

// line is the way to a host. One that is in no source any more is reached as
// its id says, for what still runs there.
func (b *Backend) line(id string) *line {
	b.lock.Lock()
	defer b.lock.Unlock()
	if l := b.lines[id]; l != nil {
		return l
	}
	h, err := ParseURL(id)
	if err != nil {
		return nil
	}
	h.Removed = true
	l := &line{b: b, host: h}
	b.lines[id] = l
	return l
}

// handle names a machine: the host, and its tag there.
func handle(id, tag string) string { return id + "#" + tag }

func cutHandle(h string) (id, tag string, ok bool) {
	i := strings.LastIndexByte(h, '#')
	if i < 0 {
		return "", "", false
	}
	return h[:i], h[i+1:], node.CheckTag(h[i+1:]) == nil
}

// root is where agents are, as package node takes it.
func (l *line) root() string { return l.host.home() + "/agents" }

// shellPath writes a path for the shell, which must expand a leading ~/.
func shellPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return `"$HOME"/` + quote(rest)
	}
	return quote(path)
}

// node runs our program on the host.
func (l *line) node(ctx context.Context, say func(string), args ...string) (node.Reply, error) {
	var reply node.Reply
	for try := 0; ; try++ {
		binary, err := l.bring(ctx, say)
		if err != nil {
			return reply, err
		}
		script := shellPath(binary) + " agent node"
		for _, a := range args {
			script += " " + quote(a)
		}
		out, err := l.run(ctx, script, nil)
		var exit *exitError
		if errors.As(err, &exit) {
			l.forget(binary)
			if try == 0 && exit.status == 127 { // someone removed it
				continue
			}
			f := fault.Wrap(fault.Internal, err, "our program does not run on %s", l.host.ID())
			if exit.status == 126 {
				f = f.Hint("programs may not run from %s: give the host another home", l.host.home())
			}
			return reply, f
		}
		if err != nil {
			return reply, err
		}
		// The last line: before it stands what the host says at login.
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &reply); err != nil {
			return reply, fault.New(fault.Internal, "%s answers %q", l.host.ID(), lines[len(lines)-1])
		}
		return reply, reply.Err()
	}
}

// list asks the host for its machines. Where no agent ever was, nothing is
// uploaded only to learn that.
func (l *line) list(ctx context.Context, plane string) ([]backend.Found, error) {
	there, err := l.has(ctx)
	if err != nil || !there {
		return nil, err
	}
	r, err := l.node(ctx, nil, "list", "--root", l.root(), "--plane", plane)
	return r.Machines, err
}

func (l *line) end(ctx context.Context, tag string) error {
	there, err := l.has(ctx)
	if err != nil || !there {
		return err
	}
	_, err = l.node(ctx, nil, "end", "--root", l.root(), "--tag", tag)
	return err
}

// has says whether the host has a folder of agents.
func (l *line) has(ctx context.Context) (bool, error) {
	l.lock.Lock()
	known := l.binary != ""
	l.lock.Unlock()
	if known {
		return true, nil
	}
	out, err := l.run(ctx, "test -d "+shellPath(l.root())+" && echo destajo-yes || echo destajo-no", nil)
	return strings.Contains(out, "destajo-yes"), err
}

// dialAgent starts `connect` on the host and makes a stream of it.
func (l *line) dialAgent(ctx context.Context, tag string) (net.Conn, error) {
	for try := 0; ; try++ {
		binary, err := l.bring(ctx, nil)
		if err != nil {
			return nil, err
		}
		p, err := l.start(ctx, "exec "+shellPath(binary)+" agent node connect --root "+quote(l.root())+" --tag "+quote(tag))
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, p.kill)
		r := bufio.NewReaderSize(p.out, 64<<10)
		over := false
		for n := 0; n < 1000 && !over; n++ {
			text, err := r.ReadString('\n')
			over = err != nil
			if strings.TrimSpace(text) == node.StreamLine {
				if !stop() {
					break
				}
				return p.stream(r), nil
			}
			var reply node.Reply
			if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &reply) == nil && reply.Fault != nil {
				stop()
				p.kill()
				_ = p.wait()
				return nil, reply.Err()
			}
		}
		stop()
		_ = p.in.Close()
		if !over {
			p.kill() // it talks, and says nothing
		}
		err = p.wait()
		var exit *exitError
		switch {
		case ctx.Err() != nil:
			return nil, fault.Wrap(fault.Unreachable, ctx.Err(), "%s does not answer", l.host.ID())
		case errors.As(err, &exit) && exit.status == 127 && try == 0:
			l.forget(binary)
			continue
		case errors.As(err, &exit):
			return nil, fault.New(fault.Internal, "our program does not run on %s: %s", l.host.ID(), p.err)
		case fault.KindOf(err) == fault.Unreachable:
			return nil, err
		}
		return nil, fault.New(fault.Unreachable, "the connection to %s broke", l.host.ID())
	}
}

func (l *line) forget(binary string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.binary == binary {
		l.binary = ""
	}
}

// bring makes sure that our program, built for the host, is on it, and gives
// its path there.
func (l *line) bring(ctx context.Context, say func(string)) (string, error) {
	l.prepare.Lock()
	defer l.prepare.Unlock()
	l.lock.Lock()
	known := l.binary
	l.lock.Unlock()
	if known != "" {
		return known, nil
	}
	if say == nil {
		say = func(string) {}
	}
	bin := l.host.home() + "/bin"
	out, err := l.run(ctx, "umask 077; mkdir -p "+shellPath(bin)+" && cd "+shellPath(bin)+" && echo destajo-host $(uname -s) $(uname -m) && ls", nil)
	if err != nil {
		if errors.As(err, new(*exitError)) {
			return "", fault.Wrap(fault.Internal, err, "nothing can be written to %s on %s", bin, l.host.ID()).Hint("is its disk full? Another folder: home in the host's settings")
		}
		return "", err
	}
	_, out, ok := strings.Cut(out, "destajo-host ")
	f := strings.Fields(out)
	if !ok || len(f) < 2 {
		return "", fault.New(fault.Internal, "%s has no shell that we understand: %q", l.host.ID(), out)
	}
	system, arch, err := processor(f[0], f[1])
	if err != nil {
		return "", fault.Wrap(fault.Invalid, err, "%s", l.host.ID())
	}
	path, sha, err := l.b.c.Binary(system, arch)
	if err != nil {
		return "", err
	}
	name := "destajo-" + sha[:min(16, len(sha))]
	there := false
	for _, have := range f[2:] {
		there = there || have == name
	}
	if !there {
		if err := l.upload(ctx, path, sha, bin, name, say); err != nil {
			return "", err
		}
	}
	l.lock.Lock()
	l.binary = bin + "/" + name
	l.lock.Unlock()
	return bin + "/" + name, nil
}

// upload copies our program to a name of its own, goes on where an earlier try
// broke off, and gives it its name only when its checksum is right.
func (l *line) upload(ctx context.Context, path, sha, bin, name string, say func(string)) error {
	for try := 0; ; try++ {
		f, err := os.Open(path)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "our program cannot be read")
		}
		defer f.Close()
		i, err := f.Stat()
		if err != nil {
			return fault.Wrap(fault.Internal, err, "our program cannot be read")
		}
		part := "." + name + "." + l.b.id + ".part" // no two processes write one
		in := "cd " + shellPath(bin) + " && "
		out, err := l.run(ctx, in+"test -e "+name+" && echo destajo-right; echo destajo-size $(cat "+part+" 2>/dev/null | wc -c)", nil)
		if err != nil {
			return err
		}
		if strings.Contains(out, "destajo-right") {
			return nil // another process was quicker
		}
		var have int64
		if _, text, ok := strings.Cut(out, "destajo-size"); ok {
			_, _ = fmt.Sscan(text, &have)
		}
		if have > i.Size() {
			have = 0
		}
		if _, err := f.Seek(have, io.SeekStart); err != nil {
			return fault.Wrap(fault.Internal, err, "our program cannot be read")
		}
		into := ">>"
		if have == 0 {
			into = ">"
		}
		began := time.Now()
		sent := &counted{r: f, done: have, all: i.Size(), say: say}
		// No limit of time but that of the caller: the line may be slow.
		if _, err := l.runLong(ctx, "umask 077; "+in+"cat "+into+part, sent); err != nil {
			if errors.As(err, new(*exitError)) {
				return fault.Wrap(fault.Internal, err, "our program cannot be written to %s on %s", bin, l.host.ID()).Hint("is its disk full? Another folder: home in the host's settings")
			}
			return err
		}
		say(fmt.Sprintf("uploaded the agent, %d MB in %.1f s", i.Size()>>20, time.Since(began).Seconds()))
		// Old versions that no machine uses go, a week after they came.
		out, err = l.run(ctx, in+`s=$( { sha256sum `+part+` || shasum -a 256 `+part+` || openssl dgst -sha256 -r `+part+`; } 2>/dev/null | cut -d" " -f1)
case "$s" in
`+sha+`) chmod 700 `+part+` && mv `+part+` `+name+` && echo destajo-right
  find . -name ".destajo-*.part" -mtime +1 -exec rm -f {} + 2>/dev/null
  for f in $(find . -name "destajo-*" -mtime +7 2>/dev/null); do
    f=${f#./}; [ "$f" = `+name+` ] || grep -qs "$f" ../agents/*/machine.json || rm -f "$f"
  done ;;
"") echo destajo-none ;;
*) rm -f `+part+` ;;
esac`, nil)
		switch {
		case err != nil:
			return err
		case strings.Contains(out, "destajo-right"):
			return nil
		case strings.Contains(out, "destajo-none"):
			return fault.New(fault.Invalid, "%s can check no file: it has neither sha256sum nor shasum nor openssl", l.host.ID()).Hint("install coreutils there")
		case try > 0:
			return fault.New(fault.Internal, "our program arrives damaged at %s", l.host.ID()).Hint("is its disk full, or does another upload it at the same time? Try again")
		}
	}
}

// counted says how far an upload is.
type counted struct {
	r         io.Reader
	done, all int64
	said      time.Time
	say       func(string)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.done += int64(n)
	if time.Since(c.said) > 300*time.Millisecond {
		c.said = time.Now()
		c.say(fmt.Sprintf("uploading the agent, %d of %d MB", c.done>>20, c.all>>20))
	}
	return n, err
}
