package plan

import "math"

// late sets the probability that the job misses its deadline. The estimated
// hours are taken at their P10, P50 and P90 with the weights 0.3, 0.4 and 0.3.
// Without interruptions the rest is certain. With them the job ends early when
// none comes, with the probability exp(-lambda x running hours); else the time
// that they add is taken as exponential around its mean. The spot policy is in
// time whenever on-demand would be, so with it only the hours count.
func (r *ranker) late(opt *Option, m *meter) {
	opt.Late = 0
	for _, q := range weighted(opt.Work.Hours) {
		writes := m.writes(q.hours)
		if m.mix != nil {
			writes = m.calmWrites(q.hours)
		}
		least := m.startup + q.hours + writes + m.idle
		room := r.deadline*(1+1e-9) - least
		if room < 0 {
			opt.Late += q.weight
			continue
		}
		if m.lambda <= 0 || m.resumable || m.mix != nil {
			continue
		}
		s, ok, err := m.at(q.hours)
		if !ok || err != nil {
			opt.Late += q.weight
			continue
		}
		some := -math.Expm1(-m.lambda * (q.hours + writes))
		if added := (s.Wall - least) / some; added > 0 {
			opt.Late += q.weight * some * math.Exp(-room/added)
		}
	}
	opt.Late = math.Min(1, opt.Late)
}

// weightedHours stand for a share of all cases.
type weightedHours struct{ hours, weight float64 }

// weighted takes uncertain hours at three points.
func weighted(h Quantiles) []weightedHours {
	if h.P10 == h.P90 {
		return []weightedHours{{h.P50, 1}}
	}
	return []weightedHours{{h.P10, 0.3}, {h.P50, 0.4}, {h.P90, 0.3}}
}
