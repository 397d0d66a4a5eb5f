package bundle

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// tree writes files by name; a name with a slash at the end is a folder, a text
// that begins with "-> " a link.
func tree(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		full := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(full, 0o755))
		} else if to, ok := strings.CutPrefix(text, "-> "); ok {
			must(t, os.Symlink(to, full))
		} else {
			must(t, os.WriteFile(full, []byte(text), 0o644))
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// packed gives the names that Pack puts into an archive of a folder, sorted.
func packed(t testing.TB, dir string) ([]string, Summary) {
	t.Helper()
	var b bytes.Buffer
	sum, err := Pack(&b, dir, nil, nil)
	must(t, err)
	names, err := Names(&b)
	must(t, err)
	if len(names) != sum.Files {
		t.Errorf("%d files were packed, the summary says %d", len(names), sum.Files)
	}
	slices.Sort(names)
	return names, sum
}

func TestIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files   map[string]string
		in      string // the workdir within the tree
		want    []string
		ignored int
	}{
		"git's own folder": {
			files: map[string]string{".git/config": "x", "sub/.git": "gitdir: ../x", "a": "a"},
			want:  []string{"a"},
		},
		"nested, negated, anchored, folders only, any depth": {
			files: map[string]string{
				".gitignore": "*.log\n!keep.log\n/build\ncache/\n**/tmp/*.o\n", "a.log": "", "keep.log": "", "build/x": "", "src/build/y": "", "src/cache/z": "", "cache": "",
				"a/b/tmp/c.o": "", "a/b/tmp/c.c": "", "src/.gitignore": "!a.log\nkeep.log", "src/a.log": "", "src/keep.log": "",
			},
			want:    []string{".gitignore", "a/b/tmp/c.c", "cache", "keep.log", "src/.gitignore", "src/a.log", "src/build/y"},
			ignored: 5,
		},
		"ours wins over git's, wherever they stand": {
			files: map[string]string{
				".destajoignore": "!data/\n!weights.bin\n*.secret", ".gitignore": "data/\n*.bin\n!*.secret", "data/x": "", "weights.bin": "", "other.bin": "", "a.secret": "",
				"sub/.gitignore": "weights.bin\n!b.secret", "sub/weights.bin": "", "sub/b.secret": "",
			},
			want:    []string{".destajoignore", ".gitignore", "data/x", "sub/.gitignore", "sub/weights.bin", "weights.bin"},
			ignored: 3,
		},
		"nothing comes back from a folder that is left out": {
			files:   map[string]string{".destajoignore": "out\n!out/keep", "out/keep": "", "a": ""},
			want:    []string{".destajoignore", "a"},
			ignored: 1,
		},
		"rules above the workdir": {
			files: map[string]string{
				".git/info/exclude": "*.tmp\n", ".gitignore": "*.ckpt\n/proj/big\n/big\n", "proj/.gitignore": "local\n", "proj/work/x.ckpt": "", "proj/work/x.tmp": "", "proj/work/local": "",
				"proj/work/big": "", "proj/work/main.py": "", "proj/work/.gitignore": "!x.tmp",
			},
			in:      "proj/work",
			want:    []string{".gitignore", "big", "main.py", "x.tmp"},
			ignored: 2,
		},
		"a workdir that git ignores is sent": {
			files: map[string]string{".git/HEAD": "", ".gitignore": "build/\n", "build/a": ""},
			in:    "build",
			want:  []string{"a"},
		},
		"no repository": {
			files: map[string]string{".gitignore": "*.x", "work/a.x": "", "work/b": ""},
			in:    "work",
			want:  []string{"a.x", "b"},
		},
		"a second working tree": {
			files: map[string]string{
				"main/.git/info/exclude": "*.tmp", "main/.git/worktrees/two/commondir": "../..\n", "two/.git": "gitdir: ../main/.git/worktrees/two\n", "two/a.tmp": "", "two/b": "",
			},
			in:      "two",
			want:    []string{"b"},
			ignored: 1,
		},
		"line ends, byte order mark, comments, spaces": {
			files: map[string]string{
				".gitignore": "\xef\xbb\xbfa\r\n#b\n\\#c\nd  \ne\\ \n\\!f\n\n/\n!\n", "a": "", "#b": "", "b": "", "#c": "", "d": "", "e ": "", "!f": "",
			},
			want:    []string{"#b", ".gitignore", "b"},
			ignored: 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tree(t, dir, c.files)
			got, sum := packed(t, filepath.Join(dir, c.in))
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if sum.Ignored != c.ignored {
				t.Errorf("%d ignored, want %d", sum.Ignored, c.ignored)
			}
		})
	}
}

// TestLikeGit packs random trees with random ignore files and compares with what
// git says of them.
func TestLikeGit(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not here")
	}
	names := rapid.SampledFrom([]string{"a", "b", "ab", "a", "b", "ab", "aab", "ba", "a.b", "b.o", "A", "a b", "[a]", "*", `\a`, "!a", "#", "é", "-", "^", "aab", "a ", "]"})
	files := rapid.MapOfN(rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(names, 1, 4).Draw(t, "path"), "/")
	}), rapid.Map(rapid.IntRange(0, 9), func(n int) bool { return n > 0 }), 5, 40)
	bits := rapid.SampledFrom([]string{"a", "b", "ab", ".", "*", "*", "**", "**/", "/**", "/**/", "/", "/", "?", "[ab]", "[!a]", "[^b]", "[a-b]", "[[:alpha:]]", "[[:foo:]]", "[]-]", "[a", "[[:]",
		`\a`, `\*`, `\[`, `\`, `\/`, "[a\\]]", "[\\a-b]", " ", "!", "#", "é", "\r", "***", "[/]", "[--a]", "[a-]", "[[a]"})
	parts := rapid.SampledFrom([]string{"a", "b", "ab", "*", "**", "**", "?", "a*", "*b", "*a*", "[ab]", "a**", "??"})
	patterns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		var p string
		if rapid.Bool().Draw(t, "by name") {
			p = strings.Join(rapid.SliceOfN(parts, 1, 4).Draw(t, "parts"), "/")
		} else {
			p = strings.Join(rapid.SliceOfN(bits, 1, 5).Draw(t, "bits"), "")
		}
		return rapid.SampledFrom([]string{"", "", "", "!", "/"}).Draw(t, "before") + p + rapid.SampledFrom([]string{"", "", "", "/"}).Draw(t, "after")
	}), 0, 5)

	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		defer os.RemoveAll(dir)
		tree(t, dir, map[string]string{".git/HEAD": "ref: refs/heads/main\n", ".git/objects/": "", ".git/refs/": ""})
		ours := rapid.Bool().Draw(r, "ours")
		file := ".gitignore"
		if ours {
			file = ".destajoignore"
		} else {
			tree(t, dir, map[string]string{".git/info/exclude": strings.Join(patterns.Draw(r, "exclude"), "\n")})
		}
		for name, plain := range files.Draw(r, "files") {
			full := filepath.Join(dir, name)
			if os.MkdirAll(filepath.Dir(full), 0o755) != nil {
				continue // one of the folders is a file already
			}
			if !plain {
				full = filepath.Join(filepath.Dir(full), file)
				must(t, os.WriteFile(full, []byte(strings.Join(patterns.Draw(r, "patterns"), "\n")), 0o644))
			} else {
				_ = os.WriteFile(full, nil, 0o644)
			}
		}
		args := []string{"ls-files", "--others", "-z", "--exclude-standard"}
		if ours {
			args[3] = "--exclude-per-directory=" + file
		}
		git := exec.Command("git", args...)
		git.Dir = dir
		git.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
		git.Stderr = os.Stderr
		out, err := git.Output()
		must(t, err)
		want := strings.FieldsFunc(string(out), func(c rune) bool { return c == 0 })
		slices.Sort(want)
		got, _ := packed(t, dir)
		if d := cmp.Diff(want, got, cmp.Transformer("none", func(s []string) string { return strings.Join(s, "\n") })); d != "" {
			r.Fatal(d)
		}
	})
}

func TestWild(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"**/a", "a", true}, {"**/a", "b/c/a", true}, {"**/a", "b/ca", false}, {"a/**", "a", false}, {"a/**", "a/b/c", true}, {"a/**/b", "a/b", true}, {"a/**/b", "a/x/y/b", true},
		{"a/**/b", "a/xb", false}, {"a*c", "a/c", false}, {"*/c", "a/b/c", false}, {"a**c", "a/c", false}, {"a**c", "abbc", true}, {"*/*", "a/b", true}, {"*b*/c", "abb/c", true},
		{"**/*.x/**/y", "a/b.x/c/y", true}, {"**/a/**/a/b", "a/a/c/a/b", true}, {"?", "/", false}, {"a[/]b", "a/b", false}, {"[]-]", "]", true}, {"[]-]", "-", true}, {"[a-c]", "b", true},
		{"[!a-c]", "b", false}, {"[^a]", "b", true}, {"[[:digit:]x]", "7", true}, {"[[:digit:]x]", "y", false}, {"[[:none:]]", "n", false}, {"[a", "[a", false}, {"\\*", "*", true}, {"\\*", "x", false}, {"a\\", "a\\", false},
		{"**\\/b", "a/b", true}, {"", "", true}, {"*", "", true}, {"", "a", false},
	} {
		if got := wild(c.pattern, c.text); got != c.want {
			t.Errorf("%q and %q: %v", c.pattern, c.text, got)
		}
	}
}

func TestWildIsQuick(t *testing.T) {
	t.Parallel()
	if wild(strings.Repeat("*a", 2000)+"b", strings.Repeat("a", 4000)) || wild(strings.Repeat("**/a/", 1000)+"b", strings.Repeat("a/", 4000)) {
		t.Error("matched")
	}
}

func FuzzWild(f *testing.F) {
	f.Add("a/**/[b-c]*", "a/x/y/bz")
	f.Add(`[[:alpha:]\]-`, "]")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		wild(pattern, text)
		for _, r := range parse([]byte(pattern)) {
			r.matches(text, filepath.Base(text), true)
		}
		quoted := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(text)
		if !wild(quoted, text) {
			t.Errorf("%q does not match %q", quoted, text)
		}
	})
}
