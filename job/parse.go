package job

import (
	"bytes"
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/destajo/destajo/fault"
)

// Limits of a job file, far beyond any real one.
const (
	maxFileBytes = 64 << 10 // the YAML library is quadratic in the number of keys
	maxDepth     = 30
	maxFaults    = 20 // that are told of one file
)

// Parse reads a job file. The name stands in errors and, without its
// extension, is the job's name when the file gives none. On any mistake the
// result is nil and the error joins faults of the kind Invalid, in the order
// of the file.
func Parse(file string, data []byte) (*Spec, error) {
	d := &decoder{file: file}
	body, err := d.document(data)
	if err != nil {
		return nil, err
	}
	s := &Spec{Array: 1, Resources: Resources{Nodes: 1}}
	root := node{body, ""}
	d.object(root, s.fields(d))
	d.complete(root, s)
	if len(d.faults) > 0 {
		slices.SortStableFunc(d.faults, func(a, b *fault.Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		var all []error
		for i, f := range d.faults {
			if i == maxFaults {
				all = append(all, fault.New(fault.Invalid, "and %d more mistakes", len(d.faults)-maxFaults).At(file, f.Line, 0).Hint("mend these first"))
				break
			}
			all = append(all, f)
		}
		return nil, errors.Join(all...)
	}
	return s, nil
}

// decoder collects the mistakes of one file.
type decoder struct {
	file   string
	faults []*fault.Error
}

// node is a value of the file with the path to it.
type node struct {
	ast.Node
	path string
}

// document gives the only document's body.
func (d *decoder) document(data []byte) (ast.Node, error) {
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, format, args...).At(d.file, 0, 0)
	}
	switch {
	case len(data) > maxFileBytes:
		return nil, bad("the job file has %d bytes", len(data)).Hint("a job file is at most 64 KiB; data belongs into data: or workdir:")
	case bytes.IndexByte(data, 0) >= 0:
		return nil, bad("the file has a NUL byte: it is no text").Hint("give a YAML file in UTF-8")
	case !utf8.Valid(data):
		return nil, bad("the file is not UTF-8").Hint("save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	if depth(data) > maxDepth {
		return nil, bad("the file is nested more than %d levels deep", maxDepth).Hint("a job file needs four")
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		var s *yaml.SyntaxError
		if errors.As(err, &s) && s.Token != nil && s.Token.Position != nil {
			p := s.Token.Position
			e := fault.New(fault.Invalid, "this is not YAML: %s", s.Message).At(d.file, p.Line, p.Column)
			if strings.Contains(s.Message, "already defined") {
				e.Message = s.Message
				return nil, e.Hint("keep one of the two")
			}
			if strings.Contains(s.Message, "\t") {
				return nil, e.Hint("indent with spaces, not with tabs")
			}
			return nil, e.Hint("look for a missing bracket, quote or colon, and for wrong indentation")
		}
		return nil, bad("this is not YAML: %v", err)
	}
	var docs []ast.Node
	for _, doc := range f.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.CommentType {
			docs = append(docs, doc.Body)
		}
	}
	switch len(docs) {
	case 0:
		return nil, bad("the file is empty").Hint("a job needs at least work: or run:; see examples/")
	case 1:
		return docs[0], nil
	}
	p := docs[1].GetToken().Position
	return nil, fault.New(fault.Invalid, "a second document begins here").At(d.file, p.Line, p.Column).Hint("one file is one job: split it")
}

// depth is a cheap upper bound of nesting, by flow brackets and indentation.
func depth(data []byte) int {
	deepest, flow := 0, 0
	for line := range bytes.Lines(data) {
		indent := 0
		for indent < len(line) && (line[indent] == ' ' || line[indent] == '-') {
			indent++
		}
		for _, c := range line {
			switch c {
			case '[', '{':
				flow++
			case ']', '}':
				flow = max(0, flow-1)
			}
			deepest = max(deepest, flow)
		}
		if indent < len(line) && line[indent] != '#' && line[indent] != '\n' {
			dashes := bytes.Count(line[:indent], []byte{'-'})
			deepest = max(deepest, dashes)
		}
	}
	return deepest
}

// fail notes a mistake at a node.
func (d *decoder) fail(n node, format string, args ...any) *fault.Error {
	e := fault.New(fault.Invalid, format, args...)
	if n.path != "" {
		e.Message = n.path + ": " + e.Message
	}
	line, column := 0, 0
	if n.Node != nil {
		if t := n.GetToken(); t != nil && t.Position != nil {
			line, column = t.Position.Line, t.Position.Column
		}
		if m, ok := n.Node.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
			p := m.Values[0].Key.GetToken().Position
			line, column = p.Line, p.Column
		}
	}
	e.At(d.file, line, column)
	d.faults = append(d.faults, e)
	return e
}

// wrap notes a fault that a lower package found, at a node.
func (d *decoder) wrap(n node, err error) {
	d.fail(n, "%s", err.Error()).Next = fault.HintOf(err)
}

// pairs gives the keys and values of a mapping; nil with a mistake noted when
// the node is none.
func (d *decoder) pairs(n node) []pair {
	var values []*ast.MappingValueNode
	switch m := n.Node.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.fail(n, "expected keys with values, found %s", kindOf(n.Node)).Hint("write it as key: value, one a line, or as {key: value}")
		return nil
	}
	out := make([]pair, 0, len(values))
	for _, v := range values {
		key, ok := scalarText(v.Key)
		if !ok {
			d.fail(node{v.Key, n.path}, "expected a plain key, found %s", kindOf(v.Key)).Hint("anchors, aliases and merge keys are not read")
			continue
		}
		path := key
		if n.path != "" {
			path = n.path + "." + key
		}
		out = append(out, pair{key: key, at: node{v.Key, n.path}, value: node{v.Value, path}})
	}
	return out
}

type pair struct {
	key   string
	at    node // the key itself
	value node
}

// items gives the elements of a sequence, or the node itself as its only
// element when it is a scalar.
func (d *decoder) items(n node) []node {
	s, ok := n.Node.(*ast.SequenceNode)
	if !ok {
		if _, ok := scalarText(n.Node); ok {
			return []node{n}
		}
		d.fail(n, "expected a list, found %s", kindOf(n.Node)).Hint("write it as [a, b] or one - a line")
		return nil
	}
	out := make([]node, len(s.Values))
	for i, v := range s.Values {
		out[i] = node{v, n.path + "[" + strconv.Itoa(i) + "]"}
	}
	return out
}

// isNull says whether nothing was written after the key.
func isNull(n node) bool { return n.Node == nil || n.Type() == ast.NullType }

// isList says whether the node is a list.
func isList(n node) bool {
	_, ok := n.Node.(*ast.SequenceNode)
	return ok
}

// isMapping says whether the node has keys.
func isMapping(n node) bool {
	switch n.Node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
}

// scalarText gives a scalar as it is written, without quotes.
func scalarText(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// quoted says whether a scalar was written in quotes or as a block.
func quoted(n ast.Node) bool {
	switch v := n.(type) {
	case *ast.LiteralNode:
		return true
	case *ast.StringNode:
		return v.Token.Type == token.SingleQuoteType || v.Token.Type == token.DoubleQuoteType
	}
	return false
}

// boolean gives a YAML 1.2 boolean: true or false, without quotes.
func boolean(n ast.Node) (value, ok bool) {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		return false, false
	}
	return b.Value, true
}

// kindOf names what a node is, for errors.
func kindOf(n ast.Node) string {
	switch v := n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.BoolNode:
		return "a boolean"
	case *ast.IntegerNode, *ast.FloatNode, *ast.NanNode, *ast.InfinityNode:
		return "the number " + v.GetToken().Value
	case *ast.StringNode:
		return "the text " + strconv.Quote(short(v.Value))
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.AnchorNode, *ast.AliasNode:
		return "an anchor or alias (not read in job files)"
	case *ast.TagNode:
		return "a tag (not read in job files)"
	}
	return "something else"
}

func short(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// baseName makes a job's name of its file's.
func baseName(file string) string {
	b := filepath.Base(file)
	b = strings.ToLower(strings.TrimSuffix(b, filepath.Ext(b)))
	var out strings.Builder
	for _, r := range b {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			out.WriteRune(r)
		case out.Len() > 0 && !strings.HasSuffix(out.String(), "-"):
			out.WriteByte('-')
		}
	}
	name := strings.Trim(out.String(), "-")
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-")
	}
	if name == "" {
		return "job"
	}
	return name
}
