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

// TestViewsGo: what was granted to sandboxes that have gone does not stay on disk.
func TestViewsGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.end()
	w.limits.Sweep = 20 * time.Millisecond
	w.open()
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	w.does(id, dir, "echo b > b.txt")
	w.deliver(caisson.RepoHandover{Sandbox: id, Dir: dir, Subject: "b"})
	w.must(w.store.Sandboxes().Delete(t.Context(), caisson.Everyone(), string(id)))
	w.must(w.core.Leave(t.Context(), id))
	w.waitFor(func() bool {
		list, err := os.ReadDir(filepath.Join(w.data, "relay", "local", "app", "views"))
		return err == nil && len(list) == 0
	})
}

// TestSlowRemote: a remote that does not answer holds up nothing of other repositories.
func TestSlowRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.end()
	w.limits.Sweep = 20 * time.Millisecond
	w.open()
	target, err := url.Parse(w.remote.URL)
	w.must(err)
	pass := httputil.NewSingleHostReverseProxy(target)
	var hangs atomic.Bool
	asked := make(chan struct{}, 10)
	ctx, over := context.WithCancel(w.ctx())
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !hangs.Load() {
			pass.ServeHTTP(rw, r)
			return
		}
		asked <- struct{}{}
		select {
		case <-ctx.Done():
		case <-r.Context().Done():
		}
	}))
	defer slow.Close()
	_, err = w.api.AddRepo(w.ctx(), caisson.Repo{Name: "slow", URL: slow.URL + "/app.git"})
	w.must(err)
	id, dir, _ := w.grant(caisson.RepoRequest{}, "")
	_, err = w.core.Grant(ctx, caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "slow"}})
	w.must(err)
	hangs.Store(true)
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
	if d := w.deliver(caisson.RepoHandover{Sandbox: id, Dir: dir, Subject: "b"}); d.State != caisson.DeliveryDelivered {
		t.Errorf("the delivery is %s: %s", d.State, d.Error)
	}
}
