// Package fault is the only error vocabulary of destajo: a kind that decides
// exit code and HTTP status, a message for people, the place in a file where
// the cause stands, and a hint that says what to do next.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of thing went wrong. Only the command line and the
// server turn a kind into an exit code or a status.
type Kind string

// The kinds, with the exit code that the command line gives them.
const (
	Internal    Kind = "internal"     // 1: a fault of ours or of the machine
	Invalid     Kind = "invalid"      // 2: the request or a file is wrong
	NotFound    Kind = "not_found"    // 1: the thing named does not exist
	Conflict    Kind = "conflict"     // 1: it contradicts the present state
	NothingFits Kind = "nothing_fits" // 3: no offer can run the job
	OverLimit   Kind = "over_limit"   // 4: over quota or budget
	Denied      Kind = "denied"       // 5: not allowed
	Unreachable Kind = "unreachable"  // 6: a server, host or provider does not answer
	JobFailed   Kind = "job_failed"   // 10: the job itself failed
)

// Error is a fault with its kind. Line and Column count from 1; 0 is unknown.
type Error struct {
	Kind    Kind
	Message string
	Next    string // what to do next; may be empty
	File    string
	Line    int
	Column  int
	cause   error
}

// New makes a fault of a kind with a formatted message.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes a fault that keeps err as its cause. The message stands before
// the cause's own words.
func Wrap(kind Kind, err error, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...), cause: err}
}

// Hint adds what to do next and returns the same fault.
func (e *Error) Hint(format string, args ...any) *Error {
	e.Next = fmt.Sprintf(format, args...)
	return e
}

// At adds the place in a file and returns the same fault.
func (e *Error) At(file string, line, column int) *Error {
	e.File, e.Line, e.Column = file, line, column
	return e
}

// Error gives "file:line:column: message: cause", without the hint.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		b.WriteByte(':')
	}
	if e.Line > 0 {
		if e.File == "" {
			b.WriteString("line ")
		}
		fmt.Fprintf(&b, "%d:", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, "%d:", e.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(e.Message)
	if e.cause != nil {
		b.WriteString(": ")
		b.WriteString(e.cause.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// KindOf gives the kind of the first fault in err's tree, Internal for any
// other error and the empty kind for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// HintOf gives the first hint in err's tree, or nothing.
func HintOf(err error) string {
	if e, ok := err.(*Error); ok && e.Next != "" {
		return e.Next
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return HintOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, branch := range e.Unwrap() {
			if hint := HintOf(branch); hint != "" {
				return hint
			}
		}
	}
	return ""
}

// Nearest gives up to three of the names that lie closest to a misspelt one,
// nearest first. It is for hints such as "did you mean H100?".
func Nearest(name string, names []string) []string {
	type scored struct {
		name string
		far  int
	}
	var best []scored
	folded := fold(name)
	for _, n := range names {
		f := fold(n)
		far := distance(folded, f)
		if limit := max(2, len(folded)/3); far > limit && !(len(folded) >= 2 && strings.HasPrefix(f, folded)) {
			continue
		}
		at := len(best)
		for at > 0 && (best[at-1].far > far || best[at-1].far == far && best[at-1].name > n) {
			at--
		}
		best = append(best, scored{})
		copy(best[at+1:], best[at:])
		best[at] = scored{n, far}
	}
	var out []string
	for _, s := range best[:min(3, len(best))] {
		out = append(out, s.name)
	}
	return out
}

// fold drops case and the marks that spellings of one name differ in.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r == ' ' || r == '-' || r == '_' || r == '.':
			return -1
		}
		return r
	}, s)
}

// distance is the number of single-byte edits (insert, delete, replace,
// exchange of neighbours) between two strings. Different strings of more than
// 64 bytes are not compared: they are as far apart as the longer one is long.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		if a == b {
			return 0
		}
		return max(len(a), len(b))
	}
	var before [66]int
	prev, cur := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		copy(before[:], prev)
		prev, cur = cur, prev
	}
	return prev[len(b)]
}
