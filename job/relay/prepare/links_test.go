package prepare

import (
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestPrepareLinks checks that a delivery has the same findings about symlinks as a push.
func TestPrepareLinks(t *testing.T) {
	q := relaytest.New(t)
	to := q.Object("blob", "x")
	entries := []string{}
	one := q.Object("blob", "1")
	for i := range commit.MaxLinks + 1 {
		entries = append(entries, "120000 "+strings.Repeat("0", 6-len(strconv.Itoa(i)))+strconv.Itoa(i), to)
	}
	first, second := q.Tree(entries[:commit.MaxLinks]...), q.Tree(entries[commit.MaxLinks:]...)
	person := "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"
	c1 := q.Object("commit", "tree "+q.Tree("40000 a", first, "100644 x", one)+"\nparent "+q.Base+person)
	c2 := q.Object("commit", "tree "+q.Tree("40000 a", first, "40000 b", second, "100644 x", one)+"\nparent "+c1+person)
	if out, ok := q.Push("+" + c2 + ":refs/heads/work"); !ok || relaytest.VerdictOf(q.Last) != relaytest.Ask {
		t.Fatalf("%s: %+v", out, q.Last)
	}
	p := preparedOf(q, Request{Commit: c2})
	if len(p.Findings) == 0 || p.Findings[0].Verdict != caisson.VerdictAsk {
		t.Errorf("the push asks for %+v, and the delivery for %+v", q.Last.Updates, p.Findings)
	}
}
