package gpu

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/destajo/destajo/fault"
)

// Resolve finds the one card that an offer means by a name, the memory of one
// card in GB as reported (0: unknown) and free text in which a socket may be
// named, such as an instance type. A name that stays ambiguous, one that
// contradicts the memory and one that nobody knows are errors of the kind
// Invalid; nothing is guessed.
func Resolve(name string, memoryGB float64, hint string) (*Model, error) {
	if memoryGB < 0 || math.IsNaN(memoryGB) || math.IsInf(memoryGB, 0) {
		return nil, fault.New(fault.Invalid, "a GPU's memory cannot be %v GB", memoryGB)
	}
	c := named().exact[strings.TrimSpace(name)]
	if c.empty() {
		c = find(name)
	}
	if c.empty() {
		return nil, unknown(name)
	}
	all := c
	if single(c) == nil {
		if f := formIn(hint); f != "" {
			if narrowed := find(name + " " + f); !narrowed.empty() {
				c = narrowed
			} else if narrowed := c.filter(func(m *Model) bool { return m.form() == f }); !narrowed.empty() {
				c = narrowed
			}
		}
	}
	if memoryGB > 0 {
		c = c.filter(func(m *Model) bool { return agrees(m.MemoryGB, memoryGB) })
		if c.empty() {
			return nil, fault.New(fault.Invalid, "GPU %q with %v GB contradicts what is known: %s", name, memoryGB, describe(all)).
				Hint("correct the name or the memory; memory is per card, not the machine's total")
		}
	}
	if m := single(c); m != nil {
		return m, nil
	}
	return nil, fault.New(fault.Invalid, "GPU %q is ambiguous: %s", name, describe(c)).
		Hint("name the form (SXM, PCIe, NVL) or the memory of one card")
}

// agrees says whether a reported memory, read as GB or as GiB, is within 8 %
// of a card's nominal one: drivers report less than is soldered on, and units
// are mixed up everywhere.
func agrees(nominal, reported float64) bool {
	const tolerance = 0.08
	return math.Abs(reported-nominal) <= tolerance*nominal || math.Abs(reported*1.073741824-nominal) <= tolerance*nominal
}

// single gives the only card of a set, else nil.
func single(c cards) *Model {
	if l := c.list(); len(l) == 1 {
		return l[0]
	}
	return nil
}

// find gives all cards that a spelling fits, without regard to case and marks.
func find(name string) cards {
	n := named()
	full := fold(name)
	c := n.folded[full]
	f := unprefixed(full)
	c = c.or(n.folded[f])
	for _, family := range n.families {
		rest, ok := strings.CutPrefix(f, family)
		if !ok {
			continue
		}
		if narrowed, ok := narrow(n.folded[family], rest); ok {
			return c.or(narrowed)
		}
	}
	return c
}

// narrow applies what follows a family's name (form, memory, words without
// weight) to its cards. It fails when a word is not understood.
func narrow(c cards, rest string) (cards, bool) {
	for rest != "" {
		if n, after := leadingSize(rest); n > 0 {
			c = c.filter(func(m *Model) bool { return agrees(m.MemoryGB, n) && math.Abs(m.MemoryGB-n) < 0.12*n })
			rest = after
			continue
		}
		word := ""
		for _, w := range words {
			if strings.HasPrefix(rest, w) {
				word = w
				break
			}
		}
		if word == "" {
			return cards{}, false
		}
		rest = rest[len(word):]
		if f := foldForm(word); !slices.Contains(weightless, word) {
			c = c.filter(func(m *Model) bool { return m.form() == f })
		}
	}
	return c, !c.empty()
}

// words are what may follow the name of a family, longest first.
var (
	words      = []string{"blackwell", "workstation", "server", "edition", "superchip", "generation", "nvlink", "hbm2e", "hbm3e", "hbm2", "hbm3", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "maxq", "pcie", "tensorcore", "gpu", "nvl", "sxm", "hgx", "oam", "sff", "ws", "se", "ib"}
	weightless = []string{"blackwell", "edition", "superchip", "generation", "hbm2e", "hbm3e", "hbm2", "hbm3", "tensorcore", "gpu", "ib", "nvlink"}
)

// leadingSize reads a memory such as 80gb or 80g at the start of folded text.
func leadingSize(s string) (gb float64, rest string) {
	i := 0
	for i < len(s) && i < 4 && s[i] >= '0' && s[i] <= '9' {
		gb = gb*10 + float64(s[i]-'0')
		i++
	}
	switch {
	case i == 0:
		return 0, s
	case strings.HasPrefix(s[i:], "gib"):
		return gb, s[i+3:]
	case strings.HasPrefix(s[i:], "gb"):
		return gb, s[i+2:]
	case strings.HasPrefix(s[i:], "g"):
		return gb, s[i+1:]
	}
	return 0, s
}

// unprefixed drops makers and brands in front of a folded name.
func unprefixed(f string) string {
	for again := true; again; {
		again = false
		for _, p := range []string{"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "intel", "hgx", "dgx", "gpu"} {
			if rest, ok := strings.CutPrefix(f, p); ok && rest != "" {
				f, again = rest, true
			}
		}
	}
	return f
}

// formIn looks for a socket in free text.
func formIn(hint string) string {
	h := strings.ToLower(hint)
	switch {
	case h == "":
		return ""
	case strings.Contains(h, "sxm") || strings.Contains(h, "hgx"):
		return "sxm"
	case strings.Contains(h, "pcie"):
		return "pcie"
	case strings.Contains(h, "nvl") && !strings.Contains(h, "nvlink"):
		return "nvl"
	case strings.Contains(h, "oam"):
		return "oam"
	}
	return ""
}

func unknown(name string) error {
	shown := name
	if len(shown) > 60 {
		shown = shown[:60] + "…"
	}
	e := fault.New(fault.Invalid, "unknown GPU %q", shown)
	if near := fault.Nearest(unprefixed(fold(name)), named().shown); len(near) > 0 {
		return e.Hint("did you mean %s?", strings.Join(near, " or "))
	}
	return e.Hint("`destajo gpus` lists all that are known")
}

// describe lists cards with what tells them apart.
func describe(c cards) string {
	var parts []string
	for _, m := range c.list() {
		parts = append(parts, m.Name+" ("+strings.ToUpper(size(m.MemoryGB)[:len(size(m.MemoryGB))-2])+" GB)")
	}
	return strings.Join(parts, ", ")
}

// fold drops case and the marks that spellings of one name differ in.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r > 127:
			return r
		}
		return -1
	}, s)
}

func sortLongestFirst(s []string) {
	slices.SortStableFunc(s, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
}
