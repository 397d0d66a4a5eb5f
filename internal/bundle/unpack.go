package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/destajo/destajo/fault"
)

// tail is how many bytes may follow the end of an archive: tar fills its last
// record with zeros.
const tail = 1 << 20

// deepest is how many folders a name may have: as many as a path that Linux
// takes at once (4096 bytes). A few bytes of an archive can name many more, and
// a program that holds each open while it goes down, as os.RemoveAll does, could
// not remove them.
const deepest = 2048

// Unpack writes what is in an archive under dir, which it makes if need be, and
// gives the names of the files and links, in their order. After an error the
// names are those already written.
//
// It takes the archive for hostile: a name that is absolute or has "..", a file
// behind a link, whether the link is of the archive or was there before,
// devices, pipes, sparse files and hard links to anything but a file of the
// same archive are Invalid. A link itself may point anywhere; nothing is
// written through it. A file takes the place of an older file or link at once,
// by rename; a folder that is there stays as it is. The set-user and set-group
// bits are dropped, and the owner can always write to a folder. Nothing limits
// the size but the disk.
func Unpack(r io.Reader, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.Wrap(fault.Internal, cause(err), "cannot make the folder %s", dir)
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, cause(err), "cannot open the folder %s", dir)
	}
	u := &unpacker{dir: dir, top: top, here: top, files: map[string]bool{}, buffer: make([]byte, 1<<17)}
	defer u.close()
	err = each(r, u.entry)
	return u.names, err
}

// Names gives the names of the files and links in an archive, as Unpack would
// write them, and finds an archive that is cut off or that has names which
// Unpack refuses.
func Names(r io.Reader) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	err := each(r, func(name string, h *tar.Header, _ io.Reader) error {
		if h.Typeflag != tar.TypeDir && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// each gives every entry of an archive with its cleaned name.
func each(r io.Reader, take func(name string, h *tar.Header, content io.Reader) error) error {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return broken(err)
	}
	in := tar.NewReader(zip)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return broken(err)
		}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader:
			continue
		case tar.TypeReg, tar.TypeDir, tar.TypeLink, tar.TypeSymlink:
		default:
			return hostile("the entry %q is of the kind %q, which is not written", h.Name, h.Typeflag)
		}
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return hostile("the file %q is sparse", h.Name)
			}
		}
		if bad := unsafeName(h.Name); bad != "" {
			return hostile("it has the name %q: %s", h.Name, bad)
		}
		name := path.Clean(h.Name)
		if n := strings.Count(name, "/"); n > deepest {
			return hostile("it has a name within %d folders; %d is the most", n, deepest)
		}
		if name == "." {
			if h.Typeflag != tar.TypeDir {
				return hostile("it has a file without a name")
			}
			continue
		}
		if err := take(name, h, in); err != nil {
			return err
		}
	}
	// The checksum stands at the very end.
	n, err := io.Copy(io.Discard, io.LimitReader(zip, tail))
	if err != nil {
		return broken(err)
	}
	if n == tail {
		return hostile("it goes on behind its end")
	}
	return nil
}

// unpacker is one run of Unpack.
type unpacker struct {
	dir    string
	top    *os.Root
	here   *os.Root        // the folder that the last entry was written to
	at     string          // its path; empty for the top
	files  map[string]bool // names written, true for those of files
	names  []string
	tries  int
	buffer []byte
}

// entry writes one entry.
func (u *unpacker) entry(name string, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return u.folder(name, fs.FileMode(h.Mode).Perm())
	}
	if h.Typeflag == tar.TypeLink {
		if !u.files[path.Clean(h.Linkname)] {
			return hostile("%q is a hard link to %q, which is no file of it", name, h.Linkname)
		}
	}
	above := path.Dir(name)
	if above == "." {
		above = ""
	}
	if err := u.folder(above, 0o755); err != nil {
		return err
	}
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.file(path.Base(name), h, content)
	case tar.TypeSymlink:
		err = u.place(path.Base(name), func(temporary string) error { return u.here.Symlink(h.Linkname, temporary) })
	case tar.TypeLink:
		err = u.link(path.Clean(h.Linkname), name)
	}
	if err != nil {
		return u.failed(name, err)
	}
	if _, again := u.files[name]; !again {
		u.names = append(u.names, name)
	}
	u.files[name] = h.Typeflag != tar.TypeSymlink
	return nil
}

// folder goes to a folder and makes those that are missing, the last of them
// with the given mode. Each is opened from the one above, and a link is never
// followed.
func (u *unpacker) folder(name string, mode fs.FileMode) error {
	if name == u.at {
		return nil
	}
	at, rest := u.top, name
	if after, below := strings.CutPrefix(name, u.at+"/"); u.at != "" && below {
		at, rest = u.here, after
	}
	start := at
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next, err := descend(at, part, mode, rest == "")
		if at != start {
			_ = at.Close()
		}
		if err != nil {
			return u.failed(name, err)
		}
		at = next
	}
	if u.here != u.top {
		_ = u.here.Close()
	}
	u.here, u.at = at, name
	return nil
}

// descend opens a folder within another and makes it if it is missing.
func descend(at *os.Root, part string, mode fs.FileMode, last bool) (*os.Root, error) {
	info, err := at.Lstat(part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !last {
			mode = 0o755
		}
		if err := at.Mkdir(part, 0o700); err != nil {
			return nil, err
		}
		if err := at.Chmod(part, mode|0o700); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, hostile("%q is a link there, and nothing is written through links", part)
	case !info.IsDir():
		return nil, inTheWay("a file named %q is in the way of a folder", part)
	}
	return at.OpenRoot(part)
}

// file writes a regular file.
func (u *unpacker) file(name string, h *tar.Header, content io.Reader) error {
	return u.place(name, func(temporary string) error {
		f, err := u.here.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		// Only Write is shown, so that the one buffer is used.
		if _, err := io.CopyBuffer(struct{ io.Writer }{f}, content, u.buffer); err != nil {
			_ = f.Close()
			var system *fs.PathError
			if errors.As(err, &system) && system.Op != "read" {
				return err
			}
			return broken(err)
		}
		if err := f.Chmod(fs.FileMode(h.Mode).Perm()); err != nil {
			_ = f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		// A time that a file system cannot keep is left out.
		if s := h.ModTime.Unix(); s < 0 || s > 1<<33 {
			return nil
		}
		return u.here.Chtimes(temporary, time.Time{}, h.ModTime)
	})
}

// link gives a file of this archive a second name.
func (u *unpacker) link(old, name string) error {
	var second string
	err := u.place(path.Base(name), func(temporary string) error {
		// From the top, as hard links cross folders.
		second = temporary
		return u.top.Link(old, path.Join(path.Dir(name), temporary))
	})
	// Between two names of one file a rename does nothing.
	_ = u.here.Remove(second)
	return err
}

// place makes something under a name that nothing has and renames it then.
func (u *unpacker) place(name string, make func(temporary string) error) error {
	if info, err := u.here.Lstat(name); err == nil && info.IsDir() {
		return inTheWay("a folder named %q is in the way of a file", name)
	}
	for {
		u.tries++
		temporary := fmt.Sprintf(".destajo-%d-%d", os.Getpid(), u.tries)
		err := make(temporary)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = u.here.Rename(temporary, name)
		}
		if err != nil {
			_ = u.here.Remove(temporary)
		}
		return err
	}
}

// failed names the file that could not be written.
func (u *unpacker) failed(name string, err error) error {
	full := path.Join(u.dir, name)
	if kind := fault.KindOf(err); kind != fault.Internal {
		return fault.Wrap(kind, err, "cannot write %s", full)
	}
	f := fault.Wrap(fault.Internal, cause(err), "cannot write %s", full)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return f.Hint("free space there, or choose another folder")
	case errors.Is(err, fs.ErrPermission):
		return f.Hint("choose a folder that you can write to")
	}
	return f
}

func (u *unpacker) close() {
	if u.here != u.top {
		_ = u.here.Close()
	}
	_ = u.top.Close()
}

// unsafeName says what is wrong with a name in an archive, or nothing.
func unsafeName(name string) string {
	switch {
	case name == "":
		return "it is empty"
	case path.IsAbs(name):
		return "it is absolute"
	case strings.ContainsRune(name, 0):
		return "it has a zero byte"
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return `it has ".."`
		}
	}
	return ""
}

// hostile is the fault of an archive that is refused.
func hostile(format string, args ...any) error {
	return fault.New(fault.Invalid, "the bundle is refused: "+format, args...)
}

// inTheWay is the fault of something that is there already.
func inTheWay(format string, args ...any) error {
	return fault.New(fault.Conflict, format, args...).Hint("move it away, or choose another folder")
}

// broken is the fault of an archive that cannot be read. What the reader itself
// reports, such as a connection that broke, keeps its kind.
func broken(err error) error {
	var f *fault.Error
	switch {
	case errors.As(err, &f):
		return fault.Wrap(f.Kind, err, "cannot read the bundle")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fault.New(fault.Invalid, "the bundle is cut off").Hint("fetch or send it again")
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, tar.ErrHeader):
		return fault.Wrap(fault.Invalid, err, "the bundle is damaged, or is no tar.gz")
	}
	return fault.Wrap(fault.Internal, err, "cannot read the bundle")
}
