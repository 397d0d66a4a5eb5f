package plan

import (
	"math"
	"time"

	"github.com/destajo/destajo/money"
)

// Part names one share of the cost of a finished job.
type Part int

// The parts. They add up to the expected cost to the nano-unit.
const (
	Compute Part = iota
	Startup
	Checkpoints
	Interruptions
	Idle
	Rounding
	Disk
	KeptDisk
	Download
	Upload
	Fees
	numParts
)

// Parts lists the parts in the order in which they are shown.
func Parts() []Part {
	out := make([]Part, numParts)
	for i := range out {
		out[i] = Part(i)
	}
	return out
}

// String is the name of the part in JSON and tables.
func (p Part) String() string {
	return [...]string{"compute", "startup", "checkpoints", "interruptions", "idle", "rounding",
		"disk", "kept_disk", "download", "upload", "fees"}[p]
}

// Sum is what some useful hours come to: times in hours and money in parts.
type Sum struct {
	Useful   float64 // H
	Running  float64 // E: useful hours, checkpoints and what interruptions cost
	Attempts float64 // n
	Billed   float64
	Wall     float64
	Cost     money.Amount
	Parts    [numParts]money.Amount
}

// meter holds all that turns useful hours into money on one offer. The
// symbols are those of the design's section on sums. All times are in hours.
type meter struct {
	price     money.Amount // p, of all machines
	startup   float64      // S
	billed    float64      // Sb
	lambda    float64
	restart   float64 // d
	wait      float64 // w
	every     float64 // stated interval of checkpoints; 0: choose
	write     float64 // cp
	saves     bool    // the job has a checkpoint block
	resumable bool    // an interruption loses no work (a service)
	idle      float64 // I
	mix       *mix    // set where the spot policy decides
	increment float64
	minimum   float64

	diskMonth   money.Amount // of all disks, while they exist
	addressHour money.Amount
	fixed       [numParts]money.Amount // kept disk, transfers and fees once
}

// maxStretch is how many times the useful hours a job may run before the
// interruptions count as making it impossible.
const maxStretch = 10

// tau is the useful time between checkpoints for H useful hours.
func (m *meter) tau(h float64) float64 {
	switch {
	case m.every > 0:
		return math.Min(m.every, h)
	case m.saves && m.lambda > 0 && m.write > 0:
		return math.Min(Daly(m.write, 1/m.lambda), h)
	}
	return h
}

// writes is the time for the checkpoints of h useful hours.
func (m *meter) writes(h float64) float64 {
	if tau := m.tau(h); tau > 0 {
		return m.write * h / tau
	}
	return 0
}

// running is E, the expected running hours for h useful hours.
//
// Without interruptions it is h and the writes of checkpoints. With them each
// segment of tau useful hours and one write is begun again, after a restart
// of d hours, until it passes: its expected time is
// (1/lambda) exp(lambda d) (exp(lambda (tau+cp)) - 1)
// (Daly, Future Generation Computer Systems 22, 2006).
func (m *meter) running(h float64) (e, writes float64) {
	tau := m.tau(h)
	if tau <= 0 {
		return 0, 0
	}
	writes = m.writes(h)
	switch {
	case m.lambda <= 0:
		return h + writes, writes
	case m.resumable:
		return h * (1 + m.lambda*m.restart), 0
	}
	e = h / tau / m.lambda * math.Exp(m.lambda*m.restart) * math.Expm1(m.lambda*(tau+m.write))
	return e, writes
}

// at sums what h useful hours come to. ok is false when interruptions make
// the expectation explode; err is an amount that does not fit.
func (m *meter) at(h float64) (s Sum, ok bool, err error) {
	if m.mix != nil {
		w := m.ways(h)
		s, err = m.along(w, w.Way)
		return s, true, err
	}
	e, writes := m.running(h)
	if !(e <= maxStretch*h) {
		return Sum{Useful: h, Running: e}, false, nil
	}
	s.Useful, s.Running = h, e
	s.Attempts = 1 + m.lambda*e
	s.Wall = m.startup + e + m.lambda*e*m.wait + m.idle
	if m.resumable { // a service lasts its time; while a machine is replaced the others answer
		s.Wall = m.startup + h + m.idle
	}
	net := m.billed + e + m.idle
	s.Billed = m.round(net, s.Attempts)

	hours := func(p Part, t float64) {
		if err == nil && t > 0 {
			s.Parts[p], err = m.price.For(duration(t))
		}
	}
	s.Parts = m.fixed
	hours(Startup, m.billed)
	hours(Checkpoints, writes)
	hours(Interruptions, e-h-writes)
	hours(Idle, m.idle)
	hours(Rounding, s.Billed-net)
	var billed money.Amount
	if err == nil {
		billed, err = m.price.For(duration(s.Billed))
	}
	if err == nil {
		err = m.total(&s, billed)
	}
	return s, true, err
}

// total adds to what the billed hours cost all that is paid beside them.
func (m *meter) total(s *Sum, billed money.Amount) (err error) {
	if m.diskMonth != 0 {
		s.Parts[Disk], err = m.diskMonth.MulDiv(int64(duration(s.Wall)), int64(money.Month))
	}
	if err == nil && m.addressHour != 0 {
		var a money.Amount
		if a, err = m.addressHour.For(duration(s.Wall)); err == nil {
			s.Parts[Fees], err = s.Parts[Fees].Add(a)
		}
	}
	if err != nil {
		return err
	}
	s.Parts[Compute] = billed - s.Parts[Startup] - s.Parts[Checkpoints] - s.Parts[Interruptions] - s.Parts[Idle] - s.Parts[Rounding]
	s.Cost = billed
	for p := Disk; p < numParts; p++ {
		if s.Cost, err = s.Cost.Add(s.Parts[p]); err != nil {
			return err
		}
	}
	return nil
}

// round gives the hours that are billed for net hours: with one attempt up to
// the increment and at least the minimum, with several half an increment more
// for each, which is what rounding up costs on average.
func (m *meter) round(net, attempts float64) float64 {
	if attempts > 1 {
		return math.Max(net+attempts*m.increment/2, m.minimum)
	}
	if m.increment > 0 {
		// The small number keeps 6 hours 6 hours when they were 5.9999999999 by arithmetic.
		net = math.Ceil(net/m.increment-1e-9) * m.increment
	}
	return math.Max(net, m.minimum)
}

// duration is hours to the nanosecond. Beyond 292 years it stays at that.
func duration(hours float64) time.Duration {
	ns := math.RoundToEven(hours * float64(time.Hour))
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// Daly is the useful time between checkpoints that costs least, for a write
// of cost hours and a mean of mean hours between interruptions (Daly 2006,
// higher order).
func Daly(write, mean float64) float64 {
	if write >= 2*mean {
		return mean
	}
	x := write / (2 * mean)
	return math.Sqrt(2*write*mean)*(1+math.Sqrt(x)/3+x/9) - write
}
