package estimate

// Evidence says on what an estimate stands, best first.
type Evidence string

// The levels of evidence.
const (
	MeasuredHere     Evidence = "measured here"
	SameGPUStack     Evidence = "same GPU and stack"
	SameGPU          Evidence = "same GPU"
	SameArchitecture Evidence = "same architecture"
	Specification    Evidence = "specification only"
)

var kinships = [5]Evidence{Specification, SameArchitecture, SameGPU, SameGPUStack, MeasuredHere}

// kinship ranks what two situations share, as an index of kinships.
func kinship(mask int) int {
	has := func(bits ...int) bool {
		for _, b := range bits {
			if mask&(1<<b) == 0 {
				return false
			}
		}
		return true
	}
	switch {
	case has(ofCard, ofEngineFamily, ofFamily, ofPrecision):
		return 4
	case has(ofCard, ofEngineFamily):
		return 3
	case has(ofCard):
		return 2
	case has(ofArchitecture):
		return 1
	}
	return 0
}

// newStack is the key of the spread where an engine was never measured, on
// whatever card.
const newStack = "new stack"

// interval gives the 10 and 90 % quantiles of log(measured/estimate).
func (l *learnt) interval(e Evidence, engine string, known bool) (lo, hi float64) {
	if q := l.covariance.Spread[newStack]; !known && len(q) == 2 {
		return q[0], q[1]
	}
	q, ok := l.covariance.Spread[string(e)+"/"+engine]
	if !ok {
		q = l.covariance.Spread[string(e)]
	}
	if len(q) != 2 {
		return -.7, .7
	}
	return q[0], q[1]
}

// range80 is the interval of a prepared situation.
func (p *prepared) range80(e Evidence) (lo, hi float64) {
	return p.interval(e, p.engine, p.class[ofEngineFamily] >= 0)
}
