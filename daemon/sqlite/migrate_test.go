package sqlite

import (
	"bytes"
	"database/sql"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// realMigrations returns the embedded migrations up to a version and adds the files in more.
func realMigrations(t *testing.T, upTo int, more ...string) fstest.MapFS {
	t.Helper()
	files, err := fs.Glob(migrations, "migration/*.sql")
	must(t, err)
	fsys := fstest.MapFS{}
	for i, name := range files {
		if i < upTo || upTo < 0 {
			data, err := fs.ReadFile(migrations, name)
			must(t, err)
			fsys[filepath.Base(name)] = &fstest.MapFile{Data: data}
		}
	}
	for _, step := range more {
		fsys[stepName(len(fsys)+1)] = &fstest.MapFile{Data: []byte(step)}
	}
	return fsys
}

func stepName(n int) string { return fmt.Sprintf("%04d.sql", n) }

// raw opens the file at path without a store.
func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "rw"))
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func run(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.Exec(query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func schemaOf(t *testing.T, path string) (objects []string) {
	t.Helper()
	rows, err := raw(t, path).Query("SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY 1")
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var object string
		must(t, rows.Scan(&object))
		objects = append(objects, object)
	}
	must(t, rows.Err())
	return objects
}

// makeAt creates a database with the schema of a version, as that version of Caisson would.
func makeAt(t *testing.T, path string, migrations fs.FS) {
	t.Helper()
	d, err := openDB(t.Context(), path, migrations, nil, discard())
	must(t, err)
	must(t, d.close())
}

// TestMigrateFromEveryVersion upgrades a database with data in it from each older schema.
func TestMigrateFromEveryVersion(t *testing.T) {
	newest := len(realMigrations(t, -1))
	fresh := filepath.Join(t.TempDir(), "fresh.db")
	must(t, openTest(t, fresh).Close())
	want := schemaOf(t, fresh)
	for version := 1; version <= newest; version++ {
		path := filepath.Join(t.TempDir(), "caisson.db")
		makeAt(t, path, realMigrations(t, version))
		db := raw(t, path)
		run(t, db, `INSERT INTO sandbox (key, account, name, state, doc)
			VALUES ('sb-1', 'local', 'one', 'stopped', '{"id":"sb-1","account":"local","name":"one","state":"stopped"}')`)
		run(t, db, `INSERT INTO event (at, account, subject, doc) VALUES (1, 'local', 'sb-1', '{"type":"sandbox.stopped"}')`)
		must(t, db.Close())

		s := openTest(t, path)
		box, err := s.Sandboxes().Get(t.Context(), caisson.In("local"), "one")
		must(t, err)
		if box.ID != "sb-1" || box.State != caisson.Stopped {
			t.Errorf("from schema %d: %+v", version, box)
		}
		if last, err := s.Events().Last(t.Context()); err != nil || last != 1 {
			t.Errorf("from schema %d: last event %d, %v", version, last, err)
		}
		must(t, s.Close())
		if diff := cmp.Diff(want, schemaOf(t, path)); diff != "" {
			t.Errorf("from schema %d the schema is not that of a new database (-new +upgraded):\n%s", version, diff)
		}
	}
}

func TestMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	base := len(realMigrations(t, -1))
	must(t, openTest(t, path).Close())
	two := realMigrations(t, -1, "ALTER TABLE sandbox ADD COLUMN a TEXT; ALTER TABLE sandbox ADD COLUMN b TEXT", "CREATE TABLE c (d TEXT)")
	var log bytes.Buffer
	for range 2 { // The second time no migration is needed.
		c := testConfig(path)
		c.Log = logTo(&log)
		s, err := open(t.Context(), c, two)
		must(t, err)
		must(t, s.Close())
	}
	db := raw(t, path)
	run(t, db, "SELECT a, b, d FROM sandbox, c")
	if got := strings.Count(log.String(), "database upgraded"); got != 1 {
		t.Errorf("one upgrade was logged %d times: %s", got, log.String())
	}
	must(t, db.Close())

	before := contents(t, path)
	_, err := Open(t.Context(), testConfig(path))
	want := fmt.Sprintf("the data directory was written by a newer Caisson (schema %d, this build knows %d); upgrade caisson or use another --data", base+2, base)
	if caisson.KindOf(err) != caisson.Conflict || caisson.MessageOf(err) != want {
		t.Errorf("a newer schema: %v", err)
	}
	if !bytes.Equal(before, contents(t, path)) {
		t.Error("a database that was refused has changed")
	}
}

// TestMigrationFails tests that a failed step rolls back the steps before it.
func TestMigrationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	s := openTest(t, path)
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "one")))
	must(t, s.Close())
	before := schemaOf(t, path)
	bad := realMigrations(t, -1, "CREATE TABLE c (d TEXT)", "DELETE FROM sandbox; CREATE TABLE c (e TEXT)")
	if _, err := open(t.Context(), testConfig(path), bad); err == nil {
		t.Fatal("a migration that fails is no error")
	}
	if diff := cmp.Diff(before, schemaOf(t, path)); diff != "" {
		t.Errorf("a migration that failed left (-before +after):\n%s", diff)
	}
	_, err := openTest(t, path).Sandboxes().Get(t.Context(), caisson.In("local"), "one")
	must(t, err)
}

func TestMigrationNames(t *testing.T) {
	for _, names := range [][]string{{"0002.sql"}, {"0001.sql", "0003.sql"}, {"0001.sql", "0002.sql~"}, {"README", "0001.sql"}} {
		fsys := fstest.MapFS{}
		for _, name := range names {
			fsys[name] = &fstest.MapFile{}
		}
		if steps, err := loadMigrations(fsys); err == nil {
			t.Errorf("%v: %d steps", names, len(steps))
		}
	}
}

// TestRefuse opens files that are not a valid database of Caisson. Each must be rejected in one sentence, and left
// unchanged.
func TestRefuse(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.db")
	s := openTest(t, good)
	for range 200 {
		must(t, s.Sandboxes().Insert(t.Context(), sample("local", "")))
	}
	must(t, s.Close())
	sound := contents(t, good)
	foreign := func(query string) []byte {
		path := filepath.Join(t.TempDir(), "foreign.db")
		must(t, os.WriteFile(path, nil, 0o600))
		db := raw(t, path)
		run(t, db, query)
		must(t, db.Close())
		return contents(t, path)
	}
	damage := func(from, to int) []byte {
		b := slices.Clone(sound)
		for i := from; i < to; i++ {
			b[i] = byte(rand.Uint32())
		}
		return b
	}
	for name, content := range map[string][]byte{
		"text":            []byte(strings.Repeat("not a database\n", 1000)),
		"short text":      []byte("xy"),
		"other program":   foreign("CREATE TABLE t (x)"),
		"other id":        foreign("CREATE TABLE t (x); PRAGMA application_id = 77; PRAGMA user_version = 1"),
		"id, no version":  foreign("CREATE TABLE t (x); PRAGMA application_id = 1130457459"),
		"damaged header":  damage(0, 100),
		"damaged schema":  damage(100, 4096),
		"damaged page":    damage(8*4096, 9*4096),
		"half a database": sound[:len(sound)/2/4096*4096],
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "caisson.db")
			must(t, os.WriteFile(path, content, 0o600))
			s, err := Open(t.Context(), testConfig(path))
			if err == nil {
				s.Close()
				t.Fatal("was opened")
			}
			msg := caisson.MessageOf(err)
			if caisson.KindOf(err) != caisson.Conflict || strings.Contains(msg, "\n") || !strings.Contains(msg, "--data") {
				t.Errorf("refused with %q (%v)", msg, err)
			}
			if !bytes.Equal(content, contents(t, path)) {
				t.Error("what was refused has changed")
			}
		})
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}
