package fake

import (
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Line is what one machine really cost.
type Line struct {
	Tag    string
	Plane  string
	Offer  string
	Made   time.Time
	From   time.Time // billed; zero: not at all
	To     time.Time // billed; now for one that is not gone
	Gone   time.Time // zero: it is not
	Why    string    // it ended
	Billed time.Duration
	Cost   money.Amount // USD
}

// Bill is what the provider charges until now, in the order in which the
// machines were made.
func Bill(folder string, now time.Time) ([]Line, error) {
	s, err := read(folder)
	if err != nil {
		return nil, err
	}
	j, err := openJournal(folder)
	if err != nil {
		return nil, err
	}
	defer func() { _ = j.file.Close() }()
	unlock, err := j.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var out []Line
	for _, m := range j.order {
		sale := s.sale(m.Sale)
		if sale == nil {
			return nil, fault.New(fault.Conflict, "the machine %s is of the offer %q, which the script has no more", m.Tag, m.Sale)
		}
		l := Line{Tag: m.Tag, Plane: m.Plane, Offer: m.Sale, Made: m.Made, Gone: m.gone, Why: m.why, From: m.Made, To: now}
		if !m.gone.IsZero() {
			l.To = m.gone
		}
		if sale.Starts != offer.AtRequest {
			l.From = m.Boots
		}
		if l.To.Before(l.From) {
			l.From, l.To = time.Time{}, time.Time{}
			out = append(out, l)
			continue
		}
		l.Billed = roundUp(max(l.To.Sub(l.From), time.Duration(sale.Minimum)), time.Duration(sale.Increment))
		if l.Cost, err = m.Price.For(l.Billed); err != nil {
			return nil, err
		}
		if p := sale.StoppedHour; p != nil && !m.off.IsZero() && l.To.After(m.off) {
			// Powered off, it costs another price; both parts are rounded up.
			on, off := roundUp(max(m.off.Sub(l.From), time.Duration(sale.Minimum)), time.Duration(sale.Increment)), roundUp(l.To.Sub(m.off), time.Duration(sale.Increment))
			a, err := m.Price.For(on)
			if err != nil {
				return nil, err
			}
			b, err := p.For(off)
			if err != nil {
				return nil, err
			}
			if l.Cost, err = a.Add(b); err != nil {
				return nil, err
			}
			l.Billed = on + off
		}
		out = append(out, l)
	}
	return out, nil
}

func roundUp(d, step time.Duration) time.Duration {
	if rest := d % step; step > 0 && rest > 0 {
		return d + step - rest
	}
	return d
}

func (s *Script) sale(id string) *Sale {
	for i := range s.Offers {
		if s.Offers[i].ID == id {
			return &s.Offers[i]
		}
	}
	return nil
}
