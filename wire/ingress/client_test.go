package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// An endingWriter is the writer of a request whose deadlines must not be set after its handler has returned: net/http panics then.
type endingWriter struct {
	*httptest.ResponseRecorder
	ended, wrong atomic.Bool
}

func (w *endingWriter) SetReadDeadline(time.Time) error  { return w.set() }
func (w *endingWriter) SetWriteDeadline(time.Time) error { return w.set() }

func (w *endingWriter) set() error {
	if w.ended.Load() {
		w.wrong.Store(true)
	}
	return nil
}

// A heldBody is a body of which nothing arrives until ended is closed.
type heldBody struct{ begun, ended chan struct{} }

func (b *heldBody) Read([]byte) (int, error) {
	close(b.begun)
	<-b.ended
	return 0, io.ErrUnexpectedEOF
}

// TestBodyAfterAnswer tests that a body that goes on when its request has been answered does no harm.
func TestBodyAfterAnswer(t *testing.T) {
	body, read := &heldBody{make(chan struct{}), make(chan struct{})}, make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-body.begun
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusNotFound)
	}), nil)
	w.configure(caisson.RouteSpec{Host: "a.example"})
	r := httptest.NewRequest(http.MethodPost, "/", body)
	r.Host, r.ContentLength = "a.example", 1<<20
	r = r.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(read) }}))
	out := &endingWriter{ResponseRecorder: httptest.NewRecorder()}
	w.ServeHTTP(out, r)
	if out.Code != http.StatusNotFound {
		t.Errorf("%d %s", out.Code, out.Body)
	}
	out.ended.Store(true)
	close(body.ended)
	<-read
	if out.wrong.Load() {
		t.Error("a deadline was set after the handler had returned")
	}
}

// TestPauses tests answers and bodies with pauses that are longer than a client may take for each part.
func TestPauses(t *testing.T) {
	t.Parallel()
	const pause, allowed = 1500 * time.Millisecond, time.Second
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for range 2 {
			io.WriteString(w, "part")
			http.NewResponseController(w).Flush()
			<-time.After(pause)
		}
	}), func(c *Config) { c.Times = Times{Body: allowed, Write: allowed} })
	w.configure(caisson.RouteSpec{Host: "a.example"})
	addr, client := w.tls()
	var answers sync.WaitGroup
	for _, to := range []string{"http://" + w.addr, "https://" + addr} {
		for _, body := range []io.Reader{nil, struct{ io.Reader }{strings.NewReader("body")}} {
			answers.Go(func() {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, to, body)
				r.Host = "a.example"
				res, err := client.Do(r)
				if err != nil {
					t.Errorf("%s: %v", to, err)
					return
				}
				defer res.Body.Close()
				if b, err := io.ReadAll(res.Body); string(b) != "partpart" || err != nil {
					t.Errorf("%s: %q, %v", res.Proto, b, err)
				}
			})
		}
	}
	answers.Wait()
}

// TestRefusedBody tests that a client whose request is refused cannot keep its connection by sending no body.
func TestRefusedBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mirror, func(c *Config) {
		const short = 300 * time.Millisecond
		c.Times = Times{Header: short, Idle: short, Body: short}
	})
	w.configure(caisson.RouteSpec{Host: "get", Methods: []string{"GET"}})
	for host, want := range map[string]int{"nowhere": 404, "get": 405} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(limit))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n\r\n", host)
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != want {
			t.Errorf("%s: %v, %v", host, res, err)
			continue
		}
		if _, err := io.Copy(io.Discard, br); err != nil {
			t.Errorf("%s: the connection stays open: %v", host, err)
		}
	}
}

// TestStalledStream tests that a WebSocket whose client does not read ends, and its entry in the log.
func TestStalledStream(t *testing.T) {
	for name, c := range map[string]struct {
		write, idle time.Duration
		remove      bool
	}{
		"by the time of a write": {write: 500 * time.Millisecond, idle: time.Hour},
		"idle":                   {write: time.Hour, idle: 500 * time.Millisecond},
		"without its route":      {write: time.Hour, idle: time.Hour, remove: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entries := make(chan caisson.RouteRequest, 1)
			w := newWorld(t, nil, func(cfg *Config) {
				cfg.Times.Write = c.write
				cfg.Logged = func(_ caisson.ID, e caisson.RouteRequest) { entries <- e }
			})
			w.configure(caisson.RouteSpec{Host: "a.example", IdleTimeout: caisson.Duration(c.idle)})
			go func() {
				conn, err := w.guest.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				http.ReadRequest(bufio.NewReader(conn))
				io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				for b := make([]byte, 1<<20); err == nil; {
					_, err = conn.Write(b)
				}
			}()
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if _, err := io.ReadFull(conn, make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			if c.remove {
				w.configure()
			}
			select {
			case e := <-entries:
				if e.Status != http.StatusSwitchingProtocols || e.Bytes < 1<<20 {
					t.Errorf("%+v", e)
				}
			case <-time.After(limit):
				t.Error("the request does not end")
			}
		})
	}
}

// TestUpgrades tests that no protocol but that of WebSockets comes to a sandbox: in others a client could send requests that nobody
// checks.
func TestUpgrades(t *testing.T) {
	w := newWorld(t, mirror, nil)
	w.configure(caisson.RouteSpec{Host: "a.example"})
	for _, c := range []struct {
		method, upgrade string
		passes          bool
	}{
		{"GET", "websocket", true}, {"GET", "WebSocket", true}, {"GET", "h2c", false}, {"GET", "websocket, h2c", false}, {"GET", "TLS/1.0", false},
		{"GET", "h2c\r\nUpgrade: websocket", false}, {"POST", "websocket", false},
	} {
		conn, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(limit))
		fmt.Fprintf(conn, "%s / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABk\r\n"+
			"http2_settings: AAMAAABk\r\nContent-Length: 0\r\n\r\n", c.method, c.upgrade)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		b, _ := io.ReadAll(res.Body)
		h := parseSeen(t, string(b)).Header
		if passes := len(h["Upgrade"]) == 1 && len(h["Connection"]) == 1; passes != c.passes || !c.passes && len(h["Upgrade"])+len(h["Connection"]) > 0 ||
			strings.Contains(strings.ToLower(fmt.Sprint(h)), "settings") {
			t.Errorf("%+v: the sandbox sees %v", c, h)
		}
	}
}
