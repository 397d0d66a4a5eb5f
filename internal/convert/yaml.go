package convert

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/destajo/destajo/fault"
)

// Limits of a file, far beyond any real one: the library takes time that grows
// with the square of the keys, and aliases can multiply without bound.
const (
	maxBytes = 64 << 10
	maxDepth = 60
	maxNodes = 20_000
)

// kind is what a value is.
type kind int

const (
	null kind = iota
	text
	number
	boolean
	list
	mapping
)

// node is a value with its place. Anchors, aliases and merge keys, which both
// tools read, are resolved.
type node struct {
	kind         kind
	text         string // of a scalar, without quotes
	quoted       bool
	items        []*node
	entries      []entry
	line, column int
}

// entry is a key with its value and the key's place.
type entry struct {
	key          string
	value        *node
	line, column int
}

// documents reads the documents of a file that hold something.
func documents(file string, data []byte) ([]*node, error) {
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, format, args...).At(file, 0, 0)
	}
	switch {
	case len(data) > maxBytes:
		return nil, bad("the file has %d bytes", len(data)).Hint("a job file is at most 64 KiB")
	case bytes.IndexByte(data, 0) >= 0:
		return nil, bad("the file has a NUL byte: it is no text").Hint("give a YAML file in UTF-8")
	case !utf8.Valid(data):
		return nil, bad("the file is not UTF-8").Hint("save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	if depth(data) > maxDepth {
		return nil, bad("the file is nested more than %d levels deep", maxDepth).Hint("a job file needs five")
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		var s *yaml.SyntaxError
		if errors.As(err, &s) && s.Token != nil && s.Token.Position != nil {
			e := fault.New(fault.Invalid, "this is not YAML: %s", s.Message).At(file, s.Token.Position.Line, s.Token.Position.Column)
			return nil, e.Hint("look for a missing bracket, quote or colon, for wrong indentation and for a key that stands twice")
		}
		return nil, bad("this is not YAML: %v", err)
	}
	var out []*node
	for _, doc := range f.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		l := &loader{file: file, anchors: map[string]ast.Node{}}
		n := l.load(doc.Body, 0)
		if l.err != nil {
			return nil, l.err
		}
		if n.kind != mapping {
			return nil, fault.New(fault.Invalid, "expected keys with values, found %s", n.what()).At(file, n.line, n.column).Hint("a job file has lines such as name: train")
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		return nil, bad("the file is empty").Hint("a job needs at least run: or commands:")
	}
	return out, nil
}

// depth is a cheap upper bound of nesting by brackets, dashes and question
// marks; indentation cannot nest deeply within maxBytes.
func depth(data []byte) int {
	deepest, flow := 0, 0
	for line := range bytes.Lines(data) {
		start := len(line) - len(bytes.TrimLeft(line, " -?"))
		deepest = max(deepest, bytes.Count(line[:start], []byte{'-'}), bytes.Count(line[:start], []byte{'?'}), start/2)
		for _, c := range line {
			switch c {
			case '[', '{':
				flow++
			case ']', '}':
				flow = max(0, flow-1)
			}
			deepest = max(deepest, flow)
		}
	}
	return deepest
}

// loader resolves one document.
type loader struct {
	file    string
	anchors map[string]ast.Node
	count   int
	err     error
}

func (l *loader) fail(n ast.Node, format string, args ...any) *fault.Error {
	line, column := position(n)
	e := fault.New(fault.Invalid, format, args...).At(l.file, line, column)
	if l.err == nil {
		l.err = e
	}
	return e
}

func (l *loader) load(n ast.Node, deep int) *node {
	line, column := position(n)
	out := &node{line: line, column: column}
	if l.count++; l.count > maxNodes || deep > 2*maxDepth {
		l.fail(n, "the file is too large once its aliases are written out").Hint("write the values instead of aliases")
	}
	if l.err != nil {
		return out
	}
	switch v := n.(type) {
	case nil, *ast.NullNode:
	case *ast.StringNode:
		out.kind, out.text = text, v.Value
		out.quoted = v.Token.Type == token.SingleQuoteType || v.Token.Type == token.DoubleQuoteType
	case *ast.LiteralNode:
		out.kind, out.text, out.quoted = text, v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = number, n.GetToken().Value
	case *ast.BoolNode:
		out.kind, out.text = boolean, v.GetToken().Value
	case *ast.TagNode:
		if v.Value == nil {
			break
		}
		inner := l.load(v.Value, deep+1)
		if v.Start.Value == "!!str" && (inner.kind == number || inner.kind == boolean) {
			inner.kind, inner.quoted = text, true
		}
		return inner
	case *ast.AnchorNode:
		l.anchors[v.Name.GetToken().Value] = v.Value
		return l.load(v.Value, deep+1)
	case *ast.AliasNode:
		name := v.Value.GetToken().Value
		to, ok := l.anchors[name]
		if !ok {
			l.fail(n, "the alias *%s has no anchor before it", name).Hint("put quotes around a text that begins with *")
			return out
		}
		return l.load(to, deep+1)
	case *ast.SequenceNode:
		out.kind = list
		for _, item := range v.Values {
			out.items = append(out.items, l.load(item, deep+1))
		}
	case *ast.MappingNode:
		l.entries(out, v.Values, deep)
	case *ast.MappingValueNode:
		l.entries(out, []*ast.MappingValueNode{v}, deep)
	default:
		l.fail(n, "this kind of YAML is not read in job files").Hint("write plain keys and values")
	}
	return out
}

// entries loads the keys of a mapping; those of merge keys stand last and give
// way to the mapping's own.
func (l *loader) entries(out *node, values []*ast.MappingValueNode, deep int) {
	out.kind = mapping
	if len(values) > 0 {
		out.line, out.column = position(values[0].Key)
	}
	var merged []entry
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			from := l.load(v.Value, deep+1)
			for _, m := range append([]*node{from}, from.items...) {
				merged = append(merged, m.entries...)
			}
			continue
		}
		key := l.load(v.Key, deep+1)
		if key.kind == list || key.kind == mapping {
			l.fail(v.Key, "expected a plain key, found %s", key.what()).Hint("write key: value")
			return
		}
		line, column := position(v.Key)
		out.entries = append(out.entries, entry{key.text, l.load(v.Value, deep+1), line, column})
	}
	for _, m := range merged {
		if out.get(m.key) == nil {
			out.entries = append(out.entries, m)
		}
	}
}

// position is where a value begins; a block mapping begins at its first key.
func position(n ast.Node) (line, column int) {
	if n == nil {
		return 0, 0
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line, t.Position.Column
	}
	return 0, 0
}

// get gives the value of a key, nil when it is not there.
func (n *node) get(key string) *node {
	for _, e := range n.entries {
		if e.key == key {
			return e.value
		}
	}
	return nil
}

// what names a value for errors.
func (n *node) what() string {
	switch n.kind {
	case null:
		return "nothing"
	case text:
		return `the text "` + oneLine(cut(n.text, 60)) + `"`
	case number:
		return "the number " + cut(n.text, 60)
	case boolean:
		return strings.ToLower(n.text)
	case list:
		return "a list"
	}
	return "keys with values"
}
