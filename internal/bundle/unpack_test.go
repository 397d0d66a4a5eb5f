package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
)

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	reg, dir, link, hard := byte(tar.TypeReg), byte(tar.TypeDir), byte(tar.TypeSymlink), byte(tar.TypeLink)
	for name, c := range map[string]struct {
		headers []tar.Header
		want    string // part of the fault
		kind    fault.Kind
	}{
		"absolute":                     {headers: []tar.Header{{Typeflag: reg, Name: "/etc/x"}}, want: "it is absolute"},
		"upwards":                      {headers: []tar.Header{{Typeflag: reg, Name: "../x"}}, want: `it has ".."`},
		"upwards in between":           {headers: []tar.Header{{Typeflag: reg, Name: "a/../b"}}, want: `it has ".."`},
		"upwards folder":               {headers: []tar.Header{{Typeflag: dir, Name: "a/.."}}, want: `it has ".."`},
		"through a link":               {headers: []tar.Header{{Typeflag: link, Name: "a", Linkname: "../outside"}, {Typeflag: reg, Name: "a/x"}}, want: "nothing is written through links"},
		"through a link within":        {headers: []tar.Header{{Typeflag: dir, Name: "d"}, {Typeflag: link, Name: "a", Linkname: "d"}, {Typeflag: reg, Name: "a/x"}}, want: "nothing is written through links"},
		"through a link that is there": {headers: []tar.Header{{Typeflag: reg, Name: "there/x"}}, want: "nothing is written through links"},
		"a folder onto a link":         {headers: []tar.Header{{Typeflag: dir, Name: "there"}}, want: "nothing is written through links"},
		"a link onto a folder":         {headers: []tar.Header{{Typeflag: dir, Name: "d"}, {Typeflag: link, Name: "d", Linkname: "/"}}, want: "is in the way", kind: fault.Conflict},
		"a file onto a folder":         {headers: []tar.Header{{Typeflag: reg, Name: "folder"}}, want: `a folder named "folder" is in the way`, kind: fault.Conflict},
		"a folder onto a file":         {headers: []tar.Header{{Typeflag: reg, Name: "file/x"}}, want: `a file named "file" is in the way`, kind: fault.Conflict},
		"hard link outside":            {headers: []tar.Header{{Typeflag: hard, Name: "a", Linkname: "../outside/secret"}}, want: "is no file of it"},
		"hard link to what was there":  {headers: []tar.Header{{Typeflag: hard, Name: "a", Linkname: "file"}}, want: "is no file of it"},
		"hard link to a link":          {headers: []tar.Header{{Typeflag: link, Name: "a", Linkname: "/etc/passwd"}, {Typeflag: hard, Name: "b", Linkname: "a"}}, want: "is no file of it"},
		"device":                       {headers: []tar.Header{{Typeflag: tar.TypeBlock, Name: "sda"}}, want: "is of the kind '4'"},
		"pipe":                         {headers: []tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, want: "is of the kind '6'"},
		"too deep":                     {headers: []tar.Header{{Typeflag: reg, Name: strings.Repeat("a/", deepest+1) + "f", Format: tar.FormatPAX}}, want: "a name within 2049 folders"},
		"no name":                      {headers: []tar.Header{{Typeflag: reg, Name: "."}}, want: "a file without a name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := t.TempDir()
			tree(t, box, map[string]string{"outside/secret": "old", "in/there": "-> ../outside", "in/file": "old", "in/folder/": ""})
			_, err := Unpack(bytes.NewReader(archive(t, c.headers...)), box+"/in")
			if c.kind == "" {
				c.kind = fault.Invalid
			}
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v (%s), want %s", err, fault.KindOf(err), c.want)
			}
			unharmed(t, box)
		})
	}
}

func TestUnpackReplaces(t *testing.T) {
	t.Parallel()
	box := t.TempDir()
	tree(t, box, map[string]string{"outside/secret": "old", "in/link": "-> ../outside/secret", "in/file": "old", "in/keep": "old"})
	held, err := os.Open(box + "/in/file")
	must(t, err)
	defer held.Close()
	names, err := Unpack(bytes.NewReader(archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./"}, tar.Header{Typeflag: tar.TypeReg, Name: "./link", Mode: 0o6755}, tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o400},
		tar.Header{Typeflag: tar.TypeReg, Name: "d//e/f", Mode: 0o644}, tar.Header{Typeflag: tar.TypeDir, Name: "ro/", Mode: 0o500}, tar.Header{Typeflag: tar.TypeReg, Name: "ro/f", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o444})), box+"/in")
	must(t, err)
	if d := cmp.Diff([]string{"link", "file", "d/e/f", "ro/f"}, names); d != "" {
		t.Error(d)
	}
	var modes []string
	for _, name := range []string{"link", "file", "ro"} {
		info, err := os.Lstat(filepath.Join(box, "in", name))
		must(t, err)
		modes = append(modes, info.Mode().String())
	}
	if d := cmp.Diff([]string{"-rwxr-xr-x", "-r--r--r--", "drwx------"}, modes); d != "" {
		t.Error(d)
	}
	if old, _ := io.ReadAll(held); string(old) != "old" {
		t.Error("the old file was written to")
	}
	unharmed(t, box)
}

func TestBroken(t *testing.T) {
	t.Parallel()
	whole := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "a"}, tar.Header{Typeflag: tar.TypeReg, Name: "b"})
	for n := range whole {
		_, err := Unpack(bytes.NewReader(whole[:n]), t.TempDir())
		if fault.KindOf(err) != fault.Invalid {
			t.Fatalf("of %d bytes: %v", n, err)
		}
	}
	wrong := bytes.Clone(whole)
	wrong[len(wrong)-6] ^= 1 // the checksum
	if _, err := Names(bytes.NewReader(wrong)); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	if _, err := Names(strings.NewReader("<html>an error page of a proxy</html>")); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	lost := fault.New(fault.Unreachable, "the server went away")
	if _, err := Unpack(io.MultiReader(bytes.NewReader(whole[:40]), iotest.ErrReader(lost)), t.TempDir()); fault.KindOf(err) != fault.Unreachable {
		t.Error(err)
	}
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	must(t, tar.NewWriter(zip).Close())
	_, err := io.CopyN(zip, zeros{}, 3<<20)
	must(t, err)
	must(t, zip.Close())
	if _, err := Names(&b); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// unharmed checks that Unpack into the folder "in" of a box has changed nothing
// beside it and left nothing half done in it.
func unharmed(t testing.TB, box string) {
	t.Helper()
	for dir, want := range map[string]string{box: "in outside", box + "/outside": "secret"} {
		list, err := os.ReadDir(dir)
		must(t, err)
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s has %s", dir, got)
		}
	}
	secret := box + "/outside/secret"
	info, err := os.Lstat(secret)
	must(t, err)
	if text, err := os.ReadFile(secret); err != nil || string(text) != "old" || info.Mode() != 0o644 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("the file outside is %q, %v, %v", text, info.Mode(), err)
	}
	must(t, filepath.WalkDir(box+"/in", func(name string, e fs.DirEntry, err error) error {
		if err == nil && (strings.HasPrefix(e.Name(), ".destajo-") || e.Type()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0) {
			t.Errorf("%s is there", name)
		}
		return err
	}))
}

// TestHostile unpacks random entries whose names lie in each other's way.
func TestHostile(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a", "there", ".", "..", "", "file"}), 1, 4).Draw(t, "parts"), "/")
	})
	header := rapid.Custom(func(t *rapid.T) tar.Header {
		h := tar.Header{Typeflag: rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}).Draw(t, "type"), Name: name.Draw(t, "name"), Mode: rapid.Int64Range(0, 0o7777).Draw(t, "mode")}
		if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
			h.Linkname = rapid.OneOf(name, rapid.SampledFrom([]string{"../outside", "../outside/secret", "/", "../../outside/secret"})).Draw(t, "to")
		}
		if h.Typeflag == tar.TypeReg {
			h.Name = strings.TrimRight(h.Name, "/") + "/f"
		}
		return h
	})
	rapid.Check(t, func(r *rapid.T) {
		box, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		defer os.RemoveAll(box)
		tree(t, box, map[string]string{"outside/secret": "old", "in/there": "-> ../outside", "in/file": "old"})
		names, err := Unpack(bytes.NewReader(archive(t, rapid.SliceOfN(header, 1, 8).Draw(r, "headers")...)), box+"/in")
		if kind := fault.KindOf(err); kind == fault.Internal && !strings.Contains(err.Error(), "no such file") {
			r.Fatal(err)
		}
		for _, n := range names {
			if _, err := os.Lstat(filepath.Join(box, "in", n)); err != nil || !filepath.IsLocal(n) {
				r.Fatal(n, err)
			}
		}
		unharmed(t, box)
	})
}

func FuzzUnpack(f *testing.F) {
	reg, link, hard := byte(tar.TypeReg), byte(tar.TypeSymlink), byte(tar.TypeLink)
	for _, headers := range [][]tar.Header{
		{{Typeflag: reg, Name: "a/b"}, {Typeflag: hard, Name: "c", Linkname: "a/b"}},
		{{Typeflag: link, Name: "a", Linkname: "../outside"}, {Typeflag: reg, Name: "a/x"}},
		{{Typeflag: reg, Name: strings.Repeat("é", 90), ModTime: time.Unix(1, 5), Format: tar.FormatPAX}, {Typeflag: reg, Name: strings.Repeat("g", 200), Format: tar.FormatGNU}},
	} {
		zip, err := gzip.NewReader(bytes.NewReader(archive(f, headers...)))
		must(f, err)
		raw, err := io.ReadAll(zip)
		must(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		box := t.TempDir()
		tree(t, box, map[string]string{"outside/secret": "old", "in/there": "-> ../outside", "in/file": "old"})
		var b bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		_, _ = zip.Write(raw)
		_ = zip.Close()
		listed, unlisted := Names(bytes.NewReader(b.Bytes()))
		names, err := Unpack(&b, box+"/in")
		if unlisted != nil && err == nil || err == nil && !cmp.Equal(listed, names) {
			t.Errorf("%q %v, %q %v", listed, unlisted, names, err)
		}
		unharmed(t, box)
	})
}
