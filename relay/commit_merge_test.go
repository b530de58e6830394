package relay

import (
	"strings"
	"testing"
)

// TestReceiveMergesThatUndo: a merge is not blamed for what one of its parents has changed, but for what it undoes of another's, which a
// parent that is chosen for that can hide: an older commit, or one without files.
func TestReceiveMergesThatUndo(t *testing.T) {
	q := newQuay(t)
	const flow = ".github/workflows/ci.yml"
	q.git("checkout", "-q", "main")
	q.write(flow, "on: pull_request_target\n")
	older := q.commit("a workflow")
	q.write("src/a", "a\n")
	q.write(flow, "on: push\n")
	q.base = q.commit("a safer workflow")
	q.client(q.store.view, "fetch", "-q", q.work, "+main:main")
	granted := []Ref{{"refs/heads/main", q.base}}
	if err := q.store.writeRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.req.Granted = granted
	old := q.git("rev-parse", older+"^{tree}")
	safe := q.git("rev-parse", q.base+"^{tree}")
	q.git("rm", "-q", flow)
	without := q.git("write-tree")
	q.git("checkout", "-q", "-f", "main")
	none := q.git("hash-object", "-t", "tree", "-w", "/dev/null")
	person := "\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"
	empty := q.object("commit", "tree "+none+person)
	merge := func(tree string, parents ...string) string {
		return q.object("commit", "tree "+tree+"\nparent "+strings.Join(parents, "\nparent ")+person)
	}
	both := merge(old, older, empty) // from here on older and empty are common to both sides
	for name, c := range map[string]struct {
		tip     string
		verdict string
	}{
		"back to an older commit":         {merge(old, q.base, older), deny},
		"the older commit first":          {merge(old, older, q.base), deny},
		"removed with an empty commit":    {merge(without, q.base, empty), deny},
		"the empty commit first":          {merge(without, empty, q.base), deny},
		"with two common commits":         {merge(old, merge(safe, q.base, empty), both), deny},
		"three parents":                   {merge(old, q.base, empty, older), deny},
		"an older commit, nothing undone": {merge(safe, q.base, older), pass},
		"the newer one wins":              {merge(safe, older, q.base), pass},
	} {
		out, ok := q.push("+" + c.tip + ":refs/heads/work")
		if got := verdictOf(q.last); got != c.verdict || ok != (c.verdict == pass) {
			t.Errorf("%s: %s, want %s: %s", name, got, c.verdict, out)
		}
		if c.verdict == deny && !strings.Contains(out, flow) {
			t.Errorf("%s: told %s", name, out)
		}
		q.try(q.store.dir, "", "update-ref", "-d", "refs/heads/work")
	}
}
