package relay

import (
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestPrepareLinks: what a push is asked or denied about for its symlinks as a whole, a delivery is, too.
func TestPrepareLinks(t *testing.T) {
	q := newQuay(t)
	to := q.object("blob", "x")
	entries := []string{}
	one := q.object("blob", "1")
	for i := range maxLinks + 1 {
		entries = append(entries, "120000 "+strings.Repeat("0", 6-len(strconv.Itoa(i)))+strconv.Itoa(i), to)
	}
	first, second := q.tree(entries[:maxLinks]...), q.tree(entries[maxLinks:]...)
	person := "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"
	c1 := q.object("commit", "tree "+q.tree("40000 a", first, "100644 x", one)+"\nparent "+q.base+person)
	c2 := q.object("commit", "tree "+q.tree("40000 a", first, "40000 b", second, "100644 x", one)+"\nparent "+c1+person)
	if out, ok := q.push("+" + c2 + ":refs/heads/work"); !ok || verdictOf(q.last) != ask {
		t.Fatalf("%s: %+v", out, q.last)
	}
	p := preparedOf(q, PrepareRequest{Commit: c2})
	if len(p.Findings) == 0 || p.Findings[0].Verdict != caisson.VerdictAsk {
		t.Errorf("the push asks for %+v, and the delivery for %+v", q.last.Updates, p.Findings)
	}
}
