package remote_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/remote"
	"github.com/caisson-dev/caisson/wire/llm/runtoken"
)

const (
	key1 = "0123456789abcdef0123456789abcdef"
	key2 = "abcdef0123456789abcdef0123456789"
)

func tokens(t testing.TB, now func() time.Time, keys ...string) *runtoken.Tokens {
	t.Helper()
	cfg := runtoken.Config{Now: now}
	for _, k := range keys {
		cfg.Keys = append(cfg.Keys, caisson.NewSecret(k))
	}
	out, err := runtoken.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func spec(run, account string, attempt int) caisson.WireSpec {
	return caisson.WireSpec{
		Guest:  caisson.Guest{Run: run, Account: account, Attempt: attempt},
		Models: &caisson.ModelGrant{Models: []string{"m-" + run}},
	}
}

// served returns a server for handler, with the runs a and b of alice and bob.
func served(t testing.TB, verify *runtoken.Tokens, gateway http.HandlerFunc) (*httptest.Server, *remote.Registry) {
	t.Helper()
	runs := remote.NewRegistry(remote.RegistryConfig{})
	for _, s := range []caisson.WireSpec{spec("a", "alice", 1), spec("b", "bob", 0)} {
		if err := runs.Put(s, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := remote.NewServer(remote.ServerConfig{Tokens: verify, Runs: runs, Gateway: gateway, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv, runs
}

// who responds with the guest, and fails if it receives the token.
func who(t testing.TB, runs **remote.Registry) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, err := caisson.GuestOf(r.Context())
		if err != nil {
			t.Error(err)
		}
		if len(r.Header.Values(runtoken.Header)) != 0 {
			t.Error("the gateway sees the token")
		}
		grant := (*runs).Grant(r.Context(), g)
		fmt.Fprintf(w, "%s %s %d %v", g.Account, g.Run, g.Attempt, grant.Models)
	}
}

func get(t testing.TB, url string, header http.Header) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

func TestServer(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	mint := func(s *runtoken.Tokens, run string, attempt int) string {
		token, err := s.Mint(run, attempt)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := mint(tokens(t, clock, key1), "a", 1)
	later := func() time.Time { return now.Add(25 * time.Hour) }
	dot := strings.LastIndexByte(good, '.')
	forB := mint(tokens(t, clock, key1), "b", 0)
	const (
		refused = `{"type":"error","error":{"type":"authentication_error","message":"this needs a valid run token in the header X-Run-Token"}}`
		unknown = `{"type":"error","error":{"type":"permission_error","message":"this run is not known to the model gateway, or it has ended"}}`
	)
	for _, c := range []struct {
		name   string
		verify *runtoken.Tokens
		tokens []string
		status int
		body   string
	}{
		{"good", tokens(t, clock, key1), []string{good}, 200, "alice a 1 [m-a]"},
		{"other run", tokens(t, clock, key1), []string{forB}, 200, "bob b 0 [m-b]"},
		{"rotated, old key second", tokens(t, clock, key2, key1), []string{good}, 200, "alice a 1 [m-a]"},
		{"rotated, new key second", tokens(t, clock, key1, key2), []string{good}, 200, "alice a 1 [m-a]"},
		{"old key dropped", tokens(t, clock, key2), []string{good}, 401, refused},
		{"none", tokens(t, clock, key1), nil, 401, refused},
		{"empty", tokens(t, clock, key1), []string{""}, 401, refused},
		{"two", tokens(t, clock, key1), []string{good, good}, 401, refused},
		{"good and bad", tokens(t, clock, key1), []string{good, "x"}, 401, refused},
		{"expired", tokens(t, later, key1), []string{good}, 401, refused},
		{"truncated", tokens(t, clock, key1), []string{good[:len(good)-1]}, 401, refused},
		{"no signature", tokens(t, clock, key1), []string{good[:dot]}, 401, refused},
		{"signature of another run", tokens(t, clock, key1), []string{good[:dot] + forB[strings.LastIndexByte(forB, '.'):]}, 401, refused},
		{"run replaced", tokens(t, clock, key1), []string{"b" + good[1:]}, 401, refused},
		{"attempt replaced", tokens(t, clock, key1), []string{strings.Replace(good, "|1|", "|2|", 1)}, 401, refused},
		{"unknown run", tokens(t, clock, key1), []string{mint(tokens(t, clock, key1), "c", 0)}, 403, unknown},
		{"attempt that is over", tokens(t, clock, key1), []string{mint(tokens(t, clock, key1), "a", 0)}, 403, unknown},
		{"attempt to come", tokens(t, clock, key1), []string{mint(tokens(t, clock, key1), "a", 2)}, 403, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			var runs *remote.Registry
			srv, r := served(t, c.verify, who(t, &runs))
			runs = r
			status, body := get(t, srv.URL+"/v1/models", http.Header{runtoken.Header: c.tokens})
			if status != c.status || body != c.body {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

type brokenRuns struct{}

func (brokenRuns) Run(context.Context, string) (caisson.WireSpec, error) {
	return caisson.WireSpec{}, errors.New("the disk is full of secrets")
}

// TestServerFails checks that no request is served if the registry fails, and that its error is not sent to clients.
func TestServerFails(t *testing.T) {
	s, err := remote.NewServer(remote.ServerConfig{
		Tokens: tokens(t, nil, key1), Runs: brokenRuns{}, Log: slog.New(slog.DiscardHandler),
		Gateway: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/models", nil)
	token, _ := tokens(t, nil, key1).Mint("a", 0)
	r.Header.Set(runtoken.Header, token)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "disk") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestFailuresAreLimited checks that a source with many failures receives 429, and that its requests with valid tokens are still
// served.
func TestFailuresAreLimited(t *testing.T) {
	var runs *remote.Registry
	srv, r := served(t, tokens(t, nil, key1), who(t, &runs))
	runs = r
	for i := range 25 {
		want := http.StatusUnauthorized
		if i >= 20 {
			want = http.StatusTooManyRequests
		}
		if status, body := get(t, srv.URL, nil); status != want {
			t.Fatalf("failure %d: %d %s", i, status, body)
		}
	}
	token, err := tokens(t, nil, key1).Mint("a", 1)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := get(t, srv.URL, http.Header{runtoken.Header: {token}}); status != 200 {
		t.Errorf("a valid token after failures: %d %s", status, body)
	}
}

func client(t testing.TB, url string, sign *runtoken.Tokens, roots *x509.CertPool) *remote.Client {
	t.Helper()
	c, err := remote.NewClient(remote.ClientConfig{URL: url, Tokens: sign, Roots: roots, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// asGuest puts the guest into the context, like a wire.
func asGuest(t testing.TB, g caisson.Guest, h http.Handler) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), g)))
	}))
	t.Cleanup(srv.Close)
	return srv
}

// TestEndToEnd checks that identities sent by a sandbox are removed, that the gateway gets the right guest, and that bodies are
// forwarded unchanged.
func TestEndToEnd(t *testing.T) {
	var got *http.Request
	var body string
	srv, _ := served(t, tokens(t, nil, key2, key1), func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got, body = r, string(b)
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Kept", "yes")
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "short")
	})
	for _, c := range []struct {
		name  string
		guest caisson.Guest
		want  string
	}{
		{"run", caisson.Guest{Account: "alice", Run: "a", Attempt: 1, Sandbox: "sb-x"}, "alice"},
		{"sandbox without a run", caisson.Guest{Account: "bob", Sandbox: "b"}, "bob"},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := asGuest(t, c.guest, client(t, srv.URL+"/base", tokens(t, nil, key1), nil))
			forged, _ := tokens(t, nil, key1).Mint("b", 0)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, host.URL+"/v1beta/models/a%2Fb:generate?alt=sse&key=mine&access_token=x",
				strings.NewReader(`{"user": "me",  "x":1}`))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range map[string]string{
				"Authorization": "Bearer x", "X-Api-Key": "x", "X-Goog-Api-Key": "x", "Api-Key": "x", "Cookie": "x=y", "Proxy-Authorization": "x",
				"X-Run-Token": forged, "Connection": "X-Run-Token, X-Hop", "X-Hop": "x", "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4",
				"Anthropic-Version": "2023-06-01", "Content-Type": "application/json",
			} {
				req.Header.Set(k, v)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusTeapot || string(b) != "short" || resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("X-Kept") != "yes" {
				t.Errorf("answer %d %q %v", resp.StatusCode, b, resp.Header)
			}
			if body != `{"user": "me",  "x":1}` {
				t.Errorf("body %q", body)
			}
			if got.URL.EscapedPath() != "/base/v1beta/models/a%2Fb:generate" || got.URL.RawQuery != "alt=sse" {
				t.Errorf("asked for %s", got.URL)
			}
			for _, h := range []string{
				"Authorization", "X-Api-Key", "X-Goog-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization", "X-Run-Token", "X-Hop",
				"X-Forwarded-For", "X-Forwarded-Host", "Forwarded",
			} {
				if got.Header.Get(h) != "" {
					t.Errorf("%s arrived: %v", h, got.Header[h])
				}
			}
			if got.Header.Get("Anthropic-Version") == "" || got.Header.Get("Content-Type") == "" {
				t.Error("headers of the API are gone")
			}
			g, err := caisson.GuestOf(got.Context())
			if err != nil || g.Account != c.want {
				t.Errorf("guest %+v, %v", g, err)
			}
		})
	}
}

// TestStreams checks that pieces are forwarded immediately in both directions. The test would hang if they were buffered.
func TestStreams(t *testing.T) {
	srv, _ := served(t, tokens(t, nil, key1), func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "data: %s\n", lines.Text())
			if err := rc.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	host := asGuest(t, caisson.Guest{Account: "x", Run: "a", Attempt: 1}, client(t, srv.URL, tokens(t, nil, key1), nil))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	body, send := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, host.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	go fmt.Fprintln(send, "first")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := bufio.NewReader(resp.Body)
	for i := range 10 {
		want := "data: first\n"
		if i > 0 {
			want = fmt.Sprintf("data: line %d\n", i)
			fmt.Fprintf(send, "line %d\n", i)
		}
		if got, err := answer.ReadString('\n'); err != nil || got != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	send.Close()
	if rest, err := io.ReadAll(answer); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// TestGuestLeaves checks that the gateway notices a disconnected guest, and that an answer that the gateway cuts off is cut off
// for the guest.
func TestGuestLeaves(t *testing.T) {
	gone := make(chan struct{})
	srv, _ := served(t, tokens(t, nil, key1), func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begin")
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
		close(gone)
	})
	host := asGuest(t, caisson.Guest{Account: "x", Run: "a", Attempt: 1}, client(t, srv.URL, tokens(t, nil, key1), nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask := func(path string) io.ReadCloser {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Body
	}
	cut := ask("/cut")
	defer cut.Close()
	if b, err := io.ReadAll(cut); err == nil {
		t.Errorf("an answer that was cut off looks whole: %q", b)
	}
	body := ask("/")
	defer body.Close()
	cancel()
	select {
	case <-gone:
	case <-time.After(2 * time.Minute):
		t.Error("the gateway still works for nobody")
	}
}

// TestClientRefuses checks answers and requests that could lead to another server.
func TestClientRefuses(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	srv, _ := served(t, tokens(t, nil, key1), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		case "/upgrade":
			t.Error("the upgrade got through")
		}
	})
	h := client(t, srv.URL, tokens(t, nil, key1), nil)
	guest := caisson.Guest{Account: "x", Run: "a", Attempt: 1}
	for _, c := range []struct {
		name, path string
		header     http.Header
		guest      caisson.Guest
		status     int
	}{
		{"redirect", "/redirect", nil, guest, 502},
		{"upgrade", "/upgrade", http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}, guest, 400},
		{"no guest", "/", nil, caisson.Guest{}, 401},
		{"a run that cannot be signed", "/", nil, caisson.Guest{Account: "x", Run: "a|1|9999999999"}, 502},
		{"no run at all", "/", nil, caisson.Guest{Account: "x"}, 502},
		{"a run of somebody else's making", "/", nil, caisson.Guest{Account: "x", Run: "a", Attempt: 5}, 403},
	} {
		status, body := get(t, asGuest(t, c.guest, h).URL+c.path, c.header)
		if status != c.status || strings.Contains(body, elsewhere.URL) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
	}
	srv.Close()
	if status, body := get(t, asGuest(t, guest, h).URL, nil); status != 502 || strings.Contains(body, "127.0.0.1") {
		t.Errorf("without a gateway: %d %s", status, body)
	}
}

// TestTLS checks that the gateway's certificate must be signed by a configured authority.
func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	defer srv.Close()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	guest := caisson.Guest{Account: "x", Run: "a"}
	for _, c := range []struct {
		roots  *x509.CertPool
		status int
	}{{roots, 200}, {x509.NewCertPool(), 502}, {nil, 502}} {
		if status, body := get(t, asGuest(t, guest, client(t, srv.URL, tokens(t, nil, key1), c.roots)).URL, nil); status != c.status {
			t.Errorf("%d %s", status, body)
		}
	}
}

func TestNewClient(t *testing.T) {
	good := tokens(t, nil, key1)
	for url, ok := range map[string]bool{
		"https://gw.example": true, "https://gw.example:8443/base/": true, "http://127.0.0.1:80": true, "http://localhost:1": true, "http://[::1]:1": true,
		"http://gw.example": false, "http://10.0.0.1": false, "": false, "gw.example": false, "https://": false, "ftp://gw.example": false,
		"https://u:p@gw.example": false, "https://gw.example?x=y": false, "https://gw.example/a%2fb": false, "https://gw.example#x": false,
	} {
		_, err := remote.NewClient(remote.ClientConfig{URL: url, Tokens: good, Log: slog.New(slog.DiscardHandler)})
		if ok != (err == nil) || err != nil && caisson.FieldOf(err) != "remoteURL" {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := remote.NewClient(remote.ClientConfig{URL: "https://gw.example"}); err == nil {
		t.Error("without a log")
	}
	if _, err := remote.NewServer(remote.ServerConfig{}); err == nil {
		t.Error("a server of nothing")
	}
}

// TestKeysComeLater checks that no request is served without keys, and that keys can be exchanged while requests are in progress.
func TestKeysComeLater(t *testing.T) {
	var runs *remote.Registry
	registry := remote.NewRegistry(remote.RegistryConfig{})
	runs = registry
	if err := registry.Put(spec("a", "alice", 1), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	server, err := remote.NewServer(remote.ServerConfig{Runs: registry, Gateway: who(t, &runs), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server)
	t.Cleanup(srv.Close)
	c, err := remote.NewClient(remote.ClientConfig{URL: srv.URL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := asGuest(t, caisson.Guest{Account: "x", Run: "a", Attempt: 1}, c)
	t.Cleanup(c.CloseIdleConnections)
	want := func(what string, status int) {
		t.Helper()
		if got, body := get(t, h.URL+"/v1/models", nil); got != status {
			t.Errorf("%s: %d %s, want %d", what, got, body, status)
		}
	}
	old, both, turned, renewed := tokens(t, nil, key1), tokens(t, nil, key1, key2), tokens(t, nil, key2, key1), tokens(t, nil, key2)
	want("no keys", 503)
	c.SetTokens(old)
	want("no keys at the gateway", 401)
	server.SetTokens(old)
	want("the same key", 200)
	server.SetTokens(both)
	want("the gateway knows the next key too", 200)
	c.SetTokens(turned)
	want("the host signs with the next key", 200)
	server.SetTokens(renewed)
	want("the gateway has dropped the old key", 200)
	c.SetTokens(old)
	want("a host that was forgotten", 401)
	server.SetTokens(nil)
	want("the gateway has lost its keys", 401)
	zero := &remote.Client{}
	zero.SetTokens(old)
	zero.CloseIdleConnections()
	z := asGuest(t, caisson.Guest{Account: "x", Run: "a"}, zero)
	if status, _ := get(t, z.URL, nil); status != 503 {
		t.Errorf("the zero client answers %d", status)
	}
}

// TestConcurrent checks that concurrent requests of many runs get the right guests.
func TestConcurrent(t *testing.T) {
	var runs *remote.Registry
	srv, r := served(t, tokens(t, nil, key1), who(t, &runs))
	runs = r
	c := client(t, srv.URL, tokens(t, nil, key1), nil)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), caisson.Guest{Account: "x", Run: r.URL.Path[1:]})))
	}))
	defer host.Close()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			run := fmt.Sprintf("run-%d", i)
			for range 5 {
				if err := runs.Put(spec(run, "acc-"+run, 0), time.Now().Add(time.Hour)); err != nil {
					t.Error(err)
				}
				if status, body := get(t, host.URL+"/"+run, nil); status != 200 || body != fmt.Sprintf("acc-%s %s 0 [m-%s]", run, run, run) {
					t.Errorf("%s: %d %s", run, status, body)
				}
			}
			runs.Remove(run)
			runs.Remove(run)
		})
	}
	wg.Wait()
	if runs.Len() != 2 {
		t.Errorf("%d runs are left", runs.Len())
	}
}
