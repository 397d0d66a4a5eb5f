package store

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
)

// jobReader gives what reads jobs that encoding/json wrote, in a fifth of its
// time: lists have tens of thousands of them, and nothing else in the state
// comes in such numbers. A field that it does not know is left to
// encoding/json, and so is the whole of a job that is written in another way.
func jobReader() func(text []byte, j *job.Job) error {
	known := map[string]string{}
	return func(text []byte, j *job.Job) error { return readJob(text, j, known) }
}

func readJob(text []byte, j *job.Job, known map[string]string) error {
	d := decoder{rest: text, known: known}
	d.job(j)
	if !d.failed && len(d.rest) == 0 {
		return nil
	}
	*j = job.Job{}
	return json.Unmarshal(text, j)
}

// decoder reads compact JSON from its beginning.
type decoder struct {
	rest   []byte
	known  map[string]string // by their quoted form: the jobs of one list share most of their words
	failed bool
}

func (d *decoder) job(j *job.Job) {
	d.object(func(key []byte) {
		switch string(key) {
		case "ID":
			j.ID = d.int()
		case "Version":
			j.Version = d.int()
		case "Project":
			j.Project = d.string()
		case "Member":
			j.Member = d.string()
		case "Name":
			j.Name = d.string()
		case "Kind":
			j.Kind = job.Kind(d.string())
		case "Array":
			j.Array = d.int()
		case "Index":
			j.Index = int(d.int())
		case "Text":
			j.Text = d.string()
		case "Env":
			if d.null() {
				j.Env = nil
				return
			}
			if j.Env == nil {
				j.Env = map[string]string{}
			}
			d.object(func(name []byte) { j.Env[string(name)] = d.string() })
		case "Dir":
			j.Dir = d.string()
		case "Bundle":
			j.Bundle = d.string()
		case "After":
			if d.null() {
				j.After = nil
				return
			}
			j.After = []int64{}
			d.list(func() { j.After = append(j.After, d.int()) })
		case "Priority":
			j.Priority = int(d.int())
		case "State":
			j.State = job.State(d.string())
		case "Reason":
			j.Reason = d.string()
		case "Stop":
			j.Stop = d.string()
		case "Submitted":
			j.Submitted = d.time()
		case "Deadline":
			j.Deadline = d.time()
		case "NotBefore":
			j.NotBefore = d.time()
		case "Started":
			j.Started = d.time()
		case "Ended":
			j.Ended = d.time()
		case "Attempts":
			j.Attempts = int(d.int())
		case "Failures":
			j.Failures = int(d.int())
		case "Unstarted":
			j.Unstarted = int(d.int())
		case "Missed":
			j.Missed = d.string()
		case "Progress":
			j.Progress = time.Duration(d.int())
		case "ExitCode":
			j.ExitCode = int(d.int())
		case "Estimate":
			if d.null() {
				j.Estimate = nil
				return
			}
			if j.Estimate == nil {
				j.Estimate = &job.Estimate{}
			}
			d.estimate(j.Estimate)
		default:
			d.other(key, j)
		}
	})
}

func (d *decoder) estimate(e *job.Estimate) {
	d.object(func(key []byte) {
		switch string(key) {
		case "offer":
			e.Offer = d.string()
		case "currency":
			e.Currency = d.string()
		case "known":
			e.Known = d.bool()
		case "cost":
			e.Cost = d.amount()
		case "cost_p90":
			e.CostP90 = d.amount()
		case "price_hour":
			e.PriceHour = d.amount()
		case "hours":
			e.Hours = d.float()
		case "wall_hours":
			e.WallHours = d.float()
		case "startup_hours":
			e.StartupHours = d.float()
		case "parts":
			if e.Parts == nil {
				e.Parts = map[string]money.Amount{}
			}
			d.object(func(name []byte) { e.Parts[string(name)] = d.amount() })
		case "energy_kwh":
			e.EnergyKWh = d.float()
		case "co2_kg":
			if d.null() {
				e.CO2Kg = nil
				return
			}
			x := d.float()
			e.CO2Kg = &x
		case "evidence":
			e.Evidence = d.string()
		default:
			d.other(key, e)
		}
	})
}

// next takes one character if it is there.
func (d *decoder) next(c byte) bool {
	if len(d.rest) == 0 || d.rest[0] != c {
		return false
	}
	d.rest = d.rest[1:]
	return true
}

func (d *decoder) expect(c byte) {
	if !d.next(c) {
		d.failed = true
	}
}

func (d *decoder) null() bool {
	if !bytes.HasPrefix(d.rest, []byte("null")) {
		return false
	}
	d.rest = d.rest[4:]
	return true
}

// object reads keys; value reads what belongs to each.
func (d *decoder) object(value func(key []byte)) {
	d.expect('{')
	for first := true; !d.failed && !d.next('}'); first = false {
		if !first {
			d.expect(',')
		}
		key := d.quoted()
		if bytes.IndexByte(key, '\\') >= 0 {
			d.failed = true
		}
		d.expect(':')
		if !d.failed {
			value(key)
		}
	}
}

func (d *decoder) list(value func()) {
	d.expect('[')
	for first := true; !d.failed && !d.next(']'); first = false {
		if !first {
			d.expect(',')
		}
		value()
	}
}

// other lets encoding/json read one field.
func (d *decoder) other(key []byte, into any) {
	text := d.value()
	if d.failed {
		return
	}
	one := append(append(append([]byte(`{"`), key...), `":`...), text...)
	if json.Unmarshal(append(one, '}'), into) != nil {
		d.failed = true
	}
}

// value is the text of any one value.
func (d *decoder) value() []byte {
	all := d.rest
	for depth := 0; !d.failed && len(d.rest) > 0; {
		switch d.rest[0] {
		case '"':
			d.quoted()
		case '{', '[':
			depth++
			d.rest = d.rest[1:]
			continue
		case '}', ']':
			depth--
			d.rest = d.rest[1:]
		case ',', ':':
			d.rest = d.rest[1:]
			continue
		default:
			d.word()
		}
		if depth == 0 {
			return all[:len(all)-len(d.rest)]
		}
	}
	d.failed = true
	return nil
}

// quoted is what stands between quotes, with its escapes.
func (d *decoder) quoted() []byte {
	d.expect('"')
	for i := 0; !d.failed; i++ {
		n := bytes.IndexByte(d.rest[i:], '"')
		if n < 0 {
			break
		}
		i += n
		slashes := 0
		for i-slashes > 0 && d.rest[i-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			text := d.rest[:i]
			d.rest = d.rest[i+1:]
			return text
		}
	}
	d.failed = true
	return nil
}

// word is a number, true or false.
func (d *decoder) word() []byte {
	n := 0
	for n < len(d.rest) && d.rest[n] != ',' && d.rest[n] != '}' && d.rest[n] != ']' {
		n++
	}
	if n == 0 || n == len(d.rest) {
		d.failed = true
		return nil
	}
	text := d.rest[:n]
	d.rest = d.rest[n:]
	return text
}

func (d *decoder) int() int64 {
	n, err := strconv.ParseInt(string(d.word()), 10, 64)
	d.failed = d.failed || err != nil
	return n
}

func (d *decoder) float() float64 {
	x, err := strconv.ParseFloat(string(d.word()), 64)
	d.failed = d.failed || err != nil
	return x
}

func (d *decoder) bool() bool {
	text := string(d.word())
	d.failed = d.failed || text != "true" && text != "false"
	return text == "true"
}

func (d *decoder) amount() money.Amount {
	a, err := money.Parse(string(d.quoted()))
	d.failed = d.failed || err != nil
	return a
}

func (d *decoder) time() (t time.Time) {
	text := d.quoted()
	if string(text) == "0001-01-01T00:00:00Z" {
		return t
	}
	if t.UnmarshalText(text) != nil {
		d.failed = true
	}
	return t
}

func (d *decoder) string() string {
	text := d.quoted()
	if s, ok := d.known[string(text)]; ok {
		return s
	}
	s := d.unescape(text)
	if len(d.known) < 1000 {
		d.known[string(text)] = s
	}
	return s
}

func (d *decoder) unescape(text []byte) string {
	n := bytes.IndexByte(text, '\\')
	if n < 0 {
		return string(text)
	}
	out := make([]byte, 0, len(text))
	for ; n >= 0; n = bytes.IndexByte(text, '\\') {
		out = append(out, text[:n]...)
		c := text[n+1] // quoted ends at no single backslash
		text = text[n+2:]
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			if len(text) < 4 {
				d.failed = true
				return ""
			}
			r, err := strconv.ParseUint(string(text[:4]), 16, 16)
			if err != nil || r >= 0xd800 && r < 0xe000 { // half of a pair
				d.failed = true
				return ""
			}
			out = utf8.AppendRune(out, rune(r))
			text = text[4:]
		default:
			d.failed = true
			return ""
		}
	}
	return string(append(out, text...))
}
