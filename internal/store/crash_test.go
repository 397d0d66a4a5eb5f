package store_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/internal/store/storetest"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/tenant"
)

// TestMain lets the tests start this program as other processes on a state.
func TestMain(m *testing.M) {
	parts := map[string]func(string) error{"write": write, "open": openMany, "count": count}
	part, path, ok := strings.Cut(os.Getenv("STORE_CHILD"), ":")
	if !ok {
		os.Exit(m.Run())
	}
	if err := parts[part](path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child starts this program as another process; lines are what it says.
func child(t *testing.T, part, path string) (cmd *exec.Cmd, lines *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), "STORE_CHILD="+part+":"+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

// write makes changes for ever, each of a row of every table, and says the
// number of a job when its change was promised to be on disk.
func write(path string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, path)
	if err != nil {
		return err
	}
	for {
		id, err := s.NextJobs(ctx, 1)
		if err != nil {
			return err
		}
		j := storetest.Job(id)
		u, c := storetest.Usage(fmt.Sprint(id), id, 0)
		if err := s.Apply(ctx, 0, &record.Changes{Jobs: []*job.Job{j}, Attempts: []*machine.Attempt{storetest.Attempt(id, 1, machine.Over)}, Counters: []record.Counter{{Key: "jobs", Add: 1}},
			Usage: []ledger.Usage{u}, Charges: []ledger.Charge{c}, Events: []tenant.Event{{Job: id, What: "submitted"}}}); err != nil {
			return err
		}
		j.State = job.Done
		if err := s.Apply(ctx, 0, &record.Changes{Jobs: []*job.Job{j}, Counters: []record.Counter{{Key: "done", Add: 1}}}); err != nil {
			return err
		}
		fmt.Println(id)
	}
}

// TestKill kills a process in the middle of its changes, again and again: what
// it said to be written is there, and nothing is half there.
func TestKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	promised := map[int64]bool{}
	chance := rand.New(rand.NewPCG(1, 2))
	for round := range 12 {
		cmd, lines := child(t, "write", path)
		stop := time.Duration(-1)
		for lines.Scan() {
			id, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			promised[id] = true
			if stop < 0 { // it writes: kill it somewhere in the next changes
				stop = time.Duration(chance.IntN(30_000)) * time.Microsecond
				time.AfterFunc(stop, func() { _ = cmd.Process.Kill() })
			}
		}
		_ = cmd.Wait()
		if stop < 0 {
			t.Fatal("the other process wrote nothing")
		}
		whole(t, path, promised, round)
	}
}

// whole checks a state after its writer was killed.
func whole(t *testing.T, path string, promised map[int64]bool, round int) {
	t.Helper()
	s, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	jobs, err := s.Jobs(t.Context(), record.JobFilter{})
	if err != nil {
		t.Fatal(err)
	}
	done := 0
	there := map[int64]bool{}
	for _, j := range jobs {
		there[j.ID] = true
		if j.State == job.Done {
			done++
		} else if promised[j.ID] {
			t.Errorf("round %d: job %d lost its second change", round, j.ID)
		}
		if a, err := s.Attempts(t.Context(), j.ID); err != nil || len(a) != 1 {
			t.Errorf("round %d: job %d has %d attempts, %v", round, j.ID, len(a), err)
		}
	}
	for id := range promised {
		if !there[id] {
			t.Errorf("round %d: job %d is lost", round, id)
		}
	}
	entries, err1 := s.Ledger(t.Context(), record.LedgerFilter{})
	trail, err2 := s.Events(t.Context(), record.EventFilter{})
	all, err3 := s.Counter(t.Context(), "jobs")
	ended, err4 := s.Counter(t.Context(), "done")
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	if n := len(jobs); len(entries) != n || len(trail) != n || int(all) != n || int(ended) != done {
		t.Errorf("round %d: %d jobs, %d done, but %d usages, %d events, counters %d and %d", round, n, done, len(entries), len(trail), all, ended)
	}
	for _, e := range entries {
		if e.Charge.Key != e.Key {
			t.Errorf("round %d: usage %s has no charge", round, e.Key)
		}
	}
	sound(t, path)
}

// sound asks SQLite whether the file is whole.
func sound(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var said string
	if err := db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&said); err != nil || said != "ok" {
		t.Fatalf("the file is damaged: %s %v", said, err)
	}
}

// openMany makes one new state after the other.
func openMany(dir string) error {
	for i := 0; ; i++ {
		fmt.Println(i)
		s, err := store.Open(context.Background(), filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return err
		}
		_ = s.Close()
	}
}

// TestKilledAtBirth kills a process that makes states: the next one completes
// what it left.
func TestKilledAtBirth(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(3, 4))
	for range 15 {
		dir := t.TempDir()
		cmd, lines := child(t, "open", dir)
		if !lines.Scan() {
			t.Fatal("the other process did nothing")
		}
		time.Sleep(time.Duration(chance.IntN(25_000)) * time.Microsecond)
		_ = cmd.Process.Kill()
		last := lines.Text()
		for lines.Scan() {
			last = lines.Text()
		}
		_ = cmd.Wait()
		path := filepath.Join(dir, last)
		s, err := store.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Plane(t.Context())
		if err != nil || p.ID == "" || p.Epoch != 1 {
			t.Errorf("the plane is %+v, %v", p, err)
		}
		if _, err := s.Member(t.Context(), tenant.DefaultProject, tenant.DefaultMember); err != nil {
			t.Error(err)
		}
		if err := s.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{storetest.Job(1)}}); err != nil {
			t.Error(err)
		}
		_ = s.Close()
		sound(t, path)
	}
}

// counts is how often each of the other processes adds, of which limit succeed.
const counts, limit = 100, 230

func count(path string) error {
	ctx := context.Background()
	s, err := store.Open(ctx, path) // all of them at once, on a state that is not there
	if err != nil {
		return err
	}
	defer s.Close()
	for range counts {
		id, err := s.NextJobs(ctx, 1)
		if err != nil {
			return err
		}
		err = s.Apply(ctx, 0, &record.Changes{Jobs: []*job.Job{storetest.Job(id)}, Counters: []record.Counter{{Key: "held", Add: 1, Limit: limit}}})
		switch {
		case err == nil:
			fmt.Println(id)
		case fault.KindOf(err) != fault.OverLimit:
			return err
		}
	}
	return nil
}

// TestProcesses lets several processes make one state at once and then pass a
// limit together.
func TestProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	var mu sync.Mutex
	got := map[string]bool{}
	var all sync.WaitGroup
	for range 4 {
		cmd, lines := child(t, "count", path)
		all.Go(func() {
			for lines.Scan() {
				mu.Lock()
				if got[lines.Text()] {
					t.Errorf("job %s was given twice", lines.Text())
				}
				got[lines.Text()] = true
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("another process: %v", err)
			}
		})
	}
	all.Wait()
	s, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held, err := s.Counter(t.Context(), "held")
	if err != nil || held != limit || len(got) != limit {
		t.Errorf("the counter is %d, %d got in, want %d; %v", held, len(got), limit, err)
	}
}

// TestNewProcesses opens one new state from many goroutines at once.
func TestNewProcesses(t *testing.T) {
	t.Parallel()
	for range 2 {
		path := filepath.Join(t.TempDir(), "state.db")
		var all sync.WaitGroup
		planes := make([]record.Plane, 8)
		for i := range planes {
			all.Go(func() {
				s, err := store.Open(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				if planes[i], err = s.Plane(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, p := range planes {
			if p != planes[0] {
				t.Errorf("one state is two planes: %v", planes)
			}
		}
	}
}

// TestPrivate checks that only its owner reads a state.
func TestPrivate(t *testing.T) {
	t.Parallel()
	s, path := open(t)
	if err := s.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{storetest.Job(1)}}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if x, err := os.Stat(f); err != nil || x.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", filepath.Base(f), x.Mode(), err)
		}
	}
}

// TestNotAState opens what is no state, or cannot be one.
func TestNotAState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("these are not the rows you look for\n", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer")
	s, err := store.Open(t.Context(), newer)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	db, err := sql.Open("sqlite", newer)
	if err == nil {
		_, err = db.ExecContext(t.Context(), "UPDATE meta SET value = '10' WHERE name = 'schema'")
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
	for path, want := range map[string]struct {
		kind fault.Kind
		word string
	}{
		text:                              {fault.Internal, "damaged"},
		newer:                             {fault.Conflict, "newer destajo"},
		filepath.Join(dir, "no", "state"): {fault.Internal, "no such file"},
		dir:                               {fault.Internal, "cannot be read"},
	} {
		s, err := store.Open(t.Context(), path)
		if err == nil {
			_ = s.Close()
		}
		if fault.KindOf(err) != want.kind || err == nil || !strings.Contains(err.Error(), want.word) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}

// fill writes until the state has no room and checks that this was said, that
// nothing is half there, and that it goes on when there is room again.
func fill(t *testing.T, s *store.Store, path string, room func()) {
	t.Helper()
	ctx := t.Context()
	id, made := int64(0), 0
	var err error
	for err == nil && id < 100_000 {
		c := &record.Changes{Counters: []record.Counter{{Key: "jobs", Add: 50}}}
		for range 50 {
			id++
			c.Jobs = append(c.Jobs, storetest.Job(id))
		}
		if err = s.Apply(ctx, 0, c); err == nil {
			made += 50
		}
	}
	if fault.KindOf(err) != fault.Internal || err == nil || !strings.Contains(err.Error(), "the disk of the state is full") || fault.HintOf(err) == "" {
		t.Fatalf("a full disk: %v", err)
	}
	check := func() {
		t.Helper()
		n, err := s.Counter(ctx, "jobs")
		jobs, err2 := s.Jobs(ctx, record.JobFilter{})
		if err != nil || err2 != nil || len(jobs) != made || int(n) != made {
			t.Fatalf("%d jobs and %d counted, want %d; %v %v", len(jobs), n, made, err, err2)
		}
	}
	check()
	room()
	if err := s.Apply(ctx, 0, &record.Changes{Jobs: []*job.Job{storetest.Job(id + 1)}, Counters: []record.Counter{{Key: "jobs", Add: 1}}}); err != nil {
		t.Fatalf("there is room again: %v", err)
	}
	made++
	check()
	_ = s.Close()
	sound(t, path)
}

// TestNoMorePages gives the state a limit of pages, which SQLite treats as a
// full disk.
func TestNoMorePages(t *testing.T) {
	t.Parallel()
	s, path := open(t)
	s.MaxPages(t, 300)
	fill(t, s, path, func() { s.MaxPages(t, 1<<30) })
}

// TestBusy lets another process hold the state for longer than anyone waits.
func TestBusy(t *testing.T) {
	t.Parallel()
	s, path := open(t)
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	s.Patience(t, 20*time.Millisecond)
	err = s.Apply(t.Context(), 0, &record.Changes{Jobs: []*job.Job{storetest.Job(1)}})
	if fault.KindOf(err) != fault.Internal || err == nil || !strings.Contains(err.Error(), "another process held the state") || fault.HintOf(err) == "" {
		t.Errorf("a held state: %v", err)
	}
	if jobs, err := s.Jobs(t.Context(), record.JobFilter{}); err != nil || len(jobs) != 0 { // who reads does not wait
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
}
