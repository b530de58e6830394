package ingress

import (
	"context"
	"crypto/ed25519"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestErrors tests what clients see when a sandbox cannot be reached.
func TestErrors(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(caisson.RouteSpec{Host: "a.example"})
	for _, c := range []struct {
		err   error
		want  int
		retry bool
	}{
		{caisson.Errorf(caisson.Unavailable, "x"), 503, true}, {caisson.Errorf(caisson.Exhausted, "x"), 503, true}, {caisson.Errorf(caisson.NotFound, "x"), 502, false},
		{caisson.Errorf(caisson.Conflict, "x"), 502, false}, {caisson.Errorf(caisson.Denied, "x"), 403, false}, {caisson.Errorf(caisson.Internal, "secret"), 502, false},
		{io.ErrUnexpectedEOF, 502, false},
	} {
		dial := Dial(func(context.Context, caisson.IngressDial) (net.Conn, error) { return nil, c.err })
		w.dial.Store(&dial)
		res, body := w.get("a.example", "/")
		if res.StatusCode != c.want || (res.Header.Get("Retry-After") != "") != c.retry || strings.Contains(body, "secret") {
			t.Errorf("%v: %d %s %v", c.err, res.StatusCode, body, res.Header)
		}
	}
}

// TestLimits tests the limits of a route, of a client, and of what clients may take their time for.
func TestLimits(t *testing.T) {
	now := time.Now()
	held, hold := make(chan struct{}, 10), make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			held <- struct{}{}
			<-hold
		}
		mirror(w, r)
	}), func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Times = Times{Header: 300 * time.Millisecond, Body: 300 * time.Millisecond, Idle: 300 * time.Millisecond}
		c.MaxClientConns = 20
	})
	w.configure(
		caisson.RouteSpec{Host: "rate", Limits: caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: 1, Burst: 3}}},
		caisson.RouteSpec{Host: "total", Limits: caisson.RouteLimits{Total: caisson.RouteRate{PerSecond: 1, Burst: 2}}},
		caisson.RouteSpec{Host: "private", Auth: caisson.RouteAuth{Kind: "bearer", Hashes: []string{hash("t")}}, Limits: caisson.RouteLimits{
			Client: caisson.RouteRate{PerSecond: 1, Burst: 4}, Total: caisson.RouteRate{PerSecond: 1, Burst: 1},
		}},
		caisson.RouteSpec{Host: "busy", Limits: caisson.RouteLimits{MaxRequests: 1}}, caisson.RouteSpec{Host: "body", MaxBody: 10},
		caisson.RouteSpec{Host: "slow"}, caisson.RouteSpec{Host: "late", Timeout: caisson.Duration(300 * time.Millisecond)},
	)
	for host, burst := range map[string]int{"rate": 3, "total": 2} {
		for i := range burst + 2 {
			res, _ := w.get(host, "/")
			if ok := res.StatusCode == 200; ok != (i < burst) || !ok && (res.StatusCode != 429 || res.Header.Get("Retry-After") == "") {
				t.Errorf("%s, request %d: %d", host, i, res.StatusCode)
			}
		}
	}
	// Strangers do not use up what a route may have, but their own part.
	for i, want := range []int{401, 401, 200, 429, 429} {
		token := "t"
		if want == 401 {
			token = "wrong"
		}
		if res, _ := w.get("private", "/", "Authorization", "Bearer "+token); res.StatusCode != want {
			t.Errorf("private, request %d: %d, want %d", i, res.StatusCode, want)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := http.DefaultClient.Do(w.request(http.MethodGet, "busy", "/hold", nil))
		if err == nil {
			res.Body.Close()
		}
	}()
	<-held
	if res, _ := w.get("busy", "/"); res.StatusCode != 429 {
		t.Errorf("with a request under way: %d", res.StatusCode)
	}
	if res, body := w.get("late", "/hold"); res.StatusCode != 504 {
		t.Errorf("a late answer: %d %s", res.StatusCode, body)
	}
	close(hold)
	<-done
	poll.Until(t, limit, func() bool { res, _ := w.get("busy", "/"); return res.StatusCode == 200 })

	if res, _ := w.do(w.request(http.MethodPost, "body", "/", strings.NewReader("0123456789"))); res.StatusCode != 200 {
		t.Errorf("a body of 10 bytes: %d", res.StatusCode)
	}
	for _, body := range []io.Reader{strings.NewReader("0123456789x"), struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1000))}} {
		if res, _ := w.do(w.request(http.MethodPost, "body", "/", body)); res.StatusCode != 413 {
			t.Errorf("a longer body: %d", res.StatusCode)
		}
	}
	// Clients that send nothing, half a header, or half a body, or that do not end, are disconnected.
	for _, text := range []string{
		"", "GET / HTTP/1.1\r\nHost: sl", "GET / HTTP/1.1\r\nHost: slow\r\n\r\n", "POST / HTTP/1.1\r\nHost: slow\r\nContent-Length: 5\r\n\r\nab",
	} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(limit))
		io.WriteString(c, text)
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		c.Close()
	}
	// A client has a share of the connections.
	var open []net.Conn
	for range 40 {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	closed := 0
	for _, c := range open[20:] {
		c.SetReadDeadline(time.Now().Add(limit))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			closed++
		}
	}
	if closed < 20 {
		t.Errorf("%d of 20 connections too many were closed", closed)
	}
	for _, c := range open {
		c.Close()
	}
}

// TestAllRequests tests the limits of requests of one client and of all, whatever their route.
func TestAllRequests(t *testing.T) {
	l := newLimits()
	first := netip.MustParseAddrPort("192.0.2.1:1")
	arrive := func(client netip.AddrPort, n, want int) (leave func()) {
		t.Helper()
		for i := range n {
			f, ok := l.arrive(client)
			if ok != (i < want) {
				t.Fatalf("%s, request %d: %t", client, i, ok)
			}
			if ok {
				leave = f
			}
		}
		return leave
	}
	leave := arrive(first, maxClientRequests+1, maxClientRequests)
	for i := range maxAllRequests/maxClientRequests - 1 {
		arrive(netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}), 1), maxClientRequests, maxClientRequests)
	}
	other := netip.MustParseAddrPort("198.51.100.1:1")
	arrive(other, 1, 0)
	leave()
	arrive(other, 2, 1)
}

func TestCORS(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "http://guest.example")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}), nil)
	w.configure(
		caisson.RouteSpec{Host: "list", Auth: caisson.RouteAuth{Kind: "bearer", Hashes: []string{hash("t")}}, CORS: &caisson.RouteCORS{
			Origins: []string{"https://app.example"}, Methods: []string{"PUT"}, Headers: []string{"X-A"}, Credentials: true, MaxAge: caisson.Duration(time.Minute),
		}},
		caisson.RouteSpec{Host: "all", CORS: &caisson.RouteCORS{Origins: []string{"*"}}}, caisson.RouteSpec{Host: "none"},
	)
	for _, c := range []struct{ host, origin, allowed, credentials string }{
		{"list", "https://app.example", "https://app.example", "true"}, {"list", "https://app.example.evil", "", ""}, {"list", "", "", ""},
		{"all", "https://any.example", "*", ""}, {"none", "https://any.example", "http://guest.example", "true"},
	} {
		header := []string{"Authorization", "Bearer t"}
		if c.origin != "" {
			header = append(header, "Origin", c.origin)
		}
		res, _ := w.get(c.host, "/", header...)
		if h := res.Header; h.Get("Access-Control-Allow-Origin") != c.allowed || h.Get("Access-Control-Allow-Credentials") != c.credentials {
			t.Errorf("%+v: %v", c, h)
		}
	}
	before := w.dials.Load()
	res, _ := w.do(w.request(http.MethodOptions, "list", "/", nil, "Origin", "https://app.example", "Access-Control-Request-Method", "PUT"))
	if h := res.Header; res.StatusCode != 204 || h.Get("Access-Control-Allow-Methods") != "PUT" || h.Get("Access-Control-Allow-Headers") != "X-A" ||
		h.Get("Access-Control-Max-Age") != "60" || w.dials.Load() != before {
		t.Errorf("%d %v", res.StatusCode, h)
	}
}

// TestLog tests the entries of the log.
func TestLog(t *testing.T) {
	entries := make(chan caisson.RouteRequest, 10)
	w := newWorld(t, mirror, func(c *Config) { c.Logged = func(_ caisson.ID, e caisson.RouteRequest) { entries <- e } })
	w.configure(caisson.RouteSpec{Host: "a.example", Methods: []string{"GET"}})
	w.get("a.example", "/x?secret=1")
	if e := <-entries; e.Path != "/x" || e.Status != 200 || e.Method != "GET" || e.Client != "127.0.0.1" || e.Bytes == 0 {
		t.Errorf("%+v", e)
	}
	w.do(w.request(http.MethodPost, "a.example", "/"+strings.Repeat("y", 1000), nil))
	if e := <-entries; len(e.Path) > 300 || e.Status != 405 {
		t.Errorf("%+v", e)
	}
}

// BenchmarkProxy measures requests over kept connections.
func BenchmarkProxy(b *testing.B) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer guest.Close()
	g := New(Config{Log: slog.New(slog.DiscardHandler), Dial: func(context.Context, caisson.IngressDial) (net.Conn, error) {
		return net.Dial("tcp", guest.Listener.Addr().String())
	}})
	public, _, _ := ed25519.GenerateKey(nil)
	if err := g.Configure(&caisson.IngressConfig{Domain: domain, Key: public, Routes: []caisson.IngressRoute{{ID: "rt-x", Spec: caisson.RouteSpec{
		Host: "a.example", Sandbox: string(sandboxID), Port: 1, Auth: caisson.RouteAuth{Kind: "none"}, Limits: caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: 1e6, Burst: 1e6}},
	}}}}); err != nil {
		b.Fatal(err)
	}
	front := httptest.NewServer(g)
	defer front.Close()
	for b.Loop() {
		r, _ := http.NewRequest(http.MethodGet, front.URL, nil)
		r.Host = "a.example"
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}
