package convert

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
)

// reader collects what is wrong with a file, and what of it is not carried over.
type reader struct {
	file   string
	faults []*fault.Error
	notes  []Note
}

// value is a value of the file with the path to it and the place that notes
// and errors name: its key, or itself in a list.
type value struct {
	*node
	path         string
	line, column int
}

// field is one key of an object and how its value is read. Values that are
// null never come here: to both tools they are keys that are not there.
type field struct {
	key  string
	read func(v value)
}

func root(n *node) value { return value{n, "", n.line, n.column} }

// named is a whole document where a key stands that is not there.
func named(n *node, key string) value { return value{n, key, n.line, n.column} }

// object reads a mapping by its fields; an unknown key is a mistake.
func (r *reader) object(v value, fields []field) { r.read(r.pairs(v), fields) }

func (r *reader) read(pairs []pair, fields []field) {
	for _, p := range pairs {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == p.key })
		if i < 0 {
			keys := make([]string, len(fields))
			for j, f := range fields {
				keys[j] = f.key
			}
			e := r.fail(p.value, "unknown key %q", cut(oneLine(p.key), 60))
			if near := fault.Nearest(p.key, keys); len(near) > 0 {
				e.Hint("did you mean %s?", strings.Join(near, " or "))
			} else {
				e.Hint("known here are %s", strings.Join(keys, ", "))
			}
			continue
		}
		if p.value.kind != null {
			fields[i].read(p.value)
		}
	}
}

type pair struct {
	key   string
	value value
}

// pairs gives the keys of a mapping with their values.
func (r *reader) pairs(v value) []pair {
	if v.kind != mapping {
		r.fail(v, "expected keys with values, found %s", v.what()).Hint("write it as key: value, one a line")
		return nil
	}
	out := make([]pair, len(v.entries))
	for i, e := range v.entries {
		path := e.key
		if v.path != "" {
			path = v.path + "." + e.key
		}
		out[i] = pair{e.key, value{e.value, path, e.line, e.column}}
	}
	return out
}

// items gives the elements of a list, or a scalar as its only element.
func (r *reader) items(v value) []value {
	switch v.kind {
	case list:
		out := make([]value, len(v.node.items))
		for i, n := range v.node.items {
			out[i] = value{n, v.path + "[" + strconv.Itoa(i) + "]", n.line, n.column}
		}
		return out
	case text, number:
		return []value{v}
	}
	r.fail(v, "expected a list, found %s", v.what()).Hint("write it as [a, b] or one - a line")
	return nil
}

// fail tells a mistake once, however often the value is read.
func (r *reader) fail(v value, format string, args ...any) *fault.Error {
	e := fault.New(fault.Invalid, format, args...).At(r.file, v.line, v.column)
	if v.path != "" {
		e.Message = oneLine(v.path) + ": " + e.Message
	}
	if !slices.ContainsFunc(r.faults, func(o *fault.Error) bool { return o.Error() == e.Error() }) {
		r.faults = append(r.faults, e)
	}
	return e
}

// note tells once that a value is not carried over as it stands.
func (r *reader) note(v value, format string, args ...any) { r.add(v, false, format, args...) }

// fatal tells that the job cannot run as the file asks because of a value.
func (r *reader) fatal(v value, format string, args ...any) { r.add(v, true, format, args...) }

func (r *reader) add(v value, fatal bool, format string, args ...any) {
	n := Note{v.line, v.column, v.path, fault.New("", format, args...).Message, fatal}
	if !slices.Contains(r.notes, n) {
		r.notes = append(r.notes, n)
	}
}

// drop and refuse make readers of fields that are only told.
func (r *reader) drop(why string) func(value)   { return func(v value) { r.note(v, "%s", why) } }
func (r *reader) refuse(why string) func(value) { return func(v value) { r.fatal(v, "%s", why) } }

// scalar gives a text or a number as text.
func (r *reader) scalar(v value) (string, bool) {
	if v.kind != text && v.kind != number {
		r.fail(v, "expected text, found %s", v.what()).Hint("put quotes around it to make it text")
		return "", false
	}
	return v.text, true
}

func (r *reader) textInto(into *string) func(value) {
	return func(v value) {
		if s, ok := r.scalar(v); ok {
			*into = s
		}
	}
}

// texts reads a list of texts, each once.
func (r *reader) texts(v value) []string {
	var out []string
	for _, item := range r.items(v) {
		if s, ok := r.scalar(item); ok && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// flag reads a boolean, also in the words of YAML 1.1, which both tools read.
func (r *reader) flag(v value) (on, ok bool) {
	if v.kind == boolean || v.kind == text && !v.quoted {
		switch strings.ToLower(v.text) {
		case "true", "yes", "on":
			return true, true
		case "false", "no", "off":
			return false, true
		}
	}
	r.fail(v, "expected true or false, found %s", v.what()).Hint("write true or false")
	return false, false
}

// whole reads a whole number within bounds.
func (r *reader) whole(v value, least, most int) (int, bool) {
	i, err := strconv.Atoi(strings.TrimSpace(v.text))
	if v.kind != number && v.kind != text || err != nil || i < least || i > most {
		r.fail(v, "expected a whole number, found %s", v.what()).Hint("write a number from %d to %d", least, most)
		return 0, false
	}
	return i, true
}

func (r *reader) wholeInto(into *int, least, most int) func(value) {
	return func(v value) {
		if i, ok := r.whole(v, least, most); ok {
			*into = i
		}
	}
}

// positive reads a number above 0.
func (r *reader) positive(v value, s string) (float64, bool) {
	x, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if v.kind != number && v.kind != text || err != nil || !(x > 0) || math.IsInf(x, 0) || x > 1e12 {
		r.fail(v, "expected a number above 0, found %s", v.what()).Hint("write a number such as 8 or 0.5")
		return 0, false
	}
	return x, true
}

var sizeForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?i)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kmgtp]?)(i?b?)\s*$`)
})

// size reads a number of GiB, or a size whose units are binary however they are
// written, as both tools take them. The result is one of ours, such as 64GiB.
func (r *reader) size(v value, s string) (string, bool) {
	m := sizeForm().FindStringSubmatch(s)
	if v.kind != text && v.kind != number || m == nil {
		r.fail(v, "expected a size, found %s", v.what()).Hint("write a number of GB, or one with its unit, as in 64GB")
		return "", false
	}
	x, err := strconv.ParseFloat(m[1], 64)
	unit := strings.ToUpper(m[2])
	switch unit {
	case "":
		unit = "G"
	case "P":
		x, unit = x*1024, "T"
	}
	if err != nil || x > 1e6 {
		r.fail(v, "a size of %s is beyond any machine", cut(m[0], 60)).Hint("write a number of GB, or one with its unit, as in 64GB")
		return "", false
	}
	if x == 0 {
		return "", false
	}
	return strconv.FormatFloat(x, 'f', -1, 64) + unit + "iB", true
}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// variable checks the name of an environment variable.
func (r *reader) variable(v value, name string) bool {
	if envName().MatchString(name) {
		return true
	}
	r.fail(v, "%q is no name of an environment variable", cut(oneLine(name), 60)).Hint("use letters, digits and _, not beginning with a digit")
	return false
}

// jobName makes a name of ours, and tells when it had to change.
func (r *reader) jobName(v value, name string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b.WriteRune(c)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	out := strings.Trim(b.String(), "-")
	if len(out) > 63 {
		out = strings.TrimRight(out[:63], "-")
	}
	if out != name && out != "" {
		r.note(v, "names have lower-case letters, digits and -: it is %s", out)
	}
	return out
}

// sum adds texts to a list, each once.
func sum(list []string, more ...string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
