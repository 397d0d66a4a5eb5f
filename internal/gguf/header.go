package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"

	"github.com/destajo/destajo/fault"
)

// header is what a file says before its tensors' data.
type header struct {
	texts   map[string]string
	numbers map[string]float64 // a list of numbers counts by its mean, rounded up
	lengths map[string]int     // of lists
	tensors tensors
}

func (h *header) number(key string) float64 { return h.numbers[key] }

// tensors sums what a header lists.
type tensors struct {
	params  float64
	experts float64 // part of params that is experts'
	bytes   int64
	head    bool             // there is a head beside the embedding
	byType  map[string]int64 // bytes
}

func (t *tensors) add(o *tensors) {
	t.params += o.params
	t.experts += o.experts
	t.bytes += o.bytes
	t.head = t.head || o.head
	for k, n := range o.byType {
		t.byType[k] += n
	}
}

// most is the type of most bytes, in lower case.
func (t *tensors) most() string {
	best := ""
	for k, n := range t.byType {
		if best == "" || n > t.byType[best] || n == t.byType[best] && k < best {
			best = k
		}
	}
	return best
}

// What no real file has more of: a header beyond it is damaged.
const (
	mostEntries   = 1 << 20 // metadata or tensors
	longestKey    = 1 << 16
	keptText      = 1 << 12
	keptNumbers   = 1 << 12
	deepestList   = 4
	mostDimension = 8
	mostElements  = 1 << 50 // of one tensor
	mostBytes     = 1 << 60 // of all tensors
)

// scanner reads little-endian values and remembers the first mistake.
type scanner struct {
	r    *bufio.Reader
	at   int64
	path string
	err  error

	scratch [8]byte
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fault.New(fault.Invalid, "%s, at byte %d: "+format, append([]any{s.path, s.at}, args...)...).
			Hint("the file is damaged or no GGUF: fetch it again")
	}
}

// take reads so many bytes, which hold until the next call; zeros after a mistake.
func (s *scanner) take(n int) []byte {
	var b []byte
	if n <= len(s.scratch) {
		b = s.scratch[:n]
		clear(b)
	} else {
		b = make([]byte, n)
	}
	if s.err != nil {
		return b
	}
	got, err := io.ReadFull(s.r, b)
	s.ended(err)
	s.at += int64(got)
	return b
}

func (s *scanner) skip(n uint64) {
	for n > 0 && s.err == nil {
		step := int(min(n, 1<<30))
		got, err := s.r.Discard(step)
		s.ended(err)
		s.at += int64(got)
		n -= uint64(step)
	}
}

func (s *scanner) ended(err error) {
	switch {
	case err == nil || s.err != nil:
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		s.err = fault.New(fault.Invalid, "%s ends at byte %d, within its header", s.path, s.at).Hint("fetch it again, or more of it: a header has up to some tens of megabytes")
	default:
		s.err = fault.Wrap(fault.Invalid, err, "%s cannot be read", s.path)
	}
}

func (s *scanner) uint32() uint32 { return binary.LittleEndian.Uint32(s.take(4)) }
func (s *scanner) uint64() uint64 { return binary.LittleEndian.Uint64(s.take(8)) }

// count reads a number of entries.
func (s *scanner) count(what string) int {
	n := s.uint64()
	if n > mostEntries {
		s.fail("it promises %d %s", n, what)
		return 0
	}
	return int(n)
}

// text reads a string; one longer than most is read through and left out.
func (s *scanner) text(most uint64) string {
	n := s.uint64()
	if n > most {
		s.skip(n)
		return ""
	}
	return string(s.take(int(n)))
}

// read reads a header.
func read(r io.Reader, path string) (*header, error) {
	s := &scanner{r: bufio.NewReaderSize(r, 1<<16), path: path}
	magic := string(s.take(4))
	if s.err != nil || magic != "GGUF" {
		return nil, fault.New(fault.Invalid, "%s is no GGUF file", path).Hint("such a file begins with the letters GGUF; safetensors and older GGML files do not")
	}
	switch v := s.uint32(); {
	case s.err != nil:
	case v == 2 || v == 3:
	case v&0xffff == 0 && v != 0:
		return nil, fault.New(fault.Invalid, "%s is a big-endian GGUF file", path).Hint("fetch the little-endian file of the model: the numbers are the same")
	default:
		return nil, fault.New(fault.Invalid, "%s is GGUF of version %d; versions 2 and 3 are read", path, v).Hint("fetch or convert a newer file of the model")
	}
	h := &header{texts: map[string]string{}, numbers: map[string]float64{}, lengths: map[string]int{}, tensors: tensors{byType: map[string]int64{}}}
	listed := s.count("tensors")
	for range s.count("metadata entries") {
		if s.err != nil {
			return nil, s.err
		}
		h.entry(s)
	}
	for range listed {
		if s.err != nil {
			return nil, s.err
		}
		h.tensors.read(s)
	}
	return h, s.err
}

// Types of metadata values.
const (
	typeText = 8
	typeList = 9
)

// sizes of the metadata types that are numbers: bytes of each.
var sizes = map[uint32]int{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

func (h *header) entry(s *scanner) {
	n := s.uint64()
	if n > longestKey {
		s.fail("a key of %d bytes", n)
		return
	}
	key := string(s.take(int(n)))
	switch kind := s.uint32(); kind {
	case typeText:
		if t := s.text(keptText); s.err == nil {
			h.texts[key] = t
		}
	case typeList:
		length, mean := s.list(1)
		if s.err == nil {
			h.lengths[key] = int(min(length, math.MaxInt32))
			if !math.IsNaN(mean) {
				h.numbers[key] = math.Ceil(mean)
			}
		}
	default:
		if x, ok := s.number(kind); ok && s.err == nil {
			h.numbers[key] = x
		}
	}
}

func (s *scanner) number(kind uint32) (float64, bool) {
	size, ok := sizes[kind]
	if !ok {
		s.fail("a value of the unknown type %d", kind)
		return 0, false
	}
	b := s.take(size)
	switch kind {
	case 0, 7:
		return float64(b[0]), true
	case 1:
		return float64(int8(b[0])), true
	case 2:
		return float64(binary.LittleEndian.Uint16(b)), true
	case 3:
		return float64(int16(binary.LittleEndian.Uint16(b))), true
	case 4:
		return float64(binary.LittleEndian.Uint32(b)), true
	case 5:
		return float64(int32(binary.LittleEndian.Uint32(b))), true
	case 6:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case 10:
		return float64(binary.LittleEndian.Uint64(b)), true
	case 11:
		return float64(int64(binary.LittleEndian.Uint64(b))), true
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
}

// list reads a list through: its length and, of few numbers, their mean; NaN
// of anything else.
func (s *scanner) list(depth int) (length uint64, mean float64) {
	kind := s.uint32()
	n := s.uint64()
	mean = math.NaN()
	switch size, number := sizes[kind]; {
	case s.err != nil:
	case number && n <= keptNumbers:
		sum := 0.0
		for range n {
			x, _ := s.number(kind)
			sum += x
		}
		if n > 0 {
			mean = sum / float64(n)
		}
	case number && n > math.MaxInt64/8:
		s.fail("a list of %d numbers", n)
	case number:
		s.skip(n * uint64(size))
	case kind == typeText:
		for range n {
			if s.skip(s.uint64()); s.err != nil {
				break
			}
		}
	case kind == typeList && depth < deepestList:
		for range n {
			if s.list(depth + 1); s.err != nil {
				break
			}
		}
	default:
		s.fail("a list of the unknown type %d", kind)
	}
	return n, mean
}

// tensorType is a format of a tensor: values of one block and its bytes, as in
// ggml.c.
type tensorType struct {
	name         string
	block, bytes int64
}

var tensorTypes = map[uint32]tensorType{
	0: {"fp32", 1, 4}, 1: {"fp16", 1, 2}, 2: {"q4_0", 32, 18}, 3: {"q4_1", 32, 20}, 6: {"q5_0", 32, 22}, 7: {"q5_1", 32, 24}, 8: {"q8_0", 32, 34}, 9: {"q8_1", 32, 36},
	10: {"q2_k", 256, 84}, 11: {"q3_k", 256, 110}, 12: {"q4_k", 256, 144}, 13: {"q5_k", 256, 176}, 14: {"q6_k", 256, 210}, 15: {"q8_k", 256, 292},
	16: {"iq2_xxs", 256, 66}, 17: {"iq2_xs", 256, 74}, 18: {"iq3_xxs", 256, 98}, 19: {"iq1_s", 256, 50}, 20: {"iq4_nl", 32, 18}, 21: {"iq3_s", 256, 110},
	22: {"iq2_s", 256, 82}, 23: {"iq4_xs", 256, 136}, 24: {"i8", 1, 1}, 25: {"i16", 1, 2}, 26: {"i32", 1, 4}, 27: {"i64", 1, 8}, 28: {"fp64", 1, 8},
	29: {"iq1_m", 256, 56}, 30: {"bf16", 1, 2}, 34: {"tq1_0", 256, 54}, 35: {"tq2_0", 256, 66}, 39: {"mxfp4", 32, 17}, 40: {"nvfp4", 64, 36},
}

// read reads what is said of one tensor.
func (t *tensors) read(s *scanner) {
	name := s.text(longestKey)
	dims := s.uint32()
	if dims > mostDimension {
		s.fail("a tensor of %d dimensions", dims)
		return
	}
	elements, row := uint64(1), uint64(1)
	for i := range dims {
		d := s.uint64()
		if s.err == nil && (d == 0 || d > mostElements/elements) {
			s.fail("tensor %q has a side of %d", name, d)
		}
		if s.err != nil {
			return
		}
		elements *= d
		if i == 0 {
			row = d
		}
	}
	kind := s.uint32()
	s.uint64() // where its data lies
	if s.err != nil {
		return
	}
	f, ok := tensorTypes[kind]
	switch {
	case !ok:
		s.fail("tensor %q is of the unknown type %d", name, kind)
		return
	case row%uint64(f.block) != 0:
		s.fail("tensor %q has rows of %d values, in blocks of %d", name, row, f.block)
		return
	}
	bytes := int64(elements) / f.block * f.bytes
	if t.bytes += bytes; t.bytes > mostBytes {
		s.fail("tensors of %d bytes", t.bytes)
	}
	t.byType[f.name] += bytes
	t.params += float64(elements)
	if strings.Contains(name, "_exps.") {
		t.experts += float64(elements)
	}
	t.head = t.head || name == "output.weight"
}
