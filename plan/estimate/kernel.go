package estimate

import (
	"math"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// The learnt part is a Gaussian process over the logarithm of measured rate
// over formula. Its covariance is a sum of terms; each term asks that some
// categories are equal (a group effect, shrunk as its variance says), may fall
// off with the distance of two cards' specifications, and may fall off with
// the distance in one of two blocks of features. The mean at a new situation
// is then a weighted sum over the measured rows, with one weight per row.

// Categories of a situation, in the order of their bits.
const (
	ofCard = iota
	ofArchitecture
	ofVendor
	ofEngineFamily
	ofEngine
	ofFamily // of models of one shape
	ofPrecision
	ofSpecial // what else matters in a regime: method, metric, mixture, image size
	categories
)

const (
	cardBits = 1<<ofCard | 1<<ofArchitecture | 1<<ofVendor
	masks    = 1 << categories
)

var categoryNames = [categories]string{"card", "architecture", "vendor", "program", "engine", "model", "precision", "special"}

// Term names read "block:category+category", with "near" for cards of similar
// specifications; block 0 has no features.
type covariance struct {
	Terms   map[string]float64   `json:"terms"`   // variance by name
	Near    float64              `json:"near"`    // length in log bandwidth and log FLOPS
	Lengths [2][numbers]float64  `json:"lengths"` // of the features; 0 leaves one out
	Noise   float64              `json:"noise"`   // variance of one measurement
	Spread  map[string][]float64 `json:"spread"`  // log(measured/estimate) at 10 and 90 %, by evidence and engine
	Carry   float64              `json:"carry"`   // share of an error that the same job has on another card too
}

// foreign is how alike cards of two vendors count at equal specifications.
const foreign = 0.4

// tables are the terms summed by which categories are equal.
type tables struct {
	plain, near [3][masks]float64
	used        [3][masks]bool
	near2       float64 // 1/(2 Near^2)
	scale       [2][numbers]float64
	any         [masks]bool // block 1 or 2 may count, by the bits beside the card's
}

func (c *covariance) compile() (*tables, error) {
	t := &tables{near2: 1 / (2 * c.Near * c.Near)}
	for name, variance := range c.Terms {
		block, rest, ok := strings.Cut(name, ":")
		if !ok || len(block) != 1 || block[0] < '0' || block[0] > '2' || variance < 0 {
			return nil, fault.New(fault.Internal, "coefficients: bad term %q", name)
		}
		need, near := 0, false
		for _, w := range strings.Split(rest, "+") {
			found := w == "" || w == "near"
			near = near || w == "near"
			for i, n := range categoryNames {
				if n == w {
					need |= 1 << i
					found = true
				}
			}
			if !found {
				return nil, fault.New(fault.Internal, "coefficients: bad category %q in term %q", w, name)
			}
		}
		into := &t.plain[block[0]-'0']
		if near {
			into = &t.near[block[0]-'0']
		}
		for mask := range into {
			if mask&need == need {
				into[mask] += variance
				t.used[block[0]-'0'][mask] = true
			}
		}
	}
	for mask := range t.any {
		m := mask | cardBits
		t.any[mask] = t.used[1][m] || t.used[2][m]
	}
	for b := range c.Lengths {
		for i, l := range c.Lengths[b] {
			if l > 0 {
				t.scale[b][i] = 1 / (l * math.Sqrt2)
			}
		}
	}
	return t, nil
}

// scaled divides features by their lengths, so that the squared distance is
// the exponent.
func (t *tables) scaled(x features) features {
	for b := range x {
		for i := range x[b] {
			x[b][i] *= t.scale[b][i]
		}
	}
	return x
}

// nearness compares the specifications of two cards.
func (t *tables) nearness(a, b *cardPoint) float64 {
	db, df := a.bandwidth-b.bandwidth, a.peak-b.peak
	k := exponential((db*db + df*df) * t.near2)
	if a.vendor != b.vendor {
		k *= foreign
	}
	return k
}

// between is the covariance of two situations whose equal categories and
// cards' nearness are known.
func (t *tables) between(mask int, near float64, a, b *features) float64 {
	k := t.plain[0][mask] + t.near[0][mask]*near
	for block := range a {
		v := t.plain[block+1][mask] + t.near[block+1][mask]*near
		if v == 0 {
			continue
		}
		d := 0.0
		for i := range a[block] {
			e := a[block][i] - b[block][i]
			d += e * e
		}
		if d < farthest {
			k += v * exponential(d)
		}
	}
	return k
}

// exponential gives e^-x to eight digits for x of 0 and more, and 0 where that
// is below 1e-7. It is the inner loop of every estimate.
func exponential(x float64) float64 {
	if !(x < farthest) {
		return 0
	}
	t := exponentials()
	i := int(x*steps + .5)
	d := x - float64(i)/steps
	return t[i] * (1 - d*(1-d*.5))
}

const (
	farthest = 16
	steps    = 128
)

var exponentials = sync.OnceValue(func() *[farthest*steps + 2]float64 {
	t := &[farthest*steps + 2]float64{}
	for i := range t {
		t[i] = math.Exp(-float64(i) / steps)
	}
	return t
})

// cardPoint is what covariances compare of a card.
type cardPoint struct {
	card            *gpu.Model
	bandwidth, peak float64 // logarithms of GB/s and TFLOPS
	id, arch        int32
	vendor          int32
}

// point is a measured row in its regime.
type point struct {
	row    *Row
	class  [categories]int32
	card   int // in learnt.cards
	x      features
	y      float64 // log(measured/formula)
	weight float64
}

// learnt is the process of one regime.
type learnt struct {
	covariance *covariance
	*tables
	points []point
	cards  []cardPoint
	ids    map[string]int32
	views  map[*gpu.Model]*view
}

func newLearnt(c *covariance) (*learnt, error) {
	t, err := c.compile()
	if err != nil {
		return nil, err
	}
	return &learnt{covariance: c, tables: t, ids: map[string]int32{}}, nil
}

// id numbers the words of categories; -1 is a word that no row has.
func (l *learnt) id(word string, add bool) int32 {
	if i, ok := l.ids[word]; ok {
		return i
	}
	if !add {
		return -1
	}
	i := int32(len(l.ids))
	l.ids[word] = i
	return i
}

func (l *learnt) classify(s *situation, card *gpu.Model, add bool) (c [categories]int32) {
	for i, word := range s.class(card) {
		c[i] = l.id(categoryNames[i]+" "+word, add)
	}
	return c
}

func (l *learnt) cardPoint(h *hardware, class [categories]int32) cardPoint {
	return cardPoint{card: h.card, bandwidth: math.Log(h.bandwidth / 1e9), peak: math.Log(h.peak16 / 1e12), id: class[ofCard], arch: class[ofArchitecture], vendor: class[ofVendor]}
}

// add takes a measured row into the process, with its weight.
func (l *learnt) add(row *Row, s *situation, h *hardware, weight float64) {
	class := l.classify(s, h.card, true)
	base, x := roofline(s, h, nil)
	p := point{row: row, class: class, card: -1, x: l.scaled(x), y: math.Log(row.Value) - base, weight: weight}
	for i := range l.cards {
		if l.cards[i].id == class[ofCard] {
			p.card = i
		}
	}
	if p.card < 0 {
		p.card = len(l.cards)
		l.cards = append(l.cards, l.cardPoint(h, class))
	}
	l.points = append(l.points, p)
}

// equal gives the bits of the categories that two classes share.
func equal(a, b *[categories]int32) int {
	mask := 0
	for i := range a {
		if a[i] == b[i] && a[i] >= 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// covariance of two points of the process.
func (l *learnt) covar(a, b *point, near float64) float64 {
	return l.between(equal(&a.class, &b.class), near, &a.x, &b.x)
}

// view is a card as the process sees it: how it stands to every measured card.
type view struct {
	bits  []uint8 // of card, architecture and vendor
	alike []float64
}

// look compares a card with the measured ones.
func (l *learnt) look(h *hardware) *view {
	id := func(category int, word string) int32 { return l.id(categoryNames[category]+" "+word, false) }
	c := l.cardPoint(h, [categories]int32{id(ofCard, h.card.ID), id(ofArchitecture, architecture(h.card)), id(ofVendor, h.card.Vendor)})
	v := &view{bits: make([]uint8, len(l.cards)), alike: make([]float64, len(l.cards))}
	for i := range l.cards {
		o := &l.cards[i]
		if o.id == c.id {
			v.bits[i] |= 1 << ofCard
		}
		if o.arch == c.arch && c.arch >= 0 {
			v.bits[i] |= 1 << ofArchitecture
		}
		if o.vendor == c.vendor && c.vendor >= 0 {
			v.bits[i] |= 1 << ofVendor
		}
		v.alike[i] = l.nearness(&c, o)
	}
	return v
}

// sight gives the view of a card, made once for whole cards.
func (l *learnt) sight(h *hardware) *view {
	if h.share == 1 {
		if v, ok := l.views[h.card]; ok {
			return v
		}
	}
	return l.look(h)
}

// settle makes the views of all known cards, once the rows are in.
func (l *learnt) settle() {
	l.views = make(map[*gpu.Model]*view, len(gpu.Models()))
	for _, card := range gpu.Models() {
		if h, known := newHardware(card, 1, gpu.Partition{}); known {
			l.views[card] = l.look(&h)
		}
	}
}

// prepared is a situation's side of the process: what does not depend on the
// card is done once.
type prepared struct {
	*learnt
	class  [categories]int32
	engine string // its family
	cells  []cell
	rows   [2][]weighted // by block, then by cell
	kin    []uint8       // by card: the kinship if the card is the same
}

// cell holds the rows of one measured card that share the same categories
// with the situation.
type cell struct {
	card, mask int
	weight     float64 // sum of the rows'
	from, to   int     // of the rows, where their features count
}

// weighted is what the mean needs of a row.
type weighted struct {
	x      [numbers]float64
	weight float64
}

func (l *learnt) prepare(s *situation) *prepared {
	p := &prepared{learnt: l, class: l.classify(s, &gpu.Model{}, false), engine: engineFamily(s.engine), kin: make([]uint8, len(l.cards))}
	p.class[ofCard], p.class[ofArchitecture], p.class[ofVendor] = -1, -1, -1
	const wide = categories - ofEngineFamily
	sums := make([]float64, len(l.cards)<<wide)
	counts := make([]int, len(sums)+1)
	at := make([]uint16, len(l.points))
	for i := range l.points {
		q := &l.points[i]
		mask := equal(&p.class, &q.class)
		p.kin[q.card] = max(p.kin[q.card], uint8(kinship(mask|cardBits)))
		c := q.card<<wide | mask>>ofEngineFamily
		at[i] = uint16(c)
		sums[c] += q.weight
		if l.any[mask] {
			counts[c+1]++
		}
	}
	for i := 1; i < len(counts); i++ {
		counts[i] += counts[i-1]
	}
	p.rows = [2][]weighted{make([]weighted, counts[len(sums)]), make([]weighted, counts[len(sums)])}
	for i, w := range sums {
		if w != 0 || counts[i] < counts[i+1] {
			p.cells = append(p.cells, cell{i >> wide, i << ofEngineFamily & (masks - 1), w, counts[i], counts[i+1]})
		}
	}
	next := counts
	for i := range l.points {
		q := &l.points[i]
		if l.any[int(at[i])<<ofEngineFamily&(masks-1)] {
			p.rows[0][next[at[i]]] = weighted{q.x[0], q.weight}
			p.rows[1][next[at[i]]] = weighted{q.x[1], q.weight}
			next[at[i]]++
		}
	}
	return p
}

// evidence is the best that there is for the situation on a card.
func (p *prepared) evidence(v *view) Evidence {
	best := 0
	for i, b := range v.bits {
		switch {
		case b&(1<<ofCard) != 0:
			best = max(best, int(p.kin[i]))
		case b&(1<<ofArchitecture) != 0:
			best = max(best, 1)
		}
	}
	return kinships[best]
}

// mean is the expected logarithm of rate over formula on a card.
func (p *prepared) mean(v *view, x features) float64 {
	sum := 0.0
	x = p.scaled(x)
	table := exponentials()
	for i := range p.cells {
		c := &p.cells[i]
		mask, alike := c.mask|int(v.bits[c.card]), v.alike[c.card]
		sum += c.weight * (p.plain[0][mask] + p.near[0][mask]*alike)
		if c.from == c.to {
			continue
		}
		for block := range x {
			variance := p.plain[block+1][mask] + p.near[block+1][mask]*alike
			if variance < 1e-9 {
				continue
			}
			a0, a1, a2, a3 := x[block][0], x[block][1], x[block][2], x[block][3]
			part := 0.0
			rows := p.rows[block][c.from:c.to]
			for k := range rows {
				r := &rows[k]
				d0, d1, d2, d3 := a0-r.x[0], a1-r.x[1], a2-r.x[2], a3-r.x[3]
				d := d0*d0 + d1*d1 + d2*d2 + d3*d3
				if !(d < farthest) {
					continue
				}
				// exponential, written out: this loop is most of an estimate.
				e := int(d*steps + .5)
				f := d - float64(e)*(1.0/steps)
				part += r.weight * table[e] * (1 - f*(1-f*.5))
			}
			sum += variance * part
		}
	}
	return sum
}
