package repos_test

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestBranchOfOthers: what one sandbox has delivered is not overwritten by another that did not begin with it.
func TestBranchOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, dir1, _ := w.grant(caisson.RepoRequest{Branch: "work"}, "")
	two, dir2, _ := w.grant(caisson.RepoRequest{Branch: "work"}, "")
	w.does(one, dir1, "echo b > b.txt")
	d1 := w.deliver(caisson.DeliveryRequest{Sandbox: one, Dir: dir1, Subject: "one"})
	w.does(two, dir2, "echo c > c.txt")
	d2 := w.deliver(caisson.DeliveryRequest{Sandbox: two, Dir: dir2, Subject: "two"})
	if d1.State != caisson.DeliveryDelivered || d2.State != caisson.DeliveryFailed || w.at("work") != d1.Commit {
		t.Errorf("two runs on one branch: %s and %s (%s), and the branch is at %s", d1.State, d2.State, d2.Error, w.at("work"))
	}
	// A sandbox that was granted the delivered commit may replace it; the first sandbox may not then.
	three, dir3, _ := w.grant(caisson.RepoRequest{Branch: "work"}, "")
	w.does(three, dir3, "test -f b.txt; echo d > d.txt")
	d3 := w.deliver(caisson.DeliveryRequest{Sandbox: three, Dir: dir3, Subject: "three"})
	w.does(one, dir1, "echo e > e.txt; git add .; git commit -qm e; git push -q")
	d4 := w.deliver(caisson.DeliveryRequest{Sandbox: one})
	if d3.State != caisson.DeliveryDelivered || d4.State != caisson.DeliveryFailed || w.at("work") != d3.Commit {
		t.Errorf("%s (%s), then %s, and the branch is at %s", d3.State, d3.Error, d4.State, w.at("work"))
	}
}

// TestOlderAfterNewer: a delivery that is sent late does not overwrite a later one.
func TestOlderAfterNewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
	first := w.deliver(caisson.DeliveryRequest{Sandbox: id, Hold: true})
	w.does(id, dir, "echo c > c.txt; git add .; git commit -qm c; git push -q")
	second := w.deliver(caisson.DeliveryRequest{Sandbox: id})
	if _, err := w.api.RetryDelivery(w.ctx(), first.ID); err != nil {
		t.Fatal(err)
	}
	first = w.ended(first.ID)
	if second.State != caisson.DeliveryDelivered || first.State != caisson.DeliveryFailed || w.at(g.Branch) != second.Commit {
		t.Errorf("%s, then %s (%s), and the branch is at %s", second.State, first.State, first.Error, w.at(g.Branch))
	}
}
