package test_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/caisson-dev/caisson"
)

// TestPromise8Tampering tests that the record of events is intact after calls, refusals, credential changes and crashes
// and contains no secret, and that a later change of an event in the store is detected.
func TestPromise8Tampering(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, hangingScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	h.endDaemon()
	d := h.serve()
	defer func() { d.kill() }()
	h.client("a", "--model", "m", "--max-calls", "5")
	rotated := newKey()
	if r := h.runWith(strings.NewReader(rotated), "credential", "rotate", u.credential()); r.code != 0 {
		t.Fatal(r)
	}
	h.ok("budget", "set", "--usd", "100")
	h.ok("model", "import-prices", "--source", "ours", h.write("prices.json", `{"x": {"input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}}`))
	h.works("a")
	head := h.ok("audit", "head")
	end := h.hold(u, "a", many(3, streamed("", "m", "hang")))
	d.kill()
	d = h.serve()
	h.wantBroken(end())
	h.works("a")
	h.wantRefusal(h.call("a", chat("over", "m", "Answer.")), 402, "5 calls")

	if report := shows[caisson.AuditReport](h.host, "audit", "verify", "--head", head); report.Problem != "" || report.Events < 5 {
		t.Errorf("the record is not whole: %+v", report)
	}
	events := h.ok("events", "--after", "0", "--for", "1s", "-o", "json")
	h.wantNone("the events", strings.NewReader(events), forms(u.key, rotated))
	for _, what := range []string{"credential.rotated", "sandbox.running", "budget.set", "prices.imported", `"actor":"local"`} {
		if !strings.Contains(events, what) {
			t.Errorf("the events do not say %s: %s", what, events)
		}
	}
	d.end()

	db, err := sql.Open("sqlite", "file:"+filepath.Join(h.data, "caisson.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var seq int64
	// An event that an attacker may want to hide: the replacement of a credential.
	if err := db.QueryRow(`UPDATE event SET doc = replace(doc, 'rotated', 'created') WHERE seq = (SELECT min(seq) FROM event WHERE doc LIKE '%credential.rotated%') RETURNING seq`).Scan(&seq); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	d = h.serve()
	where := fmt.Sprintf("event %d ", seq)
	h.fails(4, "tampered", "audit", "verify")
	h.fails(4, where, "audit", "verify", "--head", head)
	h.fails(4, where, "audit", "head")
}
