package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/backend/local"
	"github.com/destajo/destajo/internal/backend/ssh"
	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/plan"
	"github.com/destajo/destajo/tenant"
)

// house is the state on this machine and all that acts on it: one store, the
// service over it, and the means to run the loop in this process.
type house struct {
	*control.Service
	app   *app
	store *store.Store
	who   tenant.Who
	poke  chan struct{} // wakes the loop of this process
}

// open opens the state in DESTAJO_HOME, and makes it when it is not there.
func (a *app) open(ctx context.Context) (*house, error) {
	if server := a.Getenv("DESTAJO_SERVER"); server != "" {
		return nil, fault.New(fault.Invalid, "DESTAJO_SERVER is %s, and this version speaks to no server", server).Hint("unset it to work on the state of this machine")
	}
	home, err := filepath.Abs(a.home())
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "finding DESTAJO_HOME")
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "making %s", home).Hint("set DESTAJO_HOME to a folder that you may write")
	}
	s, err := store.Open(ctx, filepath.Join(home, "state.db"))
	if err != nil {
		return nil, err
	}
	h := &house{app: a, store: s, who: tenant.Local(), poke: make(chan struct{}, 1)}
	h.Service = &control.Service{Store: s, Backends: h.backends, Files: control.Files{Dir: home}, Settings: a.settings(), Now: a.Now,
		Chooser: &control.Chooser{World: a.world, Exchange: catalog.Exchange, Currency: "USD"}}
	return h, nil
}

func (h *house) close() { _ = h.store.Close() }

// settings are the loop's, with what the environment changes for tests and
// for those who must.
func (a *app) settings() control.Settings {
	s := control.DefaultSettings()
	for name, into := range map[string]*time.Duration{"DESTAJO_DEAD_MAN": &s.DeadMan, "DESTAJO_MARGIN": &s.Margin, "DESTAJO_GRACE": &s.Grace, "DESTAJO_LINGER": &s.Linger,
		"DESTAJO_COOLDOWN": &s.Cooldown, "DESTAJO_SWEEP": &s.Sweep} {
		if t, err := time.ParseDuration(a.Getenv(name)); err == nil && t >= 0 {
			*into = t
		}
	}
	return s
}

// world is what is known beside the offers, for plans over own places.
func (a *app) world() (plan.World, error) {
	var w plan.World
	w.Transfer, w.GridGrams, w.PowerPrice = catalog.Transfer, catalog.GridGrams, catalog.PowerPrice
	var err error
	w.Measured, w.Own, err = a.measured()
	return w, err
}

// loop is the control loop for this process.
func (h *house) loop(role string, linger time.Duration, log *slog.Logger) *control.Loop {
	settings := h.Settings
	if linger >= 0 {
		settings.Linger = linger
	}
	return &control.Loop{Store: h.store, Backends: h.backends, Files: h.Files, Chooser: h.Chooser, Settings: settings,
		Holder: holder(role), Now: h.Now, Log: log, Poke: h.poke, Finished: h.app.learn}
}

// learn keeps the rate that a finished job had on its GPUs: the next plan of it
// starts from what was measured here.
func (a *app) learn(f control.Finished) {
	t := &f.Attempt.Tasks[0]
	ran := f.Attempt.Useful
	if f.Spec.Work == nil || f.Job.Progress > 0 || f.Job.Array != 0 || ran < time.Second || f.Machine.Terms.GPU == "" || len(t.Devices) == 0 {
		return
	}
	work, err := plan.ModelWork(f.Spec, nil, nil)
	if err != nil || work == nil || work.Units() <= 0 {
		return
	}
	all, _, err := a.measured()
	if err != nil {
		return
	}
	m := plan.Measured{Job: f.Spec.Name, GPU: f.Machine.Terms.GPU, Count: f.Attempt.Needs.GPUs,
		Rate: work.Units() / ran.Seconds() / float64(len(f.Attempt.Tasks))}
	all = slices.DeleteFunc(all, func(o plan.Measured) bool { return o.Job == m.Job && o.GPU == m.GPU && o.Count == m.Count })
	if err := a.keepMeasured(append(all, m)); err != nil {
		a.logger().Warn("keeping a measured rate", "err", err)
	}
}

// holder names this process by what it does, its number and when it began,
// since numbers come again.
func holder(role string) string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s@%s/%d/%d", role, host, os.Getpid(), began.UnixNano())
}

var began = time.Now()

// localConfig is what the source of this machine keeps.
type localConfig struct {
	PriceHour *money.Amount `json:"price_hour"`
	Off       bool          `json:"off"`
}

// fakeConfig is what a source of the fake provider keeps.
type fakeConfig struct {
	Folder string `json:"folder"`
}

// backends opens every configured source of machines. This host is one, unless
// it was taken away.
func (h *house) backends(ctx context.Context) (map[string]backend.Backend, error) {
	sources, err := h.Sources(ctx, h.who)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "finding this program")
	}
	home := h.Files.Dir
	out := map[string]backend.Backend{}
	var here localConfig
	var hosts []ssh.Host
	for _, s := range sources {
		bad := func(err error) error {
			return fault.Wrap(fault.Invalid, err, "the source %s cannot be read", s.ID).Hint("`destajo machines remove %s` takes it away", s.ID)
		}
		switch s.Backend {
		case local.Name:
			if err := json.Unmarshal([]byte(s.Config), &here); err != nil {
				return nil, bad(err)
			}
		case ssh.Name:
			x, err := ssh.ParseConfig(s.Config)
			if err != nil {
				return nil, bad(err)
			}
			hosts = append(hosts, x)
		case fake.Name:
			var x fakeConfig
			if err := json.Unmarshal([]byte(s.Config), &x); err != nil {
				return nil, bad(err)
			}
			b, err := fake.New(fake.Config{Folder: x.Folder, Exe: exe})
			if err != nil {
				return nil, err
			}
			out[fake.Name] = b
		}
	}
	costs := h.app.ownCosts()
	if !here.Off {
		out[local.Name] = local.New(local.Config{Home: home, Exe: exe, Host: h.app.host, Price: here.PriceHour, Costs: costs, Now: h.Now})
	}
	if len(hosts) > 0 {
		out[ssh.Name] = ssh.New(ssh.Config{Hosts: hosts, Binary: ssh.FindBinary(exe, home), Costs: costs, Now: h.Now})
	}
	return out, nil
}

// ownCosts is from what the price of an own machine is derived.
func (a *app) ownCosts() backend.OwnCosts {
	c := backend.OwnCosts{Buy: func(id string) (money.Amount, string, bool) {
		request, err := gpu.ParseRequest(id)
		if err != nil {
			return 0, "", false
		}
		return purchaseOf(request)
	}}
	if p, ok := catalog.PowerPrice("US"); ok {
		c.PowerPrice, c.PowerSource = p, "price for US households; state the machine's own price to replace it"
	}
	return c
}

// host is what this machine has, as an agent would report it.
func (a *app) host(ctx context.Context) machine.Host {
	h, err := devices.New().Host(ctx, a.home())
	if err != nil {
		h.Problems = append(h.Problems, err.Error())
	}
	h.Agent = version
	return h
}
