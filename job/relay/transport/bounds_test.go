package transport_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

// noise returns n bytes that cannot be compressed.
func noise(n int) string {
	b := make([]byte, n)
	for i, x := 0, uint32(7); i < n; i++ {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

// TestLargePush pushes more than git sends in one piece, over HTTP/1, HTTP/2 and streams.
func TestLargePush(t *testing.T) {
	for _, kind := range []string{"http", "https", "local"} {
		t.Run(kind, func(t *testing.T) {
			b := newBerth(t, gitserver.Options{Password: "hunter2", TLS: kind == "https"})
			if kind == "local" {
				b.place = place{url: b.bare}
			}
			work := t.TempDir()
			gitserver.Git(t, work, "clone", "-q", b.bare, "c")
			large := gitserver.Commit(t, work+"/c", "large", map[string]string{"noise": noise(6 << 20)})
			take := gitserver.Command(t, b.path("store-s"), "fetch", "-q", work+"/c", "HEAD:refs/heads/large")
			take.Env = append(take.Env, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+b.path("view-s")+"/objects")
			if out, err := take.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			b.own("store-s")
			if _, err := b.push(b.place, b.store, b.view, large, "caisson/x", ""); err != nil || b.remoteTip() != large {
				t.Fatalf("push: %v", err)
			}
			if _, err := b.fetch(b.place); err != nil {
				t.Error(err)
			}
			gitserver.Git(t, b.bare, "update-ref", "-d", "refs/heads/caisson/x")
			remote, err := b.fetch(b.place)
			if err != nil || names(remote) != "heads/main" {
				t.Errorf("%+v, %v", remote, err)
			}
		})
	}
}

// TestFetchLimits checks that exceeding a limit ends the fetch, and that an aborted fetch does not block the next one.
func TestFetchLimits(t *testing.T) {
	b := newBerth(t, gitserver.Options{})
	work := t.TempDir()
	gitserver.Git(t, work, "clone", "-q", b.bare, "c")
	gitserver.Commit(t, work+"/c", "large", map[string]string{"noise": noise(3 << 20)})
	gitserver.Git(t, work+"/c", "push", "-q", b.bare, "HEAD:main", "HEAD:x", "HEAD:y")
	try := func(ctx context.Context, l fetch.Limits, progress func(string)) error {
		return b.over(b.place, false, func(near *os.File) error {
			_, err := fetch.Run(ctx, b.jobs, b.mirror, near, fetch.Request{Transport: remote.ProtocolHTTP, Limits: l, Progress: progress})
			return err
		})
	}
	for _, l := range []fetch.Limits{{Bytes: 1 << 20}, {Refs: 2}, {Time: time.Millisecond}} {
		if err := try(t.Context(), l, nil); caisson.KindOf(err) != caisson.Exhausted {
			t.Errorf("%+v: %v", l, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := try(ctx, fetch.Limits{}, func(line string) { cancel() }); err == nil {
		t.Error("given up, and went on")
	}
	lines := 0
	if err := try(t.Context(), fetch.Limits{}, func(line string) {
		if lines++; line == "" || strings.ContainsAny(line, "\r\n\x1b") {
			t.Errorf("progress %q", line)
		}
	}); err != nil || lines == 0 {
		t.Errorf("%d lines of progress, %v", lines, err)
	}
}

// linked returns an HTTP client that acts as the git job of a link.
func (y *yard) linked(req transport.Request) (c *http.Client, end func(), ended <-chan error) {
	near, far := y.sockets()
	conn, err := net.FileConn(near)
	near.Close()
	y.must(err)
	done := make(chan error, 1)
	go func() {
		err := y.links.Run(y.t.Context(), far, req)
		far.Close()
		done <- err
	}()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	end = func() { conn.Close() } // closing idle connections would not close a connection in use
	y.t.Cleanup(end)
	return &http.Client{Transport: &http.Transport{
		Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}, end, done
}

// TestHostileNearEnd sends requests that a compromised git job could send.
func TestHostileNearEnd(t *testing.T) {
	y := newYard(t)
	var asked []string
	s := gitserver.New(t, gitserver.Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String())
	})})
	s.Create("r")
	c, end, done := y.linked(transport.Request{URL: s.RepoURL("r"), Auth: secret("ada", "hunter2"), Local: true})
	for _, ask := range []string{
		"GET /", "GET /../../admin", "GET /info/refs", "GET /info/refs?service=git-receive-pack", "GET /info/refs?service=git-upload-pack&service=git-receive-pack&x=1",
		"POST /git-receive-pack", "POST /git-upload-pack/../x", "PUT /git-upload-pack", "DELETE /info/refs?service=git-upload-pack",
		"POST /stream/git-upload-pack", "GET /info/refs?service=git-upload-archive", "GET //example.com/info/refs?service=git-upload-pack",
	} {
		method, path, _ := strings.Cut(ask, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "http://link"+path, strings.NewReader("x"))
		y.must(err)
		req.Header.Set("Authorization", "Bearer mine")
		req.Header.Set("Cookie", "a=b")
		resp, err := c.Do(req)
		y.must(err)
		said, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if k := resp.Header.Get(remote.LinkKind); k == "" && !strings.Contains(ask, "x=1") {
			t.Errorf("%s: %d, %q", ask, resp.StatusCode, said)
		}
	}
	if got := strings.Join(s.Requests(), ", "); got != "GET /r/info/refs" || len(asked) > 0 {
		t.Errorf("the remote was asked for %s, %v", got, asked)
	}
	end()
	if err := <-done; err != nil {
		t.Errorf("the link ends with %v", err)
	}
}

// TestNotEverywhere checks that remotes cannot be used to probe the host's networks, and that tokens are not sent unencrypted.
func TestNotEverywhere(t *testing.T) {
	y := newYard(t)
	s := gitserver.New(t, gitserver.Options{})
	s.Create("r")
	own := reach.Host{PublicAddresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}}
	tests := []struct {
		req  transport.Request
		kind caisson.Kind
	}{
		{transport.Request{URL: s.RepoURL("r")}, caisson.Denied},
		{transport.Request{URL: strings.Replace(s.RepoURL("r"), "127.0.0.1", "[::ffff:127.0.0.1]", 1)}, caisson.Denied},
		{transport.Request{URL: strings.Replace(s.RepoURL("r"), "127.0.0.1", "0.0.0.0", 1), Local: true}, caisson.Denied},
		{transport.Request{URL: "http://169.254.169.254/latest", Local: true}, caisson.Denied},
		{transport.Request{URL: "http://10.0.0.1/r", Auth: secret("a", "b"), Local: true}, caisson.Denied},
		{transport.Request{URL: "http://203.0.113.9:1/r", Own: own}, caisson.Denied},
		{transport.Request{URL: "http://[64:ff9b::cb00:7109]:1/r", Own: own}, caisson.Denied},
		{transport.Request{URL: s.RepoURL("r"), Auth: secret("a:b", "c"), Local: true}, caisson.Invalid},
		{transport.Request{URL: s.RepoURL("r"), Auth: secret("a", "b\r\nX: y"), Local: true}, caisson.Invalid},
		{transport.Request{URL: s.RepoURL("r"), Roots: "no certificate", Local: true}, caisson.Invalid},
		{transport.Request{URL: "file:///etc"}, caisson.Invalid},
		{transport.Request{URL: "/etc"}, caisson.Invalid},
		{transport.Request{URL: "ext::sh -c id"}, caisson.Invalid},
	}
	for _, tt := range tests {
		c, end, done := y.linked(tt.req)
		resp, err := c.Get("http://link/info/refs?service=git-upload-pack")
		var got error
		if err == nil {
			got = caisson.Errorf(caisson.Kind(resp.Header.Get(remote.LinkKind)), "%s", resp.Header.Get(remote.LinkMessage))
			resp.Body.Close()
			end()
			<-done
		} else {
			got = <-done
		}
		if caisson.KindOf(got) != tt.kind {
			t.Errorf("%s: %v: %v", tt.req.URL, caisson.KindOf(got), got)
		}
	}
	if len(s.Requests()) > 0 {
		t.Errorf("it was asked: %v", s.Requests())
	}
}

// TestLinkEnds checks that a link ends when the git job's end is closed, in every state.
func TestLinkEnds(t *testing.T) {
	y := newYard(t)
	s := gitserver.New(t, gitserver.Options{})
	s.Create("r")
	runtime.GC() // finalizers of earlier tests
	before := descriptors(t)
	for _, garbage := range []string{"", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x00\xff\x00"} {
		near, far := y.sockets()
		done := make(chan error, 1)
		go func() {
			done <- y.links.Run(t.Context(), far, transport.Request{URL: s.RepoURL("r"), Local: true})
			far.Close()
		}()
		io.WriteString(near, garbage)
		near.Close()
		if err := <-done; err != nil {
			t.Errorf("%q: %v", garbage, err)
		}
	}
	poll.Until(t, time.Minute, func() bool { return descriptors(t) <= before })
}

// descriptors returns the number of open file descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
