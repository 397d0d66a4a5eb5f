// Package convert turns job files of SkyPilot and dstack into ours. What such a
// file says and ours cannot is told, field by field, with line and column:
// nothing is dropped in silence. A key that the other tool would not know
// either is an error.
//
// The formats are those of SkyPilot 0.10 to 0.12 (sky/utils/schemas.py) and
// dstack 0.18 to 0.20 (core/models), as read in August 2026.
package convert

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
)

// Result is one job of ours, as YAML text in the format of job.Parse, with what
// was not carried over. The text begins with the notes as comments.
type Result struct {
	YAML  []byte
	Files []File // local files that the job's mounts send along, in their order
	Notes []Note // in the order of the file
}

// File is a local file or folder, as the file names it, and where it lies for
// the job.
type File struct{ Local, Remote string }

// Note is a field that is not carried over as it stands, with where and why and
// what to do. A fatal one says that the job would not do what the file asks
// for, so that it must not run before someone has changed it.
type Note struct {
	Line, Column int // from 1
	Field        string
	Text         string
	Fatal        bool
}

// finish gives the job's text with the notes, and makes sure that it is a job.
func (r *reader) finish(d *draft, from string) (Result, error) {
	slices.SortStableFunc(r.notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	text := append(r.head(from), d.write(false)...)
	spec, err := job.Parse(r.file, text)
	if err == nil && (spec.Run != d.run || spec.Setup != d.setup) {
		// Some texts do not survive as a block.
		text = append(r.head(from), d.write(true)...)
		spec, err = job.Parse(r.file, text)
	}
	if err != nil {
		return Result{}, fault.Wrap(fault.Invalid, err, "%s: this cannot be written as a job of ours", r.file).Hint("shorten or simplify the file")
	}
	if spec.Run != d.run || spec.Setup != d.setup {
		return Result{}, fault.New(fault.Invalid, "the commands have characters that YAML cannot hold").At(r.file, 0, 0).Hint("put them into a script and run that")
	}
	return Result{YAML: text, Files: d.mounts, Notes: r.notes}, nil
}

// maxHead is how many notes stand as comments.
const maxHead = 40

// head is the comment at the top of the job's text.
func (r *reader) head(from string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# From the %s file %s.\n", from, oneLine(filepath.Base(r.file)))
	for i, n := range r.notes {
		if i == maxHead {
			fmt.Fprintf(&b, "# and %d more\n", len(r.notes)-i)
			break
		}
		mark := ""
		if n.Fatal {
			mark = "MUST BE CHANGED: "
		}
		fmt.Fprintf(&b, "# - %sline %d, %s: %s\n", mark, n.Line, oneLine(n.Field), oneLine(n.Text))
	}
	return b.Bytes()
}

// oneLine makes text fit for a comment.
func oneLine(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffd {
			return ' '
		}
		return c
	}, s)
	return cut(s, 300)
}

// cut shortens a text to a number of characters.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// errors joins what is wrong with the file, in its order.
func (r *reader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b *fault.Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var all []error
	for i, f := range r.faults {
		if i == maxFaults {
			all = append(all, fault.New(fault.Invalid, "and %d more mistakes", len(r.faults)-i).At(r.file, f.Line, 0).Hint("mend these first"))
			break
		}
		all = append(all, f)
	}
	return errors.Join(all...)
}

// maxFaults are told of one file.
const maxFaults = 20
