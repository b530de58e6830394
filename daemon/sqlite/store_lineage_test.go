package sqlite_test

import (
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// testLineageBudgets tests that a call of a run moves its amount from held to used once in the budget of each ancestor
// of the run, and in no budget of another account.
func testLineageBudgets(t *testing.T, s caisson.LedgerStore) {
	ctx, j := t.Context(), newJournal()
	limit := int64(1000)
	put := func(run, account string) {
		t.Helper()
		get[*caisson.Budget](t)(s.PutBudget(ctx, caisson.In(account), &caisson.Budget{
			Key: "run/" + run, Account: account, Limits: caisson.Limits{Tokens: &limit},
		}))
	}
	want := func(run string, used, held int64) {
		t.Helper()
		if b := budget(t, s, "run/"+run); b.Used.Tokens != used || b.Held.Tokens != held {
			t.Errorf("%s: used %d and held %d, want %d and %d", run, b.Used.Tokens, b.Held.Tokens, used, held)
		}
	}
	put("top", "a")
	put("mid", "a")
	put("low", "a")
	put("theirs", "b")
	begin := time.Now()
	for _, run := range []string{"top", "mid", "low"} {
		get[caisson.Lease](t)(s.Lease(ctx, j, "a", "run/"+run, tokens(100), tokens(100), begin))
	}
	get[caisson.Lease](t)(s.Lease(ctx, j, "b", "run/theirs", tokens(100), tokens(100), begin))
	part := func(run, lineage string) caisson.Call { // A call of 10 tokens.
		c := someCall("a", begin.Add(time.Second), 1)
		c.Run, c.Lineage = run, lineage
		return c
	}
	cut := part("low", "top mid") // 10 tokens by estimate, and 15 in budgets.
	cut.Estimated, cut.AtMost = true, &caisson.Amount{USD: cut.Cost + 7, Tokens: 15, Calls: 1}
	calls := []caisson.Call{
		part("top", ""), part("mid", "top"), part("low", "top mid"), cut, part("stranger", "theirs"),
	}
	must(t, s.Ingest(ctx, j, 0, 1, calls))
	must(t, s.Ingest(ctx, j, 1, 2, calls[2:3])) // Already stored.
	want("top", 45, 55)
	want("mid", 35, 65)
	want("low", 25, 75)
	want("theirs", 0, 100)
	// A budget that is created again starts with the same amounts, including those of calls that were ingested before
	// it was created.
	for _, run := range []string{"top", "mid"} {
		must(t, s.DeleteBudget(ctx, caisson.In("a"), "run/"+run))
	}
	before := budget(t, s, "run/low").Used.USD
	must(t, s.DeleteBudget(ctx, caisson.In("a"), "run/low"))
	put("low", "a")
	if after := budget(t, s, "run/low").Used.USD; after != before {
		t.Errorf("made anew, low has used %v, before %v", after, before)
	}
	put("top", "a")
	put("mid", "a")
	want("top", 45, 55)
	want("mid", 35, 65)
	must(t, s.Close(ctx, j, false))
	want("top", 45, 0)
	want("low", 25, 0)
}
