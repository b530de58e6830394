package repos_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestDeliveredOnce: if a daemon dies after it has made a delivery and before it has stored it with the run, no second delivery
// is made.
func TestDeliveredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
	first := w.deliver(caisson.DeliveryRequest{Sandbox: id})
	w.end()
	w.open()
	if again := w.deliver(caisson.DeliveryRequest{Sandbox: id, Hold: true}); again.ID != first.ID || again.State != caisson.DeliveryDelivered {
		t.Errorf("delivered as %s, and again as %s, which is %s", first.ID, again.ID, again.State)
	}
}

// TestLostRecord: a push whose record was lost with a daemon takes precedence over the one before it.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
	file := filepath.Join(w.data, "relay", "local", "app", "stores", string(id)+".json")
	var before []byte
	w.waitFor(func() bool {
		var g struct{ Pushed []any }
		before, _ = os.ReadFile(file)
		return json.Unmarshal(before, &g) == nil && len(g.Pushed) > 0
	})
	w.does(id, dir, "echo c > c.txt; git add .; git commit -qm c; git push -q")
	w.end()
	w.must(os.WriteFile(file, before, 0o600))
	w.open()
	if d := w.deliver(caisson.DeliveryRequest{Sandbox: id}); d.Commits != 2 {
		t.Errorf("%d commits are delivered of 2 that were pushed", d.Commits)
	}
}

// TestAwaitLeavesNothing: Await leaves no channel behind.
func TestAwaitLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Hold: true})
	w.ended(d.ID)
	if n := w.core.Watched(); n != 0 {
		t.Errorf("%d are still waiting", n)
	}
}
