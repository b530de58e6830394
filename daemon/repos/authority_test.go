package repos_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// TestAuthorityOfAttempts: each attempt of a delivery checks again whether it is still allowed. A delivery that is not fails:
// neither its branch is pushed, nor its pull request opened.
func TestAuthorityOfAttempts(t *testing.T) {
	t.Parallel()
	edit := func(change func(*caisson.Repo)) func(*world, *caisson.Delivery, string) {
		return func(w *world, _ *caisson.Delivery, _ string) {
			_, err := w.store.Repos().Update(w.t.Context(), caisson.In("local"), "app", func(r *caisson.Repo) error {
				change(r)
				return nil
			})
			w.must(err)
		}
	}
	sent := func(w *world, d *caisson.Delivery, _ string) {
		w.edit(d.ID, func(d *caisson.Delivery) { d.Sent = d.Commit })
	}
	for name, tt := range map[string]struct {
		change func(w *world, d *caisson.Delivery, dir string) // after an attempt that the remote has refused
		says   string                                          // in the error of the next attempt; "" if it succeeds
	}{
		"nothing has changed":              {func(*world, *caisson.Delivery, string) {}, ""},
		"nothing has changed, branch sent": {sent, ""},
		"branch protected":                 {edit(func(r *caisson.Repo) { r.Protected = []string{"wo*"} }), "is protected by"},
		"branch protected, branch sent": {func(w *world, d *caisson.Delivery, dir string) {
			sent(w, d, dir)
			edit(func(r *caisson.Repo) { r.Protected = []string{"wo*"} })(w, d, dir)
		}, "is protected by"},
		"default branch":     {edit(func(r *caisson.Repo) { r.Head = "work" }), "is protected"},
		"credential removed": {func(w *world, _ *caisson.Delivery, _ string) { delete(w.secrets, "token") }, "no such credential"},
		"repository of another account": {func(w *world, _ *caisson.Delivery, _ string) {
			r, err := w.api.GetRepo(w.ctx(), "app")
			w.must(err)
			w.must(w.store.Repos().Delete(w.t.Context(), caisson.In("local"), "app"))
			_, err = w.store.Accounts().Ensure(w.t.Context(), "other")
			w.must(err)
			r.Account = "other"
			w.must(w.store.Repos().Insert(w.t.Context(), r))
		}, "app"},
		"repository added again": {func(w *world, _ *caisson.Delivery, _ string) { w.again(forgeRepo(w)) }, "no longer has a grant"},
		"repository added again, branch sent": {func(w *world, d *caisson.Delivery, dir string) {
			sent(w, d, dir)
			w.again(forgeRepo(w))
		}, "no longer has a grant"},
		"granted another branch": {func(w *world, d *caisson.Delivery, dir string) {
			w.again(forgeRepo(w))
			req := caisson.RepoRequest{Name: "app", Branch: "other"}
			_, err := w.core.Grant(w.t.Context(), caisson.RepoAccess{Account: "local", Sandbox: d.Sandbox, Repo: req})
			w.must(err)
			w.does(d.Sandbox, "/", "git -C "+dir+" push -q origin HEAD:refs/heads/other")
			held, err := w.core.Deliver(w.t.Context(), caisson.DeliveryRequest{Sandbox: d.Sandbox, Repo: req, Hold: true})
			w.must(err)
			if held.Commit != d.Commit {
				w.t.Fatal("the store does not have the delivery's commit")
			}
		}, "now has a grant for branch other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.end()
			w.secrets["token"] = "t0ken"
			forge := &pulls{s: &steps{}, made: map[string]int{}}
			w.adapt = func(c *repos.Config) { c.Remote.Forge = forge }
			w.open()
			w.bare = w.remote.Create("acme/app.git")
			w.work, _ = gitserver.Seed(t, w.bare, map[string]string{"a.txt": "a\n"})
			w.again(forgeRepo(w))
			w.remote.Set(func(o *gitserver.Options) { o.Reject = "no" })
			id, dir, _ := w.grant(caisson.RepoRequest{Branch: "work"}, "")
			w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
			d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Repo: caisson.RepoRequest{Pull: true}})
			if d.State != caisson.DeliveryFailed || w.at("work") != "" {
				t.Fatalf("the first attempt: %+v", d)
			}
			w.remote.Set(func(o *gitserver.Options) { o.Reject = "" })
			tt.change(w, d, dir)
			alreadySent := w.sent(d.ID)
			_, err := w.api.RetryDelivery(w.ctx(), d.ID)
			w.must(err)
			d = w.ended(d.ID)
			if tt.says == "" {
				if d.State != caisson.DeliveryDelivered || forge.made["work"] != 1 || !alreadySent && w.at("work") != d.Commit {
					t.Errorf("the delivery is %+v", d)
				}
				return
			}
			if d.State != caisson.DeliveryFailed || !strings.Contains(d.Error, tt.says) || w.at("work") != "" || forge.made["work"] != 0 {
				t.Errorf("the delivery is %s (%s), the branch at %q, pull requests: %d", d.State, d.Error, w.at("work"), forge.made["work"])
			}
		})
	}
}

// forgeRepo returns what makes a repository that pull requests can be opened for.
func forgeRepo(w *world) func(*caisson.Repo) {
	return func(r *caisson.Repo) {
		r.URL, r.Forge, r.Credential = w.remote.RepoURL("acme/app.git"), caisson.ForgeGitea, "token"
	}
}

// sent reports whether a delivery's branch is stored as sent.
func (w *world) sent(id caisson.ID) bool {
	w.t.Helper()
	d, err := w.store.Deliveries().Get(w.t.Context(), caisson.AllAccounts(), string(id))
	w.must(err)
	return d.Sent == d.Commit
}
