// Package bundle packs what is sent along with a job and unpacks what comes
// back: a tar.gz with PAX headers. Pack leaves out what .gitignore and
// .destajoignore name; Unpack trusts nothing that an archive says.
//
// The same tree gives the same bytes, so a bundle can be stored under the hash
// of its bytes: entries stand in the order of their names within each folder,
// owners and the times of folders and links are left out. The times of files
// are kept, as make and its like compare them.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/destajo/destajo/fault"
)

// Mount is a local file or folder and the path within the archive at which it
// lies, with slashes.
type Mount struct {
	From string
	At   string
}

// Summary says what Pack has put into an archive and what it has not.
type Summary struct {
	Files   int      // files and links
	Bytes   int64    // contents of the files, before compression
	Ignored int      // files and folders left out by ignore files; a folder counts once, whatever is in it
	Skipped []string // what could not be sent as it is, with the reason, for people
}

// atOnce is the size in bytes up to which a file is read before its header is
// written, so that a file that changes meanwhile is still sent whole.
const atOnce = 1 << 20

// Pack writes a tar.gz of the folder dir (none when empty), at the top of the
// archive, and of the mounts. It calls say, unless nil, with the bytes of
// content packed so far.
//
// Of dir it leaves out: everything named .git; what .destajoignore files name,
// at every level; and what .gitignore files, those above dir up to the root of
// its repository included, and .git/info/exclude name, unless a .destajoignore
// decides otherwise. What git tracks though a .gitignore names it is left out
// too. A mount was named on purpose and may well be data that git ignores: of
// mounts only .git and what .destajoignore files in them name is left out.
//
// Links are packed as links; hard links within one folder or mount stay hard
// links. Sockets, pipes, devices and files that vanish meanwhile are skipped. A
// file that grows is sent as long as it was at first; one that shrinks, or that
// cannot be read, is a fault, Invalid like a missing folder. After an error
// what has been written to w is not a whole archive.
func Pack(w io.Writer, dir string, mounts []Mount, say func(done int64)) (Summary, error) {
	zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return Summary{}, err
	}
	p := &packer{out: tar.NewWriter(zip), say: say, buffer: make([]byte, atOnce)}
	if dir != "" {
		p.git = true
		if err := p.top(dir, "", "workdir"); err != nil {
			return p.sum, err
		}
	}
	for _, m := range mounts {
		bad := unsafeName(m.At)
		if path.Clean(m.At) == "." {
			bad = "it needs a name of its own"
		}
		if bad != "" {
			return p.sum, fault.New(fault.Invalid, "a mount cannot lie at %q: %s", m.At, bad)
		}
		p.git = false
		if err := p.top(m.From, path.Clean(m.At), "mount"); err != nil {
			return p.sum, err
		}
	}
	if err := p.out.Close(); err != nil {
		return p.sum, written(err)
	}
	if err := zip.Close(); err != nil {
		return p.sum, written(err)
	}
	return p.sum, nil
}

// packer is one run of Pack.
type packer struct {
	out    *tar.Writer
	say    func(int64)
	sum    Summary
	buffer []byte

	// Of the folder or mount that is packed now:
	from   string // where it is on this machine
	at     string // where it lies in the archive; empty for the top
	git    bool   // .gitignore counts
	inGit  string // path of from within its repository, with a slash at the end; empty for the root
	firsts map[inode]string
}

// inode is one file on this machine, whatever its names.
type inode struct{ device, number uint64 }

// top packs a folder with everything in it, or a single file.
func (p *packer) top(from, at, what string) error {
	p.from, p.at, p.inGit, p.firsts = from, at, "", map[inode]string{}
	info, err := os.Stat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return p.gone(what)
	case err != nil:
		return p.unreadable("", err)
	case !info.IsDir() && what == "workdir":
		return fault.New(fault.Invalid, "the workdir %s is a file", from).Hint("workdir names a folder; mounts send single files along")
	case !info.IsDir():
		above, err := os.OpenRoot(filepath.Dir(from))
		if err != nil {
			return p.unreadable("", err)
		}
		defer above.Close()
		name := filepath.Base(from)
		if direct, err := above.Lstat(name); err == nil && direct.Mode()&fs.ModeSymlink != 0 {
			// The mount was named through a link: what it leads to is sent.
			if from, err = filepath.EvalSymlinks(from); err != nil {
				return p.gone(what)
			}
			return p.top(from, at, what)
		}
		return p.file(above, name, "")
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return p.unreadable("", err)
	}
	defer root.Close()
	var ignore ignorer
	if p.git {
		ignore.git, p.inGit = above(from)
	}
	if at != "" {
		if err := p.header(&tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: int64(info.Mode().Perm())}); err != nil {
			return err
		}
	}
	if err := p.folder(root, "", ignore); err != nil {
		return err
	}
	if now, err := os.Stat(from); err != nil || !os.SameFile(info, now) {
		return p.gone(what)
	}
	return nil
}

// folder packs what is in the open folder at the path rel of the tree. Every
// folder is opened from the one above it, so that a tree that is changed
// meanwhile leads nowhere else and paths may be of any length.
func (p *packer) folder(root *os.Root, rel string, ignore ignorer) error {
	list, err := entries(root)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			p.skip(rel, "vanished while it was packed")
			return nil
		}
		return p.unreadable(rel, err)
	}
	ours, err := p.rules(root, rel, ".destajoignore", list)
	if err != nil {
		return err
	}
	ignore.ours = append(ignore.ours, ours)
	if p.git {
		gits, err := p.rules(root, rel, ".gitignore", list)
		if err != nil {
			return err
		}
		ignore.git = append(ignore.git, gits)
	}
	for _, e := range list {
		name := e.Name()
		if name == ".git" {
			continue
		}
		at := path.Join(rel, name)
		if ignore.ignored(p.inGit+at, e.IsDir()) {
			p.sum.Ignored++
			continue
		}
		if err := p.entry(root, name, at, ignore); err != nil {
			return err
		}
	}
	return nil
}

// entry packs one name of an open folder.
func (p *packer) entry(root *os.Root, name, rel string, ignore ignorer) error {
	info, err := root.Lstat(name)
	if err != nil {
		return p.lost(rel, err)
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return p.file(root, name, rel)
	case mode.IsDir():
		inner, err := root.OpenRoot(name)
		if err != nil {
			return p.lost(rel, err)
		}
		defer inner.Close()
		if err := p.header(&tar.Header{Typeflag: tar.TypeDir, Name: p.named(rel) + "/", Mode: int64(mode.Perm())}); err != nil {
			return err
		}
		return p.folder(inner, rel, ignore)
	case mode&fs.ModeSymlink != 0:
		to, err := root.Readlink(name)
		if err != nil {
			return p.lost(rel, err)
		}
		if to = filepath.ToSlash(to); path.IsAbs(to) {
			p.skip(rel, "is a link to "+to+", a path of this machine: only the link is sent")
		} else if inside := path.Join(path.Dir(rel), to); inside == ".." || strings.HasPrefix(inside, "../") {
			p.skip(rel, "is a link to "+to+", outside of "+p.from+": only the link is sent")
		}
		p.sum.Files++
		return p.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: p.named(rel), Linkname: to, Mode: 0o777})
	default:
		p.skip(rel, "is "+kind(mode))
		return nil
	}
}

// file packs a regular file.
func (p *packer) file(root *os.Root, name, rel string) error {
	// Without blocking: a pipe may have taken the file's place.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return p.lost(rel, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return p.unreadable(rel, err)
	}
	if !info.Mode().IsRegular() {
		p.skip(rel, "is "+kind(info.Mode()))
		return nil
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: p.named(rel), Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 {
		node := inode{uint64(s.Dev), s.Ino} //nolint:unconvert // its type differs by system
		if first, ok := p.firsts[node]; ok {
			p.sum.Files++
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.header(h)
		}
		p.firsts[node] = h.Name
	}

	left := info.Size()
	n := 0
	if left < atOnce {
		n, err = io.ReadFull(f, p.buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return p.unreadable(rel, err)
		}
		if left = int64(n); n < atOnce {
			h.Size = left
		} else {
			h.Size = info.Size() // it has grown over the limit
			n = int(h.Size)
			left = h.Size
		}
	}
	if err := p.header(h); err != nil {
		return err
	}
	p.sum.Files++
	for {
		if _, err := p.out.Write(p.buffer[:n]); err != nil {
			return written(err)
		}
		p.sum.Bytes += int64(n)
		if p.say != nil {
			p.say(p.sum.Bytes)
		}
		if left -= int64(n); left == 0 {
			return nil
		}
		n, err = f.Read(p.buffer[:min(left, atOnce)])
		switch {
		case errors.Is(err, io.EOF):
			return fault.New(fault.Invalid, "%s became shorter while it was packed", p.local(rel)).
				Hint("try again when nothing writes to it, or name it in .destajoignore")
		case err != nil:
			return p.unreadable(rel, err)
		}
	}
}

// rules reads one of the ignore files of a folder, if it has it. Like git it
// follows no link there.
func (p *packer) rules(root *os.Root, rel, name string, list []fs.DirEntry) (rules, error) {
	i, found := slices.BinarySearchFunc(list, name, func(e fs.DirEntry, name string) int { return cmp.Compare(e.Name(), name) })
	if !found {
		return rules{}, nil
	}
	at := path.Join(rel, name)
	if !list[i].Type().IsRegular() {
		p.skip(at, "is not a file and keeps nothing out")
		return rules{}, nil
	}
	text, err := root.ReadFile(name)
	if err != nil {
		return rules{}, p.lost(at, err)
	}
	return rules{base: len(p.inGit) + len(at) - len(name), list: parse(text)}, nil
}

// header writes the header of an entry.
func (p *packer) header(h *tar.Header) error {
	h.Format = tar.FormatPAX
	if err := p.out.WriteHeader(h); err != nil {
		return written(err)
	}
	return nil
}

// named is the name in the archive of the path rel of the tree.
func (p *packer) named(rel string) string { return path.Join(p.at, rel) }

// local is where the path rel of the tree is on this machine.
func (p *packer) local(rel string) string { return filepath.Join(p.from, rel) }

// skip notes what is not sent as it is.
func (p *packer) skip(rel, why string) {
	p.sum.Skipped = append(p.sum.Skipped, p.local(rel)+" "+why)
}

// gone is the fault of a folder or mount that is not there, or not any more.
func (p *packer) gone(what string) error {
	if what == "workdir" {
		return fault.New(fault.Invalid, "the folder %s is not there", p.from).Hint("workdir must name a folder that stays where it is until it is sent")
	}
	return fault.New(fault.Invalid, "the mount %s is not there", p.from).Hint("mounts must name files or folders that stay where they are until they are sent")
}

// lost skips what has vanished since it was listed; any other error is a fault.
func (p *packer) lost(rel string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		p.skip(rel, "vanished while it was packed")
		return nil
	}
	return p.unreadable(rel, err)
}

// unreadable is the fault of a file or folder that cannot be read.
func (p *packer) unreadable(rel string, err error) error {
	return fault.Wrap(fault.Invalid, cause(err), "cannot read %s", p.local(rel)).Hint("make it readable, or name it in .destajoignore")
}

// written is the fault of an archive that cannot be written on. The kind is
// that of the reader at the other end, if it says one.
func written(err error) error {
	return fault.Wrap(fault.KindOf(err), err, "cannot write the bundle")
}

// entries lists an open folder by name.
func entries(root *os.Root) ([]fs.DirEntry, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.ReadDir(-1)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return list, err
}

// above reads the ignore rules of git that stand above a folder: the exclude
// file of its repository and the .gitignore files from the repository's root
// down to the folder's parent. It gives the folder's path within the
// repository, too. A file that cannot be read says nothing.
func above(dir string) (list []rules, within string) {
	full, err := filepath.Abs(dir)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return nil, ""
	}
	root := full
	for {
		if _, err := os.Lstat(filepath.Join(root, ".git")); err == nil {
			break
		}
		up := filepath.Dir(root)
		if up == root {
			return nil, "" // no repository
		}
		root = up
	}
	add := func(file string, base int) {
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
			return
		}
		if text, err := os.ReadFile(file); err == nil {
			list = append(list, rules{base: base, list: parse(text)})
		}
	}
	add(filepath.Join(common(filepath.Join(root, ".git")), "info", "exclude"), 0)
	if full == root {
		return list, ""
	}
	below, err := filepath.Rel(root, full)
	if err != nil {
		return nil, ""
	}
	at := root
	for _, part := range strings.Split(below, string(filepath.Separator)) {
		add(filepath.Join(at, ".gitignore"), len(within))
		at, within = filepath.Join(at, part), within+part+"/"
	}
	return list, within
}

// common is the folder that holds what the working trees of a repository share.
// In a second working tree .git is a file that says where its own folder is.
func common(git string) string {
	text, err := os.ReadFile(git)
	to, ok := bytes.CutPrefix(text, []byte("gitdir:"))
	if err != nil || !ok {
		return git
	}
	own := against(filepath.Dir(git), string(bytes.TrimSpace(to)))
	if text, err = os.ReadFile(filepath.Join(own, "commondir")); err != nil {
		return own
	}
	return against(own, string(bytes.TrimSpace(text)))
}

// against resolves a name against a folder.
func against(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// kind names what is neither file nor folder nor link.
func kind(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "not a file any more"
}

// cause is the system's own word, without the call and the bare name.
func cause(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
