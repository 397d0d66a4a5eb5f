package catalog

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/destajo/destajo/fault"
)

// Limits of an imported table, far beyond any real price list.
const (
	maxTableBytes = 512 << 20
	maxCellBytes  = 64 << 10
	maxMistakes   = 20 // that are told of one file
)

// table reads a CSV file by the names of its header, row by row.
type table struct {
	file   string
	reader *csv.Reader
	header []string
	at     map[string]int
	row    []string
	line   int
}

// openTable checks the text and reads the header. Names are compared without
// case; a BOM and CRLF do no harm.
func openTable(file string, data []byte, comma rune) (*table, error) {
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, format, args...).At(file, 0, 0)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	switch {
	case len(data) > maxTableBytes:
		return nil, bad("the file has %d bytes", len(data)).Hint("split it: at most 512 MiB are read at once")
	case len(bytes.TrimSpace(data)) == 0:
		return nil, bad("the file is empty").Hint("it needs a header line: see `destajo catalog schema`")
	case bytes.IndexByte(data, 0) >= 0:
		return nil, bad("the file has a NUL byte: it is no text").Hint("give a CSV file in UTF-8")
	case !utf8.Valid(data):
		return nil, bad("the file is not UTF-8").Hint("save it as UTF-8")
	}
	if cell := longestLine(data); cell > 16*maxCellBytes {
		return nil, bad("a line of %d bytes", cell).Hint("no cell of a price list is so long: look for a missing line break")
	}
	t := &table{file: file, at: map[string]int{}}
	t.reader = csv.NewReader(bytes.NewReader(data))
	t.reader.Comma = comma
	t.reader.ReuseRecord = true
	header, err := t.reader.Read()
	if err != nil {
		return nil, t.syntax(err)
	}
	for i, name := range header {
		name = strings.TrimSpace(name)
		key := strings.ToLower(name)
		if _, twice := t.at[key]; twice {
			_, col := t.reader.FieldPos(i)
			return nil, bad("the column %q stands twice in the header", name).At(file, 1, col).Hint("remove or rename one")
		}
		t.at[key] = i
		t.header = append(t.header, name)
	}
	return t, nil
}

func longestLine(data []byte) int {
	longest := 0
	for len(data) > 0 {
		n := bytes.IndexByte(data, '\n')
		if n < 0 {
			n = len(data) - 1
		}
		longest = max(longest, n)
		data = data[n+1:]
	}
	return longest
}

// next reads a row; false at the end of the file.
func (t *table) next() (bool, error) {
	row, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	if err != nil {
		return false, t.syntax(err)
	}
	t.row = row
	t.line, _ = t.reader.FieldPos(0)
	for i, cell := range row {
		if len(cell) > maxCellBytes {
			line, col := t.reader.FieldPos(i)
			return false, fault.New(fault.Invalid, "a cell of %d bytes", len(cell)).At(t.file, line, col).Hint("no cell of a price list is so long: look for a missing quote")
		}
	}
	return true, nil
}

// has says whether the header has all these columns.
func (t *table) has(names ...string) bool {
	for _, n := range names {
		if _, ok := t.at[strings.ToLower(n)]; !ok {
			return false
		}
	}
	return true
}

// get gives the row's cell of a column, without spaces around; empty when
// there is no such column.
func (t *table) get(name string) string {
	if i, ok := t.at[name]; ok {
		return strings.TrimSpace(t.row[i])
	}
	if i, ok := t.at[strings.ToLower(name)]; ok {
		return strings.TrimSpace(t.row[i])
	}
	return ""
}

// fail makes a fault at the row's cell of a column.
func (t *table) fail(column, format string, args ...any) *fault.Error {
	e := fault.New(fault.Invalid, column+": "+format, args...)
	if i, ok := t.at[strings.ToLower(column)]; ok && i < len(t.row) {
		line, col := t.reader.FieldPos(i)
		return e.At(t.file, line, col)
	}
	return e.At(t.file, t.line, 0)
}

// syntax says what is wrong with the CSV itself.
func (t *table) syntax(err error) error {
	var p *csv.ParseError
	if !errors.As(err, &p) {
		return fault.Wrap(fault.Invalid, err, "this is no CSV").At(t.file, 0, 0)
	}
	e := fault.New(fault.Invalid, "this is no CSV: %v", p.Err).At(t.file, p.Line, p.Column)
	switch {
	case errors.Is(p.Err, csv.ErrFieldCount):
		e.Message = "the row has another number of cells than the header"
		if n := len(t.header); n > 0 {
			return e.Hint("the header has %d; the file may be cut off, or a comma stands outside of quotes", n)
		}
	case errors.Is(p.Err, csv.ErrQuote):
		e.Message = "a quote does not end, or stands inside a cell"
		return e.Hint("the file may be cut off; a quote inside a quoted cell is written twice")
	case errors.Is(p.Err, csv.ErrBareQuote):
		e.Message = "a quote stands in a cell that is not quoted"
		return e.Hint("quote the whole cell and write the quote twice")
	}
	return e
}

// intern keeps one copy of each string: price lists repeat themselves.
type intern map[string]string

func (in intern) of(s string) string {
	if s == "" {
		return ""
	}
	if k, ok := in[s]; ok {
		return k
	}
	c := strings.Clone(s)
	in[c] = c
	return c
}

// mistakes joins what is wrong with a file, the first ones.
type mistakes []error

func (m mistakes) join(file string) error {
	if len(m) <= maxMistakes {
		return errors.Join(m...)
	}
	more := fault.New(fault.Invalid, "and %d more mistakes", len(m)-maxMistakes).At(file, 0, 0)
	return errors.Join(append(slices.Clone([]error(m[:maxMistakes])), more)...)
}
