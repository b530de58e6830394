package ingress

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
)

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
