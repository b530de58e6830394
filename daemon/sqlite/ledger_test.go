package sqlite

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// fillLedger adds n calls of a month: agents in sandboxes that run for an hour and make a hundred calls each.
func fillLedger(tb testing.TB, l caisson.LedgerStore, n int) time.Time {
	tb.Helper()
	start := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	step := 30 * 24 * time.Hour / time.Duration(n)
	journal := caisson.NewID(caisson.JournalPrefix)
	var box caisson.ID
	for from := 0; from < n; from += 1000 {
		calls := make([]caisson.Call, min(1000, n-from))
		for i := range calls {
			if i%100 == 0 {
				box = caisson.NewID(caisson.SandboxPrefix)
			}
			calls[i] = caisson.Call{
				ID: caisson.NewID(caisson.CallPrefix), At: start.Add(time.Duration(from+i) * step),
				Guest: caisson.Guest{Sandbox: box, Account: fmt.Sprintf("team-%d", from/1000%5), Run: string(box)},
				Model: "m", Status: 200, Tokens: caisson.TokenCount{Input: 1000, Output: 10}, Cost: 1_234_567,
			}
		}
		if err := l.Ingest(tb.Context(), journal, int64(from), int64(from+1000), calls); err != nil {
			tb.Fatal(err)
		}
	}
	return start
}

// BenchmarkLedger queries a ledger of 200,000 calls; the time of most queries does not depend on their number.
func BenchmarkLedger(b *testing.B) {
	s, err := Open(b.Context(), testConfig(filepath.Join(b.TempDir(), "caisson.db")))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	l := s.Ledger()
	begin := time.Now()
	start := fillLedger(b, l, 200_000)
	b.Logf("%s per call ingested", time.Since(begin)/200_000)
	for name, q := range map[string]caisson.UsageQuery{
		"ByModel": {By: "model"}, "ByDay": {By: "day"}, "ByRun": {By: "run"},
		"LastDay": {By: "model", Since: start.Add(28*24*time.Hour + 1234*time.Second), Until: start.Add(29*24*time.Hour + 1234*time.Second)},
	} {
		for scope, in := range map[string]caisson.Scope{"All": caisson.AllAccounts(), "One": caisson.In("team-1")} {
			b.Run(name+scope, func(b *testing.B) {
				for b.Loop() {
					if rows, err := l.Usage(b.Context(), in, q); err != nil || len(rows) == 0 {
						b.Fatal(rows, err)
					}
				}
			})
		}
	}
	b.Run("Calls", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := l.Calls(b.Context(), caisson.In("team-1"), caisson.UsageQuery{Since: start.Add(20 * 24 * time.Hour)}, "", 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestReturnAfterRemoval tests that no lease is left of the budget of an ended run once its gateway has returned the
// held amount.
func TestReturnAfterRemoval(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "caisson.db"))
	l, j, in := s.Ledger(), caisson.NewID(caisson.JournalPrefix), caisson.In("a")
	limit, ten := int64(100), caisson.Amount{Tokens: 10}
	leases := func(want int) {
		t.Helper()
		var n int
		must(t, s.db.reader.QueryRow(`SELECT count(*) FROM lease`).Scan(&n))
		if n != want {
			t.Errorf("%d leases, want %d", n, want)
		}
	}
	b := &caisson.Budget{Key: "run/rn-1", Account: "a", Limits: caisson.Limits{Tokens: &limit}}
	for range 2 {
		_, err := l.PutBudget(t.Context(), in, b)
		must(t, err)
		_, err = l.Lease(t.Context(), j, "a", b.Key, ten, ten, time.Now())
		must(t, err)
		must(t, l.Return(t.Context(), j, b.Key, ten))
		leases(1) // Calls that start from now on are covered.
		_, err = l.Lease(t.Context(), j, "a", b.Key, ten, ten, time.Now())
		must(t, err)
		must(t, l.DeleteBudget(t.Context(), in, b.Key))
		must(t, l.Return(t.Context(), j, b.Key, caisson.Amount{Tokens: 4}))
		leases(1) // A call is in progress.
		must(t, l.Return(t.Context(), j, b.Key, caisson.Amount{Tokens: 6}))
		leases(0)
	}
}
