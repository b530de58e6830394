package sqlite

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// TestUpgradeLedger tests that an upgrade from a schema without agents and users keeps the sums of a ledger, and groups
// them by agent and user.
func TestUpgradeLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	makeAt(t, path, realMigrations(t, 4))
	db := raw(t, path)
	const big = int64(3e18)
	for i := range 12 {
		cost, agent := int64(1e17)+int64(i), ""
		if i%4 == 3 {
			cost = big // Three of them reach the maximum sum.
		}
		if i%2 == 0 {
			agent = fmt.Sprintf(`,"agent":"a'%d","user":"ü"`, i%3)
		}
		at := int64(1_777_636_800_000_000) + int64(i)*int64(time.Minute/time.Microsecond)
		if i%4 == 3 && i < 8 {
			at += hourMicros * 24
		}
		run(t, db, fmt.Sprintf(`INSERT INTO call (id, at, account, sandbox, run, session, model, failed, estimated, input, output, cache_read, cache_write, cost, doc)
			VALUES ('ca-%d', %d, 'local', 'sb-1', 'r%d', '', 'm', %d, 0, 1, 2, 3, %d, %d, '{"id":"ca-%d","account":"local"%s}')`,
			i, at, i%2, i%2, big, cost, i, strings.ReplaceAll(agent, "'", "''")))
	}
	must(t, db.Close())
	l := openTest(t, path).Ledger()
	usage := func(by string) []caisson.UsageRow {
		rows, err := l.Usage(t.Context(), caisson.AllAccounts(), caisson.UsageQuery{By: by})
		must(t, err)
		return rows
	}
	tokens := func(n int64) caisson.TokenCount {
		return caisson.TokenCount{Input: n, Output: 2 * n, CacheRead: 3 * n, CacheWrite: maxSum}
	}
	want := []caisson.UsageRow{
		{Key: "", Calls: 6, Failed: 6, Tokens: tokens(6), Cost: caisson.USD(maxSum)},
		{Key: "a'0", Calls: 2, Tokens: caisson.TokenCount{Input: 2, Output: 4, CacheRead: 6, CacheWrite: 2 * big}, Cost: 2*1e17 + 0 + 6},
		{Key: "a'1", Calls: 2, Tokens: caisson.TokenCount{Input: 2, Output: 4, CacheRead: 6, CacheWrite: 2 * big}, Cost: 2*1e17 + 4 + 10},
		{Key: "a'2", Calls: 2, Tokens: caisson.TokenCount{Input: 2, Output: 4, CacheRead: 6, CacheWrite: 2 * big}, Cost: 2*1e17 + 2 + 8},
	}
	if diff := cmp.Diff(want, usage("agent")); diff != "" {
		t.Errorf("by agent (-want +got):\n%s", diff)
	}
	users := usage("user")
	if len(users) != 2 || users[0].Calls != 6 || users[1].Key != "ü" || users[1].Calls != 6 {
		t.Errorf("by user: %+v", users)
	}
	if days := usage("day"); len(days) != 2 || days[0].Calls+days[1].Calls != 12 {
		t.Errorf("by day: %+v", days)
	}
	if page, _, err := l.Calls(t.Context(), caisson.In("local"), caisson.UsageQuery{Agent: "a'1"}, "", 0); err != nil || len(page) != 2 {
		t.Errorf("%d calls of an agent, %v", len(page), err)
	}
}
