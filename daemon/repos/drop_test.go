package repos_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// edit changes a stored delivery.
func (w *world) edit(id caisson.ID, change func(*caisson.Delivery)) {
	w.t.Helper()
	_, err := w.store.Deliveries().Update(w.t.Context(), caisson.AllAccounts(), id, func(d *caisson.Delivery) error {
		change(d)
		return nil
	})
	w.must(err)
}

// TestRetryAnew: an old delivery that is retried by a user gets all attempts again, and its commits are kept from then on.
func TestRetryAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Hold: true})
	long := time.Now().UTC().Add(-100 * 24 * time.Hour)
	w.edit(d.ID, func(d *caisson.Delivery) {
		d.CreatedAt, d.RetriedAt, d.Attempts, d.State = long, long, 40, caisson.DeliveryFailed
	})
	w.remote.Set(func(o *gitserver.Options) { o.FailPushes = 2 })
	if d, err := w.api.RetryDelivery(w.ctx(), d.ID); err != nil || d.Attempts != 0 || time.Since(d.RetriedAt) > time.Minute {
		t.Fatalf("%+v, %v", d, err)
	}
	if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered || d.Attempts != 3 || w.at(g.Branch) != d.Commit {
		t.Fatalf("the delivery is %+v", d)
	}
	// A delivery fails if it was tried for too long since a user last requested it.
	id, dir, _ = w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d = w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Hold: true})
	w.remote.Set(func(o *gitserver.Options) { o.FailPushes = 1_000_000 })
	_, err := w.api.RetryDelivery(w.ctx(), d.ID)
	w.must(err)
	w.edit(d.ID, func(d *caisson.Delivery) { d.CreatedAt, d.RetriedAt = long, long })
	if d = w.ended(d.ID); d.State != caisson.DeliveryFailed || d.Error == "" {
		t.Fatalf("the delivery is %+v", d)
	}
	w.edit(d.ID, func(d *caisson.Delivery) { d.RetriedAt = time.Now() })
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if !w.exists("stores", string(id)) {
		t.Error("what somebody has asked for just now is gone")
	}
	w.edit(d.ID, func(d *caisson.Delivery) { d.RetriedAt = long })
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if w.exists("stores", string(id)) {
		t.Error("what nobody has asked for is kept")
	}
}

// TestDropWhileSent: a delivery that is dropped while it is being sent is cancelled, and its error says what the remote may have.
func TestDropWhileSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url, hang, asked := w.slow()
	_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: "slow", URL: url})
	w.must(err)
	id, dir := w.sandbox("local")
	req := caisson.RepoRequest{Name: "slow"}
	_, err = w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: req, Dir: dir})
	w.must(err)
	w.does(id, dir, "echo b > b.txt")
	hang()
	d, err := w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: req, Dir: dir, Subject: "b"})
	w.must(err)
	<-asked
	got, err := w.api.DropDelivery(w.ctx(), d.ID)
	if err != nil || got.State != caisson.DeliveryDropped || got.EndedAt.IsZero() || !strings.Contains(got.Error, "look whether the remote has branch "+d.Branch) {
		t.Fatalf("%+v, %v", got, err)
	}
	if d = w.ended(d.ID); d.State != caisson.DeliveryDropped || w.at(d.Branch) != "" {
		t.Errorf("then it is %+v", d)
	}
	if again, err := w.api.DropDelivery(w.ctx(), d.ID); err != nil || again.State != caisson.DeliveryDropped {
		t.Errorf("dropped again: %+v, %v", again, err)
	}
	list, err := w.store.Events().After(t.Context(), caisson.AllAccounts(), string(d.ID), 0, 1000)
	w.must(err)
	if !slices.ContainsFunc(list, func(e caisson.Event) bool { return e.Type == "delivery.dropped" }) {
		t.Error("no event says that it was dropped")
	}
}

// TestDropLate: a dropped delivery says so if the remote has its branch.
func TestDropLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"})
	_, err := w.api.DropDelivery(w.ctx(), d.ID)
	w.wants(err, caisson.Conflict, "was delivered already")
	// A delivery whose pull request could not be opened has pushed its branch.
	w.edit(d.ID, func(d *caisson.Delivery) {
		d.State, d.Pull, d.Error = caisson.DeliveryFailed, true, "the forge says no"
	})
	got, err := w.api.DropDelivery(w.ctx(), d.ID)
	if err != nil || got.State != caisson.DeliveryDropped || !strings.Contains(got.Error, "the remote has the branch, and perhaps the pull request") {
		t.Errorf("%+v, %v", got, err)
	}
	// As if an attempt were under way that cannot be cancelled.
	w.edit(d.ID, func(d *caisson.Delivery) { d.State = caisson.DeliverySending })
	_, err = w.api.DropDelivery(w.ctx(), d.ID)
	w.wants(err, caisson.Conflict, "is being sent right now; try again")

	asked := make(chan struct{}, 100)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-t.Context().Done():
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(api.Close)
	w.secrets["TOKEN"] = "x"
	bare := w.remote.Create("o/hub.git")
	gitserver.Seed(t, bare, map[string]string{"a.txt": "a\n"})
	_, err = w.api.AddRepo(w.ctx(), caisson.Repo{Name: "hub", URL: w.remote.RepoURL("o/hub.git"), Forge: caisson.ForgeGitHub, API: api.URL, Credential: "TOKEN"})
	w.must(err)
	id, dir = w.sandbox("local")
	req := caisson.RepoRequest{Name: "hub", Pull: true}
	_, err = w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: req, Dir: dir})
	w.must(err)
	w.does(id, dir, "echo b > b.txt")
	d, err = w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: req, Dir: dir, Subject: "b"})
	w.must(err)
	<-asked
	got, err = w.api.DropDelivery(w.ctx(), d.ID)
	if err != nil || got.State != caisson.DeliveryDropped || got.Sent != got.Commit || !strings.Contains(got.Error, "the remote has the branch, and perhaps the pull request") {
		t.Errorf("%+v, %v", got, err)
	}
}
