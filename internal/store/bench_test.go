package store_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/internal/store/storetest"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// open makes a fresh state.
func open(tb testing.TB) (*store.Store, string) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "state.db")
	s, err := store.Open(tb.Context(), path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s, path
}

func BenchmarkOpenFresh(b *testing.B) {
	dir := b.TempDir()
	for i := range b.N {
		s, err := store.Open(b.Context(), filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Close()
		b.StartTimer()
	}
}

func BenchmarkOpenExisting(b *testing.B) {
	s, path := open(b)
	_ = s.Close()
	for b.Loop() {
		s, err := store.Open(b.Context(), path)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Close()
		b.StartTimer()
	}
}

func BenchmarkOpenClose(b *testing.B) {
	s, path := open(b)
	_ = s.Close()
	for b.Loop() {
		s, err := store.Open(b.Context(), path)
		if err != nil {
			b.Fatal(err)
		}
		_ = s.Close()
	}
}

func BenchmarkSubmitOne(b *testing.B) {
	s, _ := open(b)
	id := int64(0)
	for b.Loop() {
		id++
		c := &record.Changes{Jobs: []*job.Job{storetest.Job(id)}}
		if err := s.Apply(b.Context(), 0, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSubmit1000(b *testing.B) {
	s, _ := open(b)
	id := int64(0)
	for b.Loop() {
		c := &record.Changes{}
		for range 1000 {
			id++
			c.Jobs = append(c.Jobs, storetest.Job(id))
		}
		if err := s.Apply(b.Context(), 0, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate2000Attempts(b *testing.B) {
	s, _ := open(b)
	c := &record.Changes{}
	for i := range int64(2000) {
		c.Attempts = append(c.Attempts, storetest.Attempt(i+1, 1, machine.Assigned))
	}
	if err := s.Apply(b.Context(), 0, c); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.Apply(b.Context(), 0, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList20000Jobs(b *testing.B) {
	s, _ := open(b)
	c := &record.Changes{}
	for i := range int64(20000) {
		j := storetest.Job(i + 1)
		j.State, j.Ended = job.Done, j.Submitted.Add(time.Hour)
		c.Jobs = append(c.Jobs, j)
	}
	if err := s.Apply(b.Context(), 0, c); err != nil {
		b.Fatal(err)
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			all, err := s.Jobs(b.Context(), record.JobFilter{})
			if err != nil || len(all) != 20000 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("newest 20", func(b *testing.B) {
		for b.Loop() {
			if all, err := s.Jobs(b.Context(), record.JobFilter{Project: "default", Limit: 20}); err != nil || len(all) != 20 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("live beside them", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Changed(b.Context(), 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkNothingNew(b *testing.B) {
	s, _ := open(b)
	if err := s.Apply(b.Context(), 0, &record.Changes{Jobs: []*job.Job{storetest.Job(1)}}); err != nil {
		b.Fatal(err)
	}
	seq, err := s.Version(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Version", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Version(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Changed", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Changed(b.Context(), seq); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkChanged2000Attempts(b *testing.B) {
	s, _ := open(b)
	c := &record.Changes{}
	for i := range int64(2000) {
		c.Attempts = append(c.Attempts, storetest.Attempt(i+1, 1, machine.Started))
	}
	if err := s.Apply(b.Context(), 0, c); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if d, err := s.Changed(b.Context(), 0); err != nil || len(d.Attempts) != 2000 {
			b.Fatal(err)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	s, _ := open(b)
	now := time.Now()
	for b.Loop() {
		if _, mine, err := s.Acquire(b.Context(), "a", now, time.Second); err != nil || !mine {
			b.Fatal(err)
		}
	}
}
