package repos_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// TestViewsGo: views of sandboxes that were removed are removed.
func TestViewsGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.end()
	w.sweep = 20 * time.Millisecond
	w.open()
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
	w.must(w.core.SandboxRemoved(t.Context(), id))
	w.waitFor(func() bool {
		list, err := os.ReadDir(filepath.Join(w.data, "relay", "local", "app", "views"))
		return err == nil && len(list) == 0
	})
}

// TestMirrorGone tests that a repository whose mirror is gone, as after the restore of a backup, delivers what was pushed before, and is fetched
// again for what comes.
func TestMirrorGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	w.end()
	w.must(os.RemoveAll(filepath.Join(w.data, "relay", "local", "app", "mirror")))
	w.open()
	w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"})
	id, dir, _ = w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "test -f a.txt && echo c > c.txt")
	w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "c"})
	if !w.exists("mirror") {
		t.Error("there is no mirror")
	}
}

// TestLeaveReleased: SandboxRemoved succeeds if a sweep has removed the store of the sandbox in the meantime.
func TestLeaveReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, _, _ := w.grant(caisson.RepoRequest{}, "")
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
	w.must(os.Remove(filepath.Join(w.data, "relay", "local", "app", "stores", string(id)+".json")))
	w.must(w.core.SandboxRemoved(t.Context(), id))
	if w.exists("stores", string(id)) {
		t.Error("the store of a sandbox that has gone is left")
	}
}

// TestLeaveWhilePushed: a push that is recorded while its sandbox is removed does not store the grant again.
func TestLeaveWhilePushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 5 {
		id, _, _ := w.grant(caisson.RepoRequest{}, "")
		w.must(w.store.Sandboxes().Delete(t.Context(), caisson.AllAccounts(), string(id)))
		recording, left, recorded := make(chan struct{}), make(chan struct{}), make(chan error)
		go func() {
			ok, err := w.core.Touch(id, "app")
			close(recording)
			for ok && err == nil {
				select {
				case <-left:
					ok = false
				default:
					ok, err = w.core.Touch(id, "app")
				}
			}
			recorded <- err
		}()
		<-recording
		w.must(w.core.SandboxRemoved(t.Context(), id))
		close(left)
		w.must(<-recorded)
		if w.exists("stores", string(id)) || w.exists("stores", string(id)+".json") {
			t.Fatal("the store of a sandbox that has gone is left")
		}
	}
}

// TestSlowRemote: a remote that does not answer delays nothing of other repositories.
func TestSlowRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.end()
	w.sweep = 20 * time.Millisecond
	w.open()
	url, hang, asked := w.slow()
	ctx, over := context.WithCancel(w.ctx())
	_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: "slow", URL: url})
	w.must(err)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	_, err = w.core.Grant(ctx, caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "slow"}})
	w.must(err)
	hang()
	ended := make(chan struct{})
	defer func() {
		over()
		<-ended
	}()
	go func() {
		defer close(ended)
		w.api.FetchRepo(ctx, "slow")
	}()
	<-asked
	w.must(os.Mkdir(filepath.Join(w.data, "relay", "local", "app", "views", "old"), 0o700))
	w.waitFor(func() bool { return !w.exists("views", "old") })
	w.does(id, dir, "echo b > b.txt")
	if d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"}); d.State != caisson.DeliveryDelivered {
		t.Errorf("the delivery is %s: %s", d.State, d.Error)
	}
}

// TestSlowPushes: a remote that does not answer pushes delays no other delivery.
func TestSlowPushes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	url, hang, asked := w.slow()
	_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: "slow", URL: url})
	w.must(err)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	var slow []caisson.ID
	for range 8 {
		id, dir := w.sandbox("local")
		req := caisson.RepoRequest{Name: "slow"}
		_, err := w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: req, Dir: dir})
		w.must(err)
		w.does(id, dir, "echo b > b.txt; git add .; git commit -qm b; git push -q")
		d, err := w.core.Deliver(t.Context(), caisson.DeliveryRequest{Sandbox: id, Repo: req, Hold: true})
		w.must(err)
		slow = append(slow, d.ID)
	}
	hang()
	for _, id := range slow {
		_, err := w.api.RetryDelivery(w.ctx(), id)
		w.must(err)
	}
	<-asked
	<-asked
	w.does(id, dir, "echo b > b.txt")
	if d := w.deliver(caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "b"}); d.State != caisson.DeliveryDelivered {
		t.Errorf("the delivery is %s: %s", d.State, d.Error)
	}
	w.end()
}

// slow returns another address of the remote. After hang was called it answers no request there, and asked gets a value for each.
func (w *world) slow() (address string, hang func(), asked <-chan struct{}) {
	target, err := url.Parse(w.remote.URL)
	w.must(err)
	pass := httputil.NewSingleHostReverseProxy(target)
	var hangs atomic.Bool
	got := make(chan struct{}, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !hangs.Load() {
			pass.ServeHTTP(rw, r)
			return
		}
		got <- struct{}{}
		select {
		case <-w.t.Context().Done():
		case <-r.Context().Done():
		}
	}))
	w.t.Cleanup(srv.Close)
	return srv.URL + "/app.git", func() { hangs.Store(true) }, got
}
