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
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// unpack brings the files of a task to where it finds them.
func (t *task) unpack(ctx context.Context) error {
	work := filepath.Join(t.dir, "work")
	for _, x := range []struct{ blob, to string }{{t.spec.Bundle, work}, {t.spec.Keep, t.keepDir()}} {
		if x.blob == "" {
			continue
		}
		t.agent.mu.Lock()
		t.say("unpacking files")
		t.agent.mu.Unlock()
		f, err := os.Open(t.agent.path("blobs", x.blob))
		if err != nil {
			return fault.Wrap(fault.NotFound, err, "the files of the task are not on the node")
		}
		err = untar(ctx, f, x.to)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	if t.spec.KeepDir != "" {
		if err := os.MkdirAll(t.keepDir(), 0o700); err != nil {
			return fault.Wrap(fault.Invalid, err, "the checkpoint folder cannot be made").Hint("name one that the node's user may write, or one below the workdir")
		}
	}
	if t.spec.Image != "" {
		return nil // mounts are the engine's
	}
	for _, m := range t.spec.Mounts {
		if err := place(filepath.Join(work, filepath.FromSlash(m.Bundle)), m.To, work); err != nil {
			return err
		}
	}
	return nil
}

// place makes a mounted file or folder appear where the job wants it: a link,
// or a copy's place when something stands there already.
func place(from, to, work string) error {
	switch {
	case strings.HasPrefix(to, "~/"):
		home, err := os.UserHomeDir()
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "the mount %s", to)
		}
		to = filepath.Join(home, to[2:])
	case !filepath.IsAbs(to):
		to = filepath.Join(work, to)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fault.Wrap(fault.Invalid, err, "the mount %s cannot be placed", to).Hint("name a folder that the node's user may write, or use an image")
	}
	if i, err := os.Lstat(to); err == nil {
		if i.Mode()&fs.ModeSymlink == 0 {
			return fault.New(fault.Invalid, "the mount %s cannot be placed: something stands there on the node", to).Hint("name another place")
		}
		_ = os.Remove(to) // of a former task
	}
	if err := os.Symlink(from, to); err != nil {
		return fault.Wrap(fault.Invalid, err, "the mount %s cannot be placed", to)
	}
	return nil
}

// untar unpacks a tar.gz below a folder and nowhere else.
func untar(ctx context.Context, r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return diskFault(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return diskFault(err)
	}
	defer root.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the files of the task are damaged")
	}
	for tr := tar.NewReader(z); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.Wrap(fault.Internal, err, "the files of the task are damaged")
		}
		name := path.Clean("/" + h.Name)[1:]
		if name == "" {
			continue
		}
		if err := write(root, name, h, tr); err != nil {
			if isFull(err) {
				return diskFault(err)
			}
			return fault.Wrap(fault.Internal, err, "unpacking %s", name)
		}
	}
}

func write(root *os.Root, name string, h *tar.Header, r io.Reader) error {
	mode := fs.FileMode(h.Mode) & 0o777
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, mode|0o700)
	}
	if d := path.Dir(name); d != "." {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o200)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		return root.Chtimes(name, h.ModTime, h.ModTime)
	case tar.TypeSymlink:
		_ = root.Remove(name)
		return root.Symlink(h.Linkname, name)
	}
	return nil
}

// chosen lists what the task's outputs name, below its work folder and without
// leaving it.
func (t *task) chosen() []string {
	work := filepath.Join(t.dir, "work")
	var out []string
	for _, pattern := range t.spec.Outputs {
		clean := path.Clean("/" + filepath.ToSlash(pattern))[1:]
		if clean == "" {
			clean = "*"
		}
		found, err := fs.Glob(os.DirFS(work), clean)
		if err == nil {
			out = append(out, found...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *task) hasOutputs() bool { return len(t.spec.Outputs) > 0 && len(t.chosen()) > 0 }

func (a *Agent) outputs(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	names := t.chosen()
	if len(names) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	send(w, filepath.Join(t.dir, "work"), names)
}

func (a *Agent) keep(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	if t.spec.KeepDir == "" || !hasFiles(t.keepDir()) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	tag := fingerprint(t.keepDir())
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	a.mu.Lock()
	running := t.state.State != machine.TaskEnded
	a.mu.Unlock()
	if running && fresh(t.keepDir(), 2*time.Second) { // it is being written just now
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("ETag", tag)
	send(w, t.keepDir(), []string{"."})
}

// fingerprint names the content of a folder by names, sizes and times.
func fingerprint(dir string) string {
	h := fnv.New128a()
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if i, err := d.Info(); err == nil && !d.IsDir() {
			fmt.Fprintf(h, "%s\x00%d\x00%d\x00", strings.TrimPrefix(p, dir), i.Size(), i.ModTime().UnixNano())
		}
		return nil
	})
	return `"` + hex.EncodeToString(h.Sum(nil)) + `"`
}

// fresh says whether a file below a folder was written a short while ago.
func fresh(dir string, within time.Duration) bool {
	found := false
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if i, err := d.Info(); err == nil && time.Since(i.ModTime()) < within && time.Since(i.ModTime()) > -within {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// send streams files as a tar.gz. A fault on the way breaks the stream off, so
// that half a file is never taken for a whole one.
func send(w http.ResponseWriter, dir string, names []string) {
	w.Header().Set("Content-Type", "application/gzip")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	tw := tar.NewWriter(z)
	var failed error
	for _, name := range names {
		failed = filepath.WalkDir(filepath.Join(dir, name), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dir, p)
			if err != nil || rel == "." {
				return err
			}
			return pack(tw, p, filepath.ToSlash(rel), d)
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

func pack(tw *tar.Writer, p, name string, d fs.DirEntry) error {
	i, err := d.Info()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went away meanwhile
		}
		return err
	}
	link := ""
	switch {
	case i.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(p); err != nil {
			return err
		}
	case !i.Mode().IsRegular() && !i.IsDir():
		return nil
	}
	h, err := tar.FileInfoHeader(i, link)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if i.IsDir() {
		h.Name += "/"
		return tw.WriteHeader(h)
	}
	if link != "" {
		return tw.WriteHeader(h)
	}
	f, err := os.Open(p)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(tw, f, h.Size)
	if errors.Is(err, io.EOF) { // it shrank while it was read: what is missing is zeros
		_, err = io.CopyN(tw, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
