package agent

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/bundle"
	"github.com/destajo/destajo/machine"
)

// unpack brings the files of a task to where it finds them.
func (t *task) unpack(ctx context.Context) error {
	work := filepath.Join(t.dir, "work")
	if err := t.receive(ctx, t.spec.Bundle, work); err != nil {
		return err
	}
	if d := t.spec.KeepDir; d != "" {
		if !filepath.IsAbs(d) && !filepath.IsLocal(filepath.FromSlash(d)) {
			return fault.New(fault.Invalid, "the checkpoint folder %s leads out of the workdir", d).Hint("name one below the workdir, or an absolute path")
		}
		root, err := t.openKeep(true)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "the checkpoint folder cannot be made").Hint("name one that the node's user may write, or one below the workdir")
		}
		_ = root.Close()
		if err := t.receive(ctx, t.spec.Keep, t.keepDir()); err != nil { // which no link leads out of
			return err
		}
	}
	if t.spec.Image != "" {
		return nil // mounts are the engine's
	}
	for _, m := range t.spec.Mounts {
		if err := t.place(filepath.Join(work, filepath.FromSlash(m.Bundle)), m.To); err != nil {
			return err
		}
	}
	return nil
}

// receive unpacks a file that was sent, if one is named, below a folder.
func (t *task) receive(ctx context.Context, blob, dir string) error {
	if blob == "" {
		return nil
	}
	t.agent.mu.Lock()
	t.say("unpacking files")
	t.agent.mu.Unlock()
	f, err := os.Open(t.agent.path("blobs", blob))
	if err != nil {
		return fault.Wrap(fault.NotFound, err, "the files of the task are not on the node")
	}
	defer f.Close()
	_, err = bundle.Unpack(cut{ctx, f}, dir)
	if isFull(err) {
		return diskFault(err)
	}
	return err
}

// cut is a file that ends when a context does.
type cut struct {
	ctx context.Context
	f   *os.File
}

func (c cut) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.f.Read(p)
}

// place makes a mounted file or folder appear where the job wants it: a link,
// or a copy's place when something stands there already.
func (t *task) place(from, to string) error {
	switch {
	case strings.HasPrefix(to, "~/"):
		home, err := os.UserHomeDir()
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "the mount %s", to)
		}
		to = filepath.Join(home, to[2:])
	case !filepath.IsAbs(to):
		to = filepath.Join(t.dir, "work", to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fault.Wrap(fault.Invalid, err, "the mount %s cannot be placed", to).Hint("name a folder that the node's user may write, or use an image")
	}
	if i, err := os.Lstat(to); err == nil {
		former := ""
		if i.Mode()&fs.ModeSymlink != 0 {
			link, _ := os.Readlink(to)
			rest, _ := strings.CutPrefix(link, t.agent.path("tasks")+string(filepath.Separator))
			if rest != link {
				former, _, _ = strings.Cut(rest, string(filepath.Separator))
			}
		}
		t.agent.mu.Lock()
		x := t.agent.tasks[former]
		busy := x != nil && x != t && x.state.State != machine.TaskEnded
		t.agent.mu.Unlock()
		if busy {
			return fault.New(fault.Conflict, "the mount %s cannot be placed: another job on the node has its files there", to).Hint("name another place, or use an image")
		}
		if former == "" {
			return fault.New(fault.Invalid, "the mount %s cannot be placed: something stands there on the node", to).Hint("name another place")
		}
		_ = os.Remove(to) // of a former task
	}
	if err := os.Symlink(from, to); err != nil {
		return fault.Wrap(fault.Invalid, err, "the mount %s cannot be placed", to)
	}
	return nil
}

// chosen lists what the task's outputs name, below its work folder and without
// leaving it: no link leads out of root.
func (t *task) chosen(root *os.Root) []string {
	var out []string
	for _, pattern := range t.spec.Outputs {
		clean := path.Clean(strings.TrimLeft(filepath.ToSlash(pattern), "/"))
		if !fs.ValidPath(clean) { // it leads out
			continue
		}
		if clean == "." {
			clean = "*"
		}
		if found, err := fs.Glob(root.FS(), clean); err == nil {
			out = append(out, found...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *task) hasOutputs() bool {
	if len(t.spec.Outputs) == 0 {
		return false
	}
	root, err := os.OpenRoot(filepath.Join(t.dir, "work"))
	if err != nil {
		return false
	}
	defer root.Close()
	return len(t.chosen(root)) > 0
}

// openKeep opens the checkpoint folder, and makes it if that is asked for. One
// below the work folder is opened from there, so that no link leads out of it.
func (t *task) openKeep(mk bool) (*os.Root, error) {
	if filepath.IsAbs(t.spec.KeepDir) {
		if mk {
			if err := os.MkdirAll(t.keepDir(), 0o700); err != nil {
				return nil, err
			}
		}
		return os.OpenRoot(t.keepDir())
	}
	work, err := os.OpenRoot(filepath.Join(t.dir, "work"))
	if err != nil {
		return nil, err
	}
	defer work.Close()
	name := filepath.Clean(filepath.FromSlash(t.spec.KeepDir))
	if mk {
		if err := work.MkdirAll(name, 0o755); err != nil {
			return nil, err
		}
	}
	return work.OpenRoot(name)
}

func (a *Agent) outputs(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	root, err := os.OpenRoot(filepath.Join(t.dir, "work"))
	if err != nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer root.Close()
	names := t.chosen(root)
	if len(names) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	send(w, root, names)
}

func (a *Agent) keep(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	if t.spec.KeepDir == "" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	root, err := t.openKeep(false)
	if err != nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer root.Close()
	tag, newest := fingerprint(root)
	if newest.IsZero() {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	a.mu.Lock()
	running := t.state.State != machine.TaskEnded
	a.mu.Unlock()
	age := time.Since(newest)
	if r.Header.Get("If-None-Match") == tag || running && age < settled && age > -settled { // as it was, or being written just now
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("ETag", tag)
	send(w, root, []string{"."})
}

// settled is how long nothing in a checkpoint folder changed before it is sent.
const settled = 2 * time.Second

// fingerprint names the content of a folder by names, sizes and times, and says
// when a file of it changed last; the zero time when it has none.
func fingerprint(root *os.Root) (tag string, newest time.Time) {
	h := fnv.New128a()
	_ = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if i, err := d.Info(); err == nil {
			fmt.Fprintf(h, "%s\x00%d\x00%d\x00", p, i.Size(), i.ModTime().UnixNano())
			if i.ModTime().After(newest) {
				newest = i.ModTime()
			}
		}
		return nil
	})
	return `"` + hex.EncodeToString(h.Sum(nil)) + `"`, newest
}

// send streams files as a tar.gz. A fault on the way breaks the stream off, so
// that half a file, or one that changed meanwhile, is never taken for a whole one.
func send(w http.ResponseWriter, root *os.Root, names []string) {
	w.Header().Set("Content-Type", "application/gzip")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	tw := tar.NewWriter(z)
	var failed error
	for _, name := range names {
		if _, err := root.Stat(name); err != nil { // a link that leads nowhere, or out
			continue
		}
		failed = fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went away meanwhile
			}
			if err != nil || p == "." {
				return err
			}
			return pack(tw, root, p, d)
		})
		if failed != nil {
			break
		}
	}
	if failed == nil {
		failed = errors.Join(tw.Close(), z.Close())
	}
	if failed != nil {
		panic(http.ErrAbortHandler)
	}
}

// pack writes one file; sockets and devices are left out.
func pack(tw *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	i, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var f *os.File
	link := ""
	switch {
	case i.Mode()&fs.ModeSymlink != 0:
		link, err = root.Readlink(name)
	case i.Mode().IsRegular():
		if f, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			defer f.Close()
			i, err = f.Stat()
		}
		if err == nil && !i.Mode().IsRegular() {
			return nil
		}
	case !i.IsDir():
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(i, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if i.IsDir() {
		h.Name += "/"
	}
	if err := tw.WriteHeader(h); err != nil || f == nil {
		return err
	}
	if _, err := io.CopyN(tw, f, h.Size); err != nil {
		return err
	}
	if after, err := f.Stat(); err != nil || after.Size() != i.Size() || !after.ModTime().Equal(i.ModTime()) {
		return fault.New(fault.Conflict, "%s changed while it was read", name)
	}
	return nil
}
