// Package sqlitetest creates stores for tests as copies of one empty database with the newest schema, so that tests
// need not run the migrations.
package sqlitetest

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite"
)

// empty returns the content of the file of an empty database with the newest schema. It creates the database on the first call.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sqlitetest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "caisson.db")
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, AuditKey: auditKey(true)})
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// auditKey returns a function for Config.AuditKey. It returns the key of all databases of this package; made says whether it
// reports that the key was just created.
func auditKey(made bool) func() (caisson.Secret, bool, error) {
	return func() (caisson.Secret, bool, error) { return caisson.NewSecret(strings.Repeat("k", 32)), made, nil }
}

// Put writes an empty database and its audit key to dir, the data directory of a daemon.
func Put(dir string) error {
	data, err := empty()
	if err != nil {
		return err
	}
	key := hex.EncodeToString([]byte(strings.Repeat("k", 32)))
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "audit.key"), []byte(key+"\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "caisson.db"), data, 0o600),
	)
}

// New returns an empty store in a temporary directory of the test. The store is closed when the test ends, after the cleanup
// functions that the test registers after this call; the test may also close it earlier.
func New(t testing.TB) *sqlite.Store {
	t.Helper()
	data, err := empty()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "caisson.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path, AuditKey: auditKey(false)})
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
