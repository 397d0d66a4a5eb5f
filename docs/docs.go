// Package docs holds the manual inside the binary.
package docs

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.md
var files embed.FS

// Entry is one chapter of the manual.
type Entry struct {
	Name  string `json:"chapter"`
	Title string `json:"title"`
}

// Chapters lists the manual in reading order.
func Chapters() []Entry {
	var out []Entry
	names, err := fs.Glob(files, "*.md")
	if err != nil {
		return nil
	}
	for _, n := range names {
		text, err := files.ReadFile(n)
		if err != nil {
			continue
		}
		first, _, _ := strings.Cut(string(text), "\n")
		out = append(out, Entry{strings.TrimSuffix(n, ".md"), strings.TrimPrefix(first, "# ")})
	}
	return out
}

// Chapter gives the text of a chapter by its name, its number or a part of
// its name.
func Chapter(name string) (string, bool) {
	for _, c := range Chapters() {
		if c.Name == name || strings.HasPrefix(c.Name, name) || strings.HasSuffix(c.Name, "-"+name) {
			text, err := files.ReadFile(c.Name + ".md")
			return string(text), err == nil
		}
	}
	return "", false
}
