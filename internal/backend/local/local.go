// Package local makes one machine of the host that it stands on: launching
// starts our agent as a process of its own, which outlives this one.
package local

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/node"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// Name of the backend and of the provider of its offer.
const Name = "local"

// Config is what the backend needs to know.
type Config struct {
	Home  string                             // DESTAJO_HOME, absolute
	Exe   string                             // path of this program
	Host  func(context.Context) machine.Host // what this host has; called for every list of offers
	Price *money.Amount                      // of an hour, in USD, as its owner states it; nil: derived
	Costs backend.OwnCosts                   // from which it is derived
	Now   func() time.Time                   // for the date of the price; nil: time.Now
}

// Backend is the host that it runs on.
type Backend struct {
	c    Config
	node node.Keeper
}

var _ backend.Backend = (*Backend)(nil)

// New makes the backend. It touches nothing.
func New(c Config) *Backend {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Backend{c: c, node: node.Keeper{Root: filepath.Join(c.Home, "agents", "local"), Exe: c.Exe}}
}

// Name is local.
func (b *Backend) Name() string { return Name }

// Capabilities of a host that exists already.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{SelfEnd: true, Owned: true, StopsBilling: true, LaunchTimeout: 30 * time.Second}
}

// Offers is the one machine.
func (b *Backend) Offers(ctx context.Context) ([]backend.Offer, error) {
	host := b.c.Host(ctx)
	price, assumed, source := backend.OwnPrice(host, b.c.Price, b.c.Costs)
	name := host.Name
	if name == "" {
		name = "this machine"
	}
	o := backend.OwnOffer(Name, name, host, price, assumed, source, offer.Date(b.c.Now().UTC().Format("2006-01-02")))
	return []backend.Offer{o}, nil
}

// Launch starts the agent.
func (b *Backend) Launch(_ context.Context, r backend.Request) (backend.Found, error) {
	if r.Say != nil {
		r.Say("starting the agent on this machine")
	}
	return b.node.Start(r.Tag, r.Plane)
}

// List gives the agents of the plane that were not ended.
func (b *Backend) List(_ context.Context, plane string) ([]backend.Found, error) {
	if plane == "" {
		return nil, fault.New(fault.Invalid, "whose machines?")
	}
	return b.node.List(plane)
}

// End stops the tasks and the agent.
func (b *Backend) End(ctx context.Context, tag, _ string) error { return b.node.End(ctx, tag) }

// Dial reaches the agent of a machine by its handle, which is its tag. It waits
// for one that is just starting.
func (b *Backend) Dial(ctx context.Context, m *machine.Machine) (net.Conn, error) {
	return b.node.Dial(ctx, m.Handle)
}

// Close has nothing to close.
func (b *Backend) Close() error { return nil }
