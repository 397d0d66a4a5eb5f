package store_test

import (
	"path/filepath"
	"testing"

	"github.com/destajo/destajo/internal/store"
	"github.com/destajo/destajo/internal/store/storetest"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(tb testing.TB) func() *store.Store {
		path := filepath.Join(tb.TempDir(), "a state? #1 50%.db") // names that a URI would read as something else
		return func() *store.Store {
			s, err := store.Open(tb.Context(), path)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = s.Close() })
			return s
		}
	})
}
