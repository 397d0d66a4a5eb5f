package gpu

import (
	"math"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
)

var units = []struct {
	name string
	size Bytes
}{
	{"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}, {"PiB", 1 << 50},
	{"KB", KB}, {"MB", MB}, {"GB", GB}, {"TB", TB}, {"PB", 1e15},
	{"B", 1},
}

// ParseBytes reads a size with its unit, such as 24GB (10^9 bytes), 1.5 TiB
// or 500 MB. A number alone is an error: it could mean anything.
func ParseBytes(text string) (Bytes, error) {
	s := strings.TrimSpace(text)
	bad := func(why string) (Bytes, error) {
		if len(s) > 40 {
			s = s[:40] + "…"
		}
		return 0, fault.New(fault.Invalid, "%q is no size: %s", s, why).Hint("write a number and a unit: MB, GB, TB (powers of 1000) or MiB, GiB, TiB (powers of 1024), as in 40GB")
	}
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	number, unit := s[:i], strings.TrimSpace(s[i:])
	switch {
	case strings.HasPrefix(s, "-"):
		return bad("it is negative")
	case number == "":
		return bad("it does not begin with a number")
	case unit == "":
		return bad("it has no unit")
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return bad("its number cannot be read")
	}
	whole, exact := strconv.ParseInt(number, 10, 64)
	for _, u := range units {
		if !strings.EqualFold(unit, u.name) {
			continue
		}
		b := math.Round(n * float64(u.size))
		if b > 1e18 {
			return bad("it is larger than any disk")
		}
		if exact == nil {
			return Bytes(whole) * u.size, nil
		}
		return Bytes(b), nil
	}
	return bad("unknown unit " + strconv.Quote(unit))
}

// GB is the size in units of 10^9 bytes.
func (b Bytes) GB() float64 { return float64(b) / float64(GB) }

// String gives the shortest exact form in decimal units, else in binary ones,
// else in bytes.
func (b Bytes) String() string {
	for _, u := range []struct {
		name string
		size Bytes
	}{{"TB", TB}, {"TiB", TiB}, {"GB", GB}, {"GiB", GiB}, {"MB", MB}, {"MiB", MiB}, {"KB", KB}, {"KiB", KiB}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}
