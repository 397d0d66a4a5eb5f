package control

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// keeper makes one machine follow its row: it launches it, waits for its
// agent, tells the agent what to run, fetches what tasks leave, and ends it.
// It remembers nothing that it cannot ask again.
type keeper struct {
	loop    *Loop
	id      string
	tag     string
	backend backend.Backend
	client  *wire.Client
	token   int64
	plane   string
	list    *lister
	asking  time.Time // since then a launch has had no answer

	orders atomic.Pointer[orders]
	news   chan struct{}
	stop   context.CancelFunc // ends the keeper, not the machine
	done   chan struct{}

	mu     sync.Mutex
	report atomic.Pointer[wire.Report] // the last one
	ship   chan struct{}               // there may be something to fetch
	heard  atomic.Int64                // unix nanoseconds of the last answer
	wrote  atomic.Int64                // of the last byte that was sent
}

// noting is a stream that remembers when it was written to.
type noting struct {
	net.Conn
	keeper *keeper
}

func (c noting) Write(b []byte) (int, error) {
	c.keeper.wrote.Store(c.keeper.loop.Now().UnixNano())
	return c.Conn.Write(b)
}

// orders is what the rows say of a machine and of what runs on it.
type orders struct {
	machine  *machine.Machine
	attempts []*machine.Attempt // on it, as tasks are made of them
	tasks    []ordered
}

// ordered is one task with all that is needed to start it.
type ordered struct {
	id      string
	rank    int
	attempt *machine.Attempt
	job     *job.Job
	spec    *job.Spec
	hosts   []string // addresses of the gang, by rank
	ready   bool     // every task of the gang is prepared
}

func newKeeper(l *Loop, m *machine.Machine, b backend.Backend) *keeper {
	k := &keeper{loop: l, id: m.ID, tag: l.tag(m.ID), backend: b, token: l.lease.Token, plane: l.plane, list: l.lists[m.Backend],
		news: make(chan struct{}, 1), done: make(chan struct{}), ship: make(chan struct{}, 1)}
	k.client = wire.NewClient(func(ctx context.Context) (net.Conn, error) {
		conn, err := b.Dial(ctx, k.orders.Load().machine)
		if err != nil {
			return nil, err
		}
		return noting{conn, k}, nil
	})
	return k
}

// order gives the keeper its present orders.
func (k *keeper) order(o *orders) {
	k.orders.Store(o)
	for _, bell := range []chan struct{}{k.news, k.ship} {
		select {
		case bell <- struct{}{}:
		default:
		}
	}
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	defer k.client.Close()
	defer k.stop()
	for ctx.Err() == nil {
		switch o := k.orders.Load(); o.machine.State {
		case machine.Intent:
			k.launch(ctx, o)
		case machine.Booting:
			k.greet(ctx)
		case machine.Ready:
			k.work(ctx)
		case machine.Ending:
			k.end(ctx, o)
		default:
			k.await(ctx, time.Hour)
		}
	}
}

// await sleeps until there are new orders, or for so long.
func (k *keeper) await(ctx context.Context, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-k.news:
	case <-t.C:
	}
}

// awaitState waits until the machine's row has another state.
func (k *keeper) awaitState(ctx context.Context, was machine.State) {
	for ctx.Err() == nil && k.orders.Load().machine.State == was {
		k.await(ctx, time.Second)
	}
}

// launch asks for the machine. Nobody knows what came of a call whose answer
// was lost: it is asked again, by the same tag.
func (k *keeper) launch(ctx context.Context, o *orders) {
	l := k.loop
	m := o.machine
	if m.LaunchFail != "" {
		k.awaitState(ctx, machine.Intent)
		return
	}
	var words atomic.Pointer[string]
	request := backend.Request{Tag: k.tag, Plane: k.plane, Terms: m.Terms, DeadMan: l.Settings.DeadMan,
		Say: func(s string) {
			if last := words.Swap(&s); last == nil || *last != s {
				l.inbox.put(progressed{k.id, s})
			}
		}}
	call, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	offer, err := l.offerOf(call, k.backend, m)
	if err == nil {
		request.Offer = offer
		var found backend.Found
		if found, err = k.backend.Launch(call, request); err == nil {
			l.inbox.put(asked{k.id, found.Handle})
			k.awaitState(ctx, machine.Intent)
			return
		}
	}
	if ctx.Err() != nil {
		return
	}
	switch fault.KindOf(err) {
	case fault.Unreachable: // perhaps it was made: ask again. An own host that does not answer for a while is given up: it costs nothing
		if k.asking.IsZero() {
			k.asking = l.Now()
		}
		if k.backend.Capabilities().Owned && l.Now().Sub(k.asking) > 10*time.Second {
			l.inbox.put(refused{k.id, inWords(err)})
			k.awaitState(ctx, machine.Intent)
			return
		}
		l.inbox.put(progressed{k.id, "asking again: " + inWords(err)})
		k.await(ctx, 2*time.Second)
	default:
		l.inbox.put(refused{k.id, inWords(err)})
		k.awaitState(ctx, machine.Intent)
	}
}

// greet waits for the agent's first answer.
func (k *keeper) greet(ctx context.Context) {
	pause := time.Millisecond
	for ctx.Err() == nil && k.orders.Load().machine.State == machine.Booting {
		call, cancel := context.WithTimeout(ctx, 30*time.Second)
		hello, err := k.client.Hello(call)
		cancel()
		if err == nil && (hello.Machine == "" || hello.Machine == k.tag) {
			k.loop.inbox.put(answered{k.id, hello.Host, hello.Now, k.loop.Now()})
			k.awaitState(ctx, machine.Booting)
			return
		}
		if err != nil && fault.KindOf(err) != fault.Unreachable && ctx.Err() == nil {
			k.loop.inbox.put(progressed{k.id, inWords(err)})
		}
		k.await(ctx, pause)
		pause = min(pause*3/2, time.Second)
	}
}

// work talks to the agent while the machine is ready: one stream waits for
// news of the tasks, one tells it what to do, one fetches what tasks leave.
func (k *keeper) work(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { k.listen(ctx) })
	all.Go(func() { k.fetch(ctx) })
	for ctx.Err() == nil && k.orders.Load().machine.State == machine.Ready {
		if !k.command(ctx) {
			k.await(ctx, 500*time.Millisecond)
			continue
		}
		k.await(ctx, time.Hour)
	}
	cancel()
	all.Wait()
}

// listen waits for reports and hands them on.
func (k *keeper) listen(ctx context.Context) {
	var seen int64
	pause := 20 * time.Millisecond
	for ctx.Err() == nil {
		report, err := k.sync(ctx, &wire.Sync{Seen: seen, Wait: min(10*time.Second, k.within())})
		if err != nil {
			if ctx.Err() == nil {
				k.loop.inbox.put(complained{k.id, inWords(err)})
			}
			k.quiet(ctx)
			sleep(ctx, pause)
			pause = min(pause*2, 2*time.Second)
			continue
		}
		pause = 20 * time.Millisecond
		seen = report.Version
	}
}

// within is how long one question may take, so that the agent hears several
// words in its dead-man time.
func (k *keeper) within() time.Duration { return max(k.loop.Settings.DeadMan/4, 100*time.Millisecond) }

// quiet holds the words back from an agent that has not answered for half of
// its dead-man time: if words reach it whose answers are lost, its clock must
// still run, or nobody could know when it stops.
func (k *keeper) quiet(ctx context.Context) {
	for ctx.Err() == nil && k.heard.Load() != 0 && k.loop.Now().Sub(time.Unix(0, k.heard.Load())) > k.loop.Settings.DeadMan/2 {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := k.client.Hello(call)
		cancel()
		if err == nil {
			return
		}
		sleep(ctx, 2*time.Second)
	}
}

// sync says something to the agent and hands its report to the loop.
func (k *keeper) sync(ctx context.Context, s *wire.Sync) (*wire.Report, error) {
	s.Plane, s.Token, s.DeadMan = k.plane, k.token, k.loop.Settings.DeadMan
	said := k.loop.Now()
	call, cancel := context.WithTimeout(ctx, s.Wait+min(20*time.Second, k.within()))
	defer cancel()
	report, err := k.client.Sync(call, s)
	if err != nil {
		if k.wrote.Load() >= said.UnixNano() {
			k.loop.inbox.put(unanswered{k.id, k.loop.Now()})
		}
		return nil, err
	}
	heard := k.loop.Now()
	k.heard.Store(heard.UnixNano())
	k.mu.Lock()
	if last := k.report.Load(); last == nil || report.Version >= last.Version { // two streams ask: an older answer may come later
		k.report.Store(report)
		k.loop.inbox.put(reported{machine: k.id, report: report, said: said, heard: heard})
	}
	k.mu.Unlock()
	select {
	case k.ship <- struct{}{}:
	default:
	}
	select { // the reports may show what is to be told next
	case k.news <- struct{}{}:
	default:
	}
	return report, nil
}

// command tells the agent what the rows want of it and it does not do yet. It
// says whether nothing is left to tell.
func (k *keeper) command(ctx context.Context) bool {
	report := k.report.Load()
	if report == nil {
		return false
	}
	s := k.due(report)
	if len(s.Start)+len(s.Go)+len(s.Stop)+len(s.Forget) == 0 {
		return true
	}
	for i := range s.Start {
		if err := k.supply(ctx, &s.Start[i]); err != nil {
			k.loop.Log.Warn("sending files", "machine", k.id, "err", err)
			return false
		}
	}
	_, err := k.sync(ctx, s)
	return err == nil
}

// due compares orders and report.
func (k *keeper) due(report *wire.Report) *wire.Sync {
	s := &wire.Sync{}
	there := make(map[string]*wire.Status, len(report.Tasks))
	for i := range report.Tasks {
		there[report.Tasks[i].ID] = &report.Tasks[i]
	}
	o := k.orders.Load()
	for i := range o.tasks {
		t := &o.tasks[i]
		x := there[t.id]
		delete(there, t.id)
		switch {
		case t.attempt.State == machine.Leaving:
			if x == nil || x.State != machine.TaskEnded && x.State != machine.TaskStopping {
				s.Stop = append(s.Stop, wire.Stop{ID: t.id, Cause: t.attempt.Cause, Reason: t.attempt.Stop, Grace: t.attempt.Grace})
			}
		case x == nil && t.attempt.Tasks[t.rank].State == machine.TaskNew:
			s.Start = append(s.Start, k.loop.task(t))
		case x != nil && x.State == machine.TaskPrepared && t.ready:
			s.Go = append(s.Go, t.id)
		}
	}
	for id, x := range there { // of attempts that are over, or of nobody
		switch x.State {
		case machine.TaskEnded:
			s.Forget = append(s.Forget, id)
		case machine.TaskStopping:
		default:
			s.Stop = append(s.Stop, wire.Stop{ID: id, Cause: machine.Lost, Reason: "its attempt is over", Grace: k.loop.Settings.Grace})
		}
	}
	return s
}

// end ends the machine: what runs on it is stopped first where that is still
// wanted, then the backend is asked until it no longer has the machine.
func (k *keeper) end(ctx context.Context, o *orders) {
	if len(o.tasks) > 0 && !o.machine.Booted.IsZero() && k.loop.Now().Sub(o.machine.Ending) < 2*k.loop.Settings.Grace+10*time.Second {
		k.farewell(ctx)
		return
	}
	call, cancel := context.WithTimeout(ctx, time.Minute)
	err := k.backend.End(call, k.tag, o.machine.Handle)
	cancel()
	if ctx.Err() != nil {
		return
	}
	pause := 500 * time.Millisecond
	if err != nil {
		k.loop.inbox.put(unended{k.id, inWords(err)})
		pause = min(time.Second<<min(o.machine.EndTry, 6), time.Minute)
	} else if k.list != nil {
		k.list.look()
	}
	sleep(ctx, pause)
}

// farewell lets the attempts on a machine that is being ended stop in order.
func (k *keeper) farewell(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { k.listen(ctx) })
	all.Go(func() { k.fetch(ctx) })
	until := k.loop.Now().Add(2*k.loop.Settings.Grace + 10*time.Second)
	for ctx.Err() == nil && len(k.orders.Load().tasks) > 0 && k.loop.Now().Before(until) {
		k.command(ctx)
		k.await(ctx, 200*time.Millisecond)
	}
	cancel()
	all.Wait()
}

// inWords gives an error's words with its hint.
func inWords(err error) string {
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}
