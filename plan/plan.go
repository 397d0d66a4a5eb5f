// Package plan answers the main question: where does a job cost least when it
// is finished, and why there. Rank puts every offer to one job and gives each
// either its cost in parts, its times and its warnings, or the reason why it
// cannot run the job. It is pure: the same input gives the same plan.
package plan

import (
	"time"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan/estimate"
)

// Order is what the options are ranked by.
type Order string

// The orders.
const (
	ByCost  Order = "cost"  // expected cost of the finished job
	ByTime  Order = "time"  // expected wall hours until it is finished
	ByPrice Order = "price" // price per hour of all machines
	ByWork  Order = "work"  // work per dollar, most first
)

// Orders lists the orders.
func Orders() []Order { return []Order{ByCost, ByTime, ByPrice, ByWork} }

// Input is all that a plan depends on.
type Input struct {
	Job      *job.Spec
	Offers   []*offer.Offer
	Now      time.Time
	Currency string // of the plan; offers and limits in others are converted
	Exchange money.Exchange
	By       Order
	Marginal bool // rank by marginal cost where it is known
	World    World
}

// World is what is known beside the offers. Every field may be nil: then what
// it would tell is unknown.
type World struct {
	// Transfer is the price per GB of moving data from one place to another,
	// nil when unknown. A provider "internet" stands for anywhere else.
	Transfer func(fromProvider, fromRegion, toProvider, toRegion string) *offer.Price
	// GridGrams is the grid's CO2 intensity in g per kWh of a country.
	GridGrams func(country string) (float64, bool)
	// PowerPrice is what a kWh costs an owner in a country, in US dollars.
	PowerPrice func(country string) (money.Amount, bool)
	// Tokens lists what tokens cost from APIs, in US dollars.
	Tokens []TokenPrice
	// Measured are calibrations: a job's rate on a card, as its user measured it.
	Measured []Measured
	// Own are measured rows of the user's own runs.
	Own []estimate.Row
}

// TokenPrice is what an API asks for the tokens of one model.
type TokenPrice struct {
	Provider, Model string
	Input, Output   money.Amount // per million tokens
	Source          string
	AsOf            offer.Date
}

// Plan is the ranked options of one job with a reason for each refused offer.
type Plan struct {
	Job          *job.Spec
	AsOf         time.Time
	Currency     string
	Options      []*Option // best first
	Alternatives []Alternative
	Refused      []Refusal // in the order of the offers' ids
}

// Option is one offer that can run the job.
type Option struct {
	Rank  int
	Offer *offer.Offer
	Nodes int

	Work  *Estimate    // shared by all offers of one GPU and count
	Price money.Amount // per hour of all machines, in the plan's currency
	Sum   Sum          // at the expected hours

	Startup       float64     // S, hours
	BilledStartup float64     // Sb, hours
	Lambda        float64     // interruptions per running hour of the gang
	Restart       float64     // d, hours billed per restart
	Wait          float64     // w, hours waited per interruption, not billed
	Tau           float64     // useful hours between checkpoints
	Write         float64     // cp, hours per checkpoint
	Policy        *SpotPolicy // of spot with a deadline; else nil

	CostP10, CostP50, CostP90 money.Amount
	WallP10, WallP50, WallP90 float64
	Marginal                  money.Amount
	MarginalKnown             bool
	Energy                    float64 // kWh; 0 when the card's power is unknown
	CO2                       float64 // kg; negative when unknown
	WorkPerDollar             float64 // units of work per unit of money; 0 when work is not countable
	Late                      float64 // probability of missing the deadline; negative without one
	Pareto                    bool    // no other option is both cheaper and sooner

	flags   flag
	ageDays int
	array   int // equal jobs, of which this is one
}

// Fit compares the memory that the job needs with what a GPU has.
type Fit struct {
	Verdict string  // fits, tight, no
	NeedGB  float64 // 0 when it is not known, as with stated hours
	HaveGB  float64 // of all GPUs of one machine
}

// Estimate is how much time the work takes on one GPU model and count.
type Estimate struct {
	Model     *gpu.Model
	Count     int // GPUs of one machine that the job uses
	Hours     Quantiles
	Evidence  Evidence
	Basis     string  // in words: from what the hours come
	Rate      float64 // units of work per hour on all GPUs; 0 when not countable
	Unit      string  // of the rate
	Fit       Fit
	WeightsGB float64 // that a start must load; 0 unknown
	Replicas  int     // machines that a service needs; else 0
}

// Quantiles of an uncertain number.
type Quantiles struct{ P10, P50, P90, Expected float64 }

// Exactly is a number without spread.
func Exactly(x float64) Quantiles { return Quantiles{x, x, x, x} }

// Times scales all of it.
func (q Quantiles) Times(f float64) Quantiles {
	return Quantiles{q.P10 * f, q.P50 * f, q.P90 * f, q.Expected * f}
}

// Evidence says on what an estimate stands, best first.
type Evidence string

// The levels of evidence.
const (
	Stated           Evidence = "stated"
	MeasuredHere     Evidence = "measured here"
	SameGPUStack     Evidence = "same GPU and stack"
	SameGPU          Evidence = "same GPU"
	SameArchitecture Evidence = "same architecture"
	Specification    Evidence = "specification only"
)

// Measured is a rate that a calibration gave for one job.
type Measured struct {
	Job   string  `json:"job"` // its name
	GPU   string  `json:"gpu"` // id of the model
	Count int     `json:"gpu_count"`
	Rate  float64 `json:"rate"` // units of work per second on all GPUs
}

// Alternative is a way to get the work done that is no offer.
type Alternative struct {
	Kind   string // api, reservation, variant
	Name   string
	Cost   money.Amount
	Note   string
	Source string
	AsOf   offer.Date
}
