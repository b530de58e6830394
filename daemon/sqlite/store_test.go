package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite"
)

// Opener returns a new, empty store for a test and closes it when the test ends.
type Opener func(t *testing.T) caisson.Store

// TestStore tests what [caisson.Store] promises, through that interface only.
func TestStore(t *testing.T) {
	open := func(t *testing.T) caisson.Store {
		key := func() (caisson.Secret, bool, error) { return caisson.NewSecret(strings.Repeat("k", 32)), true, nil }
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "caisson.db"), AuditKey: key})
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	t.Run("Sandboxes", func(t *testing.T) { sandboxKind().test(t, open) })
	t.Run("Snapshots", func(t *testing.T) { snapshotKind().test(t, open) })
	t.Run("Templates", func(t *testing.T) { templateKind().test(t, open) })
	t.Run("Images", func(t *testing.T) { imageKind().test(t, open) })
	t.Run("States", func(t *testing.T) { testStates(t, open(t)) })
	t.Run("SandboxNames", func(t *testing.T) { testSandboxNames(t, open(t)) })
	t.Run("Accounts", func(t *testing.T) { testAccounts(t, open) })
	t.Run("Tokens", func(t *testing.T) { testTokens(t, open) })
	t.Run("Credentials", func(t *testing.T) { testCredentials(t, open) })
	t.Run("Events", func(t *testing.T) { testEvents(t, open) })
	t.Run("Answers", func(t *testing.T) { testAnswers(t, open) })
	t.Run("Ledger", func(t *testing.T) { testLedger(t, open) })
	t.Run("Budgets", func(t *testing.T) { testBudgets(t, open) })
	t.Run("GatewayRuns", func(t *testing.T) { testGatewayRuns(t, open) })
	t.Run("Agents", func(t *testing.T) { agentKind().test(t, open) })
	t.Run("Volumes", func(t *testing.T) { volumeKind().test(t, open) })
	t.Run("Routes", func(t *testing.T) { routeKind().test(t, open) })
	t.Run("Sessions", func(t *testing.T) { sessionKind().test(t, open) })
	t.Run("SessionNames", func(t *testing.T) { testSessionNames(t, open(t)) })
	t.Run("Runs", func(t *testing.T) { testRuns(t, open) })
	t.Run("Workspaces", func(t *testing.T) { testWorkspaces(t, open) })
	t.Run("Repos", func(t *testing.T) { repoKind().test(t, open) })
	t.Run("Deliveries", func(t *testing.T) { testDeliveries(t, open) })
	t.Run("Closed", func(t *testing.T) { testClosed(t, open(t)) })
}

// noon returns a time with parts that are easily lost in encoding: nanoseconds and a zone.
func noon() time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))
}

// must fails the test unless err is nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get returns v if err is nil, and fails the test otherwise.
func get[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// wantKind fails the test unless err is an error of that kind with a message for users.
func wantKind(t *testing.T, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", kind)
	}
	if got := caisson.KindOf(err); got != kind {
		t.Fatalf("%s error %q, want %s", got, err, kind)
	}
}

func testClosed(t *testing.T, s caisson.Store) {
	must(t, s.Close())
	must(t, s.Close())
	ctx := t.Context()
	_, err := s.Sandboxes().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	_, _, err = s.Images().List(ctx, caisson.AllAccounts(), caisson.Filter{})
	wantKind(t, err, caisson.Unavailable)
	wantKind(t, s.Templates().Insert(ctx, &caisson.Template{Account: "a", Name: "x"}), caisson.Unavailable)
	_, err = s.Events().Last(ctx)
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Tokens().Find(ctx, [32]byte{}, noon())
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Events().Verify(ctx, "")
	wantKind(t, err, caisson.Unavailable)
	_, _, err = s.Credentials().Get(ctx, caisson.In("a"), "X")
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Ledger().Offset(ctx, newJournal())
	wantKind(t, err, caisson.Unavailable)
	wantKind(t, s.Ledger().Ingest(ctx, newJournal(), 0, 1, nil), caisson.Unavailable)
	_, err = s.GatewayRuns().List(ctx, caisson.In("a"))
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Volumes().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Runs().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	wantKind(t, s.Runs().Append(ctx, "x", []caisson.RunEvent{{Seq: 1}}), caisson.Unavailable)
	_, err = s.Runs().Trim(ctx, noon(), 1)
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Workspaces().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Repos().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Deliveries().Get(ctx, caisson.In("a"), "x")
	wantKind(t, err, caisson.Unavailable)
	_, err = s.Accounts().Ensure(ctx, "new")
	wantKind(t, err, caisson.Unavailable)
}
