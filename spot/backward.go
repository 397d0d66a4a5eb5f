package spot

// backward fills the layers of a programme, from the deadline to now.
type backward struct {
	p           *program
	enter, wait shift
	chance      [2][]float32  // of change within a step, by age and mood
	advance     []float32     // of a run that goes on to enter the next age
	stay, turn  [2][][4]share // moods after a step without and with a change
	still       []float32     // next layer, seen before the mood moved on
	turned      [3][2][]float32
	mean        [3][]float32 // expected values of the next step, by mode
	rest, on    []float32    // the same after waiting, after a changeover
	part, first []float32    // of a step that is paid: on the mode, after a changeover to it
}

// shift is where each slack of the grid lies on it after something was taken
// off: a point and how far on the way to the next. The first few are gone.
type shift struct {
	gone  int
	point []int32
	part  []float32
}

func newShift(slack []float64, by float64) shift {
	s := shift{point: make([]int32, len(slack)), part: make([]float32, len(slack))}
	for k, v := range slack {
		if v-by < -tiny {
			s.gone = k + 1
			continue
		}
		i, f := between(slack, v-by)
		if i == len(slack)-1 {
			i, f = i-1, 1
		}
		s.point[k], s.part[k] = int32(i), float32(f)
	}
	return s
}

// off gives the values after something was taken off the slack.
func (s *shift) off(out, v []float32) {
	gone := min(s.gone, len(out))
	for k := range gone {
		out[k] = never
	}
	point, part := s.point[:len(out)], s.part[:len(out)]
	for k := gone; k < len(out); k++ {
		i := int(point[k])
		a, b := v[i], v[i+1]
		out[k] = a + part[k]*(b-a)
	}
}

func newBackward(p *program) *backward {
	g := &p.grid
	b := &backward{p: p, enter: newShift(g.slack, p.restart), wait: newShift(g.slack, p.step), still: make([]float32, 5*g.blocks)}
	for s := range 2 {
		b.chance[s] = make([]float32, g.ages*g.moods)
		for m := range b.turned {
			b.turned[m][s] = make([]float32, g.moods*len(g.slack))
		}
		for ix, x := range g.x {
			for iy, y := range g.y {
				m := moodAt(x, y)
				stay, turn := m.after(s == 1, false, p.step), m.after(s == 0, true, p.step)
				b.stay[s] = append(b.stay[s], g.spread(stay.x(), stay.y()))
				b.turn[s] = append(b.turn[s], g.spread(turn.x(), turn.y()))
				for a := range g.ages {
					b.chance[s][a*g.moods+ix*len(g.y)+iy] = float32(p.climate.change(s == 1, a, x, y, p.step))
				}
			}
		}
	}
	// An age advances after the length of its bucket on average; the last never.
	b.advance = make([]float32, g.ages)
	from := 0.0
	for a := range g.ages - 1 {
		b.advance[a] = float32(min(1, p.step/(ageEdges[a]-from)))
		from = ageEdges[a]
	}
	for _, v := range []*[]float32{&b.rest, &b.on, &b.part, &b.first} {
		*v = make([]float32, len(g.slack))
	}
	for m := range b.mean {
		b.mean[m] = make([]float32, len(g.slack))
	}
	return b
}

// layer fills the values with n steps to the deadline.
func (b *backward) layer(n int) {
	p, g := b.p, &b.p.grid
	now, next := p.layers[n], p.layers[n-1]
	nk := len(g.slack)
	row := func(v []float32, m Mode, s, a, z int) []float32 {
		at := g.at(m, s, a, z)
		return v[at : at+nk : at+nk]
	}
	for m := range Mode(3) {
		for s := range 2 {
			if m == Spot && s == 0 {
				continue
			}
			after := m
			if m == Spot {
				after = Idle // preempted
			}
			for z := range g.moods {
				for a := range g.ages {
					blend(row(b.still, m, s, a, z), &b.stay[s][z], func(cell int) []float32 { return row(next, m, s, a, cell) })
				}
				turned := b.turned[m][s][z*nk : (z+1)*nk]
				blend(turned, &b.turn[s][z], func(cell int) []float32 { return row(next, after, 1-s, 0, cell) })
				if s == 1 && p.refuge > 0 { // another zone, of the same mood, may have spot
					f, elsewhere := float32(p.refuge), row(next, after, 1, 0, z)
					for k := range turned {
						turned[k] += f * (elsewhere[k] - turned[k])
					}
				}
			}
		}
	}
	end := 0 // from here on slack says that the work is done
	for end < nk && g.slack[end] < float64(n)*p.step-tiny {
		end++
	}
	for k := range end {
		work := float64(n)*p.step - g.slack[k]
		b.part[k], b.first[k] = float32(p.paid(work)), float32(p.paid(work+p.restart))
	}
	for s := range 2 {
		for a := range g.ages {
			for z := range g.moods {
				change := b.chance[s][a*g.moods+z]
				older := min(a+1, g.ages-1)
				for m := range Mode(3) {
					if m == Spot && s == 0 {
						continue
					}
					mix(b.mean[m], (1-change)*(1-b.advance[a]), row(b.still, m, s, a, z), (1-change)*b.advance[a], row(b.still, m, s, older, z), change, b.turned[m][s][z*nk:])
				}
				idle, od := row(now, Idle, s, a, z), row(now, OnDemand, s, a, z)
				if s == 0 {
					b.without(idle[:end], od[:end])
				} else {
					b.with(idle[:end], od[:end], row(now, Spot, s, a, z)[:end])
				}
				clear(idle[end:])
				clear(od[end:])
				if s == 1 {
					clear(row(now, Spot, s, a, z)[end:])
				}
			}
		}
	}
}

// without gives the values where there is no spot.
func (b *backward) without(idle, od []float32) {
	cost, n := float32(b.p.od), len(idle)
	b.wait.off(b.rest[:n], b.mean[Idle])
	b.enter.off(b.on[:n], b.mean[OnDemand])
	rest, on, stay, part, first := b.rest[:n], b.on[:n], b.mean[OnDemand][:n], b.part[:n], b.first[:n]
	od = od[:n]
	for k := range idle {
		v := min(rest[k], cost*first[k]+on[k])
		idle[k] = v
		od[k] = min(v, cost*part[k]+stay[k])
	}
}

// with gives the values where there is.
func (b *backward) with(idle, od, spot []float32) {
	b.without(idle, od)
	cheap, n := float32(b.p.spot), len(idle)
	b.enter.off(b.on[:n], b.mean[Spot])
	on, stay, part, first := b.on[:n], b.mean[Spot][:n], b.part[:n], b.first[:n]
	od, spot = od[:n], spot[:n]
	for k := range idle {
		v := min(idle[k], cheap*first[k]+on[k])
		idle[k] = v
		od[k] = min(od[k], v)
		spot[k] = min(v, cheap*part[k]+stay[k])
	}
}

// blend adds up shares of rows.
func blend(out []float32, shares *[4]share, of func(cell int) []float32) {
	n := len(out)
	a, b, c, d := of(shares[0].cell)[:n], of(shares[1].cell)[:n], of(shares[2].cell)[:n], of(shares[3].cell)[:n]
	e, f, g, h := shares[0].weight, shares[1].weight, shares[2].weight, shares[3].weight
	switch {
	case e == 1:
		copy(out, a)
	case g == 0 && h == 0:
		for k := range out {
			out[k] = e*a[k] + f*b[k]
		}
	case f == 0 && h == 0:
		for k := range out {
			out[k] = e*a[k] + g*c[k]
		}
	default:
		for k := range out {
			out[k] = e*a[k] + f*b[k] + g*c[k] + h*d[k]
		}
	}
}

func mix(out []float32, f float32, same []float32, g float32, older []float32, h float32, turned []float32) {
	same, older, turned = same[:len(out)], older[:len(out)], turned[:len(out)]
	for k := range out {
		out[k] = f*same[k] + g*older[k] + h*turned[k]
	}
}
