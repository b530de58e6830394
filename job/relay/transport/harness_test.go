package transport_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/push"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/serve"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/worker"
)

// owner is the first uid of an account in these tests.
const owner = caisson.LayerUIDBase + 7*caisson.UIDRange

// A yard has the directories of a repository, in the same layout as in the core, and the tools.
type yard struct {
	t      *testing.T
	top    string
	jobs   worker.Starter
	links  *transport.Tool
	mirror *os.File
}

func newYard(t *testing.T) *yard {
	t.Helper()
	r := workertest.Runner(t)
	y := &yard{t: t, top: gitserver.Dir(t), jobs: r, links: transport.NewTool(r)}
	if err := os.Chmod(y.top, 0o700); err != nil {
		t.Fatal(err)
	}
	y.mirror = y.dir("mirror")
	y.must(relay.Init(t.Context(), y.jobs, y.mirror))
	return y
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

// dir creates a directory that the account owns.
func (y *yard) dir(name string) *os.File {
	y.t.Helper()
	path := filepath.Join(y.top, name)
	y.must(os.Mkdir(path, 0o700))
	y.must(os.Chown(path, owner, owner))
	f, err := os.Open(path)
	y.must(err)
	y.t.Cleanup(func() { f.Close() })
	return f
}

func (y *yard) path(name string) string { return filepath.Join(y.top, name) }

// sockets returns the two ends of a stream socket.
func (y *yard) sockets() (near, far *os.File) {
	y.t.Helper()
	near, far, err := socketpair.New()
	y.must(err)
	return near, far
}

// A place is the location of a repository, with the data for reaching it.
type place struct {
	url  string
	auth transport.Auth
	keys []string
	root string // certificates
}

func (p place) transport() remote.Protocol {
	if strings.HasPrefix(p.url, "http") {
		return remote.ProtocolHTTP
	}
	return remote.ProtocolStream
}

// over calls f with a link to a place.
func (y *yard) over(p place, push bool, f func(near *os.File) error) error {
	y.t.Helper()
	near, far := y.sockets()
	defer near.Close()
	ctx, cancel := context.WithCancel(y.t.Context())
	done := make(chan error, 1)
	go func() {
		defer far.Close()
		if strings.HasPrefix(p.url, "/") {
			dir, err := os.Open(p.url)
			if err != nil {
				done <- err
				return
			}
			defer dir.Close()
			done <- y.links.RunLocal(ctx, far, dir, push)
			return
		}
		done <- y.links.Run(ctx, far, transport.Request{URL: p.url, Auth: p.auth, HostKeys: p.keys, Roots: p.root, Push: push, Local: true})
	}()
	err := f(near)
	near.Close()
	if lerr := <-done; lerr != nil {
		y.t.Logf("link: %v", lerr)
	}
	cancel()
	return err
}

func (y *yard) fetch(p place) (r *git.Remote, err error) {
	y.t.Helper()
	err = y.over(p, false, func(near *os.File) error {
		r, err = fetch.Run(y.t.Context(), y.jobs, y.mirror, near, fetch.Request{Transport: p.transport()})
		return err
	})
	return r, err
}

// sandbox creates a view and a store with refs.
func (y *yard) sandbox(name string, refs []git.Ref, head string) (store, view *os.File) {
	y.t.Helper()
	view, store = y.dir("view-"+name), y.dir("store-"+name)
	y.must(relay.View(y.t.Context(), y.jobs, y.mirror, view, refs))
	y.must(relay.Store(y.t.Context(), y.jobs, store, view, refs, head))
	return store, view
}

func (y *yard) push(p place, store, view *os.File, commit, branch, expect string) (r *push.Result, err error) {
	y.t.Helper()
	err = y.over(p, true, func(near *os.File) error {
		r, err = push.Run(y.t.Context(), y.jobs, store, view, near, push.Request{
			Transport: p.transport(), Commit: commit, Branch: branch, Expect: expect,
		})
		return err
	})
	return r, err
}

// serve returns the URL of a server that does the same as package job/relay/front.
func (y *yard) serve(store, view *os.File, branch string, granted []git.Ref) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := strings.TrimPrefix(r.URL.Path, "/r/")
		advertise := service == "info/refs"
		kind := "-result"
		if advertise {
			service, kind = r.URL.Query().Get("service"), "-advertisement"
		}
		near, far := y.sockets()
		defer near.Close()
		conn, err := net.FileConn(far)
		far.Close()
		if err != nil {
			y.t.Error(err)
			return
		}
		defer conn.Close()
		http.NewResponseController(w).EnableFullDuplex()
		go func() {
			io.Copy(conn, r.Body)
			conn.(*net.UnixConn).CloseWrite()
		}()
		done := make(chan error, 1)
		go func() {
			protocol := r.Header.Get("Git-Protocol")
			var err error
			if service == "git-upload-pack" {
				err = serve.Run(r.Context(), y.jobs, store, view, near, serve.Request{Advertise: advertise, Protocol: protocol})
			} else {
				_, err = receive.Run(r.Context(), y.jobs, store, view, near, receive.Request{
					Advertise: advertise, Protocol: protocol, Granted: granted, Branch: branch,
				})
			}
			near.Close()
			done <- err
		}()
		w.Header().Set("Content-Type", "application/x-"+service+kind)
		io.Copy(w, conn)
		if err := <-done; err != nil {
			y.t.Logf("%s %s: %v", r.Method, r.URL, err)
		}
	}))
	y.t.Cleanup(s.Close)
	return s.URL + "/r"
}
