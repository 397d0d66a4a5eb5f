package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// maxColumns is the widest that tables become: a line longer than that is not
// read at a glance.
const maxColumns = 100

// System is the environment of the process.
func System() Environment {
	env := Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now, Getenv: os.Getenv}
	fd := int(os.Stdout.Fd())
	env.Terminal = term.IsTerminal(fd)
	if env.Terminal {
		if w, _, err := term.GetSize(fd); err == nil {
			env.Width = w
		}
	}
	if w, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && w > 0 && env.Width == 0 {
		env.Width = w
	}
	return env
}

// columns is the width that tables and notes keep to.
func (a *app) columns() int {
	if a.Width > 0 && a.Width < maxColumns {
		return max(a.Width, 40)
	}
	return maxColumns
}

// bold marks text on a terminal that shows colours.
func (a *app) bold(s string) string {
	if !a.Terminal || a.Getenv("NO_COLOR") != "" || a.Getenv("TERM") == "dumb" {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

// table writes aligned columns. When they do not fit, the column that may
// shrink is cut; if that is not enough the last columns are left out, and a
// line says so.
func (a *app) table(l listing) {
	header, rows := l.header, l.rows
	width := make([]int, len(header))
	for _, r := range append([][]string{header}, rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	total := func() int {
		sum := -2
		for _, w := range width {
			sum += w + 2
		}
		return sum
	}
	const least = 10 // that is left of the column that shrinks
	shown := len(width)
	for {
		if over := total() - a.columns(); over > 0 && l.shrink < shown && width[l.shrink] > least {
			width[l.shrink] = max(least, width[l.shrink]-over)
		}
		if total() <= a.columns() || shown <= 2 {
			break
		}
		shown--
		width = width[:shown]
	}
	if shown < len(header) {
		defer fmt.Fprintf(a.Out, "(too narrow for %s; -o csv has all columns)\n", strings.ToLower(strings.Join(header[shown:], ", ")))
	}
	line := func(cells []string, mark bool) {
		var b strings.Builder
		for i, c := range cells[:shown] {
			c = cut(c, width[i])
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if l.right[i] {
				c = pad + c
			} else if i < shown-1 {
				c += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(c)
		}
		s := strings.TrimRight(b.String(), " ")
		if mark {
			s = a.bold(s)
		}
		fmt.Fprintln(a.Out, s)
	}
	line(header, true)
	for _, r := range rows {
		line(r, false)
	}
}

// cut shortens text to a width.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	return string(r[:max(0, width-1)]) + "…"
}

// wrap breaks text at spaces; continued lines are indented as the first is.
func wrap(s string, width int) string {
	indent := s[:len(s)-len(strings.TrimLeft(s, " "))]
	if strings.HasPrefix(strings.TrimLeft(s, " "), "- ") {
		indent += "  "
	}
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
			b.WriteString(s[:len(s)-len(strings.TrimLeft(s, " "))])
			column = b.Len()
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
