package plan

import "math"

// late sets the probability that the job misses its deadline: wall time is
// taken as normal around its expectation, with the spread of the estimated
// hours and of a Poisson number of interruptions.
func (r *ranker) late(opt *Option, m *meter) {
	s := opt.Sum
	fromHours := (opt.WallP90 - opt.WallP10) / (2 * 1.2815515655446004)
	each := m.restart + m.wait + m.tau(s.Useful)/2
	fromInterruptions := 0.0
	if m.lambda > 0 {
		// An exponential wait makes the second moment twice the square.
		fromInterruptions = math.Sqrt(m.lambda*s.Running) * math.Sqrt(2) * each
	}
	sigma := math.Hypot(fromHours, fromInterruptions)
	if sigma < 1e-9 {
		opt.Late = 0
		if s.Wall > r.deadline*(1+1e-9) {
			opt.Late = 1
		}
		return
	}
	opt.Late = 0.5 * math.Erfc((r.deadline-s.Wall)/sigma/math.Sqrt2)
}
