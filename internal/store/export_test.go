package store

import (
	"fmt"
	"testing"
	"time"
)

// MaxPages limits the file as a full disk does.
func (s *Store) MaxPages(t *testing.T, n int) {
	t.Helper()
	if _, err := s.write.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
		t.Fatal(err)
	}
}

// Patience is how long a change waits for another process.
func (s *Store) Patience(t *testing.T, d time.Duration) {
	t.Helper()
	if _, err := s.write.ExecContext(t.Context(), fmt.Sprintf("PRAGMA busy_timeout = %d", d.Milliseconds())); err != nil {
		t.Fatal(err)
	}
}
