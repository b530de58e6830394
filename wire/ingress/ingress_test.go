package ingress

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

const limit = time.Minute // of waiting for something that happens at once

// A world is an ingress whose sandboxes are one server.
type world struct {
	*Ingress
	t       *testing.T
	addr    string // of the ingress
	guest   net.Listener
	private ed25519.PrivateKey
	dials   atomic.Int64
	dial    atomic.Pointer[Dial] // instead of a connection to guest; nil: that
	routes  []caisson.IngressRoute
}

const domain = "apps.example"

var sandboxID = caisson.NewID(caisson.SandboxPrefix)

// newWorld returns a world. guest is what runs in all sandboxes.
func newWorld(t *testing.T, guest http.Handler, change func(*Config)) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, guest: l}
	if guest != nil {
		s := &http.Server{Handler: guest}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	} else {
		t.Cleanup(func() { l.Close() })
	}
	cfg := Config{Log: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, d caisson.IngressDial) (net.Conn, error) {
		w.dials.Add(1)
		if dial := w.dial.Load(); dial != nil {
			return (*dial)(ctx, d)
		}
		return net.Dial("tcp", l.Addr().String())
	}}
	if change != nil {
		change(&cfg)
	}
	w.Ingress = New(cfg)
	_, w.private, _ = ed25519.GenerateKey(nil)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = front.Addr().String()
	w.configure()
	go w.Serve(front)
	t.Cleanup(func() { w.Close() })
	return w
}

// configure replaces the routes.
func (w *world) configure(list ...caisson.RouteSpec) {
	w.t.Helper()
	c := &caisson.IngressConfig{Domain: domain, Key: w.private.Public().(ed25519.PublicKey)}
	w.routes = nil
	for _, s := range list {
		if s.Sandbox == "" {
			s.Sandbox = string(sandboxID)
		}
		if s.Port == 0 {
			s.Port = 3000
		}
		if s.Auth.Kind == "" {
			s.Auth.Kind = caisson.RouteAuthNone
		}
		w.routes = append(w.routes, caisson.IngressRoute{ID: caisson.NewID(caisson.RoutePrefix), Spec: s})
	}
	c.Routes = w.routes
	if err := w.Configure(c); err != nil {
		w.t.Fatal(err)
	}
}

// request returns a request for a path of a host.
func (w *world) request(method, host, path string, body io.Reader, header ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.addr+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// do sends a request and returns the answer with its body. It does not follow redirections.
func (w *world) do(r *http.Request) (*http.Response, string) {
	w.t.Helper()
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: limit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res, string(b)
}

func (w *world) get(host, path string, header ...string) (*http.Response, string) {
	w.t.Helper()
	return w.do(w.request(http.MethodGet, host, path, nil, header...))
}

// raw sends bytes over a connection and returns the statuses of all answers, until the connection is closed.
func (w *world) raw(text string) (statuses []int) {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	io.WriteString(c, text)
	r := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		io.Copy(io.Discard, res.Body)
		statuses = append(statuses, res.StatusCode)
	}
}

// seen is what the sandbox saw of a request.
type seen struct {
	Method, Host, Path, Query, Body string
	Header                          http.Header
}

// mirror answers with what it sees.
var mirror = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(seen{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, string(b), r.Header})
})

func parseSeen(t *testing.T, body string) (s seen) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return s
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// TestHeaders tests which header fields pass to and from the sandbox.
func TestHeaders(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "ok=1; Path=/")
		w.Header().Add("Set-Cookie", "wide=1; Path=/; domain = example")
		w.Header().Add("Set-Cookie", "caisson-token=mine; Path=/")
		w.Header().Add("Set-Cookie", "=caisson-token-rt-x=mine; Path=/")
		w.Header().Add("Set-Cookie", "__Host-caisson-token-3000-sb-x=mine; Path=/")
		w.Header().Add("Set-Cookie", "__Host-Caisson-Token=mine; Path=/")
		w.Header().Set("Caisson-Anything", "x")
		w.Header().Set("X-Powered-By", "x")
		mirror(w, r)
	}), nil)
	w.configure(caisson.RouteSpec{
		Host: "a.example", Headers: &caisson.RouteHeaders{Set: map[string]string{"X-Set": "1"}, Strip: []string{"X-Strip"}},
		ResponseHeaders: &caisson.RouteHeaders{Set: map[string]string{"X-Frame-Options": "DENY"}, Strip: []string{"X-Powered-By"}},
	}, caisson.RouteSpec{Host: "web." + domain}, caisson.RouteSpec{Path: "/path"})
	res, body := w.get("a.example", "/?a=1&caisson-token=x;b",
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil", "X_Forwarded_For", "6.6.6.6", "X-Forwarded-Prefix", "/x", "Forwarded", "for=6.6.6.6",
		"X-Real-Ip", "6.6.6.6", "Caisson-Client", "6.6.6.6", "Caisson_Client", "6.6.6.6", "Connection", "Caisson-Client, X-Secret", "X-Secret", "1",
		"Client-IP", "6.6.6.6", "True-Client-IP", "6.6.6.6", "X-Client-IP", "6.6.6.6", "X-Cluster-Client-IP", "6.6.6.6", "CF-Connecting-IP", "6.6.6.6",
		"CF-Connecting-IPv6", "::6", "Fastly-Client-IP", "6.6.6.6", "Fly-Client-IP", "6.6.6.6", "X-Original-Forwarded-For", "6.6.6.6",
		"X-Originating-IP", "6.6.6.6", "X-Remote-IP", "6.6.6.6", "X_Remote_Addr", "6.6.6.6", "X-Azure-ClientIP", "6.6.6.6", "X-Azure-SocketIP", "6.6.6.6",
		"X-Envoy-External-Address", "6.6.6.6", "X-ProxyUser-IP", "6.6.6.6", "X-Appengine-User-IP", "6.6.6.6",
		"X-Original-URL", "/admin", "X-Rewrite-URL", "/admin", "X-HTTP-Method-Override", "PUT", "X-HTTP-Method", "PUT", "X-Method-Override", "PUT",
		"Via", "1.1 x", "Proxy-Authorization", "x", "X-Strip", "1", "X-Keep", "1", "Authorization", "Bearer app",
		"Cookie", "a=1; caisson-token=secret; b=2", "Cookie", "__Host-caisson-token=secret; Caisson-Token-rt-x=secret", "Referer", "http://a.example/x?caisson-token=secret&y=1")
	s := parseSeen(t, body)
	want := http.Header{
		"X-Set": {"1"}, "X-Keep": {"1"}, "Authorization": {"Bearer app"}, "Cookie": {"a=1; b=2"}, "Caisson-Client": {"127.0.0.1"},
		"X-Forwarded-Proto": {"http"}, "Accept-Encoding": {"gzip"}, "User-Agent": {"Go-http-client/1.1"}, "Referer": {"http://a.example/x?y=1"},
	}
	if fmt.Sprint(s.Header) != fmt.Sprint(want) {
		t.Errorf("the sandbox sees\n%v, want\n%v", s.Header, want)
	}
	if s.Host != "a.example" {
		t.Errorf("the sandbox sees host %s", s.Host)
	}
	// A host of its own may have cookies for its parent. Below the ingress's domain they would be for sandboxes of others.
	if got := res.Header.Values("Set-Cookie"); len(got) != 2 || got[0] != "ok=1; Path=/" || got[1] != "wide=1; Path=/; domain = example" {
		t.Errorf("cookies %q", got)
	}
	for _, host := range []string{"web." + domain, domain} {
		res, _ := w.get(host, "/path")
		if got := res.Header.Values("Set-Cookie"); res.StatusCode != 200 || len(got) != 1 || got[0] != "ok=1; Path=/" {
			t.Errorf("%s: %d, cookies %q", host, res.StatusCode, got)
		}
	}
	if res.Header.Get("Caisson-Anything") != "" || res.Header.Get("X-Powered-By") != "" || res.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("the client sees %v", res.Header)
	}
}

// TestSmuggling tests that a sandbox sees exactly the requests that the ingress saw, however a client frames them.
func TestSmuggling(t *testing.T) {
	var mu sync.Mutex
	var paths []string
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
	}), func(c *Config) { c.Times = Times{Header: time.Second, Body: time.Second, Idle: time.Second} })
	w.configure(caisson.RouteSpec{Host: "a.example"})
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
	for name, header := range map[string]string{
		"CL.TE":            "Content-Length: 50\r\nTransfer-Encoding: chunked\r\n",
		"TE.CL":            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
		"two CL":           "Content-Length: 0\r\nContent-Length: 44\r\n",
		"list of CL":       "Content-Length: 0, 44\r\n",
		"signed CL":        "Content-Length: +0\r\n",
		"negative CL":      "Content-Length: -1\r\n",
		"TE identity":      "Transfer-Encoding: identity\r\n",
		"TE twice":         "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
		"TE list":          "Transfer-Encoding: chunked, identity\r\n",
		"TE obfuscated":    "Transfer-Encoding: xchunked\r\n",
		"TE with tab":      "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n",
		"TE, space before": "Transfer-Encoding : chunked\r\n",
		"folded":           "X: y\r\n Transfer-Encoding: chunked\r\n",
		"bare CR":          "X: y\rTransfer-Encoding: chunked\r\n",
		"NUL":              "X: y\x00\r\n",
		"two hosts":        "Host: b.example\r\n",
	} {
		mu.Lock()
		paths = nil
		mu.Unlock()
		statuses := w.raw("POST /first HTTP/1.1\r\nHost: a.example\r\n" + header + "\r\n0\r\n\r\n" + smuggled)
		mu.Lock()
		got := paths
		mu.Unlock()
		// What follows the body of a request is another request, which the ingress sees as such. It must never be in the
		// sandbox's view only.
		answered := 0
		for _, s := range statuses {
			if s == 200 {
				answered++
			}
		}
		if len(got) != answered {
			t.Errorf("%s: the ingress answered %v, the sandbox saw %q", name, statuses, got)
		}
		t.Log(name, statuses, got)
	}
	for name, text := range map[string]string{
		"HTTP/0.9":        "GET /\r\n",
		"no host":         "GET / HTTP/1.1\r\n\r\n",
		"CONNECT":         "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"chunk size":      "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
		"space in target": "GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"header bomb":     "GET / HTTP/1.1\r\nHost: a.example\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 100) + "\r\n",
		"many fields":     "GET / HTTP/1.1\r\nHost: a.example\r\n" + strings.Repeat("X: y\r\n", 20000) + "\r\n",
	} {
		for _, s := range w.raw(text) {
			if s < 400 {
				t.Errorf("%s: status %d", name, s)
			}
		}
	}
}
