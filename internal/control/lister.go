package control

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/machine"
)

// lister compares what a backend lists with the rows: machines that it no
// longer has are gone, machines that carry our id and are in no row are ended.
type lister struct {
	loop    *Loop
	name    string
	backend atomic.Pointer[backend.Backend]
	now     chan struct{} // look at once
	rows    atomic.Pointer[map[string]*machine.Machine]
	missed  map[string]time.Time // first time a machine was not listed
	done    chan struct{}
}

func newLister(l *Loop, name string, b backend.Backend) *lister {
	x := &lister{loop: l, name: name, now: make(chan struct{}, 1), missed: map[string]time.Time{}, done: make(chan struct{})}
	x.backend.Store(&b)
	return x
}

// look asks for a comparison soon.
func (x *lister) look() {
	select {
	case x.now <- struct{}{}:
	default:
	}
}

func (x *lister) run(ctx context.Context) {
	defer close(x.done)
	next := time.NewTimer(x.loop.Settings.Sweep)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.now:
		case <-next.C:
		}
		pause := x.loop.Settings.Sweep
		if x.sweep(ctx) { // something is about to be gone: ask again soon
			pause = 300 * time.Millisecond
		}
		next.Reset(pause)
	}
}

// sweep compares once, and says whether something is missing that is not yet
// known to be gone.
func (x *lister) sweep(ctx context.Context) bool {
	b := *x.backend.Load()
	rows := x.rows.Load()
	if rows == nil {
		return true
	}
	call, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	plane := x.loop.plane
	list, err := b.List(call, plane)
	var partial *backend.Partial
	if err != nil && !errors.As(err, &partial) { // nothing is known: nothing is gone
		if ctx.Err() == nil {
			x.loop.Log.Warn("listing machines", "backend", x.name, "err", err)
		}
		return false
	}
	now := x.loop.Now()
	there := map[string]bool{}
	for i := range list {
		f := &list[i]
		id, ours := strings.CutPrefix(f.Tag, plane+"-")
		if !ours || f.State == backend.Ended {
			continue
		}
		there[id] = true
		delete(x.missed, id)
		switch m := (*rows)[id]; {
		case m == nil:
			x.unknown(ctx, b, id, f)
		case !f.Notice.IsZero():
			x.loop.inbox.put(noticed{id, f.Notice, "the provider announced it"})
		}
	}
	lag := b.Capabilities().ListLag
	waiting := false
	for id, m := range *rows {
		if there[id] || m.Backend != x.name || partial != nil && partial.Unknown(m.Handle) {
			continue
		}
		switch m.State {
		case machine.Booting, machine.Ready, machine.Ending:
		default: // an intent may not have been asked for yet
			continue
		}
		first, ok := x.missed[id]
		if !ok {
			first = now
			x.missed[id] = now
		}
		patience := time.Duration(0)
		if lag > 0 {
			patience = lag + x.loop.Settings.AbsentFor
		} else if m.State == machine.Booting {
			patience = x.loop.Settings.AbsentFor
		}
		if now.Sub(first) < patience {
			waiting = true
			continue
		}
		delete(x.missed, id)
		why := "its backend no longer has it"
		if m.State == machine.Ending {
			why = m.Reason
		}
		x.loop.inbox.put(absent{id, now, why})
	}
	return waiting
}

// unknown deals with a machine that carries our id and is in no live row.
func (x *lister) unknown(ctx context.Context, b backend.Backend, id string, f *backend.Found) {
	row, err := x.loop.Store.Machine(ctx, id)
	switch {
	case err == nil && row.State == machine.Gone && row.Epoch == x.loop.epoch:
		x.loop.inbox.put(returned{row}) // it was said to be gone: it costs again, and is ended again
	case err == nil:
		return // the rows have it by now
	case epochOf(id) == x.loop.epoch:
		x.loop.Log.Warn("ending a machine that is in no row", "backend", x.name, "machine", id)
		call, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := b.End(call, f.Tag, f.Handle); err != nil {
			x.loop.Log.Warn("ending a machine", "machine", id, "err", err)
		}
	default:
		x.loop.inbox.put(stray{&machine.Machine{ID: id, Project: "default", Epoch: epochOf(id), Backend: x.name, Handle: f.Handle, State: machine.Quarantined,
			Asked: x.loop.Now(), Reason: "carries this state's id, and is of another epoch: adopt or end it by hand"}})
	}
}
