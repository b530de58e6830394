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

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
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

func TestMatch(t *testing.T) {
	w := newWorld(t, mirror, nil)
	other := caisson.NewID(caisson.SandboxPrefix)
	w.configure(
		caisson.RouteSpec{Host: "a.example", Port: 1}, caisson.RouteSpec{Host: "a.example", Path: "/api", Port: 2},
		caisson.RouteSpec{Host: "a.example", Path: "/api/v2", Port: 3, StripPrefix: true}, caisson.RouteSpec{Path: "/p", Port: 4},
		caisson.RouteSpec{Host: "xn--bcher-kva.example", Port: 5}, caisson.RouteSpec{Host: "only.example", Path: "/x", Port: 6},
		caisson.RouteSpec{Host: "a.example", Path: "/admin", Port: 7, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthBearer, Hashes: []string{hash("t")}}},
	)
	var dialled atomic.Int64
	dial := Dial(func(_ context.Context, d caisson.IngressDial) (net.Conn, error) {
		for i, r := range w.routes {
			if r.ID == d.Route {
				dialled.Store(int64(w.routes[i].Spec.Port))
			}
		}
		return net.Dial("tcp", w.guest.Addr().String())
	})
	w.dial.Store(&dial)
	for _, c := range []struct {
		host, path string
		port       int    // 0: status, without a connection
		status     int    // 0: 200
		sees       string // path; "": path
	}{
		{host: "a.example", path: "/", port: 1},
		{host: "A.eXample:8080", path: "/", port: 1},
		{host: "a.example.", path: "/", port: 1},
		{host: "a.example.:80", path: "/", port: 1},
		{host: "a.example", path: "/api", port: 2},
		{host: "a.example", path: "/api/", port: 2},
		{host: "a.example", path: "/apix", port: 1},
		{host: "a.example", path: "/a%70i/x", port: 2, sees: "/a%70i/x"},
		{host: "a.example", path: "/api/v2", port: 3, sees: "/"},
		{host: "a.example", path: "/api/v2/x%2Fy?q", port: 3, sees: "/x%2Fy"},
		{host: "a.example", path: "/api/v%32/x", status: 400},
		{host: "a.example", path: "/api/../admin", status: 400},
		{host: "a.example", path: "/api/%2e%2e/admin", status: 400},
		{host: "a.example", path: "/api%2f..%2fadmin", status: 400},
		{host: "a.example", path: "/api/..;x/admin", status: 400},
		{host: "a.example", path: "/api/..%5cadmin", status: 400},
		{host: "a.example", path: "//admin", status: 401},
		{host: "a.example", path: "/admin;x/y", status: 400},
		{host: "a.example", path: "/admin%3bx/y", status: 400},
		{host: "a.example", path: "/api;x/y", status: 400},
		{host: "a.example", path: "/;x/admin", status: 400},
		{host: "a.example", path: "/;/admin", status: 400},
		{host: "a.example", path: "/api/x;y", port: 2},
		{host: "a.example", path: "/x;/api", port: 1},
		{host: "only.example", path: "/x;y", status: 400},
		{host: "a.example", path: "/%2fadmin", status: 401},
		{host: "a.example", path: "/%61dmin/", status: 401},
		{host: domain, path: "/p/x", port: 4},
		{host: domain, path: "/", status: 404},
		{host: "xn--bcher-kva.example", path: "/", port: 5},
		{host: "XN--BCHER-KVA.example", path: "/", port: 5},
		{host: "bücher.example", path: "/", status: 400},
		{host: "only.example", path: "/x", port: 6},
		{host: "only.example", path: "/", status: 404},
		{host: "b.a.example", path: "/", status: 404},
		{host: "127.0.0.1", path: "/", status: 404},
		{host: "[::1]", path: "/", status: 404},
		{host: "a.example:x", path: "/", status: 400},
		{host: fmt.Sprintf("3000-%s.%s", other, domain), path: "/", status: 401},
		{host: fmt.Sprintf("03000-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("0-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("65536-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("x.3000-%s.%s", other, domain), path: "/", status: 404},
	} {
		dialled.Store(0)
		w.upstreams.transport.CloseIdleConnections()
		w.Drop(sandboxID)
		statuses := w.raw("GET " + c.path + " HTTP/1.1\r\nHost: " + c.host + "\r\nConnection: close\r\n\r\n")
		want := c.status
		if want == 0 {
			want = 200
		}
		// The parser of net/http refuses some hosts before a route is looked for.
		if len(statuses) != 1 || statuses[0] != want && !(want == 400 && statuses[0] == 404) || int(dialled.Load()) != c.port {
			t.Errorf("%s%s: statuses %v, port %d, want %d, port %d", c.host, c.path, statuses, dialled.Load(), want, c.port)
		}
		if c.sees != "" {
			if _, body := w.get(c.host, c.path); parseSeen(t, body).Path != c.sees {
				t.Errorf("%s%s: the sandbox sees %s", c.host, c.path, body)
			}
		}
	}
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

func TestAuth(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(
		caisson.RouteSpec{Host: "bearer", Auth: caisson.RouteAuth{Kind: "bearer", Hashes: []string{hash("one"), hash("two")}}},
		caisson.RouteSpec{Host: "basic", Auth: caisson.RouteAuth{Kind: "basic", Hashes: []string{hash("user:pass:word")}}},
		caisson.RouteSpec{Host: "unknown", Auth: caisson.RouteAuth{Kind: "magic"}},
		caisson.RouteSpec{Host: "get", Methods: []string{"GET"}},
	)
	for _, c := range []struct {
		host, authorization string
		want                int
		header              []string
	}{
		{"bearer", "", 401, nil}, {"bearer", "Bearer one", 200, nil}, {"bearer", "bearer two", 200, nil}, {"bearer", "Bearer three", 401, nil},
		{"bearer", "Bearer " + hash("one"), 401, nil}, {"bearer", "Bearer ", 401, nil}, {"bearer", "one", 401, nil}, {"bearer", "Basic one", 401, nil},
		{"basic", "", 401, nil}, {"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 200, nil}, {"basic", "Basic dXNlcjpwYXNz", 401, nil},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 403, []string{"Origin", "http://evil.example"}},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 403, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}},
		{"basic", "Basic dXNlcjpwYXNzOndvcmQ=", 200, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
		{"unknown", "", 403, nil}, {"get", "", 200, nil},
	} {
		header := c.header
		if c.authorization != "" {
			header = append(header, "Authorization", c.authorization)
		}
		before := w.dials.Load()
		res, body := w.get(c.host, "/", header...)
		if res.StatusCode != c.want {
			t.Errorf("%s with %q: %d %s, want %d", c.host, c.authorization, res.StatusCode, body, c.want)
		}
		switch {
		case c.want == 200 && c.host != "get" && parseSeen(t, body).Header.Get("Authorization") != "":
			t.Errorf("%s: the sandbox sees the credential", c.host)
		case c.want == 401 && res.Header.Get("WWW-Authenticate") == "":
			t.Errorf("%s: no challenge", c.host)
		case c.want != 200 && w.dials.Load() != before:
			t.Errorf("%s with %q: the sandbox is asked before the client is known", c.host, c.authorization)
		}
	}
	res, _ := w.do(w.request(http.MethodPost, "get", "/", nil))
	if res.StatusCode != 405 || res.Header.Get("Allow") != "GET" {
		t.Errorf("POST: %d, %v", res.StatusCode, res.Header)
	}
}

// sign returns a token.
func (w *world) sign(t signedurl.Token) string {
	if t.Expires.IsZero() {
		t.Expires = time.Now().Add(time.Hour)
	}
	return signedurl.Sign(w.private, t)
}

// TestSigned tests that the token of a signed URL moves to a cookie of its host, that it is good for one port of one sandbox, and
// that the sandbox does not see it.
func TestSigned(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(caisson.RouteSpec{Host: "signed.example", Auth: caisson.RouteAuth{Kind: "signed"}},
		caisson.RouteSpec{Host: "signed.example", Path: "/b", Auth: caisson.RouteAuth{Kind: "signed"}}, caisson.RouteSpec{Host: "signed.example", Path: "/public"})
	host := fmt.Sprintf("3000-%s.%s", sandboxID, domain)
	token := w.sign(signedurl.Token{Sandbox: sandboxID, Port: 3000})
	res, _ := w.get(host, "//evil.example/x?a=1&caisson-token="+token+"&b=%20")
	if res.StatusCode != 302 || res.Header.Get("Location") != "/.//evil.example/x?a=1&b=%20" || res.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	cookies := res.Cookies()
	if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].Secure || cookies[0].Domain != "" || cookies[0].Path != "/" || cookies[0].MaxAge < 3500 || cookies[0].MaxAge > 3600 {
		t.Fatalf("%+v", cookies)
	}
	cookie := cookies[0].Name + "=" + cookies[0].Value
	for _, how := range [][]string{{"Cookie", "x=1; " + cookie}, {"Cookie", cookies[0].Name + "=forged; " + cookie}, {"Caisson-Token", token}} {
		res, body := w.get(host, "/clean?q", how...)
		if s := parseSeen(t, body); res.StatusCode != 200 || s.Query != "q" || strings.Contains(fmt.Sprint(s), token) {
			t.Errorf("%d %s", res.StatusCode, body)
		}
	}
	// Other methods are not redirected.
	res, body := w.do(w.request(http.MethodPost, host, "/?caisson-token="+token+"&x=1", strings.NewReader("body")))
	if s := parseSeen(t, body); res.StatusCode != 200 || s.Query != "x=1" || s.Body != "body" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	// No other port, sandbox or route, and not after the end.
	other := caisson.NewID(caisson.SandboxPrefix)
	route := w.sign(signedurl.Token{Route: w.routes[0].ID})
	for _, c := range []struct{ host, token string }{
		{fmt.Sprintf("3001-%s.%s", sandboxID, domain), token}, {fmt.Sprintf("3000-%s.%s", other, domain), token}, {"signed.example", token},
		{host, route}, {"signed.example", w.sign(signedurl.Token{Route: caisson.NewID(caisson.RoutePrefix)})},
		{host, w.sign(signedurl.Token{Sandbox: sandboxID, Port: 3000, Expires: time.Now().Add(-time.Second)})}, {host, ""}, {host, "x" + token},
	} {
		names := []string{cookies[0].Name, "caisson-token", "caisson-token-" + string(w.routes[0].ID)}
		for _, how := range [][]string{{"Cookie", strings.Join(names, "="+c.token+"; ") + "=" + c.token}, {"Caisson-Token", c.token}} {
			if res, body := w.get(c.host, "/", how...); res.StatusCode != 401 {
				t.Errorf("%s with %s: %d %s", c.host, c.token, res.StatusCode, body)
			}
		}
		if res, body := w.get(c.host, "/?caisson-token="+c.token, "Cookie", cookie); res.StatusCode != 401 {
			t.Errorf("%s with %s in the query: %d %s", c.host, c.token, res.StatusCode, body)
		}
	}
	// Routes of one host have a cookie each, so that a visit of one ends none of another.
	jar := map[string]string{}
	for i, path := range []string{"/", "/b"} {
		res, _ := w.get("signed.example", path+"?caisson-token="+w.sign(signedurl.Token{Route: w.routes[i].ID}))
		for _, c := range res.Cookies() {
			jar[c.Name] = c.Value
		}
	}
	both := ""
	for name, value := range jar {
		both += name + "=" + value + "; "
	}
	for _, path := range []string{"/", "/b"} {
		if res, body := w.get("signed.example", path, "Cookie", both); res.StatusCode != 200 || strings.Contains(body, "caisson-token") {
			t.Errorf("route %s: %d %s", path, res.StatusCode, body)
		}
	}
	// A service worker would see the addresses of later visits, with their tokens, whatever route of the host it comes from.
	for _, path := range []string{"/sw.js", "/public/sw.js"} {
		if res, body := w.get("signed.example", path, "Cookie", both, "Service-Worker", "script"); res.StatusCode != 403 {
			t.Errorf("a service worker from %s: %d %s", path, res.StatusCode, body)
		}
	}
	if res, body := w.get(host, "/sw.js", "Cookie", cookie, "Service-Worker", "script"); res.StatusCode != 403 {
		t.Errorf("a service worker: %d %s", res.StatusCode, body)
	}
	// Pages of other sandboxes are of the same site, so the browser sends the cookie.
	for _, how := range [][]string{
		{"Origin", fmt.Sprintf("http://3000-%s.%s", other, domain)}, {"Origin", "null"},
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, {"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
	} {
		if res, _ := w.get(host, "/", append(how, "Cookie", cookie)...); res.StatusCode != 403 {
			t.Errorf("%v: %d", how, res.StatusCode)
		}
	}
	if res, _ := w.get(host, "/", "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin", "Cookie", cookie); res.StatusCode != 200 {
		t.Errorf("same origin: %d", res.StatusCode)
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

// TestGuests tests answers of hostile sandboxes: the client gets an error in time.
func TestGuests(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		stay   bool // the connection stays open afterwards
		want   int
		body   string
	}{
		"nothing":           {"", false, 502, ""},
		"silence":           {"", true, 504, ""},
		"no HTTP":           {"hello\r\n\r\n", false, 502, ""},
		"half a header":     {"HTTP/1.1 200 OK\r\nX: y", true, 504, ""},
		"endless header":    {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 300), true, 502, ""},
		"two lengths":       {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", true, 502, ""},
		"uninvited upgrade": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", true, 502, ""},
		"endless 100":       {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20000), true, 504, ""},
		"length of CL, TE":  {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", false, 200, "ab"},
		"a fine one":        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabSMUGGLED", false, 200, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, nil)
			w.configure(caisson.RouteSpec{Host: "a.example", Timeout: caisson.Duration(2 * time.Second)})
			var conns sync.WaitGroup
			t.Cleanup(conns.Wait)
			t.Cleanup(func() { w.Drop(sandboxID) })
			conns.Go(func() {
				for {
					conn, err := w.guest.Accept()
					if err != nil {
						return
					}
					conns.Go(func() {
						defer conn.Close()
						bufio.NewReader(conn).ReadString('\n')
						io.WriteString(conn, c.answer)
						if c.stay {
							io.Copy(io.Discard, conn)
						}
					})
				}
			})
			t.Cleanup(func() { w.guest.Close() })
			res, body := w.get("a.example", "/")
			if (res.StatusCode != c.want && (c.want == 200 || res.StatusCode != 502 && res.StatusCode != 504)) || c.want == 200 && body != c.body {
				t.Errorf("%d %q, want %d %q", res.StatusCode, body, c.want, c.body)
			}
		})
	}
}

// TestStreams tests WebSockets and server-sent events, and that both end when the sandbox is dropped or the route removed.
func TestStreams(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	next := make(chan string)
	mux.HandleFunc("/sse", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(w).Flush()
		for s := range next {
			fmt.Fprintf(w, "data: %s\n\n", s)
			http.NewResponseController(w).Flush()
		}
	})
	w := newWorld(t, mux, nil)
	spec := caisson.RouteSpec{Host: "a.example"}
	w.configure(spec)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	dial := func() *websocket.Conn {
		c, _, err := websocket.Dial(ctx, "ws://"+w.addr+"/ws", &websocket.DialOptions{Host: "a.example"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.CloseNow() })
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != "hello" {
			t.Fatalf("%q, %v", b, err)
		}
		return c
	}
	c := dial()
	w.Drop(sandboxID)
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("after the drop: %v", err)
	}
	c = dial()
	if err := w.Configure(&caisson.IngressConfig{Domain: domain, Key: w.private.Public().(ed25519.PublicKey), Routes: w.routes}); err != nil {
		t.Fatal(err)
	}
	if err := c.Write(ctx, websocket.MessageText, []byte("again")); err != nil {
		t.Errorf("after a configuration with the same route: %v", err)
	}
	if _, b, err := c.Read(ctx); err != nil || string(b) != "again" {
		t.Errorf("after a configuration with the same route: %q, %v", b, err)
	}
	w.configure()
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("after the removal of the route: %v", err)
	}
	w.configure(spec)
	res, err := http.DefaultClient.Do(w.request(http.MethodGet, "a.example", "/sse", nil).WithContext(ctx))
	if err != nil {
		go func() { next <- "" }()
		t.Fatal(err)
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for _, s := range []string{"one", "two"} {
		next <- s // the event arrives although the answer goes on
		if line, err := r.ReadString('\n'); err != nil || line != "data: "+s+"\n" {
			t.Errorf("%q, %v", line, err)
		}
		r.ReadString('\n')
	}
	close(next)
}

// TestDrop tests that idle connections to a sandbox that is suspended are not used any more, that requests without side effects
// that were under way are sent again, and that others fail.
func TestDrop(t *testing.T) {
	arrived, hold := make(chan string, 100), make(chan struct{})
	var served atomic.Int64
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := served.Add(1) // before the test can drop the connection and cause another request
		arrived <- r.Method
		if n <= 2 {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
	}), nil)
	w.configure(caisson.RouteSpec{Host: "a.example"})
	statuses := make(chan string, 2)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		go func() {
			res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(w.request(method, "a.example", "/", nil))
			if err != nil {
				statuses <- err.Error()
				return
			}
			res.Body.Close()
			statuses <- fmt.Sprint(method, " ", res.StatusCode, " ", res.Header.Get("Retry-After"))
		}()
		<-arrived
	}
	w.Drop(sandboxID)
	got := map[string]bool{<-statuses: true, <-statuses: true}
	if !got["GET 200 "] || !got["POST 503 2"] {
		t.Errorf("%v", got)
	}
	close(hold)
	w.upstreams.mu.Lock()
	open := len(w.upstreams.conns[sandboxID])
	w.upstreams.mu.Unlock()
	if open > 1 {
		t.Errorf("%d connections", open)
	}
	// A connection that is being made when the sandbox is dropped is not used.
	w.Drop(sandboxID)
	begun, answer := make(chan struct{}, 10), make(chan struct{})
	first := true
	var conns []net.Conn
	dial := Dial(func(context.Context, caisson.IngressDial) (net.Conn, error) {
		begun <- struct{}{}
		<-answer
		c, err := net.Dial("tcp", w.guest.Addr().String())
		conns = append(conns, c)
		return c, err
	})
	w.dial.Store(&dial)
	go func() {
		<-begun
		w.Drop(sandboxID)
		close(answer)
	}()
	if res, body := w.get("a.example", "/"); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if len(conns) != 2 || !first {
		t.Errorf("%d connections were made", len(conns))
	} else if _, err := conns[0].Read(make([]byte, 1)); err == nil {
		t.Error("the first one is in use")
	}
}
