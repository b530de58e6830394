package sqlite

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func day(n int) time.Time { return time.Date(2026, 3, n, 12, 0, 0, 0, time.UTC) }

// record creates a store with the events 1 to 20, one a day, and trims the first five and the tenth.
func record(t *testing.T, path string) *Store {
	t.Helper()
	s := openTest(t, path)
	for i := 1; i <= 20; i++ {
		at := day(i)
		if i == 10 {
			at = day(2)
		}
		must(t, s.Events().Append(t.Context(), &caisson.Event{
			At: at, Account: fmt.Sprint("a", i%2), Type: "test.happened", Subject: "x", Actor: "local", Data: map[string]string{"n": fmt.Sprint(i)},
		}))
	}
	n, err := s.Events().Trim(t.Context(), day(6))
	must(t, err)
	if n != 6 {
		t.Fatalf("%d events were trimmed", n)
	}
	return s
}

func verify(t *testing.T, s *Store, head string) *caisson.AuditReport {
	t.Helper()
	r, err := s.Events().Verify(t.Context(), head)
	must(t, err)
	return r
}

// tampering lists changes that can be made to the file without the key.
var tampering = []struct {
	name, sql string
	want      string // Part of the problem that is found at once.
}{
	{"an edited document", `UPDATE event SET doc = replace(doc, '"n":"12"', '"n":"99"') WHERE seq = 12`, "event 12 is not what was written"},
	{"an actor taken out", `UPDATE event SET doc = replace(doc, '"actor":"local",', '') WHERE seq = 12`, "event 12 is not"},
	{"another time", `UPDATE event SET at = at - 1 WHERE seq = 12`, "event 12 is not"},
	{"a time before the next trimming", `UPDATE event SET at = 1 WHERE seq = 12`, "event 12 is not"},
	{"another account", `UPDATE event SET account = 'b' WHERE seq = 12`, "event 12 is not"},
	{"another subject", `UPDATE event SET subject = 'y' WHERE seq = 12`, "event 12 is not"},
	{"parts cut differently", `UPDATE event SET account = account || 'x', subject = '' WHERE seq = 12`, "event 12 is not"},
	{"another hash", `UPDATE event SET hash = randomblob(32) WHERE seq = 12`, "event 12 is not"},
	{"no hash", `UPDATE event SET hash = x''`, "event 6 is not"},
	{"the first removed", `DELETE FROM event WHERE seq = 6`, "event 6 is missing"},
	{"one removed", `DELETE FROM event WHERE seq = 12`, "event 12 is missing"},
	{"some removed", `DELETE FROM event WHERE seq BETWEEN 12 AND 14`, "the events 12 to 14 are missing"},
	{"one removed and others moved up", `DELETE FROM event WHERE seq = 12; UPDATE event SET seq = seq - 1 WHERE seq > 12`, "event 12 is not"},
	{"the last removed", `DELETE FROM event WHERE seq = 20`, "event 20 is missing"},
	{"the last removed without a trace", `DELETE FROM event WHERE seq > 18; UPDATE sqlite_sequence SET seq = 18 WHERE name = 'event'`, "the events 19 to 20 are missing"},
	{"the last removed and the end moved back", `DELETE FROM event WHERE seq > 18; UPDATE sqlite_sequence SET seq = 18 WHERE name = 'event';
		UPDATE event_head SET seq = 18, hash = (SELECT hash FROM event WHERE seq = 18)`, "the end of the audit log was changed"},
	{"all removed", `DELETE FROM event`, "the events 6 to 9 are missing"},
	{"all removed, and that there were any", `DELETE FROM event; DELETE FROM event_gap; DELETE FROM event_head; DELETE FROM sqlite_sequence`, "the end of the audit log is missing"},
	{"all removed, as if trimmed", `DELETE FROM event; UPDATE event_gap SET last = 20 WHERE first = 10`, "were trimmed was changed"},
	{"two exchanged", `UPDATE event SET seq = -1 WHERE seq = 12; UPDATE event SET seq = 12 WHERE seq = 13; UPDATE event SET seq = 13 WHERE seq = -1`, "event 12 is not"},
	{"two exchanged with their hashes in place", `UPDATE event SET doc = (SELECT doc FROM event e WHERE e.seq = 25 - event.seq) WHERE seq IN (12, 13)`, "event 12 is not"},
	{"one added at the end", `INSERT INTO event (at, account, subject, doc, hash) SELECT at, account, subject, doc, hash FROM event WHERE seq = 20`, "event 21 is not"},
	{"one added at the end, with the end", `INSERT INTO event (at, account, subject, doc, hash) SELECT at, account, subject, doc, randomblob(32) FROM event WHERE seq = 20;
		UPDATE event_head SET seq = 21, hash = (SELECT hash FROM event WHERE seq = 21)`, "the end of the audit log was changed"},
	{"one added where others were trimmed", `INSERT INTO event (seq, at, account, subject, doc, hash) SELECT 3, at, account, subject, doc, hash FROM event WHERE seq = 20`, "event 3 was added where"},
	{"one added before everything", `INSERT INTO event (seq, at, account, subject, doc, hash) SELECT -3, at, account, subject, doc, hash FROM event WHERE seq = 20`, "event -3 was added"},
	{"the end missing", `DELETE FROM event_head`, "the end of the audit log is missing"},
	{"the end moved on", `UPDATE event_head SET seq = 21`, "the end of the audit log was changed"},
	{"the end unsealed", `UPDATE event_head SET mac = x''`, "the end of the audit log was changed"},
	{"a flaw put in", `UPDATE event_head SET flaw = 'x'`, "the end of the audit log was changed"},
	{"a gap missing", `DELETE FROM event_gap WHERE first = 10`, "event 10 is missing"},
	{"a gap wider", `UPDATE event_gap SET last = 6 WHERE first = 1`, "that the events 1 to 6 were trimmed was changed"},
	{"a gap wider and one removed", `DELETE FROM event WHERE seq = 11; UPDATE event_gap SET last = 11, hash = (SELECT hash FROM event WHERE seq = 12) WHERE first = 10`, "that the events 10 to 11 were trimmed was changed"},
	{"another anchor", `UPDATE event_gap SET hash = randomblob(32) WHERE first = 1`, "that the events 1 to 5 were trimmed was changed"},
	{"a gap of elsewhere", `INSERT INTO event_gap SELECT first + 100, last + 100, hash, mac FROM event_gap WHERE first = 10`, "that the events 110 to 110 were trimmed was changed"},
}

// TestPromise8ChainShowsTampering makes each change that is possible without the key, and tests that it is detected at
// once, after the daemon has continued the record, and after the daemon has trimmed the changed events.
func TestPromise8ChainShowsTampering(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.db")
	s := record(t, good)
	if r := verify(t, s, ""); r.Problem != "" || r.Events != 14 || r.First != 6 || r.Last != 20 {
		t.Fatalf("before tampering: %+v", r)
	}
	must(t, s.Close())
	for _, tt := range tampering {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "caisson.db")
			must(t, os.WriteFile(path, contents(t, good), 0o600))
			s, err := Open(t.Context(), testConfig(path))
			must(t, err)
			must(t, s.Close())
			db, err := sql.Open("sqlite", "file:"+path) // Without _defensive, like an intruder.
			must(t, err)
			run(t, db, tt.sql)
			must(t, db.Close())

			s = openTest(t, path)
			if r := verify(t, s, ""); !strings.Contains(r.Problem, tt.want) {
				t.Errorf("at once: %+v, want %q", r, tt.want)
			}
			must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(25), Account: "a", Type: "test.later"}))
			if r := verify(t, s, ""); r.Problem == "" {
				t.Errorf("hidden by another event: %+v", r)
			}
			for _, before := range []time.Time{day(11), day(14), day(28)} {
				if _, err := s.Events().Trim(t.Context(), before); err != nil {
					t.Fatal(err)
				}
				if r := verify(t, s, ""); r.Problem == "" {
					t.Errorf("hidden by trimming up to %v: %+v", before, r)
				}
			}
			must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(25), Account: "a", Type: "test.later"}))
			if r := verify(t, s, ""); r.Problem == "" {
				t.Errorf("hidden at last: %+v", r)
			}
		})
	}
}

// TestPromise8OtherDatabase replaces the record by another database.
func TestPromise8OtherDatabase(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "caisson.db")
	s := record(t, path)
	early := verify(t, s, "").Head
	must(t, s.Close())
	old := contents(t, path)
	s = openTest(t, path)
	for range 3 {
		must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(21), Account: "a"}))
	}
	late := verify(t, s, early)
	must(t, s.Close())
	if late.Problem != "" || late.Last != 23 {
		t.Fatalf("the record: %+v", late)
	}

	t.Run("an older copy", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "caisson.db")
		must(t, os.WriteFile(path, old, 0o600))
		s := openTest(t, path)
		if r := verify(t, s, late.Head); !strings.Contains(r.Problem, "put back to an earlier one") {
			t.Errorf("at once: %+v", r)
		}
		if r := verify(t, s, early); r.Problem != "" {
			t.Errorf("the copy itself: %+v", r)
		}
		for range 10 { // The copy grows beyond it.
			must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(21), Account: "b"}))
		}
		if r := verify(t, s, late.Head); !strings.Contains(r.Problem, "the audit log was replaced") {
			t.Errorf("later: %+v", r)
		}
	})
	t.Run("one with another key", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "caisson.db")
		c := testConfig(path)
		c.AuditKey = auditKey("z", true)
		s, err := Open(t.Context(), c)
		must(t, err)
		must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(21), Account: "b"}))
		must(t, s.Close())
		var log bytes.Buffer
		c = testConfig(path)
		c.Log = logTo(&log)
		s, err = Open(t.Context(), c)
		must(t, err)
		defer s.Close()
		if r := verify(t, s, ""); !strings.Contains(r.Problem, "the key is not the one") || r.Head != "" {
			t.Errorf("%+v", r)
		}
		if !strings.Contains(log.String(), "tampered") {
			t.Errorf("opening it logged %q", log.String())
		}
	})
	t.Run("a new one", func(t *testing.T) {
		s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
		if r := verify(t, s, late.Head); !strings.Contains(r.Problem, "put back to an earlier one") {
			t.Errorf("%+v", r)
		}
	})
}

// TestPromise8EarlierEvents covers events that were recorded before the chain existed.
func TestPromise8EarlierEvents(t *testing.T) {
	upgrade := func(t *testing.T, made bool, tamper string) *caisson.AuditReport {
		path := filepath.Join(t.TempDir(), "caisson.db")
		makeAt(t, path, realMigrations(t, chainSchema-1))
		db := raw(t, path)
		for i := 1; i <= 12; i++ {
			run(t, db, fmt.Sprintf(`INSERT INTO event (at, account, subject, doc) VALUES (%d, 'a', 'x', '{"type":"test.happened"}')`, i))
		}
		run(t, db, `DELETE FROM event WHERE seq IN (1, 2, 5, 12)`) // Trimmed.
		must(t, db.Close())
		c := testConfig(path)
		c.AuditKey = auditKey("k", made)
		s, err := Open(t.Context(), c)
		must(t, err)
		must(t, s.Events().Append(t.Context(), &caisson.Event{At: day(1), Account: "a"}))
		must(t, s.Close())
		db = raw(t, path)
		if tamper != "" {
			run(t, db, tamper)
		}
		must(t, db.Close())
		return verify(t, openTest(t, path), "")
	}
	if r := upgrade(t, true, ""); r.Problem != "" || r.Events != 9 || r.First != 3 || r.Last != 13 {
		t.Errorf("after the upgrade: %+v", r)
	}
	for tamper, want := range map[string]string{
		`UPDATE event SET doc = '{}' WHERE seq = 4`:    "event 4 is not",
		`DELETE FROM event WHERE seq = 6`:              "event 6 is missing",
		`DELETE FROM event_gap WHERE last = 2`:         "the events 1 to 2 are missing",
		`UPDATE event SET seq = 5 WHERE seq = 4`:       "event 4 is missing",
		`UPDATE event_gap SET last = 6 WHERE last = 5`: "were trimmed was changed",
	} {
		if r := upgrade(t, true, tamper); !strings.Contains(r.Problem, want) {
			t.Errorf("%s: %+v, want %q", tamper, r, want)
		}
	}
	// The chain was removed and the schema version lowered, so that an upgrade starts a new chain.
	if r := upgrade(t, false, ""); !strings.Contains(r.Problem, "started again") {
		t.Errorf("an old key without a chain: %+v", r)
	}
}

func TestAuditKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	for name, key := range map[string]func() (caisson.Secret, bool, error){
		"none":  nil,
		"empty": func() (caisson.Secret, bool, error) { return caisson.Secret{}, true, nil },
		"short": func() (caisson.Secret, bool, error) { return caisson.NewSecret("short"), true, nil },
	} {
		if _, err := Open(t.Context(), Config{Path: path, AuditKey: key}); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a database was made without a key")
	}
}

func BenchmarkVerify(b *testing.B) {
	s := benchStore(b)
	tx, err := s.db.writer.Begin()
	if err != nil {
		b.Fatal(err)
	}
	h := head{hash: rootHash()}
	for range 10_000 {
		l := storedEvent{seq: h.seq + 1, at: 1, account: "local", subject: "sb-aaaaaaaaaaaaaaaa", doc: []byte(`{"type":"sandbox.running"}`)}
		h.seq, h.hash = l.seq, s.events.chain.next(h.hash, &l)
		if _, err := tx.Stmt(s.events.insert).Exec(l.seq, l.at, l.account, l.subject, string(l.doc), h.hash); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.events.storeHead(b.Context(), tx, h); err != nil {
		b.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := s.Events().Verify(b.Context(), "")
		if err != nil || r.Problem != "" || r.Events != 10_000 {
			b.Fatal(r, err)
		}
	}
}
