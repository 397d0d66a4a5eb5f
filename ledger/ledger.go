// Package ledger turns what was used into what it costs: usage holds quantities
// and never money, a charge freezes the price of its moment, and the charges of
// a machine with its idle time are what the machine costs, to the nano-unit.
package ledger

import (
	"math/big"
	"time"

	"github.com/destajo/destajo/money"
)

// Kind is what was used.
type Kind string

// The kinds.
const (
	Startup Kind = "startup" // machine time from the start of its billing until the command ran
	Run     Kind = "run"     // machine time while the command ran
	Finish  Kind = "finish"  // machine time after the command: outputs, checkpoint
	Idle    Kind = "idle"    // machine time that no attempt held, and what rounding to billing increments adds
	Disk    Kind = "disk"    // GB x time
	Egress  Kind = "egress"  // GB out
)

// Whole is the share of an attempt that has a machine alone, in millionths.
const Whole = 1_000_000

// Usage is one quantity that was used. Its key names it: the same key is the
// same usage, however often it is recorded.
type Usage struct {
	Key      string
	Project  string
	Member   string
	Job      int64  // 0: idle time of a machine
	Attempt  string // empty: idle time of a machine
	Machine  string
	Provider string
	Kind     Kind
	Origin   time.Time // the first moment of the attempt on this machine: all of its parts are counted from it
	From, To time.Time // of Egress the moment of the transfer, twice
	Share    int64     // millionths of the machine
	Bytes    int64     // of Disk and Egress
}

// Charge is what one usage costs, at the price that was frozen with it.
type Charge struct {
	Key      string // of the usage
	Amount   money.Amount
	Known    bool // false: the price of this part is not known; Amount is 0 and must be shown as unknown
	Currency string
	Price    money.Amount // per hour of the whole machine, or per GB and month, or per GB
	Assumed  bool         // the price was derived, not stated
	Source   string
	AsOf     string
}

// Hours is how long the usage took.
func (u *Usage) Hours() float64 { return u.To.Sub(u.From).Hours() }

// Time is what a share of a machine costs from From to To, at a price per hour
// of the whole machine. Parts of one attempt are cut from one sum that grows
// from its origin and is rounded down: however the time is divided, the parts
// add up to the same, and shares that fit into a machine never add up to more
// than the machine.
func (u *Usage) Time(price money.Amount) money.Amount {
	return until(price, u.To.Sub(u.Origin), u.Share) - until(price, u.From.Sub(u.Origin), u.Share)
}

// until is floor(price x time x share).
func until(price money.Amount, t time.Duration, share int64) money.Amount {
	if t <= 0 || price <= 0 || share <= 0 {
		return 0
	}
	x := new(big.Int).Mul(big.NewInt(int64(price)), big.NewInt(int64(t)))
	x.Mul(x, big.NewInt(share))
	x.Quo(x, big.NewInt(int64(time.Hour)))
	return money.Amount(x.Quo(x, big.NewInt(Whole)).Int64())
}

// Stored is what a disk of so many bytes costs from From to To, at a price per
// GB and month of 730 hours.
func (u *Usage) Stored(price money.Amount) money.Amount {
	x := new(big.Int).Mul(big.NewInt(int64(price)), big.NewInt(u.Bytes))
	x.Mul(x, big.NewInt(int64(max(u.To.Sub(u.From), 0))))
	x.Quo(x, big.NewInt(1e9))
	return money.Amount(x.Quo(x, big.NewInt(int64(money.Month))).Int64())
}

// Moved is what so many bytes out cost at a price per GB.
func (u *Usage) Moved(price money.Amount) money.Amount {
	x := new(big.Int).Mul(big.NewInt(int64(price)), big.NewInt(u.Bytes))
	return money.Amount(x.Quo(x, big.NewInt(1e9)).Int64())
}

// MachineCost is what a provider bills for a machine from one moment to
// another: at least the minimum, rounded up to the increment.
func MachineCost(price money.Amount, from, to time.Time, increment, minimum time.Duration) money.Amount {
	t := max(to.Sub(from), minimum, 0)
	if increment > 0 {
		t = (t + increment - 1) / increment * increment
	}
	return until(price, t, Whole)
}

// Rest is the idle time of a machine that is gone: what it cost less what its
// attempts were charged. It is not below zero as long as the attempts' shares
// fit into the machine.
func Rest(cost money.Amount, charges []Charge) money.Amount {
	for i := range charges {
		cost -= charges[i].Amount
	}
	return cost
}
