// Package node keeps agents running on the host that it runs on: it starts one
// under a supervisor, says which there are, and ends them for good. The local
// backend calls it, and the SSH backend runs it on the far host, from the same
// binary. An agent's folder is its whole state; nothing else is kept.
//
//	ROOT/lock            taken for every look at and change of the folders
//	ROOT/ended/TAG       a machine that must never start again
//	ROOT/TAG/            home of the agent
//	  machine.json       what was asked for
//	  machine.alive      locked by the supervisor as long as it lives
//	  machine.ending     its end was asked for; its time is when
//	  machine.ended      the agent exited for good
//	  agent.sock         where the agent answers
//	  agent.out          what agent and supervisor say
package node

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/wire"
)

// Keeper keeps the agents below one folder.
type Keeper struct {
	Root  string   // absolute
	Exe   string   // destajo, as an agent is started with
	Scope bool     // start agents outside of the login session, where systemd can
	Env   []string // more of the agents' environment, over our own
}

// Words of what is kept about a machine.
type record struct {
	Tag   string    `json:"tag"`
	Plane string    `json:"plane"`
	Exe   string    `json:"exe"`
	Made  time.Time `json:"made"`
}

// How long tasks have from the word to end a machine to their kill, and how
// long the agent has beyond that before it is killed itself.
const (
	grace    = 10 * time.Second
	patience = 5 * time.Second
	keep     = 7 * 24 * time.Hour // of folders that ended by themselves, and of tombstones
)

var goodTag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`) })

// CheckTag says what is wrong with a tag: it becomes the name of a folder.
func CheckTag(tag string) error {
	if !goodTag().MatchString(tag) {
		return fault.New(fault.Invalid, "%q is no tag of a machine", tag)
	}
	return nil
}

// Start makes sure that an agent runs for the tag. A tag that ended stays so.
func (k Keeper) Start(tag, plane string) (backend.Found, error) {
	if err := CheckTag(tag); err != nil {
		return backend.Found{}, err
	}
	unlock, err := k.lock()
	if err != nil {
		return backend.Found{}, err
	}
	defer unlock()
	if exists(k.tombstone(tag)) || exists(k.path(tag, "machine.ending")) || exists(k.path(tag, "machine.ended")) {
		return backend.Found{}, fault.New(fault.Invalid, "the machine %s was ended; its tag starts no other", tag)
	}
	all, err := k.records()
	if err != nil {
		return backend.Found{}, err
	}
	for _, r := range all {
		if r.Plane == plane && r.Tag != tag && !exists(k.path(r.Tag, "machine.ended")) {
			return backend.Found{}, fault.New(fault.NothingFits, "this host has the machine %s already", r.Tag).Hint("jobs share one machine on a host")
		}
	}
	if !slices.ContainsFunc(all, func(r record) bool { return r.Tag == tag }) {
		data, err := json.Marshal(record{Tag: tag, Plane: plane, Exe: k.Exe, Made: time.Now().UTC()})
		if err != nil {
			return backend.Found{}, fault.Wrap(fault.Internal, err, "the machine cannot be written down")
		}
		if err := os.MkdirAll(k.path(tag), 0o700); err != nil {
			return backend.Found{}, diskFault(err, k.Root)
		}
		if err := write(k.path(tag, "machine.json"), data); err != nil {
			return backend.Found{}, diskFault(err, k.Root)
		}
	}
	if err := k.supervise(tag, plane); err != nil {
		return backend.Found{}, err
	}
	return k.found(tag), nil
}

// List gives the machines of a plane, of all planes when it is empty, that have
// not ended.
func (k Keeper) List(plane string) ([]backend.Found, error) {
	if !exists(k.Root) {
		return nil, nil
	}
	unlock, err := k.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := k.records()
	if err != nil {
		return nil, err
	}
	var out []backend.Found
	for _, r := range all {
		switch {
		case plane != "" && r.Plane != plane:
		case exists(k.path(r.Tag, "machine.ended")) && !exists(k.path(r.Tag, "machine.ending")) && !k.alive(r.Tag):
			// It ended by itself, as after silence. Its files stay for a while:
			// someone may want the logs.
			if i, err := os.Stat(k.path(r.Tag, "machine.ended")); err == nil && time.Since(i.ModTime()) > keep {
				_ = k.bury(r.Tag)
			}
		default:
			out = append(out, k.found(r.Tag))
		}
	}
	return out, nil
}

// Dial opens a stream to the agent of a tag. An agent that is down though its
// machine was not ended, as after a reboot, is started again. It waits for one
// that is just starting, as long as ctx lets it but at most two seconds.
func (k Keeper) Dial(ctx context.Context, tag string) (net.Conn, error) {
	if err := CheckTag(tag); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if conn, err := k.connect(ctx, tag); err == nil {
		return conn, nil
	}
	if err := k.revive(tag); err != nil {
		return nil, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := k.connect(ctx, tag)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fault.Wrap(fault.Unreachable, err, "the agent of machine %s does not answer", tag).Hint("%s says why", k.path(tag, "agent.out"))
		case <-tick.C:
		}
	}
}

// End ends a machine for good: its tasks, its agent, its folder. It returns nil
// when all of that is gone, and when the agent said that it goes and is still
// stopping its tasks; then List has the machine until it is called again.
func (k Keeper) End(ctx context.Context, tag string) error {
	if err := CheckTag(tag); err != nil {
		return err
	}
	unlock, err := k.lock()
	if err != nil {
		return err
	}
	err = k.condemn(tag)
	unlock()
	if err != nil || !exists(k.path(tag)) {
		return err
	}
	asked, err := os.Stat(k.path(tag, "machine.ending"))
	late := err == nil && time.Since(asked.ModTime()) > grace+patience
	if !late && !exists(k.path(tag, "machine.ended")) && k.shutdown(ctx, tag) {
		for wait := time.Now().Add(2 * time.Second); time.Now().Before(wait); time.Sleep(time.Millisecond) {
			if exists(k.path(tag, "machine.ended")) {
				break
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		if !exists(k.path(tag, "machine.ended")) {
			return nil // it stops its tasks
		}
	}
	unlock, err = k.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.kill(tag); err != nil {
		return err
	}
	return k.bury(tag)
}

// Cut ends a machine as a provider does that takes it away: without a word.
func (k Keeper) Cut(tag string) error {
	unlock, err := k.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.condemn(tag); err != nil || !exists(k.path(tag)) {
		return err
	}
	if err := k.kill(tag); err != nil {
		return err
	}
	return k.bury(tag)
}

// condemn keeps the tag from ever starting again.
func (k Keeper) condemn(tag string) error {
	if err := os.MkdirAll(filepath.Join(k.Root, "ended"), 0o700); err != nil {
		return diskFault(err, k.Root)
	}
	if err := touch(k.tombstone(tag)); err != nil {
		return diskFault(err, k.Root)
	}
	old, _ := os.ReadDir(filepath.Join(k.Root, "ended"))
	for _, e := range old {
		if i, err := e.Info(); err == nil && time.Since(i.ModTime()) > keep {
			_ = os.Remove(filepath.Join(k.Root, "ended", e.Name()))
		}
	}
	if exists(k.path(tag)) && !exists(k.path(tag, "machine.ending")) {
		return touch(k.path(tag, "machine.ending"))
	}
	return nil
}

// shutdown asks the agent to go; false when it is not there, or refuses. One
// that is down is started first: it alone knows all that its tasks left behind.
// One that takes the word and is silent may be stopping its tasks.
func (k Keeper) shutdown(ctx context.Context, tag string) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := k.Dial(ctx, tag)
	if err != nil {
		return false
	}
	agent := wire.NewClient(func(context.Context) (net.Conn, error) { return conn, nil })
	defer agent.Close()
	var r record
	_ = readJSON(k.path(tag, "machine.json"), &r)
	// The token passes every fence: the end of a machine is final, whoever decided it.
	err = agent.Shutdown(ctx, &wire.Shutdown{Plane: r.Plane, Token: 1<<63 - 1, Reason: "the machine is released", Grace: grace})
	return err == nil || ctx.Err() != nil
}

// bury removes what is left of a machine whose processes are gone.
func (k Keeper) bury(tag string) error {
	away := filepath.Join(k.Root, ".gone-"+tag)
	if err := os.Rename(k.path(tag), away); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskFault(err, k.Root)
	}
	if link, err := k.shortLink(tag); err == nil {
		_ = os.Remove(link)
	}
	if err := os.RemoveAll(away); err != nil {
		return fault.Wrap(fault.Internal, err, "the folder of machine %s cannot be removed", tag)
	}
	return nil
}

// connect reaches the agent's socket.
func (k Keeper) connect(ctx context.Context, tag string) (net.Conn, error) {
	home, err := k.home(tag)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", filepath.Join(home, "agent.sock"))
}

// revive starts the supervisor of a machine that was not ended.
func (k Keeper) revive(tag string) error {
	unlock, err := k.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var r record
	if err := readJSON(k.path(tag, "machine.json"), &r); err != nil {
		return fault.New(fault.NotFound, "there is no machine %s on this host", tag)
	}
	if exists(k.path(tag, "machine.ended")) {
		return fault.New(fault.NotFound, "the machine %s has ended", tag)
	}
	if _, err := os.Stat(k.Exe); k.Exe == "" || err != nil {
		k.Exe = r.Exe
	}
	return k.supervise(tag, r.Plane)
}

func (k Keeper) found(tag string) backend.Found {
	f := backend.Found{Tag: tag, Handle: tag, State: backend.Running, Words: "its agent runs"}
	switch {
	case exists(k.path(tag, "machine.ending")):
		f.Words = "it stops its tasks"
	case !k.alive(tag):
		f.Words = "its agent is down; it is started again when it is called"
	}
	return f
}

// records reads what machines there are, in the order of their names.
func (k Keeper) records() ([]record, error) {
	entries, err := os.ReadDir(k.Root)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the machines of this host cannot be read")
	}
	var out []record
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "ended" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var r record
		err := readJSON(k.path(e.Name(), "machine.json"), &r)
		switch {
		case errors.Is(err, fs.ErrNotExist): // nothing was started yet
		case err != nil || r.Tag != e.Name():
			return nil, fault.New(fault.Internal, "%s is damaged, so that nobody knows what runs there", k.path(e.Name(), "machine.json")).
				Hint("when no process of %s is left (ps ax | grep %s), remove the folder %s", e.Name(), e.Name(), k.path(e.Name()))
		default:
			out = append(out, r)
		}
	}
	return out, nil
}

func (k Keeper) path(tag string, more ...string) string {
	return filepath.Join(append([]string{k.Root, tag}, more...)...)
}

func (k Keeper) tombstone(tag string) string { return filepath.Join(k.Root, "ended", tag) }

// lock takes the folder for a moment.
func (k Keeper) lock() (func(), error) {
	if err := os.MkdirAll(k.Root, 0o700); err != nil {
		return nil, diskFault(err, k.Root)
	}
	return Lock(filepath.Join(k.Root, "lock"))
}

// Lock waits for a lock among the processes of this host and gives what
// unlocks it. A process that dies unlocks it too.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, diskFault(err, filepath.Dir(path))
	}
	if err := waitLock(f); err != nil {
		_ = f.Close()
		return nil, fault.Wrap(fault.Internal, err, "%s cannot be locked", path)
	}
	return func() { _ = f.Close() }, nil
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// write puts a file in place whole.
func write(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

func diskFault(err error, root string) error {
	f := fault.Wrap(fault.Internal, err, "%s cannot be written", root)
	switch {
	case errors.Is(err, diskFull):
		f = f.Hint("the disk is full: make room")
	case errors.Is(err, fs.ErrPermission):
		f = f.Hint("make the folder writable for this user, or set DESTAJO_HOME to another one")
	}
	return f
}
