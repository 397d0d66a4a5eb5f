package control_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/tenant"
)

func booting(s *fake.Sale) { s.Boot = fake.Duration(20 * time.Millisecond) }

// TestFullPlacesAreAskedWithPauses: when no place has a machine, a job is not
// tried hundreds of times a minute.
func TestFullPlacesAreAskedWithPauses(t *testing.T) {
	t.Parallel()
	full, more := sale("full", "1", booting), sale("more", "2", booting)
	full.NoCapacity, more.NoCapacity = 1, 1
	w := newWorld(t, fake.Script{Seed: 1, Offers: []fake.Sale{full, more}})
	w.run()
	jobs := w.submit("name: x\nresources: {gpus: 0}\nrun: \"true\"\n")
	time.Sleep(1500 * time.Millisecond)
	now, err := w.store.Jobs(context.Background(), record.JobFilter{IDs: []int64{jobs[0].ID}})
	if err != nil {
		t.Fatal(err)
	}
	if j := now[0]; j.State != job.Waiting || j.Attempts != 2 || !strings.Contains(j.Reason, "no capacity") || !strings.Contains(j.Reason, "asked again at") {
		t.Errorf("after two places that are full the job is %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	if err := w.Stop(context.Background(), tenant.Local(), []int64{jobs[0].ID}, ""); err != nil {
		t.Fatal(err)
	}
	w.ended(jobs)
	w.quiet()
}

// TestGangDoesNotWaitForRefusedMachine: a machine that could not be had holds
// nothing up, though its place lists late what it has.
func TestGangDoesNotWaitForRefusedMachine(t *testing.T) {
	t.Parallel()
	one, two := sale("one", "1", booting), sale("two", "2", booting)
	one.Capacity = 1
	w := newWorld(t, fake.Script{Seed: 1, Offers: []fake.Sale{one, two}, Faults: fake.Faults{ListLag: fake.Duration(8 * time.Second)}})
	w.Settings.Linger = 5 * time.Second
	w.run()
	w.ended(w.submit("name: warm\nresources: {gpus: 0}\nrun: \"true\"\n"))
	began := time.Now()
	j := w.ended(w.submit("name: gang\nresources: {gpus: 0, nodes: 2}\nrun: \"true\"\n"))[0]
	if took := time.Since(began); j.State != job.Done || took > 4*time.Second {
		t.Errorf("the gang is %s after %s and %d attempts: %s", j.State, took, j.Attempts, j.Reason)
	}
}

// TestShortDeadMan: a task whose agent is to hear a word every second hears it.
func TestShortDeadMan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fake.Script{Seed: 1, Offers: []fake.Sale{sale("a", "1", booting)}})
	w.Settings.DeadMan, w.Settings.Margin = time.Second, 4*time.Second
	w.run()
	j := w.ended(w.submit("name: x\nresources: {gpus: 0}\nrun: sleep 3\n"))[0]
	if j.State != job.Done || j.Attempts != 1 {
		t.Errorf("the job is %s after %d attempts: %s", j.State, j.Attempts, j.Reason)
	}
	w.quiet()
}

// contested is a store in which others change rows all the time: every other
// change of the loop is refused.
type contested struct {
	control.Store
	n atomic.Int64
}

func (s *contested) Apply(ctx context.Context, token int64, c *record.Changes) error {
	if token != 0 && s.n.Add(1)%2 == 0 {
		return fault.New(fault.Conflict, "someone else changed a row")
	}
	return s.Store.Apply(ctx, token, c)
}

// TestNothingSeenIsLostInConflicts: what keepers saw is written down when its
// first change is refused. Else a machine that was asked for, answered or was
// refused would be forgotten until its boot takes too long.
func TestNothingSeenIsLostInConflicts(t *testing.T) {
	t.Parallel()
	full := sale("full", "1", booting)
	full.NoCapacity = 1
	w := newWorld(t, fake.Script{Seed: 1, Offers: []fake.Sale{full, sale("more", "2", booting)}})
	w.Service.Store = &contested{Store: w.store}
	w.run()
	for _, j := range w.ended(w.submit("name: x\nresources: {gpus: 0}\nrun: \"true\"\narray: 5\n")) {
		if j.State != job.Done {
			t.Errorf("job %d is %s: %s", j.ID, j.State, j.Reason)
		}
	}
	w.quiet()
}

// TestReplaceByOneWhoMayNoMore leaves the file of the one who may.
func TestReplaceByOneWhoMayNoMore(t *testing.T) {
	t.Parallel()
	f := control.Files{Dir: t.TempDir()}
	path := f.Checkpoint(1, 0)
	if err := f.Replace(path, strings.NewReader("new"), func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	err := f.Replace(path, strings.NewReader("old"), func() bool { return false })
	data, _ := os.ReadFile(path)
	left, _ := os.ReadDir(filepath.Dir(path))
	if fault.KindOf(err) != fault.Conflict || string(data) != "new" || len(left) != 1 {
		t.Errorf("%v: %q and %d files", err, data, len(left))
	}
}

// TestWhyAPlaceIsNotAvailable: the reason of a job says what its source knows,
// such as that the key of a host changed.
func TestWhyAPlaceIsNotAvailable(t *testing.T) {
	t.Parallel()
	p, _ := money.Parse("1")
	o := backend.OwnOffer("ssh", "box", machine.Host{CPUs: 4, MemoryBytes: 8e9}, p, false, "stated", "2026-03-01")
	o.Available, o.Note = offer.Some(false), "the host key of box has changed"
	w := newWorld(t, fake.Script{Seed: 1})
	spec, err := job.Parse("x.yml", []byte("name: x\nresources: {gpus: 0}\nrun: \"true\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := w.Chooser.Choose(spec, []control.Ready{{Backend: "ssh", Offer: o}}, nil, nil, time.Now(), w.Settings)
	if err != nil || len(c.Candidates) > 0 || !strings.Contains(c.Why, "not available now: the host key of box has changed") {
		t.Errorf("%v: %+v", err, c)
	}
}
