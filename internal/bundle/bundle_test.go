package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
)

// pack packs or fails.
func pack(t testing.TB, dir string, mounts ...Mount) ([]byte, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := Pack(&b, dir, mounts, nil)
	must(t, err)
	return b.Bytes(), sum
}

// look reads a tree: for each name its mode, time of change and content.
func look(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		info, err := e.Info()
		must(t, err)
		switch {
		case rel == ".":
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			must(t, err)
			out[rel] = "-> " + to
		case e.IsDir():
			out[rel] = info.Mode().String()
		default:
			text, err := os.ReadFile(name)
			must(t, err)
			out[rel] = fmt.Sprint(info.Mode(), info.ModTime().UnixNano(), string(text))
		}
		return nil
	}))
	return out
}

func TestThereAndBack(t *testing.T) {
	t.Parallel()
	a, b := t.TempDir(), t.TempDir()
	long := strings.Repeat("long", 60)
	tree(t, a, map[string]string{
		"a": "1", "sub/run.sh": "#!/bin/sh", "sub/none/": "", "new\nline": "2", "bad\xff\xfename": "3", "é": "4", ".hidden": "5", "a\\b": "6", "-> x": "7", " ": "8",
		long + "/" + long + "/" + long + "/" + long: "deep", "empty": "", "link": "-> sub/run.sh", "sub/up": "-> ../a", "dangling": "-> nothing", "big": strings.Repeat("0123456789", 300_000),
	})
	must(t, os.Chmod(filepath.Join(a, "sub/run.sh"), 0o755))
	must(t, os.Chmod(filepath.Join(a, "a"), 0o600))
	must(t, os.Chmod(filepath.Join(a, "sub/none"), 0o700))
	must(t, os.Chtimes(filepath.Join(a, "a"), time.Time{}, time.Unix(1_600_000_000, 123_456_789)))
	must(t, os.Link(filepath.Join(a, "a"), filepath.Join(a, "sub/hard")))

	var said int64
	var buffer bytes.Buffer
	sum, err := Pack(&buffer, a, nil, func(done int64) {
		if done < said {
			t.Errorf("%d after %d", done, said)
		}
		said = done
	})
	must(t, err)
	if said != sum.Bytes || sum.Files != 16 || len(sum.Skipped) != 0 || sum.Ignored != 0 {
		t.Errorf("said %d: %+v", said, sum)
	}
	data := buffer.Bytes()
	listed, err := Names(bytes.NewReader(data))
	must(t, err)
	for range 2 { // the second time everything is there already
		names, err := Unpack(bytes.NewReader(data), b)
		must(t, err)
		if d := cmp.Diff(listed, names); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(look(t, a), look(t, b)); d != "" {
			t.Error(d)
		}
	}
	one, err := os.Stat(filepath.Join(b, "a"))
	must(t, err)
	two, err := os.Stat(filepath.Join(b, "sub/hard"))
	must(t, err)
	if !os.SameFile(one, two) {
		t.Error("the hard link became a copy")
	}
	if again, _ := pack(t, b); !bytes.Equal(data, again) {
		t.Error("the same tree gives other bytes")
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	tree(t, dir, map[string]string{
		"work/main.py": "m", "data/.gitignore": "*", "data/.destajoignore": "*.tmp", "data/x.bin": "x", "data/y.tmp": "", "one.json": "{}", "alias": "-> one.json", "work/.gitignore": "x",
	})
	data, sum := pack(t, filepath.Join(dir, "work"), Mount{filepath.Join(dir, "data"), ".m/0"}, Mount{filepath.Join(dir, "alias"), ".m/1"})
	if sum.Files != 6 || sum.Ignored != 1 {
		t.Errorf("%+v", sum)
	}
	names, err := Unpack(bytes.NewReader(data), to)
	must(t, err)
	if d := cmp.Diff([]string{".gitignore", "main.py", ".m/0/.destajoignore", ".m/0/.gitignore", ".m/0/x.bin", ".m/1"}, names); d != "" {
		t.Error(d)
	}
	if text, err := os.ReadFile(filepath.Join(to, ".m/1")); err != nil || string(text) != "{}" {
		t.Errorf("%q, %v", text, err)
	}
	if empty, sum := pack(t, ""); sum.Files != 0 {
		t.Error(sum)
	} else if names, err := Unpack(bytes.NewReader(empty), filepath.Join(to, "new/folder")); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

func TestSkipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a": "", "out": "-> ../../etc", "abs": "-> /etc/passwd", "sub/in": "-> ../a", ".destajoignore": "-> a"})
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	must(t, err)
	defer l.Close()
	names, sum := packed(t, dir)
	if d := cmp.Diff([]string{".destajoignore", "a", "abs", "out", "sub/in"}, names); d != "" {
		t.Error(d)
	}
	want := []string{
		"/.destajoignore is not a file and keeps nothing out",
		"/abs is a link to /etc/passwd, a path of this machine: only the link is sent",
		"/out is a link to ../../etc, outside of " + dir + ": only the link is sent",
		"/pipe is a named pipe", "/socket is a socket",
	}
	for i := range want {
		want[i] = dir + want[i]
	}
	if d := cmp.Diff(want, sum.Skipped); d != "" {
		t.Error(d)
	}
}

func TestPackRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree(t, dir, map[string]string{"file": "", "work/a": "", "work/b/c": ""})
	for name, c := range map[string]struct {
		dir    string
		mounts []Mount
		want   string
	}{
		"no folder":      {dir: dir + "/none", want: "the folder " + dir + "/none is not there"},
		"below a file":   {dir: dir + "/file/none", want: "the folder " + dir + "/file/none is not there"},
		"a file":         {dir: dir + "/file", want: "the workdir " + dir + "/file is a file"},
		"no mount":       {mounts: []Mount{{dir + "/none", "x"}}, want: "the mount " + dir + "/none is not there"},
		"mount upwards":  {mounts: []Mount{{dir + "/file", "x/../../y"}}, want: `a mount cannot lie at "x/../../y": it has ".."`},
		"mount absolute": {mounts: []Mount{{dir + "/file", "/x"}}, want: `a mount cannot lie at "/x": it is absolute`},
		"mount on top":   {mounts: []Mount{{dir + "/file", "./"}}, want: `a mount cannot lie at "./": it needs a name of its own`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Pack(io.Discard, c.dir, c.mounts, nil)
			if fault.KindOf(err) != fault.Invalid || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a/secret": "s"})
	for _, name := range []string{"a/secret", "a"} {
		must(t, os.Chmod(filepath.Join(dir, name), 0))
		_, err := Pack(io.Discard, dir, nil, nil)
		if want := "cannot read " + dir + "/" + name + ": permission denied"; fault.KindOf(err) != fault.Invalid || err.Error() != want || fault.HintOf(err) == "" {
			t.Errorf("got %v, want %s", err, want)
		}
		must(t, os.Chmod(filepath.Join(dir, name), 0o755))
	}
}

// TestChanging changes a tree at the first word about progress, which is after
// the small file "a".
func TestChanging(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	for name, c := range map[string]struct {
		change func(dir string) error
		fault  string
		names  string
		skips  int
	}{
		"the folder vanishes": {change: os.RemoveAll, fault: "the folder DIR is not there"},
		"another takes its place": {change: func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Mkdir(dir, 0o755))
		}, fault: "the folder DIR is not there"},
		"a file vanishes": {change: func(dir string) error { return os.Remove(dir + "/big") }, names: "a sub/z", skips: 1},
		"a folder becomes a file": {change: func(dir string) error {
			return errors.Join(os.RemoveAll(dir+"/sub"), os.WriteFile(dir+"/sub", nil, 0o644))
		}, names: "a big sub"},
		"a file becomes a pipe": {change: func(dir string) error {
			return errors.Join(os.Remove(dir+"/big"), syscall.Mkfifo(dir+"/big", 0o644))
		}, names: "a sub/z", skips: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir() + "/work"
			tree(t, dir, map[string]string{"a": "a", "big": strings.Repeat("x", size), "sub/z": "z"})
			var b bytes.Buffer
			changed := false
			sum, err := Pack(&b, dir, nil, func(int64) {
				if !changed {
					changed = true
					must(t, c.change(dir))
				}
			})
			if c.fault != "" {
				if want := strings.ReplaceAll(c.fault, "DIR", dir); fault.KindOf(err) != fault.Invalid || err.Error() != want {
					t.Errorf("got %v, want %s", err, want)
				}
				return
			}
			must(t, err)
			names, err := Names(&b)
			must(t, err)
			if got := strings.Join(names, " "); got != c.names || len(sum.Skipped) != c.skips {
				t.Errorf("got %s, %q, want %s", got, sum.Skipped, c.names)
			}
		})
	}
}

// TestGrowAndShrink changes a large file in the middle of its reading.
func TestGrowAndShrink(t *testing.T) {
	t.Parallel()
	const size = 3 << 20
	for to, want := range map[int64]string{5 << 20: "", 1 << 20: "FILE became shorter while it was packed"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "big")
		must(t, os.WriteFile(file, bytes.Repeat([]byte("x"), size), 0o644))
		var b bytes.Buffer
		sum, err := Pack(&b, dir, nil, func(done int64) {
			if done == 1<<20 {
				must(t, os.Truncate(file, to))
			}
		})
		if want != "" {
			if want := strings.ReplaceAll(want, "FILE", file); fault.KindOf(err) != fault.Invalid || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			continue
		}
		must(t, err)
		if _, err := Unpack(&b, filepath.Join(dir, "new")); err != nil || sum.Bytes != size {
			t.Error(sum.Bytes, err)
		}
	}
}

// TestBigHeader checks the header of a file that is too large to be packed in a
// test.
func TestBigHeader(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := &packer{out: tar.NewWriter(&b)}
	must(t, p.header(&tar.Header{Typeflag: tar.TypeReg, Name: "weights", Size: 20 << 30}))
	h, err := tar.NewReader(&b).Next()
	must(t, err)
	if h.Size != 20<<30 {
		t.Error(h.Size)
	}
}

func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a": rand.Text()})
	r, w := io.Pipe()
	_ = r.CloseWithError(fault.New(fault.OverLimit, "the store is full"))
	if _, err := Pack(w, dir, nil, nil); fault.KindOf(err) != fault.OverLimit {
		t.Error(err)
	}
}

// TestSameAgain packs random trees there and back.
func TestSameAgain(t *testing.T) {
	t.Parallel()
	names := rapid.StringMatching(`[a-c \n\x80-\xff]{1,3}(/[a-c]{1,2}){0,3}`)
	rapid.Check(t, func(r *rapid.T) {
		a, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		b := a + "2"
		defer os.RemoveAll(a)
		defer os.RemoveAll(b)
		for name, text := range rapid.MapOfN(names, rapid.String(), 0, 10).Draw(r, "files") {
			full := filepath.Join(a, name)
			if os.MkdirAll(filepath.Dir(full), 0o755) == nil {
				_ = os.WriteFile(full, []byte(text), fs.FileMode(rapid.Uint32Range(0o600, 0o777).Draw(r, "mode")))
			}
		}
		data, _ := pack(t, a)
		_, err = Unpack(bytes.NewReader(data), b)
		must(t, err)
		if d := cmp.Diff(look(t, a), look(t, b)); d != "" {
			r.Fatal(d)
		}
		if again, _ := pack(t, b); !bytes.Equal(data, again) {
			r.Fatal("the same tree gives other bytes")
		}
	})
}

// archive makes a tar.gz of headers; each file has the bytes "new".
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	out := tar.NewWriter(zip)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = 3
		}
		must(t, out.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := out.Write([]byte("new"))
			must(t, err)
		}
	}
	must(t, out.Close())
	must(t, zip.Close())
	return b.Bytes()
}

func BenchmarkPack(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		tree(b, dir, map[string]string{fmt.Sprintf("d%d/f%d", i%50, i): strings.Repeat(fmt.Sprintln("a line of text number", i), 200)})
	}
	tree(b, dir, map[string]string{".gitignore": "*.o\n*.log\nbuild/\n/out\n**/cache/*.bin\n"})
	_, sum := pack(b, dir)
	b.SetBytes(sum.Bytes)
	for b.Loop() {
		if _, err := Pack(io.Discard, dir, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sum.Files)*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}

func BenchmarkUnpack(b *testing.B) {
	dir, to := b.TempDir(), b.TempDir()
	for i := range 1000 {
		tree(b, dir, map[string]string{fmt.Sprintf("d%d/f%d", i%50, i): strings.Repeat(fmt.Sprintln("a line of text number", i), 200)})
	}
	data, sum := pack(b, dir)
	b.SetBytes(sum.Bytes)
	for b.Loop() {
		if _, err := Unpack(bytes.NewReader(data), to); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sum.Files)*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}
