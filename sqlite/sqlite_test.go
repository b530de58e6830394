package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/storetest"
)

func TestStore(t *testing.T) {
	storetest.Test(t, func(t *testing.T) caisson.Store { return openTest(t, filepath.Join(t.TempDir(), "caisson.db")) })
}

// openTest opens the store at path until the test ends.
func openTest(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
