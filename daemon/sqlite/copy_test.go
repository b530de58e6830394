package sqlite

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestCopy tests that a copy of a store that is written to meanwhile is a store of one instant, whose events can be verified.
func TestCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, into := filepath.Join(dir, "caisson.db"), filepath.Join(dir, "copy.db")
	s := openTest(t, path)
	stop, done := make(chan struct{}), make(chan error, 1)
	appendOne := func() error {
		return s.Events().Append(t.Context(), &caisson.Event{Account: "local", Subject: "sb-1", Type: "sandbox.stopped"})
	}
	must(t, appendOne())
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := appendOne(); err != nil {
				done <- err
				return
			}
		}
	}()
	must(t, os.WriteFile(into, nil, 0o600)) // An empty file may be there.
	schema, err := Copy(t.Context(), path, into)
	close(stop)
	must(t, err)
	must(t, <-done)
	if want := len(realMigrations(t, -1)); schema != want {
		t.Errorf("the schema is %d, not %d", schema, want)
	}
	if info, err := os.Stat(into); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy has mode %v, %v", info.Mode(), err)
	}
	if got, err := Check(t.Context(), into); err != nil || got != schema {
		t.Errorf("the copy has schema %d, %v", got, err)
	}
	c := openTest(t, into)
	r, err := c.Events().Verify(t.Context(), "")
	must(t, err)
	if r.Problem != "" || r.Events == 0 {
		t.Errorf("the copy: %+v", r)
	}
	_, err = Copy(t.Context(), path, into)
	if err == nil {
		t.Error("a database was overwritten")
	}
}

// TestCopyRefuses tests that what is no database of this build is not copied, and not changed.
func TestCopyRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, empty, newer := filepath.Join(dir, "text"), filepath.Join(dir, "empty"), filepath.Join(dir, "newer")
	must(t, os.WriteFile(text, []byte("no database, but text that is long enough"), 0o600))
	must(t, os.WriteFile(empty, nil, 0o600))
	must(t, openTest(t, newer).Close())
	db, err := sql.Open("sqlite", newer)
	must(t, err)
	run(t, db, "PRAGMA user_version = 9999")
	must(t, db.Close())
	for _, path := range []string{text, empty, newer} {
		before := contents(t, path)
		_, err := Copy(t.Context(), path, filepath.Join(dir, "copy"))
		if caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("a copy of %s: %v", filepath.Base(path), err)
		}
		if _, err := Check(t.Context(), path); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("a check of %s: %v", filepath.Base(path), err)
		}
		if string(before) != string(contents(t, path)) {
			t.Errorf("%s has changed", filepath.Base(path))
		}
	}
	if _, err := Copy(t.Context(), filepath.Join(dir, "none"), filepath.Join(dir, "copy")); err == nil {
		t.Error("nothing was copied")
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a database was made: %v", err)
	}
}
