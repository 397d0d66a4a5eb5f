package fault_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/fault"
)

func TestError(t *testing.T) {
	t.Parallel()
	bare := func() *fault.Error { return fault.New(fault.Invalid, "no GPU %q", "H1000") }
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"message", bare(), `no GPU "H1000"`},
		{"hint is not part of it", bare().Hint("did you mean %s?", "H100"), `no GPU "H1000"`},
		{"file", bare().At("job.yaml", 0, 0), `job.yaml: no GPU "H1000"`},
		{"file and line", bare().At("job.yaml", 3, 0), `job.yaml:3: no GPU "H1000"`},
		{"file, line and column", bare().At("job.yaml", 3, 7), `job.yaml:3:7: no GPU "H1000"`},
		{"a column without a line says nothing", bare().At("job.yaml", 0, 7), `job.yaml: no GPU "H1000"`},
		{"line without a file", bare().At("", 3, 0), `line 3: no GPU "H1000"`},
		{"line and column without a file", bare().At("", 3, 7), `line 3:7: no GPU "H1000"`},
		{"cause", fault.Wrap(fault.Unreachable, io.ErrUnexpectedEOF, "read from %s", "aws"), "read from aws: unexpected EOF"},
		{"place and cause", fault.Wrap(fault.Invalid, bare().At("b.yaml", 2, 1), "included").At("a.yaml", 9, 4),
			`a.yaml:9:4: included: b.yaml:2:1: no GPU "H1000"`},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWrapKeepsTheCause(t *testing.T) {
	t.Parallel()
	err := fault.Wrap(fault.Internal, fault.Wrap(fault.Denied, io.ErrClosedPipe, "inner"), "outer")
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v does not lead to its cause", err)
	}
	if got := fault.New(fault.Invalid, "alone").Unwrap(); got != nil {
		t.Errorf("a new fault has the cause %v", got)
	}
}

func TestKindAndHintOfTrees(t *testing.T) {
	t.Parallel()
	type found struct {
		Kind fault.Kind
		Hint string
	}
	denied := fault.New(fault.Denied, "no").Hint("ask an owner")
	silent := fault.New(fault.OverLimit, "too much")
	tests := []struct {
		name string
		err  error
		want found
	}{
		{"nil", nil, found{}},
		{"foreign", io.EOF, found{Kind: fault.Internal}},
		{"foreign around foreign", fmt.Errorf("read: %w", io.EOF), found{Kind: fault.Internal}},
		{"fault", denied, found{fault.Denied, "ask an owner"}},
		{"without a hint", silent, found{Kind: fault.OverLimit}},
		{"foreign around a fault", fmt.Errorf("start: %w", denied), found{fault.Denied, "ask an owner"}},
		{"the outer kind wins, the inner hint is kept", fault.Wrap(fault.NotFound, denied, "find"), found{fault.NotFound, "ask an owner"}},
		{"the outer hint wins", fault.Wrap(fault.NotFound, denied, "find").Hint("list them"), found{fault.NotFound, "list them"}},
		{"over two wraps and a foreign one", fault.Wrap(fault.Conflict, fmt.Errorf("x: %w", fault.Wrap(fault.NotFound, denied, "find")), "y"),
			found{fault.Conflict, "ask an owner"}},
		{"wrap of a foreign error", fault.Wrap(fault.Unreachable, io.EOF, "read"), found{Kind: fault.Unreachable}},
		{"join takes the first fault", errors.Join(denied, silent), found{fault.Denied, "ask an owner"}},
		{"join passes foreign errors", errors.Join(io.EOF, denied), found{fault.Denied, "ask an owner"}},
		{"join of foreign errors", errors.Join(io.EOF, io.ErrClosedPipe), found{Kind: fault.Internal}},
		{"the hint of a later branch", errors.Join(silent, denied), found{fault.OverLimit, "ask an owner"}},
		{"the hint below a wrapped join", fault.Wrap(fault.Invalid, errors.Join(silent, io.EOF, denied), "two things"),
			found{fault.Invalid, "ask an owner"}},
		{"two verbs", fmt.Errorf("%w and %w", silent, denied), found{fault.OverLimit, "ask an owner"}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, found{fault.KindOf(c.err), fault.HintOf(c.err)}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	cards := []string{"A100", "H100", "H200", "L40S", "RTX4090", "RTX-A6000", "MI300X", "B200"}
	long := strings.Repeat("x", 200)
	tests := []struct {
		name  string
		typed string
		names []string
		want  []string
	}{
		{"the name itself", "H100", []string{"A100", "H100"}, []string{"H100", "A100"}},
		{"one letter too many", "H1000", []string{"H100", "MI300X"}, []string{"H100"}},
		{"one letter missing", "L4S", cards, []string{"L40S"}},
		{"one letter wrong", "MI300Y", cards, []string{"MI300X"}},
		{"neighbours exchanged", "RTX4009", []string{"RTX4090", "V100"}, []string{"RTX4090"}},
		{"an exchange is nearer than two edits", "abdc", []string{"aXYc", "abcd"}, []string{"abcd", "aXYc"}},
		{"case", "mi300x", cards, []string{"MI300X"}},
		{"case and marks", "rtx_a 6000", []string{"RTX-A6000", "RTX4090"}, []string{"RTX-A6000"}},
		{"prefix", "mi", []string{"MI300X", "RTX4090"}, []string{"MI300X"}},
		{"one letter is no prefix", "m", []string{"MI300X", "MI250"}, nil},
		{"ties in order of the alphabet", "X100", []string{"H100", "B100", "A100"}, []string{"A100", "B100", "H100"}},
		{"three at most", "X100", []string{"H100", "B100", "C100", "A100"}, []string{"A100", "B100", "C100"}},
		{"nothing near", "quantum", cards, nil},
		{"no names", "H100", nil, nil},
		{"a long word allows a third", "interruptable-machine", []string{"interruptible-machines"}, []string{"interruptible-machines"}},
		{"a long name is like itself", long, []string{"H100", long}, []string{long}},
		{"a long name is like nothing short", long, cards, nil},
		{"a long name is like no other long one", long, []string{strings.Repeat("y", 200)}, nil},
		{"a short name is like nothing long", "H100", []string{long}, nil},
		{"at the limit of comparing", strings.Repeat("x", 64), []string{strings.Repeat("x", 63) + "y"}, []string{strings.Repeat("x", 63) + "y"}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, fault.Nearest(c.typed, c.names)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNearestFindsEveryTypo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]{3,64}`).Draw(t, "name")
		at := rapid.IntRange(0, len(name)-2).Draw(t, "at")
		var typo string
		switch rapid.SampledFrom([]string{"drop", "double", "replace", "exchange"}).Draw(t, "slip") {
		case "drop":
			typo = name[:at] + name[at+1:]
		case "double":
			typo = name[:at] + name[at:at+1] + name[at:]
		case "replace":
			typo = name[:at] + "#" + name[at+1:]
		case "exchange":
			typo = name[:at] + name[at+1:at+2] + name[at:at+1] + name[at+2:]
		}
		if len(typo) > 64 {
			t.Skip("longer than what is compared")
		}
		got := fault.Nearest(strings.ToUpper(typo), []string{"#####################", name})
		if diff := cmp.Diff([]string{name}, got); diff != "" {
			t.Fatalf("%q for %q: %s", typo, name, diff)
		}
	})
}

func TestNearestAnswersWithGivenNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.StringN(0, 80, -1), rapid.ID[string]).Draw(t, "names")
		got := fault.Nearest(rapid.StringN(0, 300, -1).Draw(t, "typed"), names)
		if len(got) > 3 {
			t.Fatalf("%d names", len(got))
		}
		given := map[string]bool{}
		for _, n := range names {
			given[n] = true
		}
		for _, n := range got {
			if !given[n] {
				t.Fatalf("%q is not one of %q, or stands twice in %q", n, names, got)
			}
			given[n] = false
		}
	})
}
