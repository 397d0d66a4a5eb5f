package gpu

import (
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
)

// DefaultVendor is the vendor of a request that names none: most code is CUDA.
const DefaultVendor = "nvidia"

// Request is what a job asks of GPUs. It fits every card that its words fit.
// The zero value fits nothing; make one with ParseRequest or Long.
type Request struct {
	Text        string // as written, without count and partition
	Count       int    // GPUs of one machine; 0: not stated
	Partition   Partition
	MemoryMinGB float64 // nominal; 0: not asked
	set         cards
	vendors     []string
}

// Long is a request in the long form of the job file.
type Long struct {
	Model     string
	Form      string
	Memory    string // 24GB+ or 24GB
	Count     int
	Partition string
	Vendor    string // nvidia unless said
	Compute   string // CUDA compute capability such as 8.0+
}

// ParseRequest reads the short form: NAME[:count][@partition], where NAME is
// a card, a family, a family with form or memory, a least memory such as
// 24GB+, or 0 for no GPU.
func ParseRequest(text string) (Request, error) {
	if len(text) > 200 {
		return Request{}, fault.New(fault.Invalid, "a GPU request of %d characters", len(text)).Hint("write NAME[:count][@partition], as in H100:8")
	}
	l := Long{}
	rest := strings.TrimSpace(text)
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest, l.Partition = rest[:i], strings.TrimSpace(rest[i+1:])
		if l.Partition == "" {
			return Request{}, fault.New(fault.Invalid, "GPU request %q ends in @", text).Hint("name a MIG profile or a share after it, as in A100@3g.40gb or H100@0.5")
		}
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		n, err := strconv.Atoi(strings.TrimSpace(rest[i+1:]))
		if err != nil || n < 1 || n > 100_000 {
			return Request{}, fault.New(fault.Invalid, "%q is no number of GPUs", rest[i+1:]).Hint("write a whole number from 1, as in H100:8")
		}
		rest, l.Count = strings.TrimSpace(rest[:i]), n
	}
	rest = strings.TrimSpace(rest)
	switch {
	case rest == "":
		return Request{}, fault.New(fault.Invalid, "GPU request %q names no GPU", text).Hint("write NAME[:count][@partition], as in H100:8, or 24GB+")
	case rest == "0" && l == (Long{}):
		return Request{Text: "0"}, nil
	case strings.HasSuffix(rest, "+"):
		l.Memory = rest
	default:
		l.Model = rest
	}
	return l.Request()
}

// Any is a request for any card of the default vendor.
func Any() Request {
	r, err := Long{}.Request()
	if err != nil {
		panic("gpu: no card of the default vendor: " + err.Error())
	}
	return r
}

// Request checks the long form and finds the cards that it fits.
func (l Long) Request() (Request, error) {
	r := Request{Count: l.Count}
	if l.Count < 0 {
		return Request{}, fault.New(fault.Invalid, "%d GPUs", l.Count).Hint("write a whole number from 1")
	}
	vendor := strings.ToLower(strings.TrimSpace(l.Vendor))
	var words []string
	if l.Model != "" {
		words = append(words, l.Model)
		if r.set = find(l.Model); r.set.empty() {
			return Request{}, unknown(l.Model)
		}
	} else {
		for _, m := range Models() {
			r.set.add(m.index)
		}
		if vendor == "" {
			vendor = DefaultVendor
		}
	}
	if vendor != "" {
		if !knownVendor(vendor) {
			return Request{}, fault.New(fault.Invalid, "unknown GPU vendor %q", l.Vendor).Hint("one of %s", strings.Join(vendors(), ", "))
		}
		if err := r.keep(l, "of the vendor "+vendor, func(m *Model) bool { return m.Vendor == vendor }); err != nil {
			return Request{}, err
		}
	}
	if l.Form != "" {
		words = append(words, l.Form)
		f := foldForm(l.Form)
		if err := r.keep(l, "of the form "+l.Form, func(m *Model) bool { return m.form() == f || foldForm(m.Form) == f }); err != nil {
			return Request{}, err
		}
	}
	if l.Memory != "" {
		least := strings.HasSuffix(strings.TrimSpace(l.Memory), "+")
		b, err := ParseBytes(strings.TrimSuffix(strings.TrimSpace(l.Memory), "+"))
		if err != nil {
			return Request{}, err
		}
		gb := b.GB()
		keep := func(m *Model) bool { return agrees(m.MemoryGB, gb) }
		if least {
			r.MemoryMinGB = gb
			// A size in GiB asks for the same nominal card: 24GiB+ fits a 24 GB card.
			keep = func(m *Model) bool {
				return m.MemoryGB >= gb || m.MemoryGB*1.073741824 >= gb && strings.Contains(strings.ToLower(l.Memory), "ib")
			}
		}
		words = append(words, strings.TrimSpace(l.Memory))
		if err := r.keep(l, "with "+strings.TrimSpace(l.Memory), keep); err != nil {
			return Request{}, err
		}
	}
	if l.Compute != "" {
		least := strings.HasSuffix(l.Compute, "+")
		want, err := strconv.ParseFloat(strings.TrimSuffix(l.Compute, "+"), 64)
		if err != nil || want < 1 || want > 100 {
			return Request{}, fault.New(fault.Invalid, "%q is no compute capability", l.Compute).Hint("write a number such as 8.0+")
		}
		words = append(words, "compute "+l.Compute)
		err = r.keep(l, "with compute capability "+l.Compute, func(m *Model) bool {
			have, err := strconv.ParseFloat(m.Compute, 64)
			return err == nil && (have == want || least && have > want)
		})
		if err != nil {
			return Request{}, err
		}
	}
	if l.Partition != "" {
		if err := r.cut(l.Partition); err != nil {
			return Request{}, err
		}
	}
	if len(words) == 0 {
		words = []string{"any " + vendor}
	}
	r.Text = strings.Join(words, " ")
	for _, m := range r.set.list() {
		known := false
		for _, v := range r.vendors {
			known = known || v == m.Vendor
		}
		if !known {
			r.vendors = append(r.vendors, m.Vendor)
		}
	}
	return r, nil
}

// keep narrows the request, and fails when nothing is left.
func (r *Request) keep(l Long, what string, fits func(*Model) bool) error {
	narrowed := r.set.filter(fits)
	if narrowed.empty() {
		if l.Model == "" {
			return fault.New(fault.Invalid, "no known GPU %s", what).Hint("`destajo gpus` lists all that are known")
		}
		return fault.New(fault.Invalid, "no %s %s", l.Model, what).Hint("known are %s", describe(r.set))
	}
	r.set = narrowed
	return nil
}

// cut sets the partition and keeps the cards that can be cut so.
func (r *Request) cut(text string) error {
	if share, err := strconv.ParseFloat(text, 64); err == nil {
		if !(share > 0 && share <= 1) {
			return fault.New(fault.Invalid, "%s is no share of a GPU", text).Hint("write a number above 0 and up to 1, as in H100@0.5")
		}
		if share < 1 {
			r.Partition.Share = share
		}
		return nil
	}
	var profiles []string
	narrowed := r.set.filter(func(m *Model) bool {
		for _, p := range m.MIG {
			profiles = append(profiles, p.Name)
		}
		p, ok := m.Profile(text)
		if ok {
			r.Partition.Profile = p.Name
		}
		return ok
	})
	if narrowed.empty() {
		e := fault.New(fault.Invalid, "no GPU of the request has a MIG profile %q", text)
		if len(profiles) == 0 {
			return e.Hint("these cards cannot be cut with MIG; ask for a share such as @0.5")
		}
		return e.Hint("they have %s", strings.Join(unique(profiles), ", "))
	}
	r.set = narrowed
	return nil
}

// None says that no GPU is asked for.
func (r Request) None() bool { return r.Text == "0" }

// Matches says whether the request fits the card.
func (r *Request) Matches(m *Model) bool { return m != nil && r.set.has(m.index) }

// OtherVendor says whether the card is of a vendor that the request does not
// ask for.
func (r *Request) OtherVendor(m *Model) bool {
	for _, v := range r.vendors {
		if v == m.Vendor {
			return false
		}
	}
	return true
}

// Width is how many known cards the request fits.
func (r *Request) Width() int {
	n := 0
	for _, w := range r.set {
		n += bits.OnesCount64(w)
	}
	return n
}

// Models lists the cards that the request fits.
func (r *Request) Models() []*Model { return r.set.list() }

// Nearest gives the card of the request that is most like another by FP16
// rate and bandwidth; nil when no card has both figures.
func (r *Request) Nearest(to *Model) *Model {
	var best *Model
	far := math.Inf(1)
	for _, m := range r.set.list() {
		rate, bandwidth := ratio(m.FP16TFLOPS, to.FP16TFLOPS), ratio(m.BandwidthGBs, to.BandwidthGBs)
		if d := rate + bandwidth; d < far {
			best, far = m, d
		}
	}
	return best
}

func ratio(a, b float64) float64 {
	if a <= 0 || b <= 0 {
		return 20
	}
	return math.Abs(math.Log(a / b))
}

// String gives the short form.
func (r Request) String() string {
	s := r.Text
	if r.Count > 0 {
		s += ":" + strconv.Itoa(r.Count)
	}
	if p := r.Partition.String(); p != "" {
		s += "@" + p
	}
	return s
}

// Equal compares two requests by what they fit and ask.
func (r Request) Equal(o Request) bool {
	return r.Text == o.Text && r.Count == o.Count && r.Partition == o.Partition && r.MemoryMinGB == o.MemoryMinGB && r.set == o.set
}

func vendors() []string {
	var out []string
	for _, m := range Models() {
		out = append(out, m.Vendor)
	}
	return unique(out)
}

func knownVendor(v string) bool {
	for _, k := range vendors() {
		if k == v {
			return true
		}
	}
	return false
}

func unique(all []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
