package job

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
)

// field is one key of an object: how it is called, what it means, what the
// schema says of its value, and how it is read.
type field struct {
	key  string
	doc  string
	is   schema
	read func(n node)
}

// object reads a mapping by its fields; an unknown key is a mistake.
func (d *decoder) object(n node, fields []field) {
	for _, p := range d.pairs(n) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == p.key })
		if i < 0 {
			keys := make([]string, len(fields))
			for j, f := range fields {
				keys[j] = f.key
			}
			e := d.fail(p.at, "unknown key %q", short(p.key))
			if near := fault.Nearest(p.key, keys); len(near) > 0 {
				e.Hint("did you mean %s?", strings.Join(near, " or "))
			} else {
				e.Hint("known here are %s", strings.Join(keys, ", "))
			}
			continue
		}
		if isNull(p.value) {
			d.fail(node{p.at.Node, p.value.path}, "has no value").Hint("write one, or remove the key")
			continue
		}
		fields[i].read(p.value)
	}
}

// text reads a string; numbers and booleans without quotes are none.
func (d *decoder) text(n node) (string, bool) {
	s, ok := scalarText(n.Node)
	if _, isBool := boolean(n.Node); !ok || isBool {
		d.fail(n, "expected text, found %s", kindOf(n.Node)).Hint("put quotes around it to make it text")
		return "", false
	}
	return s, true
}

func (d *decoder) textInto(into *string) func(node) {
	return func(n node) {
		if s, ok := d.text(n); ok {
			*into = s
		}
	}
}

func (d *decoder) textsInto(into *[]string) func(node) {
	return func(n node) {
		for _, item := range d.items(n) {
			if s, ok := d.text(item); ok {
				if slices.Contains(*into, s) {
					d.fail(item, "%q stands here twice", short(s)).Hint("remove one")
					continue
				}
				*into = append(*into, s)
			}
		}
	}
}

// wordsInto reads a list of words of a fixed set.
func (d *decoder) wordsInto(into *[]string, known []string) func(node) {
	return func(n node) {
		for _, item := range d.items(n) {
			if s, ok := d.word(item, known); ok {
				if slices.Contains(*into, s) {
					d.fail(item, "%q stands here twice", s).Hint("remove one")
					continue
				}
				*into = append(*into, s)
			}
		}
	}
}

func (d *decoder) word(n node, known []string) (string, bool) {
	s, ok := scalarText(n.Node)
	if ok && slices.Contains(known, s) {
		return s, true
	}
	if !ok {
		d.fail(n, "expected one of %s, found %s", strings.Join(known, ", "), kindOf(n.Node)).Hint("write one of these words")
		return "", false
	}
	e := d.fail(n, "%q is not one of %s", short(s), strings.Join(known, ", "))
	if near := fault.Nearest(s, known); len(near) > 0 {
		e.Hint("did you mean %s?", near[0])
	} else {
		e.Hint("write one of these words")
	}
	return "", false
}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// textMapInto reads keys with scalar values, such as env and labels.
func (d *decoder) textMapInto(into *map[string]string, env bool) func(node) {
	return func(n node) {
		*into = map[string]string{}
		for _, p := range d.pairs(n) {
			if env && !envName().MatchString(p.key) {
				d.fail(p.at, "%q is no name of an environment variable", short(p.key)).Hint("use letters, digits and _, not beginning with a digit")
				continue
			}
			s, ok := scalarText(p.value.Node)
			if !ok {
				d.fail(p.value, "expected text, found %s", kindOf(p.value.Node)).Hint(`write %s: "" for an empty value`, p.key)
				continue
			}
			(*into)[p.key] = s
		}
	}
}

func (d *decoder) boolInto(into **bool) func(node) {
	return func(n node) {
		b, ok := boolean(n.Node)
		if !ok {
			d.fail(n, "expected true or false, found %s", kindOf(n.Node)).Hint("YAML 1.2: only true and false are booleans")
			return
		}
		*into = &b
	}
}

// whole reads a whole number within bounds.
func (d *decoder) whole(n node, least, most int) (int, bool) {
	s, ok := scalarText(n.Node)
	i, err := strconv.Atoi(s)
	if !ok || err != nil || quoted(n.Node) {
		d.fail(n, "expected a whole number, found %s", kindOf(n.Node)).Hint("write a number from %d to %d", least, most)
		return 0, false
	}
	if i < least || i > most {
		d.fail(n, "%d is out of range", i).Hint("write a number from %d to %d", least, most)
		return 0, false
	}
	return i, true
}

func (d *decoder) wholeInto(into *int, least, most int) func(node) {
	return func(n node) {
		if i, ok := d.whole(n, least, most); ok {
			*into = i
		}
	}
}

// counted reads a number above 0 that may end in K, M, B or T (10^3 to 10^12).
func (d *decoder) counted(n node, most float64) (float64, bool) {
	s, ok := scalarText(n.Node)
	bad := func(why string) (float64, bool) {
		d.fail(n, "%s", why).Hint("write a number above 0, as in 5000, 7B or 1.5M")
		return 0, false
	}
	if !ok {
		return bad("expected a number, found " + kindOf(n.Node))
	}
	t := strings.ReplaceAll(strings.TrimSpace(s), "_", "")
	scale := 1.0
	for suffix, f := range map[string]float64{"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12} {
		if rest, ok := strings.CutSuffix(t, suffix); ok {
			t, scale = rest, f
			break
		}
	}
	x, err := strconv.ParseFloat(t, 64)
	x *= scale
	switch {
	case err != nil || math.IsNaN(x):
		return bad(strconv.Quote(short(s)) + " is no number")
	case x <= 0:
		return bad(short(s) + " is not above 0")
	case x > most:
		return bad(short(s) + " is beyond any job")
	}
	return x, true
}

func (d *decoder) countInto(into *float64, most float64) func(node) {
	return func(n node) {
		if x, ok := d.counted(n, most); ok {
			*into = x
		}
	}
}

func (d *decoder) countIntInto(into *int, most float64) func(node) {
	return func(n node) {
		if x, ok := d.counted(n, most); ok {
			if x != math.Trunc(x) {
				d.fail(n, "expected a whole number, found %v", x).Hint("write a whole number")
				return
			}
			*into = int(x)
		}
	}
}

func (d *decoder) bytesInto(into *gpu.Bytes, plus bool) func(node) {
	return func(n node) {
		s, ok := scalarText(n.Node)
		if !ok {
			d.fail(n, "expected a size, found %s", kindOf(n.Node)).Hint("write a number and a unit, as in 40GB")
			return
		}
		if plus {
			s = strings.TrimSuffix(s, "+")
		}
		b, err := gpu.ParseBytes(s)
		if err != nil {
			d.wrap(n, err)
			return
		}
		*into = b
	}
}

// Units of time as job files write them.
var timeUnits = []struct {
	name string
	size time.Duration
}{
	{"mo", money.Month}, {"ms", time.Millisecond},
	{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second},
}

// maxDuration is ten years: longer is a mistake.
const maxDuration = 10 * 365 * 24 * time.Hour

// ParseDuration reads a time such as 90s, 12m, 1h30m, 2d, 1w or 1mo (730 h).
func ParseDuration(text string) (time.Duration, error) {
	bad := func(why string) (time.Duration, error) {
		return 0, fault.New(fault.Invalid, "%q is no time: %s", short(text), why).Hint("write a number and a unit: s, m, h, d, w or mo, as in 90s, 12m, 1h30m, 2d")
	}
	rest := strings.ReplaceAll(strings.TrimSpace(text), " ", "")
	if rest == "" {
		return bad("it is empty")
	}
	if strings.HasPrefix(rest, "-") {
		return bad("it is negative")
	}
	var sum float64
	for rest != "" {
		i := 0
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' || rest[i] == '.') {
			i++
		}
		x, err := strconv.ParseFloat(rest[:i], 64)
		if err != nil {
			return bad("a number is missing")
		}
		rest = rest[i:]
		if rest == "" {
			return bad("it has no unit")
		}
		at := slices.IndexFunc(timeUnits, func(u struct {
			name string
			size time.Duration
		}) bool {
			return strings.HasPrefix(rest, u.name)
		})
		if at < 0 {
			return bad("unknown unit " + strconv.Quote(short(rest)))
		}
		sum += x * float64(timeUnits[at].size)
		rest = rest[len(timeUnits[at].name):]
		if sum > float64(maxDuration) {
			return bad("it is longer than ten years")
		}
	}
	return time.Duration(math.Round(sum)), nil
}

func (d *decoder) duration(n node, zero bool) (time.Duration, bool) {
	s, ok := scalarText(n.Node)
	if !ok {
		d.fail(n, "expected a time, found %s", kindOf(n.Node)).Hint("write a number and a unit, as in 90s, 12m, 1h30m, 2d")
		return 0, false
	}
	t, err := ParseDuration(s)
	if err != nil {
		d.wrap(n, err)
		return 0, false
	}
	if t == 0 && !zero {
		d.fail(n, "a time of 0 makes no sense here").Hint("write a time above 0, or remove the key")
		return 0, false
	}
	return t, true
}

func (d *decoder) durationInto(into **time.Duration, zero bool) func(node) {
	return func(n node) {
		if t, ok := d.duration(n, zero); ok {
			*into = &t
		}
	}
}

// moneyInto reads "10 USD", or "3 USD/h" when perHour is set.
func (d *decoder) moneyInto(into **Money, perHour bool) func(node) {
	example := "10 USD"
	if perHour {
		example = "3 USD/h"
	}
	return func(n node) {
		s, ok := scalarText(n.Node)
		bad := func(why string) {
			d.fail(n, "%s", why).Hint("write an amount and a currency, as in %s", example)
		}
		if !ok {
			bad("expected money, found " + kindOf(n.Node))
			return
		}
		number, currency, _ := strings.Cut(strings.TrimSpace(s), " ")
		currency = strings.TrimSpace(currency)
		rest, hourly := strings.CutSuffix(currency, "/h")
		switch {
		case currency == "":
			bad(strconv.Quote(short(s)) + " has no currency")
			return
		case perHour && !hourly:
			bad(strconv.Quote(short(s)) + " is not a price per hour")
			return
		case !perHour && strings.Contains(currency, "/"):
			bad(strconv.Quote(short(s)) + " is a price, not an amount")
			return
		}
		currency = strings.TrimSpace(rest)
		if !currencyCode().MatchString(currency) {
			bad(strconv.Quote(short(currency)) + " is no currency code")
			return
		}
		a, err := money.Parse(number)
		if err != nil {
			d.wrap(n, err)
			return
		}
		if a <= 0 {
			bad(short(s) + " is not above 0")
			return
		}
		*into = &Money{a, currency}
	}
}

var currencyCode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z]{3}$`) })

func (d *decoder) deadlineInto(into **Deadline) func(node) {
	return func(n node) {
		s, ok := scalarText(n.Node)
		if !ok {
			d.fail(n, "expected a time, found %s", kindOf(n.Node)).Hint("write a duration such as 24h, or a moment with its zone such as 2026-12-24T18:00:00Z")
			return
		}
		if len(s) >= 10 && s[4:5] == "-" && s[7:8] == "-" {
			t, err := time.Parse(time.RFC3339, s)
			if err != nil {
				d.fail(n, "%q is no moment with a zone", short(s)).Hint("write it as 2026-12-24T18:00:00Z or 2026-12-24T18:00:00+01:00")
				return
			}
			*into = &Deadline{At: t}
			return
		}
		if t, ok := d.duration(n, false); ok {
			*into = &Deadline{After: t}
		}
	}
}

// request reads a GPU request in its short or long form.
func (d *decoder) request(n node) (gpu.Request, bool) {
	if isMapping(n) {
		// The parser takes H100:8 in a flow list for a key with a value.
		if p := d.pairs(n); len(p) == 1 && !slices.ContainsFunc(longFields(d, &gpu.Long{}), func(f field) bool { return f.key == p[0].key }) {
			if count, ok := scalarText(p[0].value.Node); ok {
				return d.named(n, p[0].key+":"+count)
			}
		}
		var l gpu.Long
		bad := len(d.faults)
		d.object(n, longFields(d, &l))
		if len(d.faults) > bad {
			return gpu.Request{}, false
		}
		r, err := l.Request()
		if err != nil {
			d.wrap(n, err)
			return gpu.Request{}, false
		}
		return r, true
	}
	s, ok := scalarText(n.Node)
	if !ok {
		d.fail(n, "expected a GPU, found %s", kindOf(n.Node)).Hint("write a name such as H100:8 or a memory such as 24GB+")
		return gpu.Request{}, false
	}
	return d.named(n, s)
}

func (d *decoder) named(n node, s string) (gpu.Request, bool) {
	r, err := gpu.ParseRequest(s)
	if err != nil {
		d.wrap(n, err)
		return gpu.Request{}, false
	}
	return r, true
}

func (d *decoder) gpusInto(r *Resources) func(node) {
	return func(n node) {
		var all []node
		if isMapping(n) {
			all = []node{n}
		} else {
			all = d.items(n)
		}
		for _, item := range all {
			q, ok := d.request(item)
			switch {
			case !ok:
			case q.None() && len(all) > 1:
				d.fail(item, "0 means no GPU and stands alone").Hint("write gpus: 0, or a list without it")
			case q.None():
				r.NoGPU = true
			case slices.ContainsFunc(r.GPUs, func(o gpu.Request) bool { return same(o, q) }):
				d.fail(item, "%s stands here twice", q).Hint("remove one")
			default:
				r.GPUs = append(r.GPUs, q)
			}
		}
		if isList(n) && len(all) == 0 {
			d.fail(n, "an empty list of GPUs").Hint("write gpus: 0 for none, or remove the key for any")
		}
	}
}

// same says whether two requests ask for the same, however they are written.
// A count that is not stated and one of 1 are the same only when both are.
func same(a, b gpu.Request) bool {
	a.Text, b.Text = "", ""
	return a.Equal(b)
}

// maxHours is about a thousand years of machine time: more is a mistake.
const maxHours = 1e7

func (d *decoder) hoursInto(w *Work) func(node) {
	return func(n node) {
		for _, p := range d.pairs(n) {
			q, ok := d.named(node{p.at.Node, n.path}, p.key)
			if !ok {
				continue
			}
			if s, ok := scalarText(p.value.Node); ok && strings.HasSuffix(s, "h") {
				d.fail(p.value, "hours are a plain number, found %q", short(s)).Hint("write %s", strings.TrimSuffix(s, "h"))
				continue
			}
			if slices.ContainsFunc(w.Hours, func(h Hours) bool { return same(h.Key, q) }) {
				d.fail(node{p.at.Node, n.path}, "%s stands here twice", short(p.key)).Hint("keep one of the two")
				continue
			}
			if h, ok := d.counted(p.value, maxHours); ok {
				w.Hours = append(w.Hours, Hours{q, h})
			}
		}
	}
}

func (d *decoder) ratesInto(u *Units) func(node) {
	return func(n node) {
		for _, p := range d.pairs(n) {
			q, ok := d.named(node{p.at.Node, n.path}, p.key)
			if !ok {
				continue
			}
			s, ok := scalarText(p.value.Node)
			number, unit, cut := strings.Cut(s, "/")
			per := map[string]float64{"h": 1, "hour": 1, "min": 60, "m": 60, "s": 3600, "d": 1.0 / 24, "day": 1.0 / 24}[strings.TrimSpace(unit)]
			x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if !ok || !cut || per == 0 || err != nil || !(x > 0) || x > 1e15 {
				d.fail(p.value, "expected a rate, found %s", kindOf(p.value.Node)).Hint("write a number above 0 per time, as in 120/h, 2/min or 0.5/s")
				continue
			}
			if slices.ContainsFunc(u.Rates, func(r Rate) bool { return same(r.Key, q) }) {
				d.fail(node{p.at.Node, n.path}, "%s stands here twice", short(p.key)).Hint("keep one of the two")
				continue
			}
			u.Rates = append(u.Rates, Rate{q, x * per})
		}
		if isMapping(n) && len(d.pairs(n)) == 0 {
			d.fail(n, "is empty").Hint("write rate: {RTX4090: 120/h}")
		}
	}
}

// modelInto reads a model's name, or its description.
func (d *decoder) modelInto(m *Model) func(node) {
	return func(n node) {
		if isMapping(n) {
			d.object(n, modelFields(d, m))
			if m.Params == 0 && m.Name == "" {
				d.fail(n, "says neither name nor params").Hint("write model: NAME, or model: {params: 7B}")
			}
			if m.Active > m.Params && m.Params > 0 {
				d.fail(n, "more active parameters than parameters").Hint("active is the part of params that one token uses")
			}
			return
		}
		if s, ok := d.text(n); ok {
			if strings.TrimSpace(s) == "" {
				d.fail(n, "an empty name").Hint("write the model's name, or model: {params: 7B}")
				return
			}
			m.Name = s
		}
	}
}

// spanInto reads a time above zero.
func (d *decoder) spanInto(into *time.Duration) func(node) {
	return func(n node) {
		if t, ok := d.duration(n, false); ok {
			*into = t
		}
	}
}

// mountsInto reads a list of local files with the places where they lie.
func (d *decoder) mountsInto(into *[]Mount) func(node) {
	return func(n node) {
		for _, item := range d.items(n) {
			var m Mount
			before := len(d.faults)
			d.object(item, mountFields(d, &m))
			switch {
			case len(d.faults) > before:
			case m.From == "" || m.To == "":
				d.fail(item, "a mount needs from and to").Hint("write {from: ./data, to: /data}")
			default:
				*into = append(*into, m)
			}
		}
	}
}

// portsInto reads a list of ports.
func (d *decoder) portsInto(into *[]int) func(node) {
	return func(n node) {
		for _, item := range d.items(n) {
			p, ok := d.whole(item, 1, 65535)
			switch {
			case !ok:
			case slices.Contains(*into, p):
				d.fail(item, "port %d stands here twice", p).Hint("remove one")
			default:
				*into = append(*into, p)
			}
		}
	}
}
