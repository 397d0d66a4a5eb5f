// Package backend says what a source of machines must do. A backend launches
// machines, finds them again by their tag, ends them, and opens the way to the
// agent on them. It decides nothing: the control loop calls it until the world
// is as the rows say, and may call everything again after a crash.
package backend

import (
	"context"
	"net"
	"time"

	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/offer"
)

// Backend is one configured source of machines.
type Backend interface {
	// Name is how machines and offers name it, such as local or ssh.
	Name() string
	// Capabilities are data: what the control plane must do itself, or say.
	Capabilities() Capabilities
	// Offers are the machines that it can launch now, as offers of class own
	// for owned ones, with their hosts. An error means that nothing is known,
	// not that there is nothing; a Partial one, that some places were not asked.
	Offers(ctx context.Context) ([]Offer, error)
	// Launch makes sure that a machine with this tag exists or is being made.
	// It may be called again with the same tag: it never makes a second one. It
	// returns when the provider took the request, not when the machine runs.
	// A fault of the kind NothingFits means no capacity there now, Denied and
	// Invalid that asking again is no use, Unreachable that nobody knows whether
	// it was made. Progress words go to the request's Say.
	Launch(ctx context.Context, r Request) (Found, error)
	// List gives every machine that carries the plane's id in its tag, in any
	// state but ended; an error means that nothing is known. With a *Partial the
	// machines that it gives are there, and nothing is known of the places that
	// it names.
	List(ctx context.Context, plane string) ([]Found, error)
	// End asks for the end of a machine by tag and handle. Of one that is not
	// there it is no error. The machine is gone when List no longer has it.
	End(ctx context.Context, tag, handle string) error
	// Dial opens a stream to the machine's agent. The agent may not be there yet.
	Dial(ctx context.Context, m *machine.Machine) (net.Conn, error)
	// Close ends connections; machines go on.
	Close() error
}

// Offer is what can be launched.
type Offer struct {
	*offer.Offer
	Config string        // of the source, passed to Launch
	Host   *machine.Host // of an own machine, when it was looked at
	Shared bool          // one machine at most, which attempts share
	// PriceAssumed says that the price was derived, not stated by the owner.
	PriceAssumed bool
}

// Capabilities are what a backend can do.
type Capabilities struct {
	SelfEnd       bool          // the node ends its own billing without us
	Owned         bool          // machines exist already; launching starts our agent on them
	SpotNotice    time.Duration // announced before an interruption; 0: none, or no spot
	StopsBilling  bool          // powering off ends what is billed
	ListLag       time.Duration // how long List may miss a new machine
	Multiple      bool          // several machines of one offer
	LaunchTimeout time.Duration // from the request to the agent's first answer, before the place is given up
}

// Request is one machine to launch.
type Request struct {
	Tag     string // plane id, "-", machine id: unique for ever
	Plane   string
	Offer   Offer
	Terms   machine.Terms
	DeadMan time.Duration
	Say     func(words string) // progress: "uploading the agent, 12 of 25 MB"
}

// Partial is the error of a List that could not look everywhere, as when one
// of several hosts is down.
type Partial struct {
	Cause error
	// Unknown says whether a machine of this handle may be where nobody could
	// look. It is true of the empty handle.
	Unknown func(handle string) bool
}

// Error is that of the cause.
func (p *Partial) Error() string { return p.Cause.Error() }

// Unwrap gives the cause.
func (p *Partial) Unwrap() error { return p.Cause }

// Found is a machine as its backend sees it.
type Found struct {
	Tag    string
	Handle string
	State  State
	Words  string    // the provider's own word for its state
	Notice time.Time // an interruption is announced for then; zero: none
}

// State is what a backend says of a machine.
type State string

// The states.
const (
	Pending State = "pending" // being made
	Running State = "running"
	Stopped State = "stopped" // powered off; may cost
	Ended   State = "ended"   // gone for good; costs nothing any more
)
