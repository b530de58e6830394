package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/internal/poll"
)

// limited serves s's API for token holders with other limits of connections, and returns its address.
func (s *server) limited(t *testing.T, strangers, known int, most time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := httpapi.Server(s.api.Remote(), discard())
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(httpapi.LimitTo(l, strangers, known, most))
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return l.Addr().String()
}

// A halfSent is a connection over which half a request has come.
type halfSent struct{ ended chan struct{} }

func sendHalf(t *testing.T, from, to string) *halfSent {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	h := &halfSent{make(chan struct{})}
	t.Cleanup(func() {
		c.Close()
		<-h.ended
	})
	go func() {
		defer close(h.ended)
		io.WriteString(c, "GET /api/v1/sandboxes HTTP/1.1\r\nHost: caisson\r\n")
		io.Copy(io.Discard, c)
	}()
	return h
}

func stillOpen(list []*halfSent) (n int) {
	for _, h := range list {
		select {
		case <-h.ended:
		default:
			n++
		}
	}
	return n
}

// TestHalfSentRequests: those who send half of a request and no token keep nobody else from being served, from another address or from
// the same one.
func TestHalfSentRequests(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const strangers = 8
	addr := s.limited(t, strangers, 4, time.Hour)
	var many []*halfSent
	other := sendHalf(t, "127.0.0.2", addr) // the oldest of all, but the only one from there
	for range 5 * strangers {
		many = append(many, sendHalf(t, "127.0.0.1", addr))
	}
	_, token, err := s.local(t, "").CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, client.Config{URL: "http://" + addr, Token: token})
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return stillOpen(many) < strangers })
	if n := stillOpen(many); n < strangers-2 {
		t.Errorf("%d of the connections are left; they were not closed for want of room", n)
	}
	if stillOpen([]*halfSent{other}) == 0 {
		t.Error("the source with many connections has displaced the one with a single connection")
	}
}

// TestStrangersTime: without a valid token a connection is soon closed, whatever is said over it.
func TestStrangersTime(t *testing.T) {
	t.Parallel()
	s := serve(t)
	addr := s.limited(t, 8, 4, 50*time.Millisecond)
	half := sendHalf(t, "127.0.0.1", addr)
	poll.Until(t, time.Minute, func() bool { return stillOpen([]*halfSent{half}) == 0 })
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// /healthz needs no token; who asks for it for ever has no connection for ever.
	r := bufio.NewReader(c)
	poll.Until(t, time.Minute, func() bool {
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: caisson\r\n\r\n"); err != nil {
			return true
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return true
		}
		resp.Body.Close()
		return false
	})
}

// TestKnownConnections: those of token holders outlive a stranger's time, give way to each other while they are idle, and are refused
// when all are in use.
func TestKnownConnections(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const known = 3
	addr := s.limited(t, 8, known, time.Hour)
	_, token, err := s.local(t, "").CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	one := func() *http.Client {
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	ask := func(c *http.Client, path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/api/v1"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	// served asks until it is served: the server knows that a connection is idle a moment after its client has the answer.
	served := func(path string) (resp *http.Response) {
		t.Helper()
		poll.Until(t, time.Minute, func() bool {
			if resp = ask(one(), path); resp.StatusCode != http.StatusOK {
				resp.Body.Close()
			}
			return resp.StatusCode == http.StatusOK
		})
		return resp
	}
	for range 4 * known { // each leaves an idle connection
		resp := served("/sandboxes")
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	streams := []*http.Response{}
	for range known {
		streams = append(streams, served("/events"))
	}
	resp := ask(one(), "/sandboxes")
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("with all connections in use: %d, %v", resp.StatusCode, resp.Header)
	}
	streams[0].Body.Close()
	served("/sandboxes").Body.Close()
	for _, s := range streams {
		s.Body.Close()
	}
}

// TestPromise9Guesses: wrong tokens are soon not looked up any more, and whoever uses a valid one from the same address notices nothing.
func TestPromise9Guesses(t *testing.T) {
	t.Parallel()
	var looked atomic.Int32
	s := serve(t, func(c *httpapi.Config) {
		find := c.FindToken
		c.FindToken = func(ctx context.Context, hash [32]byte) (*caisson.Token, error) {
			looked.Add(1)
			return find(ctx, hash)
		}
	})
	c := s.remote(t, "alice")
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 5000 { // more than anybody needs whose machine makes more than a few requests in a second
		before := looked.Load()
		status, h, body := s.raw(t, false, "GET", "/api/v1/sandboxes", "", map[string]string{"Authorization": fmt.Sprint("Bearer wrong", i)})
		if status == http.StatusUnauthorized {
			continue
		}
		refused++
		if status != http.StatusTooManyRequests || h.Get("Retry-After") != "1" || !strings.Contains(body, "too many wrong tokens") || looked.Load() != before {
			t.Fatalf("%d, %v, %s", status, h, body)
		}
		if _, err := c.Info(t.Context()); err != nil {
			t.Fatalf("a valid token is locked out: %v", err)
		}
		if refused == 5 {
			return
		}
	}
	t.Error("no guess was refused")
}
