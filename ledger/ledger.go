// Package ledger turns what was used into what it costs: usage holds quantities
// and never money, a charge freezes the price of its moment, and the charges of
// a machine with its idle time are what the machine costs, to the nano-unit.
package ledger

import (
	"math"
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
	Project  string
	Member   string
	Amount   money.Amount
	Known    bool // false: the price of this part is not known; Amount is 0 and must be shown as unknown
	Currency string
	Price    money.Amount // per hour of the whole machine, or per GB and month, or per GB
	Assumed  bool         // the price was derived, not stated
	Source   string
	AsOf     string
}

// Tariff is the price of one kind of usage, as it was agreed: per hour of the
// whole machine, of Disk per GB and month, of Egress per GB. A nil price is
// unknown, never zero.
type Tariff struct {
	Currency string
	Price    *money.Amount
	Assumed  bool // derived, not stated
	Source   string
	AsOf     string
}

// Charge is what the usage costs at a tariff. It is a function of the two and
// of nothing else: the same usage has the same charge, however often it is
// computed.
func (u *Usage) Charge(t Tariff) Charge {
	c := Charge{Key: u.Key, Project: u.Project, Member: u.Member, Currency: t.Currency, Assumed: t.Assumed, Source: t.Source, AsOf: t.AsOf}
	if t.Price == nil {
		return c
	}
	c.Known, c.Price = true, *t.Price
	switch u.Kind {
	case Disk:
		c.Amount = u.Stored(c.Price)
	case Egress:
		c.Amount = u.Moved(c.Price)
	default:
		c.Amount = u.Time(c.Price)
	}
	return c
}

// Hours is how long the usage took.
func (u *Usage) Hours() float64 { return u.To.Sub(u.From).Hours() }

// Time is what a share of a machine costs from From to To, at a price per hour
// of the whole machine. Parts of one attempt are cut from one sum that grows
// from its origin and is rounded down: however the time is divided, the parts
// add up to the same, and attempts whose shares fit into a machine, each from
// its origin to its end, never add up to more than the machine. Without an
// origin the usage is the only part.
func (u *Usage) Time(price money.Amount) money.Amount {
	from, to := u.sinceOrigin()
	return timed(price, to, u.Share) - timed(price, from, u.Share)
}

// Stored is what a disk of so many bytes costs from From to To, at a price per
// GB (1e9 bytes) and month of 730 hours. Its parts add up as those of Time do.
func (u *Usage) Stored(price money.Amount) money.Amount {
	from, to := u.sinceOrigin()
	return floor(int64(price), int64(to), u.Bytes, int64(money.Month), 1e9) - floor(int64(price), int64(from), u.Bytes, int64(money.Month), 1e9)
}

// Moved is what so many bytes out cost at a price per GB (1e9 bytes).
func (u *Usage) Moved(price money.Amount) money.Amount {
	return floor(int64(price), u.Bytes, 1, 1e9, 1)
}

func (u *Usage) sinceOrigin() (from, to time.Duration) {
	if u.Origin.IsZero() {
		return 0, u.To.Sub(u.From)
	}
	return u.From.Sub(u.Origin), u.To.Sub(u.Origin)
}

// MachineCost is what a provider bills for a machine at a price per hour from
// one moment to another: at least the minimum, rounded up to the increment (0:
// neither). A machine that began to be billed never (a zero from), or not
// before its end, costs nothing.
func MachineCost(price money.Amount, from, to time.Time, increment, minimum time.Duration) money.Amount {
	if from.IsZero() || !to.After(from) {
		return 0
	}
	t := max(to.Sub(from), minimum)
	if increment > 0 {
		if over := t % increment; over > 0 && t <= math.MaxInt64-increment {
			t += increment - over
		}
	}
	return timed(price, t, Whole)
}

// Settle is the idle time of a machine that is gone, with its charge: what the
// machine cost in all less what was charged of it before. u says which machine
// and whose, from the start of its billing to its end. Shares and idle time
// then are the machine's cost, to the nano-unit. As long as the attempts'
// shares fit into the machine, the rest is not below zero; where it is (an
// attempt was charged beyond the end that the provider tells), it takes back
// what was too much.
func Settle(u Usage, t Tariff, cost, charged money.Amount) (Usage, Charge) {
	u.Kind, u.Job, u.Attempt, u.Share = Idle, 0, "", 0
	c := Charge{Key: u.Key, Project: u.Project, Member: u.Member, Amount: cost - charged, Known: true, Currency: t.Currency, Assumed: t.Assumed, Source: t.Source, AsOf: t.AsOf}
	if t.Price != nil {
		c.Price = *t.Price
	}
	if cost > 0 && c.Amount > 0 {
		u.Share = int64(floor(int64(c.Amount), Whole, 1, int64(cost), 1))
	}
	return u, c
}

// timed is floor(price x time x share).
func timed(price money.Amount, t time.Duration, share int64) money.Amount {
	return floor(int64(price), int64(t), share, int64(time.Hour), Whole)
}

// floor is a x b x c / (d x e), rounded down. Without a price or a quantity it
// is 0, and what does not fit is the greatest amount.
func floor(a, b, c, d, e int64) money.Amount {
	if a <= 0 || b <= 0 || c <= 0 {
		return 0
	}
	x := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
	x.Mul(x, big.NewInt(c))
	x.Quo(x, new(big.Int).Mul(big.NewInt(d), big.NewInt(e)))
	if !x.IsInt64() {
		return math.MaxInt64
	}
	return money.Amount(x.Int64())
}
