package commit_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestReceiveMergesThatUndo checks that a merge is not denied for changes of one of its parents, but is denied for undoing
// changes of the other parent, even if the parent was chosen to hide that: an older commit, or one without files.
func TestReceiveMergesThatUndo(t *testing.T) {
	q := relaytest.New(t)
	const flow = ".github/workflows/ci.yml"
	q.Git("checkout", "-q", "main")
	q.Write(flow, "on: pull_request_target\n")
	older := q.Commit("a workflow")
	q.Write("src/a", "a\n")
	q.Write(flow, "on: push\n")
	q.Base = q.Commit("a safer workflow")
	q.Client(q.Store.View, "fetch", "-q", q.Work, "+main:main")
	granted := []git.Ref{{Name: "refs/heads/main", Commit: q.Base}}
	if err := q.Store.WriteRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.Req.Granted = granted
	old := q.Git("rev-parse", older+"^{tree}")
	safe := q.Git("rev-parse", q.Base+"^{tree}")
	q.Git("rm", "-q", flow)
	without := q.Git("write-tree")
	q.Git("checkout", "-q", "-f", "main")
	none := q.Git("hash-object", "-t", "tree", "-w", "/dev/null")
	person := "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"
	empty := q.Object("commit", "tree "+none+person)
	merge := func(tree string, parents ...string) string {
		return q.Object("commit", "tree "+tree+"\nparent "+strings.Join(parents, "\nparent ")+person)
	}
	both := merge(old, older, empty) // from here on both sides have older and empty in common
	for name, c := range map[string]struct {
		tip     string
		verdict string
	}{
		"back to an older commit":         {merge(old, q.Base, older), relaytest.Deny},
		"the older commit first":          {merge(old, older, q.Base), relaytest.Deny},
		"removed with an empty commit":    {merge(without, q.Base, empty), relaytest.Deny},
		"the empty commit first":          {merge(without, empty, q.Base), relaytest.Deny},
		"with two common commits":         {merge(old, merge(safe, q.Base, empty), both), relaytest.Deny},
		"three parents":                   {merge(old, q.Base, empty, older), relaytest.Deny},
		"an older commit, nothing undone": {merge(safe, q.Base, older), relaytest.Pass},
		"the newer one wins":              {merge(safe, older, q.Base), relaytest.Pass},
	} {
		out, ok := q.Push("+" + c.tip + ":refs/heads/work")
		if got := relaytest.VerdictOf(q.Last); got != c.verdict || ok != (c.verdict == relaytest.Pass) {
			t.Errorf("%s: %s, want %s: %s", name, got, c.verdict, out)
		}
		if c.verdict == relaytest.Deny && !strings.Contains(out, flow) {
			t.Errorf("%s: told %s", name, out)
		}
		q.Try(q.Store.Dir, "", "update-ref", "-d", "refs/heads/work")
	}
}
