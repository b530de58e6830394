package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

func TestIdempotency(t *testing.T) {
	s := serve(t, withFaults)
	c := s.local(t, "")
	key := func(k string) context.Context { return client.WithIdempotencyKey(t.Context(), k) }

	first, err := c.Create(key("1"), caisson.CreateRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Create(key("1"), caisson.CreateRequest{Name: "a"})
	if err != nil || again.ID != first.ID || again.Spec.Image != first.Spec.Image {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = c.Create(key("1"), caisson.CreateRequest{Name: "b"})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)
	_, err = c.Snapshot(key("1"), "a", caisson.SnapshotRequest{Name: "a"})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)
	other, err := s.local(t, "alice").Create(key("1"), caisson.CreateRequest{Name: "a"})
	if err != nil || other.ID == first.ID {
		t.Errorf("accounts share keys: %v, %v", other, err)
	}
	_, err = c.Create(key("sp ace"), caisson.CreateRequest{})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)

	// A failure gives its key back, a panic too.
	for _, name := range []string{"full", "panic"} {
		if _, err = c.Create(key("2"), caisson.CreateRequest{Name: name}); err == nil {
			t.Fatal("no error")
		}
	}
	if _, err = c.Create(key("2"), caisson.CreateRequest{}); err != nil {
		t.Error(err)
	}
	forks, err := c.Fork(key("3"), "a", caisson.ForkRequest{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	repeated, err := c.Fork(key("3"), "a", caisson.ForkRequest{Count: 2})
	if err != nil || len(repeated) != 2 || repeated[1].ID != forks[1].ID {
		t.Errorf("%v, %v", repeated, err)
	}
	s1, err := c.Snapshot(key("4"), "a", caisson.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s2, err := c.Snapshot(key("4"), "a", caisson.SnapshotRequest{}); err != nil || s1.ID != s2.ID {
		t.Errorf("%v, %v", s2, err)
	}
}

// faulty is the lifecycle core, except that Create is Exhausted for the name full and panics for the name panic.
type faulty struct{ caisson.Sandboxes }

func (f faulty) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	switch req.Name {
	case "full":
		return nil, caisson.Errorf(caisson.Exhausted, "too many sandboxes")
	case "panic":
		panic("as asked")
	}
	return f.Sandboxes.Create(ctx, req)
}

func withFaults(cfg *httpapi.Config) { cfg.Sandboxes = faulty{cfg.Sandboxes} }

// count returns the number of sandboxes.
func count(t *testing.T, c *client.Client) int {
	t.Helper()
	list, _, err := c.List(t.Context(), caisson.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestRacingCreatesMakeOne(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	for n := range 20 {
		ctx := client.WithIdempotencyKey(t.Context(), string(caisson.NewID("xx")))
		var mu sync.Mutex
		ids := map[caisson.ID]bool{}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				sb, err := c.Create(ctx, caisson.CreateRequest{})
				if err != nil {
					apitest.Fails(t, err, caisson.Conflict, "")
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[sb.ID] = true
			})
		}
		wg.Wait()
		if made := count(t, c); made != n+1 || len(ids) != 1 {
			t.Fatalf("%d made, answers %v", made-n, ids)
		}
	}
}

// mountable makes a directory with one file in it.
func mountable(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestDirectoriesArePassed(t *testing.T) {
	s := serve(t)
	c := s.local(t, "alice")
	a, b := mountable(t, "in-a"), mountable(t, "in-b")
	mounts := []caisson.Mount{{Source: a, Target: "/a"}, {Source: b, Target: "/b"}}
	sb, err := c.Create(t.Context(), caisson.CreateRequest{Mounts: mounts})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/a/in-a", "/b/in-b"} {
		if _, err := c.StatFile(t.Context(), string(sb.ID), path); err != nil {
			t.Error(err)
		}
	}

	// Opened by the caller, whose own they no longer are.
	f, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), caisson.CreateRequest{Mounts: mounts[:1], Directories: []caisson.Handle{f}}); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err == nil {
		t.Error("the client leaves a passed directory open")
	}

	_, err = c.Create(t.Context(), caisson.CreateRequest{Mounts: []caisson.Mount{{Source: "/nonexistent", Target: "/a"}}})
	apitest.Fails(t, err, caisson.Invalid, "")
	_, err = s.remote(t, "alice").Create(t.Context(), caisson.CreateRequest{Mounts: mounts})
	apitest.Fails(t, err, caisson.Denied, "")

	_, err = s.remote(t, "alice").PutTemplate(t.Context(), caisson.Template{Name: "t", Image: "host", Mounts: mounts})
	apitest.Fails(t, err, caisson.Denied, "")

	// A repeated create passes its directories again; they are not needed and do not leak.
	ctx := client.WithIdempotencyKey(t.Context(), "k")
	first, err := c.Create(ctx, caisson.CreateRequest{Mounts: mounts})
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Create(ctx, caisson.CreateRequest{Mounts: mounts})
	if err != nil || again.ID != first.ID {
		t.Errorf("%v, %v", again, err)
	}
}

func TestArchivesArePassed(t *testing.T) {
	s := serve(t)
	c := s.local(t, "")
	file := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	auth := caisson.RegistryAuth{Username: "u", Password: caisson.NewSecret("p")}
	for _, ref := range []string{"tar:" + file, "dir:" + filepath.Dir(file)} {
		if _, err := c.Pull(t.Context(), caisson.PullRequest{Reference: ref, Auth: auth}, nil); err != nil {
			t.Error(err)
		}
		if got := s.world.LastPull(); got.Source == nil || got.Reference != ref || got.Auth.Password.Reveal() != "p" {
			t.Errorf("%+v", got)
		}
	}
	_, err := c.Pull(t.Context(), caisson.PullRequest{Reference: "tar:/nonexistent"}, nil)
	apitest.Fails(t, err, caisson.Invalid, "")
	if _, err := c.Pull(t.Context(), caisson.PullRequest{Reference: "tar:" + file, Offline: true}, nil); err != nil {
		t.Error(err)
	}
	_, err = s.remote(t, "local").Pull(t.Context(), caisson.PullRequest{Reference: "tar:" + file}, nil)
	apitest.Fails(t, err, caisson.Denied, "")
	if strings.Contains(s.log.String(), `"p"`) {
		t.Error("a password was logged")
	}
}

// upgrade begins an upload of descriptors by hand.
func (s *server) upgrade(t *testing.T, account string) *net.UnixConn {
	t.Helper()
	nc, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_, err = io.WriteString(nc, "POST /api/v1/handles HTTP/1.1\r\nHost: caisson\r\nX-Caisson-Account: "+account+
		"\r\nConnection: Upgrade\r\nUpgrade: caisson-handles\r\nContent-Length: 0\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1024)
	n, err := nc.Read(b)
	if err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 101 ") {
		t.Fatalf("%q, %v", b[:n], err)
	}
	return nc.(*net.UnixConn)
}

func TestHandles(t *testing.T) {
	s := serve(t)
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	good, pipe := int(dir.Fd()), int(r.Fd())
	before := descriptors(t)
	for name, tt := range map[string]struct {
		data string
		fds  []int
		ok   bool
	}{
		"one":          {"\x01", []int{good}, true},
		"three":        {"\x03", []int{good, good, good}, true},
		"none":         {"\x00", nil, false},
		"wrong number": {"\x02", []int{good}, false},
		"a pipe":       {"\x02", []int{good, pipe}, false},
		"too many":     {"\x41", slicesRepeat(good, 65), false},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.upgrade(t, "alice")
			if _, _, err := conn.WriteMsgUnix([]byte(tt.data), syscall.UnixRights(tt.fds...), nil); err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			if got := !strings.Contains(string(b), "problem"); got != tt.ok {
				t.Errorf("%s", b)
			}
			conn.Close()
		})
	}

	ids := func(account string) string {
		conn := s.upgrade(t, account)
		defer conn.Close()
		if _, _, err := conn.WriteMsgUnix([]byte{1}, syscall.UnixRights(good), nil); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(b), `"`)[3]
	}
	create := func(account, handles string) int {
		status, _, _ := s.raw(t, true, http.MethodPost, "/api/v1/sandboxes", `{"mounts":[{"source":"x","target":"/x"}]}`,
			map[string]string{"X-Caisson-Account": account, "X-Caisson-Handles": handles})
		return status
	}
	id := ids("alice")
	if got := create("bob", id); got != 400 {
		t.Errorf("another account's handle: %d", got)
	}
	if got := create("alice", "nonsense"); got != 400 {
		t.Errorf("an unknown handle: %d", got)
	}
	for range 2 { // the first request fails after the handle was named, and uses it up
		if got := create("alice", id+",nonsense"); got != 400 {
			t.Errorf("a handle too many: %d", got)
		}
	}
	id = ids("alice")
	if got := create("alice", id); got != 201 {
		t.Errorf("a handle: %d", got)
	}
	if got := create("alice", id); got != 400 {
		t.Errorf("a used handle: %d", got)
	}
	// Many that nobody claims are refused at some point, and closed with the API.
	full := false
	for range 10 {
		conn := s.upgrade(t, "alice")
		if _, _, err := conn.WriteMsgUnix([]byte{64}, syscall.UnixRights(slicesRepeat(good, 64)...), nil); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(conn)
		full = full || strings.Contains(string(b), string(caisson.Exhausted))
		conn.Close()
	}
	if !full {
		t.Error("there is no limit to unclaimed handles")
	}
	s.api.Close()
	if after := descriptors(t); after > before+20 { // connections come and go
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func slicesRepeat(fd, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = fd
	}
	return out
}

// TestEarlyHandles sends descriptors before the server can take them: they are lost, and nothing hangs.
func TestEarlyHandles(t *testing.T) {
	s := serve(t)
	nc, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_, _, err = nc.(*net.UnixConn).WriteMsgUnix([]byte("POST /api/v1/handles HTTP/1.1\r\nHost: caisson\r\nConnection: Upgrade\r\n"+
		"Upgrade: caisson-handles\r\nContent-Length: 0\r\n\r\n\x01"), syscall.UnixRights(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(nc); strings.Contains(string(b), "handles\":") {
		t.Errorf("%s", b)
	}
}

func TestMissingConfig(t *testing.T) {
	if _, err := httpapi.New(httpapi.Config{}); err == nil {
		t.Error("an API without cores was made")
	}
}
