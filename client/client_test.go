package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/coretest"
)

// TestMain fails if goroutines of the client or the API outlive the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		code = apitest.Leaks()
	}
	os.Exit(code)
}

func connect(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// answer returns a client of a server that has this handler only.
func answer(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return connect(t, client.Config{URL: s.URL, Token: caisson.NewSecret("secret")})
}

func TestConfig(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []client.Config{
		{},
		{Socket: "/s", URL: "http://h"},
		{URL: "h:1"},
		{URL: "ftp://h"},
		{URL: "http://"},
		{URL: "http://user:pass@h"},
		{URL: "http://h/path"},
		{URL: "https://h", CAFile: "/nonexistent"},
		{URL: "https://h", CAFile: empty},
	} {
		if _, err := client.New(cfg); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	c := connect(t, client.Config{Socket: filepath.Join(t.TempDir(), "s")})
	_, err := c.Get(t.Context(), "x")
	apitest.Fails(t, err, caisson.Unavailable, "")
	if !strings.Contains(caisson.MessageOf(err), "caisson serve") {
		t.Errorf("%s does not say what to do", caisson.MessageOf(err))
	}
	_, err = c.Exec(t.Context(), "x", caisson.ExecRequest{Command: []string{"a"}})
	apitest.Fails(t, err, caisson.Unavailable, "")
	apitest.Fails(t, c.Healthy(t.Context()), caisson.Unavailable, "")
}

// TestOnlyGetsAreRepeated listens only after the first attempts were refused.
func TestOnlyGetsAreRepeated(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := connect(t, client.Config{URL: "http://" + addr})
	_, err = c.Create(t.Context(), caisson.CreateRequest{})
	apitest.Fails(t, err, caisson.Unavailable, "")

	got := make(chan error)
	go func() { _, err := c.Info(t.Context()); got <- err }()
	// Wherever in its attempts the client is, one of them meets the server or the last is refused.
	l, err = net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("the port is taken: %v", err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })}
	go s.Serve(l)
	defer s.Close()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestStrangeServers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		kind   caisson.Kind
	}{
		"page of a proxy": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusServiceUnavailable) }, caisson.Unavailable},
		"no JSON":         {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, caisson.Unavailable},
		"cut off":         {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"id":"sb`) }, caisson.Unavailable},
		"endless problem": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(409)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, caisson.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := answer(t, tt.answer).Get(t.Context(), "x")
			apitest.Fails(t, err, tt.kind, "")
			if strings.Contains(caisson.MessageOf(err), "<") {
				t.Errorf("quotes a stranger: %v", err)
			}
		})
	}
}

// TestTokenStaysHome checks that a redirect does not carry the token elsewhere.
func TestTokenStaysHome(t *testing.T) {
	var visited atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { visited.Store(true) }))
	defer elsewhere.Close()
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("no token")
		}
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	if _, err := c.Get(t.Context(), "x"); err == nil || visited.Load() {
		t.Errorf("%v, visited %v", err, visited.Load())
	}
}

func TestReferencesStayInPlace(t *testing.T) {
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.EscapedPath(), "/api/v1/sandboxes/") || strings.Count(r.URL.EscapedPath(), "/") != 4 {
			t.Errorf("asked for %s", r.URL.EscapedPath())
		}
		w.WriteHeader(http.StatusNotFound)
	})
	for ref, kind := range map[string]caisson.Kind{
		"": caisson.Invalid, ".": caisson.Invalid, "..": caisson.Invalid, "../tokens": caisson.NotFound, "a?b#c": caisson.NotFound,
	} {
		if _, err := c.Get(t.Context(), ref); caisson.KindOf(err) != kind {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

// TestCommentsDoNotEndAWatch checks that comments do not count towards the bound of an event.
func TestCommentsDoNotEndAWatch(t *testing.T) {
	var asked atomic.Int64
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		comments := bytes.Repeat([]byte(":\n"), protocol.MaxEvent/2+1)
		w.Write(append(comments, protocol.SSE{ID: 1, Name: protocol.EventHappened, Data: []byte(`{"seq":1}`)}.Encode()...))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := c.Watch(ctx, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Seq != 1 || asked.Load() != 1 {
		t.Errorf("event %d of connection %d", e.Seq, asked.Load())
	}
	cancel()
	for range events {
	}
}

// TestEventsReconnect breaks the connection after every event.
func TestEventsReconnect(t *testing.T) {
	var asked atomic.Int64
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		var after int64
		fmt.Sscan(r.URL.Query().Get("after"), &after)
		if n := asked.Add(1); n == 2 {
			w.WriteHeader(http.StatusServiceUnavailable) // a daemon that restarts
			return
		}
		e := protocol.SSE{ID: after + 1, Name: protocol.EventHappened, Data: fmt.Appendf(nil, `{"seq":%d}`, after+1)}
		w.Write(e.Encode())
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := c.Watch(ctx, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for want := int64(11); want < 14; want++ {
		if e := <-events; e.Seq != want {
			t.Fatalf("event %d, want %d", e.Seq, want)
		}
	}
	cancel()
	for range events {
	}
}

func TestEventsGiveUp(t *testing.T) {
	first := true
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if !first {
			w.WriteHeader(http.StatusUnauthorized)
		}
		first = false
	})
	events, err := c.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-events:
		if ok {
			t.Error("an event out of nothing")
		}
	case <-time.After(apitest.Timeout):
		t.Error("the watch goes on without a token")
	}
}

func TestCancelled(t *testing.T) {
	release := make(chan struct{})
	c := answer(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	reason := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	for name, call := range map[string]func() error{
		"get":  func() error { _, err := c.Get(ctx, "x"); return err },
		"exec": func() error { _, err := c.Exec(ctx, "x", caisson.ExecRequest{}); return err },
		"pull": func() error { _, err := c.Pull(ctx, caisson.PullRequest{Reference: "x"}, nil); return err },
		"write": func() error {
			_, err := c.WriteFile(ctx, "x", "/f", 0, strings.NewReader("x"))
			return err
		},
	} {
		if err := call(); !errors.Is(err, reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// benchmarkAPI returns a client and a running sandbox of a server on a unix socket.
func benchmarkAPI(b *testing.B) (*client.Client, string) {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	api, err := httpapi.New(coretest.New(b).Config(log))
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	srv := httpapi.Server(api.Local(), log)
	go srv.Serve(l)
	b.Cleanup(func() { api.Close(); srv.Close() })
	cl, err := client.New(client.Config{Socket: socket})
	if err != nil {
		b.Fatal(err)
	}
	sb, err := cl.Create(b.Context(), caisson.CreateRequest{})
	if err != nil {
		b.Fatal(err)
	}
	return cl, string(sb.ID)
}

func BenchmarkRun(b *testing.B) {
	c, sb := benchmarkAPI(b)
	for b.Loop() {
		if _, err := c.Run(b.Context(), sb, protocol.ProcessRequest{ExecRequest: caisson.ExecRequest{Command: []string{"exit", "0"}}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExec(b *testing.B) {
	c, sb := benchmarkAPI(b)
	for b.Loop() {
		p, err := c.Exec(b.Context(), sb, caisson.ExecRequest{Command: []string{"exit", "0"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

func BenchmarkOutput(b *testing.B) {
	c, sb := benchmarkAPI(b)
	b.SetBytes(2 * 16 << 20)
	for b.Loop() {
		p, err := c.Exec(b.Context(), sb, caisson.ExecRequest{Command: []string{"flood", fmt.Sprint(16 << 20)}})
		if err != nil {
			b.Fatal(err)
		}
		go io.Copy(io.Discard, p.Stderr())
		io.Copy(io.Discard, p.Stdout())
		p.Close()
	}
}

// TestStart: a daemon that has ended is started for the next request, also for one that changes something.
func TestStart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	starts := 0
	c := connect(t, client.Config{Socket: socket, Start: func(context.Context) error {
		starts++
		l, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		return nil
	}})
	for range 2 {
		if err := c.Remove(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	failing := connect(t, client.Config{Socket: socket + "2", Start: func(context.Context) error { return caisson.Errorf(caisson.Unavailable, "no") }})
	if err := failing.Remove(t.Context(), "a"); caisson.MessageOf(err) != "no" || starts != 1 {
		t.Errorf("%v after %d starts", err, starts)
	}
}

// TestDaemonEndsDuringRequest checks what happens if the daemon ends after it has accepted a connection and before it has answered: a
// GET is sent once more, to a daemon that is started, and no other request is.
func TestDaemonEndsDuringRequest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		ending int // how many daemons, one after another, end so
		do     func(*client.Client) error
		starts int
		ok     bool
	}{
		{"GET", 1, func(c *client.Client) error { _, err := c.Info(t.Context()); return err }, 1, true},
		{"GET, again and again", 9, func(c *client.Client) error { _, err := c.Info(t.Context()); return err }, 1, false},
		{"DELETE", 1, func(c *client.Client) error { return c.Remove(t.Context(), "a") }, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			left := tt.ending
			var requests atomic.Int64
			serve := func() error {
				l, err := net.Listen("unix", socket)
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				if left--; left >= 0 {
					ended := make(chan struct{})
					t.Cleanup(func() { l.Close(); <-ended })
					go func() {
						defer close(ended)
						nc, err := l.Accept()
						if err != nil {
							return
						}
						nc.Read(make([]byte, 1)) // the rest of the request is lost
						requests.Add(1)
						l.Close()
						nc.Close()
					}()
					return nil
				}
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"version":"1"}`)) })}
				go s.Serve(l)
				t.Cleanup(func() { s.Close() })
				return nil
			}
			starts := 0
			c := connect(t, client.Config{Socket: socket, Start: func(context.Context) error { starts++; return serve() }})
			if err := serve(); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(c); (err == nil) != tt.ok || !tt.ok && caisson.KindOf(err) != caisson.Unavailable {
				t.Error(err)
			}
			if n := requests.Load(); starts != tt.starts || n != int64(min(tt.ending, 1+tt.starts)) {
				t.Errorf("%d starts, %d requests that were not answered", starts, n)
			}
		})
	}
}
