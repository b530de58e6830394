package llm_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestRetries checks that only requests that a provider cannot have processed are retried.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []func(w http.ResponseWriter)
		status  int
		calls   int
	}{
		{"429 and then", []func(http.ResponseWriter){refuseRetry("0"), refuseRetry("0.01")}, 200, 3},
		{"429 for ever", []func(http.ResponseWriter){refuseRetry("0"), refuseRetry("0"), refuseRetry("0")}, 429, 3},
		{"429 for long", []func(http.ResponseWriter){refuseRetry("60")}, 429, 1},
		{"500", []func(http.ResponseWriter){func(w http.ResponseWriter) { w.WriteHeader(500) }}, 500, 1},
		{"broken", []func(http.ResponseWriter){func(w http.ResponseWriter) { panic(http.ErrAbortHandler) }}, 502, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &mock{}
			var n atomic.Int64
			keys := make(chan string, 10)
			f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				i := int(n.Add(1)) - 1
				keys <- r.Header.Get("Idempotency-Key")
				if i < len(c.answers) {
					c.answers[i](w)
					return
				}
				m.ServeHTTP(w, r)
			}))
			status, h, body := f.post("/v1/chat/completions", hello)
			if status != c.status || int(n.Load()) != c.calls {
				t.Errorf("%d after %d calls: %s", status, n.Load(), body)
			}
			if c.name == "429 for long" && h.Get("Retry-After") != "60" {
				t.Error(h)
			}
			if row := f.row(); row.Status != c.status {
				t.Errorf("%+v", row)
			}
			for i := range c.calls {
				if k := <-keys; (k != "") != (i > 0) {
					t.Errorf("call %d has the idempotency key %q", i, k)
				}
			}
		})
	}
}

func refuseRetry(s string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", s)
		w.WriteHeader(429)
		io.WriteString(w, `{"error":{"message":"slow down"}}`)
	}
}

// TestUnreachable checks that failed connections are retried and cost nothing.
func TestUnreachable(t *testing.T) {
	var n atomic.Int64
	var d net.Dialer
	f := open(t, &mock{}, func(f *fixture) {
		f.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if n.Add(1) <= 2 {
				return nil, errors.New("refused")
			}
			return d.DialContext(ctx, network, addr)
		}
	})
	if status, _, body := f.post("/v1/chat/completions", hello); status != 200 {
		t.Error(status, body)
	}
	n.Store(-10)
	f.configure(t, caisson.ProviderOpenAI, "http://127.0.0.2:1")
	if status, _, body := f.post("/v1/chat/completions", hello); status != 502 {
		t.Error(status, body)
	}
	if rows := f.meter.rows(); len(rows) != 2 || rows[1].Cost != 0 || rows[1].Estimated || rows[1].Status != 502 {
		t.Errorf("%+v", rows)
	}
}

// TestTLS checks that providers' certificates are verified, and that HTTP/2 is used if it is offered.
func TestTLS(t *testing.T) {
	m := &mock{}
	up := httptest.NewUnstartedServer(m)
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	pool := x509.NewCertPool()
	pool.AddCert(up.Certificate())
	f := open(t, &mock{}, func(f *fixture) { f.config.Roots = pool })
	f.configure(t, caisson.ProviderOpenAI, up.URL+"/v1")
	if status, _, body := f.post("/v1/chat/completions", `{"stream":true,`+hello[1:]); status != 200 {
		t.Fatal(status, body)
	}
	if m.seen[0].ProtoMajor != 2 {
		t.Error(m.seen[0].Proto)
	}
	g := open(t, &mock{}, func(f *fixture) { f.config.Roots = x509.NewCertPool() })
	g.configure(t, caisson.ProviderOpenAI, up.URL+"/v1")
	if status, _, body := g.post("/v1/chat/completions", hello); status != 502 || g.row().Cost != 0 {
		t.Error(status, body)
	}
}

// TestRawRequests sends requests that clients do not send, but sandboxes may.
func TestRawRequests(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	length := fmt.Sprint(len(hello))
	for _, c := range []struct {
		name, request string
		answers       int // number of 200 responses
		calls         int
	}{
		{"HTTP/1.0", "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + length + "\r\n\r\n" + hello, 1, 1},
		{"pipelined", strings.Repeat("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "+length+"\r\n\r\n"+hello, 3) + "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 3, 3},
		{"trailers", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTrailer: Authorization\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(hello) + "0\r\nAuthorization: evil\r\n\r\n", 1, 1},
		{"both lengths", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(hello) + "0\r\n\r\n", 1, 1},
		{"two lengths", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: " + length + "\r\n\r\n" + hello, 0, 0},
		{"odd encoding", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n" + chunk(hello), 0, 0},
		{"space in name", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Api-Key : a\r\nContent-Length: " + length + "\r\n\r\n" + hello, 0, 0},
		{"line break in a value", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: a\rb\r\nConnection: close\r\nContent-Length: " + length + "\r\n\r\n" + hello, -1, -1},
		{"connect", "CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\nConnection: close\r\n\r\n", 0, 0},
		{"other host", "POST http://169.254.169.254/v1/chat/completions HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\nContent-Length: " + length + "\r\n\r\n" + hello, 1, 1},
		{"expect", "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: " + length + "\r\n\r\n" + hello, 0, 0},
		{"upgrade", "GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n", 0, 0},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := m.calls
			conn, err := net.Dial("tcp", f.front.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			io.WriteString(conn, c.request)
			if c.name == "upgrade" || c.name == "two lengths" {
				conn.(*net.TCPConn).CloseWrite()
			}
			b, _ := io.ReadAll(conn)
			if got := strings.Count(string(b), "200 OK"); c.answers >= 0 && (got != c.answers || m.calls-before != c.calls) {
				t.Errorf("%d answers, %d calls: %s", got, m.calls-before, b)
			}
		})
	}
	for _, r := range m.seen {
		if r.Header.Get("Authorization") != "Bearer "+key || len(r.Trailer) != 0 {
			t.Error(r.Header, r.Trailer)
		}
	}
}

// TestTooMany checks the limit of concurrent calls of a sandbox, which does not slow down others.
func TestTooMany(t *testing.T) {
	p := newHang("", "")
	f := open(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", f.front.URL+"/v1/chat/completions", strings.NewReader(hello))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		})
	}
	for range 64 {
		<-p.arrived
	}
	if status, _, body := f.post("/v1/chat/completions", hello); status != 429 {
		t.Error(status, body)
	}
	cancel()
	wg.Wait()
	poll.Until(t, patience, func() bool { return len(f.meter.rows()) == 64 })
	if !f.meter.quiet() {
		t.Error("not settled once each")
	}
}

// slowEnd is a writer that delivers the whole answer to the guest before Write returns.
type slowEnd struct {
	http.ResponseWriter
	end <-chan struct{}
}

func (w slowEnd) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.ResponseWriter.(http.Flusher).Flush()
	<-w.end
	return n, err
}

func (w slowEnd) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestFastGuest checks that a guest that has an answer may make the next call, and that the number of calls is limited if writes
// never return.
func TestFastGuest(t *testing.T) {
	f := open(t, &mock{})
	end := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(end) })
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.gateway.ServeHTTP(slowEnd{w, end}, r.WithContext(caisson.WithGuest(r.Context(), *f.guest)))
	}))
	defer front.Close()
	defer goOn()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(body string) (int, string) {
		resp, err := client.Post(front.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := make([]byte, max(0, resp.ContentLength))
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	for i := range 128 {
		if status, body := post(hello); status != 200 {
			t.Fatalf("call %d: %d %s", i, status, body)
		}
	}
	if status, body := post(hello); status != 429 {
		t.Errorf("with 128 answers that were not heard out: %d %s", status, body)
	}
	goOn()
	poll.Until(t, patience, func() bool { status, _ := post(hello); return status == 200 })
	if rows := len(f.meter.rows()); rows != 129 || !f.meter.quiet() {
		t.Errorf("%d rows", rows)
	}
}

// TestConfigure checks that calls in progress continue with the previous configuration.
func TestConfigure(t *testing.T) {
	p := newHang("text/event-stream", ": hi\n\n")
	old := open(t, p)
	resp, err := http.Post(old.front.URL+"/v1/chat/completions", "", strings.NewReader(hello))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	m := &mock{}
	up := httptest.NewServer(m)
	defer up.Close()
	old.configure(t, caisson.ProviderOpenAI, up.URL)
	if status, _, body := old.post("/v1/chat/completions", hello); status != 200 || m.calls != 1 {
		t.Error(status, body)
	}
	if b, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || b != ": hi\n" {
		t.Error(b, err)
	}
	for _, bad := range []caisson.GatewayConfig{
		{Providers: []caisson.Provider{{Name: "p", Kind: "openai", BaseURL: "ftp://x"}}},
		{Providers: []caisson.Provider{{Name: "p", Kind: "openai", BaseURL: "https://user:pass@x/"}}},
		{Providers: []caisson.Provider{{Name: "p", Kind: "openai", BaseURL: "https://x/?a"}}},
		{Providers: []caisson.Provider{{Name: "p", Kind: "scripted"}}},
		{Models: []caisson.Model{{Alias: "m", Provider: "none"}}},
		{Providers: []caisson.Provider{{Name: "p", Kind: "openai", BaseURL: "https://x"}}, Keys: map[string]string{"p": "a\r\nb"}},
	} {
		if err := old.gateway.Configure(bad); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if status, _, _ := old.post("/v1/chat/completions", hello); status != 200 {
		t.Error("a bad configuration changed something")
	}
}

// TestLocal checks that a provider in this process is called like any other.
func TestLocal(t *testing.T) {
	m := &mock{}
	f := open(t, &mock{}, func(f *fixture) {
		f.config.Local = func(p caisson.Provider, script string) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if script == "panic" {
					panic("no")
				}
				m.ServeHTTP(w, r)
			}), nil
		}
	})
	for script, want := range map[string]int{"fine": 200, "panic": 502} {
		err := f.gateway.Configure(caisson.GatewayConfig{Providers: []caisson.Provider{{Name: "s", Kind: caisson.ProviderScripted}}, Scripts: map[string]string{"s": script}, Models: models("s")})
		if err != nil {
			t.Fatal(err)
		}
		for _, stream := range []string{"true", "false"} {
			if status, _, body := f.post("/v1/chat/completions", `{"stream":`+stream+`,`+hello[1:]); status != want {
				t.Error(script, status, body)
			}
		}
	}
	if !f.meter.quiet() {
		t.Error("not settled")
	}
}

// TestHugeAnswer checks that an answer that exceeds the buffer is forwarded unchanged.
func TestHugeAnswer(t *testing.T) {
	big := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("a", 3<<20) + `"}}],"usage":{"prompt_tokens":5,"completion_tokens":900,"total_tokens":905}}`)
	for _, length := range []bool{true, false} {
		f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if length {
				w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			}
			w.Write(big)
		}))
		status, h, body := f.post("/v1/chat/completions", hello)
		if status != 200 || !bytes.Equal([]byte(body), big) || (h.Get("Content-Length") != "") != length {
			t.Error(status, len(body), h)
		}
		if row := f.row(); row.Tokens.Output != 900 || row.Estimated {
			t.Errorf("%+v", row)
		}
	}
}
