package repos_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// TestDelivery: what a sandbox pushes, or has only written, gets to the remote as one branch, by the repository's author; a later
// run of the session adds to it.
func TestDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	session := caisson.NewID(caisson.SessionPrefix)
	id, dir, g := w.grant(caisson.RepoRequest{}, session)
	if g.Start != "main" || !strings.HasPrefix(g.Branch, "caisson/rn-") || g.From != w.at("main") {
		t.Errorf("the grant is %+v", g)
	}
	w.does(id, dir, "echo b > b.txt; git add b.txt; git -c user.name=Mallory commit -qm b; git push -q")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id})
	if d.State != caisson.DeliveryDelivered || d.Branch != g.Branch || w.at(g.Branch) != d.Commit || d.Commit == d.Pushed || d.Commits != 1 {
		t.Fatalf("the delivery is %+v", d)
	}
	if by := gitserver.Git(t, w.bare, "log", "-1", "--format=%an %cn", g.Branch); by != "Caisson Caisson" {
		t.Errorf("the commit is by %s", by)
	}
	if d, err := w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}}); err != nil || d == nil || w.ended(d.ID).Commit != w.at(g.Branch) {
		t.Errorf("delivered again: %+v, %v", d, err)
	}
	// The same sandbox, another run; nothing is pushed or even committed.
	g2, err := w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Run: caisson.NewID(caisson.RunPrefix), Session: session, Repo: caisson.RepoRequest{Name: "app"}})
	if err != nil || g2.Branch != g.Branch {
		t.Fatalf("granted again: %+v, %v", g2, err)
	}
	if d, err := w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}}); err != nil || d != nil {
		t.Errorf("nothing was pushed, and delivered %+v, %v", d, err)
	}
	w.does(id, dir, "echo c > c.txt")
	d2 := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "c"})
	if d2.State != caisson.DeliveryDelivered || w.at(g.Branch) != d2.Commit {
		t.Fatalf("the second delivery is %+v", d2)
	}
	if log := gitserver.Git(t, w.bare, "log", "--format=%s", g.Branch); log != "c\nb\nfirst" {
		t.Errorf("the branch has %q", log)
	}
	if out, _ := w.in(id, dir, "git status --porcelain; git branch --show-current"); out != g.Branch+"\n" {
		t.Errorf("after it was taken: %q", out)
	}
	// A new sandbox of the session starts where the branch is.
	id3, dir3, g3 := w.grant(caisson.RepoRequest{}, session)
	if g3.Branch != g.Branch || g3.Start != g.Branch {
		t.Errorf("the third grant is %+v", g3)
	}
	w.does(id3, dir3, "test -f c.txt; echo d > d.txt")
	if d3 := w.deliver(caisson.DeliveryRequest{Sandbox: id3, Dir: dir3, Subject: "d"}); d3.State != caisson.DeliveryDelivered {
		t.Fatalf("the third delivery is %+v", d3)
	}
	if log := gitserver.Git(t, w.bare, "log", "--format=%s", g.Branch); log != "d\nc\nb\nfirst" {
		t.Errorf("the branch has %q", log)
	}
}

// TestRetry: a delivery that fails for a temporary reason is retried, one that the remote refuses is not, and commits of others on
// the branch are not overwritten.
func TestRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.remote.Set(func(o *gitserver.Options) { o.FailPushes = 2 })
	id, dir, g := w.grant(caisson.RepoRequest{Branch: "work"}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"})
	if d.State != caisson.DeliveryDelivered || d.Attempts != 3 || w.at("work") != d.Commit {
		t.Fatalf("the delivery is %+v", d)
	}
	// An answer that got lost.
	w.remote.Set(func(o *gitserver.Options) { o.LosePushes = 1 })
	w.does(id, dir, "echo c > c.txt; git add .; git commit -qm c; git push -q")
	if d = w.deliver(caisson.DeliveryRequest{Sandbox: id}); d.State != caisson.DeliveryDelivered || w.at("work") != d.Commit {
		t.Fatalf("the delivery whose answer got lost is %+v", d)
	}
	// The branch was merged and removed at the remote.
	gitserver.Git(t, w.bare, "update-ref", "-d", "refs/heads/work")
	w.does(id, dir, "echo e > e.txt; git add .; git commit -qm e; git push -q")
	if d = w.deliver(caisson.DeliveryRequest{Sandbox: id}); d.State != caisson.DeliveryDelivered || w.at("work") != d.Commit {
		t.Fatalf("after its branch was removed the delivery is %+v", d)
	}
	// Another user has pushed to the branch.
	gitserver.Git(t, w.work, "fetch", "-q", "origin")
	gitserver.Git(t, w.work, "checkout", "-q", "-b", "work", "origin/work")
	theirs := gitserver.Commit(t, w.work, "theirs", map[string]string{"theirs.txt": "x\n"})
	gitserver.Git(t, w.work, "push", "-q", "origin", "work")
	w.does(id, dir, "echo d > d.txt; git add .; git commit -qm d; git push -q")
	if d = w.deliver(caisson.DeliveryRequest{Sandbox: id}); d.State != caisson.DeliveryFailed || w.at("work") != theirs {
		t.Fatalf("over what somebody else has pushed: %+v", d)
	}
	id2, dir2 := w.sandbox("local")
	_, err := w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id2, Repo: caisson.RepoRequest{Name: "app", Branch: "work"}, Dir: dir2})
	w.wants(err, caisson.Conflict, "another client")
	// A remote that refuses.
	w.remote.Set(func(o *gitserver.Options) { o.Reject = "no pushes on Sundays" })
	id, dir, g = w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	if d = w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"}); d.State != caisson.DeliveryFailed || d.Attempts != 1 || !strings.Contains(d.Error, "Sundays") {
		t.Fatalf("the delivery is %+v", d)
	}
	w.remote.Set(func(o *gitserver.Options) { o.Reject = "" })
	if _, err := w.api.RetryDelivery(w.ctx(), d.ID); err != nil {
		t.Fatal(err)
	}
	w.waitFor(func() bool { return w.at(g.Branch) != "" })
}

// TestHeld: deliveries of failed runs, and those with findings, are sent only when they are retried; dropped ones never.
func TestHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo use flake > .envrc")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"})
	if d.State != caisson.DeliveryHeld || len(d.Findings) == 0 || !strings.Contains(d.Findings[0].Message, ".envrc") {
		t.Fatalf("the delivery is %+v", d)
	}
	w.must(w.core.SandboxRemoved(t.Context(), id)) // its sandbox is still there
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if w.at(g.Branch) != "" || !w.exists("stores", string(id)) {
		t.Error("what is held was sent, or lost")
	}
	w.wants(w.api.RemoveRepo(w.ctx(), "app"), caisson.Conflict, "drop it first")
	_, err := w.api.RetryDelivery(w.ctx(), d.ID)
	w.must(err)
	if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered || w.at(g.Branch) != d.Commit {
		t.Fatalf("the delivery is %+v", d)
	}
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if w.exists("stores", string(id)) {
		t.Error("a store that nobody needs is still there")
	}
	id, dir, g = w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d = w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Hold: true})
	if _, err := w.api.DropDelivery(w.ctx(), d.ID); err != nil || d.State != caisson.DeliveryHeld {
		t.Fatalf("%+v, %v", d, err)
	}
	_, err = w.api.RetryDelivery(w.ctx(), d.ID)
	w.wants(err, caisson.Conflict, "dropped")
	w.must(w.api.RemoveRepo(w.ctx(), "app"))
	if w.exists() || w.at(g.Branch) != "" {
		t.Error("the repository is still there, or what was dropped was sent")
	}
}

// TestTextIsSearched: a secret in the text of a pull request holds it, also one that is put together only once a forge drops what
// is invisible.
func TestTextIsSearched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b", Body: "use ghp_\u200b" + "1a2B3c4D5e6F7g8H9i0J" + "\u2060k1L2m3N4o5P6q7R8"})
	if d.State != caisson.DeliveryHeld || len(d.Findings) == 0 {
		t.Errorf("the delivery is %+v", d)
	}
}

// TestRestart: grants and deliveries survive the death of a daemon, and nothing is sent twice.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.remote.Set(func(o *gitserver.Options) { o.FailPushes = 1_000_000 })
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
	d, err := w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}})
	w.must(err)
	w.waitFor(func() bool {
		d, err := w.api.GetDelivery(w.ctx(), string(d.ID))
		return err == nil && d.Attempts > 1
	})
	w.end()
	// As if it had died while it sent.
	_, err = w.store.Deliveries().Update(t.Context(), caisson.AllAccounts(), d.ID, func(d *caisson.Delivery) error {
		d.State = caisson.DeliverySending
		return nil
	})
	w.must(err)
	w.must(os.Mkdir(filepath.Join(w.data, "relay", "local", "app", "stores", "sb-half-made"), 0o700))
	w.remote.Set(func(o *gitserver.Options) { o.FailPushes = 0 })
	w.open()
	if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered || w.at(g.Branch) != d.Commit {
		t.Fatalf("the delivery is %+v", d)
	}
	if w.exists("stores", "sb-half-made") {
		t.Error("what was half made is still there")
	}
	w.does(id, dir, "echo c > c.txt; git add .; git commit -qm c; git push -q; git fetch -q")
}

// TestScopes: an account sees its own repositories and deliveries only, and a sandbox what it was granted.
func TestScopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := caisson.WithCaller(t.Context(), caisson.Caller{Account: "other"})
	_, err := w.api.GetRepo(other, "app")
	w.wants(err, caisson.NotFound, "")
	_, err = w.api.ListBranches(other, "app")
	w.wants(err, caisson.NotFound, "")
	_, err = w.api.AddRepo(other, caisson.Repo{Name: "app", URL: w.bare})
	w.wants(err, caisson.Denied, "unix socket")
	_, err = w.api.AddRepo(other, caisson.Repo{Name: "app", URL: w.remote.RepoURL("app.git")})
	if err == nil {
		t.Error("a token's repository is on this host's loopback device")
	}
	if w.exists("..", "..", "other", "app") {
		t.Error("something is left of a repository that could not be added")
	}
	id, _, _ := w.grant(caisson.RepoRequest{}, "")
	theirs, _ := w.sandbox("other")
	for _, s := range []struct {
		id   caisson.ID
		name string
	}{{theirs, "app"}, {id, "App"}, {id, "other"}} {
		if out, ok := w.in(s.id, t.TempDir(), "git ls-remote http://git.caisson.internal/"+s.name); ok {
			t.Errorf("%s reads %s: %s", s.id, s.name, out)
		}
	}
	_, err = w.api.DeliverRepo(w.ctx(), string(id), caisson.RepoRequest{Name: "app", Pull: true}, "")
	w.wants(err, caisson.Invalid, "no forge")
	_, err = w.api.GrantRepo(other, string(id), caisson.RepoRequest{Name: "app"}, "/work")
	w.wants(err, caisson.NotFound, "")
	for _, bad := range []caisson.RepoRequest{{Branch: "main"}, {Branch: "-x"}, {Branch: "a..b"}, {Branch: "refs/heads/x"}, {Branch: "x.lock"}, {Base: "a b"}, {Read: []string{"@{u}"}}, {Pull: true}} {
		bad.Name = "app"
		if err := w.core.CheckRepo(t.Context(), "local", bad); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	w.must(w.store.Repos().Insert(t.Context(), &caisson.Repo{
		Account: "local", Name: "keyed", URL: "git@github.com:a/b.git", Forge: caisson.ForgeGitHub, Head: "main", Authors: caisson.AuthorSet,
	}))
	w.must(w.core.CheckRepo(t.Context(), "local", caisson.RepoRequest{Name: "keyed"}))
	w.wants(w.core.CheckRepo(t.Context(), "local", caisson.RepoRequest{Name: "keyed", Pull: true}), caisson.Invalid, "https address")
	w.must(w.store.Repos().Delete(t.Context(), caisson.In("local"), "keyed"))
	for _, r := range []caisson.Repo{
		{Name: "-x", URL: w.bare}, {Name: "x.git", URL: w.bare}, {Name: "x", URL: "ext::sh -c true"}, {Name: "x", URL: "https://a:b@example.org/x"}, {Name: "x", URL: w.bare, Authors: "forge"},
		{Name: "x", URL: w.bare, AuthorName: "a\nb"}, {Name: "x", URL: w.bare, Protected: []string{"["}}, {Name: "x", URL: filepath.Join(w.data, "none")}, {Name: "app", URL: w.bare},
	} {
		if got, err := w.api.AddRepo(w.ctx(), r); err == nil {
			t.Errorf("added %+v", got)
		}
	}
	if list, err := w.api.ListRepos(w.ctx()); err != nil || len(list) != 1 {
		t.Errorf("there are %d repositories, %v", len(list), err)
	}
}

// fullDisk is a store that cannot write that a delivery is in a state, for a while.
type fullDisk struct {
	caisson.Store
	state caisson.DeliveryState
	left  *atomic.Int32
}

type fullDeliveries struct {
	caisson.DeliveryStore
	fullDisk
}

func (s fullDisk) Deliveries() caisson.DeliveryStore {
	return fullDeliveries{s.Store.Deliveries(), s}
}

func (s fullDeliveries) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Delivery) error) (*caisson.Delivery, error) {
	return s.DeliveryStore.Update(ctx, in, id, func(d *caisson.Delivery) error {
		if err := change(d); err != nil || d.State != s.state || s.left.Add(-1) < 0 {
			return err
		}
		return caisson.Errorf(caisson.Exhausted, "the disk is full")
	})
}

// TestFullDisk: a delivery does not stay between two states because what it is now could not be stored at once.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, state := range []caisson.DeliveryState{caisson.DeliverySending, caisson.DeliveryDelivered} {
		t.Run(string(state), func(t *testing.T) {
			w := newWorld(t)
			w.end()
			var left atomic.Int32
			left.Store(3)
			w.store = fullDisk{w.store, state, &left}
			w.open()
			id, dir, g := w.grant(caisson.RepoRequest{}, "")
			w.does(id, dir, "echo b > b.txt")
			if d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"}); d.State != caisson.DeliveryDelivered || d.Attempts != 1 || w.at(g.Branch) != d.Commit || left.Load() >= 0 {
				t.Errorf("the delivery is %+v, %d", d, left.Load())
			}
		})
	}
}
