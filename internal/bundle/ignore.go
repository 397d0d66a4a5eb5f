package bundle

import (
	"bytes"
	"strings"
)

// ignorer decides what is left out, by the rules of the folders from the top
// down to the present one. Later rules win over earlier ones, and ours over
// git's. As with git, what lies in a folder that is left out is never looked at,
// so no rule can bring it back.
type ignorer struct {
	ours, git []rules
}

// rules are those of one ignore file. They see paths from the file's own folder
// on: base is the length of that folder's path with its slash.
type rules struct {
	base int
	list []rule
}

// rule is one line of an ignore file.
type rule struct {
	pattern    string
	literal    int  // length of the part before the first wildcard
	negated    bool // brings back what earlier rules leave out
	folderOnly bool
	bare       bool // without a slash: compared with the last name of the path, at any depth
}

// ignored says whether a file or folder is left out. The path counts from the
// root of the repository, or from the top of the tree where there is none.
func (g ignorer) ignored(at string, folder bool) bool {
	for _, stack := range [][]rules{g.ours, g.git} {
		for i := len(stack) - 1; i >= 0; i-- {
			if r := stack[i].last(at, folder); r != nil {
				return !r.negated
			}
		}
	}
	return false
}

// last gives the last rule that matches, or nil.
func (s rules) last(at string, folder bool) *rule {
	if len(s.list) == 0 {
		return nil
	}
	at = at[s.base:]
	name := at[strings.LastIndexByte(at, '/')+1:]
	for i := len(s.list) - 1; i >= 0; i-- {
		if s.list[i].matches(at, name, folder) {
			return &s.list[i]
		}
	}
	return nil
}

// matches compares a rule with a path and its last name.
func (r *rule) matches(at, name string, folder bool) bool {
	if r.folderOnly && !folder {
		return false
	}
	if r.bare {
		at = name
	}
	// git compares the part without wildcards first and then the rest as if it
	// stood alone, so that "x**/y" means "x" and then "**/y".
	if len(at) < r.literal || at[:r.literal] != r.pattern[:r.literal] {
		return false
	}
	return wild(r.pattern[r.literal:], at[r.literal:])
}

// parse reads an ignore file in the syntax of gitignore(5). No line is an
// error: one that makes no sense matches nothing.
func parse(text []byte) []rule {
	var list []rule
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	for raw := range bytes.Lines(text) {
		raw = bytes.TrimSuffix(bytes.TrimSuffix(raw, []byte("\n")), []byte("\r"))
		raw, _, _ = bytes.Cut(raw, []byte{0})
		line := trimSpaces(string(raw))
		if line == "" || line[0] == '#' {
			continue
		}
		var r rule
		line, r.negated = strings.CutPrefix(line, "!")
		line, r.folderOnly = strings.CutSuffix(line, "/")
		r.bare = !strings.Contains(line, "/")
		r.pattern = strings.TrimPrefix(line, "/")
		if r.pattern == "" {
			continue
		}
		if r.literal = strings.IndexAny(r.pattern, `*?[\`); r.literal < 0 {
			r.literal = len(r.pattern)
		}
		list = append(list, r)
	}
	return list
}

// trimSpaces cuts the spaces at the end of a line, except one behind a
// backslash.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = i + 1
	}
	return line[:min(end, len(line))]
}

// wild compares a whole pattern with a whole path: "*" stands for any bytes but
// a slash, "**" between slashes or ends for any number of folders, "?" for one
// byte but a slash, "[...]" for one of a set, and a backslash takes the next
// byte as it is.
//
// It goes back only to the last "*" and to the last "**": what an earlier "*"
// of the same name could take the last one can take as well, and a slash ends
// what any "*" before it can do. So it needs at most length times length steps.
func wild(pattern, text string) bool {
	i, j := 0, 0
	star, starAt := -1, 0 // where the pattern goes on behind the last "*", and the text that is tried there
	deep, deepAt := -1, 0 // the same for "**"
	byFolder := false     // "**/" goes on at the beginnings of names, "**\/" anywhere
	for {
		if i == len(pattern) && j == len(text) {
			return true
		}
		if i < len(pattern) && pattern[i] == '*' {
			next := i + 1
			for next < len(pattern) && pattern[next] == '*' {
				next++
			}
			rest := pattern[next:]
			if next-i > 1 && (i == 0 || pattern[i-1] == '/') && (rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`)) {
				if rest == "" {
					return true
				}
				if byFolder = rest[0] == '/'; byFolder {
					next++
				}
				star, deep, deepAt = -1, next, j
			} else {
				star, starAt = next, j
			}
			i = next
			continue
		}
		if i < len(pattern) && j < len(text) {
			ok, next := one(pattern, i, text[j])
			if next < 0 {
				return false
			}
			if ok {
				i, j = next, j+1
				continue
			}
		}
		switch {
		case star >= 0 && starAt < len(text) && text[starAt] != '/':
			starAt++
			i, j = star, starAt
		case deep >= 0 && byFolder:
			slash := strings.IndexByte(text[deepAt:], '/')
			if slash < 0 {
				return false
			}
			deepAt += slash + 1
			star, i, j = -1, deep, deepAt
		case deep >= 0 && deepAt < len(text):
			deepAt++
			star, i, j = -1, deep, deepAt
		default:
			return false
		}
	}
}

// one compares the element of the pattern at i, not a star, with a byte and
// gives where the next element begins; below 0 the pattern makes no sense.
func one(pattern string, i int, c byte) (bool, int) {
	switch pattern[i] {
	case '?':
		return c != '/', i + 1
	case '[':
		in, next := set(pattern, i+1, c)
		return in && c != '/', next
	case '\\':
		if i++; i == len(pattern) {
			return false, -1
		}
	}
	return pattern[i] == c, i + 1
}

// set says whether a byte is in the set whose bracket opens before i.
func set(pattern string, i int, c byte) (bool, int) {
	negated := i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^')
	if negated {
		i++
	}
	in := false
	var before byte // the beginning of a range, 0 where none can begin
	for first := true; ; first = false {
		if i >= len(pattern) {
			return false, -1
		}
		p := pattern[i]
		switch {
		case p == ']' && !first:
			return in != negated, i + 1
		case p == '-' && before != 0 && i+1 < len(pattern) && pattern[i+1] != ']':
			i++
			if pattern[i] == '\\' {
				if i++; i == len(pattern) {
					return false, -1
				}
			}
			in = in || before <= c && c <= pattern[i]
			p = 0
		case p == '[' && i+1 < len(pattern) && pattern[i+1] == ':':
			end := strings.IndexByte(pattern[i+2:], ']')
			if end < 0 {
				return false, -1
			}
			if name, ok := strings.CutSuffix(pattern[i+2:i+2+end], ":"); ok {
				is, known := class(name, c)
				if !known {
					return false, -1
				}
				in = in || is
				i += 2 + end
				p = 0
			} else {
				in = in || c == '['
			}
		case p == '\\':
			if i++; i == len(pattern) {
				return false, -1
			}
			p = pattern[i]
			in = in || c == p
		default:
			in = in || c == p
		}
		before = p
		i++
	}
}

// class says whether a byte is of a class of POSIX, in ASCII, and whether there
// is such a class.
func class(name string, c byte) (is, known bool) {
	lower, upper, digit := 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
	graph := '!' <= c && c <= '~'
	switch name {
	case "alnum":
		return lower || upper || digit, true
	case "alpha":
		return lower || upper, true
	case "blank":
		return c == ' ' || c == '\t', true
	case "cntrl":
		return c < ' ' || c == 0x7f, true
	case "digit":
		return digit, true
	case "graph":
		return graph, true
	case "lower":
		return lower, true
	case "print":
		return graph || c == ' ', true
	case "punct":
		return graph && !lower && !upper && !digit, true
	case "space":
		return c == ' ' || '\t' <= c && c <= '\r', true
	case "upper":
		return upper, true
	case "xdigit":
		return digit || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F', true
	}
	return false, false
}
