package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// testConfig returns the configuration of a store at path with a new key for the record of events.
func testConfig(path string) Config { return Config{Path: path, AuditKey: auditKey("k", true)} }

// auditKey returns a key that consists of the given character.
func auditKey(c string, made bool) func() (caisson.Secret, bool, error) {
	return func() (caisson.Secret, bool, error) { return caisson.NewSecret(strings.Repeat(c, keySize)), made, nil }
}

// openTest opens the store at path until the test ends.
func openTest(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), testConfig(path))
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

// must fails the test unless err is nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReopen(t *testing.T) {
	// A path may contain characters that are special in a URL.
	path := filepath.Join(t.TempDir(), "a?b=c&d#e %41;", "caisson.db")
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	ctx, in := t.Context(), caisson.In("team")
	s := openTest(t, path)
	box := sample("team", "one")
	must(t, s.Sandboxes().Insert(ctx, box))
	acc, err := s.Accounts().Ensure(ctx, "team")
	must(t, err)
	_, err = s.Answers().Begin(ctx, "team", "k", [32]byte{1}, time.Now())
	must(t, err)
	must(t, s.Answers().Finish(ctx, "team", "k", []byte("answer")))
	must(t, s.Tokens().Insert(ctx, &caisson.Token{ID: "tk-1", Account: "team"}, [32]byte{1}))
	event := caisson.Event{Account: "team", At: time.Now()}
	must(t, s.Events().Append(ctx, &event))
	must(t, s.Close())
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(path + suffix); err == nil {
			t.Errorf("%s is left behind", suffix)
		}
	}

	s = openTest(t, path)
	got, err := s.Sandboxes().Get(ctx, in, "one")
	must(t, err)
	if diff := cmp.Diff(box, got); diff != "" {
		t.Errorf("sandbox (-want +got):\n%s", diff)
	}
	again, err := s.Accounts().Ensure(ctx, "team")
	must(t, err)
	if !cmp.Equal(acc, again) {
		t.Errorf("the account was %+v and is %+v", acc, again)
	}
	other, err := s.Accounts().Ensure(ctx, "other")
	must(t, err)
	if other.UIDBase != acc.UIDBase+caisson.UIDRange {
		t.Errorf("uids from %#x were given after %#x", other.UIDBase, acc.UIDBase)
	}
	answer, err := s.Answers().Begin(ctx, "team", "k", [32]byte{1}, time.Now())
	must(t, err)
	if string(answer) != "answer" {
		t.Errorf("the answer is %q", answer)
	}
	_, err = s.Tokens().Find(ctx, [32]byte{1}, time.Now())
	must(t, err)
	last, err := s.Events().Last(ctx)
	must(t, err)
	if last != event.Seq {
		t.Errorf("the last event is %d, want %d", last, event.Seq)
	}
}

// TestDurable checks the two settings without which a power failure loses acknowledged writes, since a test cannot cut
// the power.
func TestDurable(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "foreign_keys": "1"} {
		var got string
		must(t, s.db.writer.QueryRow("PRAGMA "+pragma).Scan(&got))
		if got != want {
			t.Errorf("%s is %s on the writer, want %s", pragma, got, want)
		}
	}
	if _, err := s.db.reader.Exec("DELETE FROM event"); err == nil {
		t.Error("a reader can write")
	}
}

func TestFiles(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "caisson.db")
	check := func(want int) {
		t.Helper()
		files, err := os.ReadDir(dir)
		must(t, err)
		if len(files) != want {
			t.Errorf("%d files, want %d: %v", len(files), want, files)
		}
		for _, f := range files {
			info, err := f.Info()
			must(t, err)
			if info.Mode() != 0o600 {
				t.Errorf("%s has the mode %v", f.Name(), info.Mode())
			}
		}
	}
	s := openTest(t, path)
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "")))
	check(3)
	must(t, s.Close())
	must(t, os.Chmod(path, 0o664))
	s = openTest(t, path)
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "")))
	check(3)

	link := filepath.Join(dir, "link.db")
	must(t, os.Symlink(path, link))
	if _, err := Open(t.Context(), testConfig(link)); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("opened a symbolic link: %v", err)
	}
	if _, err := Open(t.Context(), testConfig(dir)); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("opened a directory: %v", err)
	}
	if _, err := Open(t.Context(), testConfig(filepath.Join(dir, "no", "caisson.db"))); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("opened in no directory: %v", err)
	}
	if _, err := Open(t.Context(), testConfig("")); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("opened no path: %v", err)
	}
}

// TestUIDsUsedUp inserts the last range into the table directly, because creating 7935 accounts takes seconds.
func TestUIDsUsedUp(t *testing.T) {
	s, ctx := openTest(t, filepath.Join(t.TempDir(), "caisson.db")), t.Context()
	_, err := s.db.writer.Exec(`INSERT INTO account VALUES ('filler', ?, '{}')`, lastUID+1-2*caisson.UIDRange)
	must(t, err)
	acc, err := s.Accounts().Ensure(ctx, "last")
	must(t, err)
	if end := acc.UIDBase + caisson.UIDRange - 1; end != lastUID || end >= caisson.LayerUIDBase {
		t.Errorf("the last account ends at %#x", end)
	}
	if _, err := s.Accounts().Ensure(ctx, "more"); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("an account without uids: %v", err)
	}
	if _, err := s.db.writer.Exec(`DELETE FROM account`); err == nil {
		t.Error("accounts can be deleted, so their uids could be given again")
	}
}

// TestPlans checks that frequent queries use an index: their cost must not grow with the data of other accounts.
func TestPlans(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
	must(t, s.Sandboxes().Insert(t.Context(), &caisson.Sandbox{ID: "sb-1", Account: "local"}))
	page, err := s.sandboxes.query(t.Context(), caisson.In("local"), caisson.Filter{After: "sb-1"})
	must(t, err)
	names, err := s.images.query(t.Context(), caisson.In("local"), caisson.Filter{After: "host"})
	must(t, err)
	runs := func(in caisson.Scope, f caisson.RunFilter) string {
		t.Helper()
		f.Limit = 10
		q, err := s.runs.query(t.Context(), in, f)
		must(t, err)
		return q.sql.String()
	}
	taken := func(text, period string) string {
		return budgetUsageQuery(text, &caisson.Budget{Key: "sandbox/sb-1", Account: "local", Period: period}, time.Now()).sql.String()
	}
	must(t, s.Runs().Insert(t.Context(), &caisson.Run{ID: "rn-1", Account: "local"}, 0))
	mine, all := caisson.In("local"), caisson.AllAccounts()
	live := []caisson.RunState{caisson.RunQueued, caisson.RunRunning}
	for query, want := range map[string]string{
		runs(mine, caisson.RunFilter{Before: "rn-1"}):   "INDEX run_age (account=? AND seq<?)",
		runs(mine, caisson.RunFilter{Agent: "x"}):       "INDEX run_agent (account=? AND agent=?)",
		runs(all, caisson.RunFilter{Session: "se-1"}):   "INDEX run_session (session=?)",
		runs(all, caisson.RunFilter{Parent: "rn-1"}):    "INDEX run_parent (parent=?)",
		runs(mine, caisson.RunFilter{States: live[:1]}): "INDEX run_state (state=? AND account=?)",
		countLiveRuns:                      "INDEX run_live (account=?)",
		runsOld:                            "INDEX run_ended (ended_at<?)",
		runEventsAfter:                     "PRIMARY KEY (run=? AND seq>?)",
		runLast:                            "PRIMARY KEY (run=?)",
		s.sandboxes.kind.sql(selectByKey):  "USING INDEX sqlite_autoindex_sandbox_1 (key=?)",
		s.sandboxes.kind.sql(selectByName): "USING INDEX sandbox_name (account=? AND name=?)",
		page.sql.String():                  "USING INDEX sandbox_age (account=? AND seq>?)",
		names.sql.String():                 "USING INDEX image_name (account=? AND name>?)",
		eventsOfAll:                        "USING INTEGER PRIMARY KEY (rowid>?)",
		eventsOfAccount:                    "USING INDEX event_account (account=? AND seq>?)",
		eventsOfSubject:                    "USING INDEX event_subject (account=? AND subject=? AND seq>?)",
		findToken:                          "USING INDEX sqlite_autoindex_token_2 (hash=?)",
		getAnswer:                          "(account=? AND key=?)",
		taken(usedQuery, ""):               "INDEX usage_sandbox (sandbox=? AND account=? AND at>?)",
		taken(usedQuery, "day"):            "INDEX usage_sandbox (sandbox=? AND account=? AND at>? AND at<?)",
		taken(cutQuery, ""):                "INDEX call_sandbox (sandbox=?)",
		taken(cutQuery, "month"):           "INDEX call_sandbox (sandbox=?)",
		getCredential:                      "(account=? AND name=?)",
	} {
		rows, err := s.db.writer.Query("EXPLAIN QUERY PLAN "+query, 1, 2, 3, 4)
		must(t, err)
		var plan []string
		for rows.Next() {
			var a, b, c any
			var detail string
			must(t, rows.Scan(&a, &b, &c, &detail))
			plan = append(plan, detail)
		}
		must(t, rows.Err())
		if got := strings.Join(plan, "; "); !strings.Contains(got, want) || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("%s\nis answered by %s\nwant %s", query, got, want)
		}
	}
}

func TestDiskFull(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	if err := syscall.Mount("caisson-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		testneed.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	ctx, in := context.Background(), caisson.In("local")
	path := filepath.Join(dir, "caisson.db")
	s := openTest(t, path)
	var boxes []*caisson.Sandbox
	var full error
	for full == nil {
		box := sample("local", "")
		if full = s.Sandboxes().Insert(ctx, box); full == nil {
			boxes = append(boxes, box)
		}
	}
	if caisson.KindOf(full) != caisson.Exhausted {
		t.Errorf("a full disk is %v", full)
	}
	get := func() {
		t.Helper()
		for _, box := range boxes {
			if _, err := s.Sandboxes().Get(ctx, in, string(box.ID)); err != nil {
				t.Fatal(err)
			}
		}
	}
	get()
	must(t, syscall.Mount("caisson-test", dir, "tmpfs", syscall.MS_REMOUNT, "size=8m"))
	for range 10 {
		box := sample("local", "")
		must(t, s.Sandboxes().Insert(ctx, box))
		boxes = append(boxes, box)
	}
	must(t, s.Close())
	s = openTest(t, path)
	get()
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	s, other := openTest(t, path), openTest(t, path)
	_, err := s.db.writer.Exec("PRAGMA busy_timeout = 1")
	must(t, err)
	conn, err := other.db.writer.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	must(t, err)
	if err := s.Sandboxes().Insert(t.Context(), sample("local", "")); caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("writing while another process does: %v", err)
	}
	_, err = s.Accounts().Get(t.Context(), caisson.LocalAccount)
	must(t, err) // Readers do not wait.
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	must(t, err)
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "")))
}

// TestCloseWaits closes the store in the middle of an update: Close returns when the update is on disk.
func TestCloseWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	s := openTest(t, path)
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "one")))
	closed := make(chan error)
	updated := make(chan error, 1)
	go func() {
		_, err := s.Sandboxes().Update(t.Context(), caisson.In("local"), "one", func(box *caisson.Sandbox) error {
			go func() { closed <- s.Close() }()
			for !s.db.closed.Load() {
				runtime.Gosched()
			}
			box.Reason = "kept"
			return nil
		})
		updated <- err
	}()
	must(t, <-closed)
	if _, err := os.Stat(path + "-wal"); err == nil {
		t.Error("the log is left behind")
	}
	box, err := openTest(t, path).Sandboxes().Get(t.Context(), caisson.In("local"), "one")
	must(t, err)
	must(t, <-updated)
	if box.Reason != "kept" {
		t.Error("Close returned before the update was stored")
	}
}

// TestCancelWaiting cancels the context of a writer that waits for another one.
func TestCancelWaiting(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
	must(t, s.Sandboxes().Insert(t.Context(), sample("local", "one")))
	waiting, cancel := context.WithCancel(t.Context())
	_, err := s.Sandboxes().Update(t.Context(), caisson.In("local"), "one", func(*caisson.Sandbox) error {
		done := make(chan error)
		go func() { done <- s.Sandboxes().Insert(waiting, sample("local", "two")) }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a cancelled writer: %w", err)
		}
		return nil
	})
	must(t, err)
	if _, err := s.Sandboxes().Get(t.Context(), caisson.In("local"), "two"); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("a cancelled insert: %v", err)
	}
}
