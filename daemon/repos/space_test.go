package repos_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestSpace: an account that has used up its space can fetch, grant and push no more, and the error says how to make room;
// removals count at once.
func TestSpace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
	w.end()
	w.settings.Space = 2000 // more than an empty mirror takes
	w.open()
	const says = "relay.space"
	_, err := w.api.FetchRepo(w.ctx(), "app")
	w.wants(err, caisson.Exhausted, says)
	if !strings.Contains(caisson.MessageOf(err), "app alone") || !strings.Contains(caisson.MessageOf(err), "caisson repo rm") {
		t.Error(err)
	}
	_, err = w.api.AddRepo(w.ctx(), caisson.Repo{Name: "more", URL: w.remote.RepoURL("app.git")})
	w.wants(err, caisson.Exhausted, says)
	other, _ := w.sandbox("local")
	_, err = w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: other, Repo: caisson.RepoRequest{Name: "app"}})
	w.wants(err, caisson.Exhausted, says)
	if out, ok := w.in(id, dir, "echo c > c.txt; git add .; git commit -qm c; git push"); ok || !strings.Contains(out, says) {
		t.Errorf("it may push: %s", out)
	}
	w.does(id, dir, "git fetch") // what it has it may read
	// What was pushed before is not lost for it.
	if d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, OnIncomplete: func(error) {}}); d.State != caisson.DeliveryDelivered || d.Commits != 1 {
		t.Errorf("the delivery is %+v", d)
	}
	theirs := caisson.WithCaller(t.Context(), caisson.Caller{Account: "other", Local: true})
	_, err = w.api.AddRepo(theirs, caisson.Repo{Name: "app", URL: w.remote.RepoURL("app.git")})
	w.must(err)
	w.must(w.api.RemoveRepo(w.ctx(), "app"))
	w.add("app")
}

// TestDropMakesRoom: a store that only a dropped delivery needed is removed at once.
func TestDropMakesRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Hold: true})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if !w.exists("stores", string(id)) {
		t.Fatal("what a delivery needs is gone")
	}
	_, err := w.api.DropDelivery(w.ctx(), d.ID)
	w.must(err)
	if w.exists("stores", string(id)) {
		t.Error("what nobody needs is still there")
	}
}
