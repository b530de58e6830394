package llm_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm"
)

const patience = time.Minute

// TestPromise5ConcurrentCalls checks that concurrent calls do not spend more than the budget, and that the ledger matches what
// the provider counted.
func TestPromise5ConcurrentCalls(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	one := prices.Cost(caisson.TokenCount{Input: 20, Output: 7, CacheRead: 10})
	f.meter.limit = 50 * one
	var wg sync.WaitGroup
	var served, refused atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			body := `{"max_completion_tokens":7,` + hello[1:]
			if i%2 == 0 {
				body = `{"stream":true,` + body[1:]
			}
			for {
				status, _, _ := f.post("/v1/chat/completions", body)
				switch status {
				case 200:
					served.Add(1)
					return
				case 402:
					refused.Add(1)
					return
				case 429: // reserved for other calls, or too many calls
				default:
					t.Errorf("status %d", status)
					return
				}
			}
		})
	}
	wg.Wait()
	var sum caisson.USD
	for _, row := range f.meter.rows() {
		sum += row.Cost
	}
	if sum > f.meter.limit || sum != m.cost || f.meter.most > f.meter.limit || served.Load() == 0 || refused.Load() == 0 || !f.meter.quiet() {
		t.Errorf("spent %v of %v, provider says %v, most at once %v, served %d, refused %d", sum, f.meter.limit, m.cost, f.meter.most, served.Load(), refused.Load())
	}
}

// TestClamped checks that an answer is limited to what the budget affords.
func TestClamped(t *testing.T) {
	m := &mock{}
	f := open(t, m, func(f *fixture) { f.meter.limit = 2 * caisson.Dollar / 1000 })
	if status, _, body := f.post("/v1/chat/completions", hello); status != 200 {
		t.Fatal(status, body)
	}
	if strings.Contains(m.body[0], `"max_tokens":1000}`) {
		t.Error(m.body[0])
	}
}

func TestOverBudget(t *testing.T) {
	f := open(t, &mock{})
	f.meter.refusal = &caisson.OverBudget{Budget: "account alice (month)", What: "usd", Limit: "5 USD", Left: "0.01 USD"}
	if status, _, body := f.post("/v1/chat/completions", hello); status != 402 || !strings.Contains(body, "account alice (month)") || !strings.Contains(body, "0.01 USD") || !strings.Contains(body, "over_budget") {
		t.Error(status, body)
	}
	f.meter.refusal = &caisson.OverBudget{Busy: true, Retry: 1500 * time.Millisecond}
	if status, h, _ := f.post("/v1/chat/completions", hello); status != 429 || h.Get("Retry-After") != "2" {
		t.Error(status, h)
	}
	f.meter.refusal = errors.New("no engine")
	if status, _, body := f.post("/v1/chat/completions", hello); status != 503 || strings.Contains(body, "engine") {
		t.Error(status, body)
	}
}

func TestRates(t *testing.T) {
	f := open(t, &mock{})
	f.grant.Rate = caisson.Rate{Requests: 2}
	for i, want := range []int{200, 200, 429} {
		if status, h, body := f.post("/v1/chat/completions", hello); status != want || status == 429 && h.Get("Retry-After") == "" {
			t.Error(i, status, body)
		}
	}
	// A call is charged its maximum first, and the unused part is returned.
	f.grant.Rate = caisson.Rate{Tokens: 2500}
	for i := range 5 {
		if status, _, body := f.post("/v1/chat/completions", hello); status != 200 {
			t.Error(i, status, body)
		}
	}
	f.grant.Rate = caisson.Rate{Tokens: 200}
	f.guest = &caisson.Guest{Sandbox: "sb-cccccccccccccccc", Account: "alice"}
	for i, want := range []int{200, 429} {
		if status, _, body := f.post("/v1/chat/completions", hello); status != want {
			t.Error(i, status, body)
		}
	}
}

// hang is a provider that stops in the middle of an answer.
type hang struct {
	before  string // data sent first; "" for not even a status
	kind    string
	arrived chan struct{}
	gone    chan struct{}
}

func newHang(kind, before string) *hang {
	return &hang{before: before, kind: kind, arrived: make(chan struct{}, 1000), gone: make(chan struct{}, 1000)}
}

func (h *hang) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	if h.before != "" {
		w.Header().Set("Content-Type", h.kind)
		io.WriteString(w, h.before)
		w.(http.Flusher).Flush()
	}
	h.arrived <- struct{}{}
	<-r.Context().Done()
	h.gone <- struct{}{}
}

// TestGuestGone checks that a call whose guest has disconnected and whose provider is silent ends after a while and is charged an
// estimate; if the answer is not streamed, with all the output that was granted.
func TestGuestGone(t *testing.T) {
	delta := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("a", 30) + "\"}}]}\n\n"
	for _, c := range []struct {
		name, kind, before, body string
	}{
		{"before a status", "", "", hello},
		{"before a status, stream", "", "", `{"stream":true,` + hello[1:]},
		{"in a stream", "text/event-stream", delta, `{"stream":true,` + hello[1:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newHang(c.kind, c.before)
			f := open(t, p)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", f.front.URL+"/v1/chat/completions", strings.NewReader(c.body))
			if c.before == "" {
				go func() {
					<-p.arrived
					cancel()
				}()
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				io.ReadFull(resp.Body, make([]byte, len(c.before)))
				cancel()
				resp.Body.Close()
			}
			<-p.gone
			poll.Until(t, patience, func() bool { return len(f.meter.rows()) == 1 })
			row := f.row()
			if !row.Estimated || row.Error != "aborted" || row.Tokens.Input < 50 || row.Tokens.Output < 1 || row.Tokens.Output > 1000 || row.Cost == 0 {
				t.Errorf("%+v", row)
			}
			// Providers complete answers that are not streamed.
			if !strings.Contains(c.body, "stream") && row.Tokens.Output != 1000 {
				t.Errorf("%d tokens of output", row.Tokens.Output)
			}
			if wantStatus := map[bool]int{true: 200}[c.kind != ""]; row.Status != wantStatus {
				t.Errorf("status %d", row.Status)
			}
		})
	}
}

// TestSlowProvider checks that a silent provider ends a call, and that other calls do not wait for it.
func TestSlowProvider(t *testing.T) {
	// Only one timeout is short in each case, because the other one may be reached on a busy machine.
	noStatus, silent := llm.Timeouts{Header: 200 * time.Millisecond}, llm.Timeouts{Idle: 200 * time.Millisecond}
	for _, c := range []struct {
		name, kind, before, want string
		timeouts                 llm.Timeouts
	}{
		{"no status", "", "", "504", noStatus},
		{"silent stream", "text/event-stream", ": hello\n\n", "broken", silent},
		{"half an answer", "application/json", `{"id":`, "504", silent},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, newHang(c.kind, c.before), func(f *fixture) { f.config.Timeouts = c.timeouts })
			status, _, body := f.post("/v1/chat/completions", `{"stream":true,`+hello[1:])
			if got := fmt.Sprint(status, body); !strings.Contains(got, c.want) {
				t.Error(got)
			}
			if row := f.row(); row.Error != "timeout" || !row.Estimated {
				t.Errorf("%+v", row)
			}
		})
	}
}

// TestSlowGuest checks that a body that does not arrive holds no resources for long.
func TestSlowGuest(t *testing.T) {
	f := open(t, &mock{}, func(f *fixture) { f.config.Timeouts.Body = 100 * time.Millisecond })
	got := f.raw(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	if !strings.Contains(got, "400 Bad Request") {
		t.Error(got)
	}
}

// raw sends bytes and returns the response up to its end.
func (f *fixture) raw(t *testing.T, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", f.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, request)
	b, _ := io.ReadAll(conn)
	return string(b)
}

// TestBrokenProviders checks that every fault of a provider results in one row, and in no answer that appears complete.
func TestBrokenProviders(t *testing.T) {
	sse := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
	delta := "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n"
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"total_tokens\":7}}\n\n"
	for _, c := range []struct {
		name, answer string
		status       int
		broken       bool
		word         string
		estimated    bool
	}{
		{"closes at once", "", 502, false, "upstream", true},
		{"garbage", "SSH-2.0-x\r\n\r\n", 502, false, "upstream", true},
		{"short body", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"id\":", 502, false, "upstream", true},
		{"broken chunk", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(delta) + "zz\r\n", 200, true, "upstream", true},
		{"broken chunk after usage", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(delta+usage) + "zz\r\n", 200, true, "upstream", false},
		{"broken chunk after the end", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(delta+usage+"data: [DONE]\n\n") + "zz\r\n", 200, false, "", false},
		{"no usage", sse + delta + "data: [DONE]\n\n", 200, false, "unmetered", true},
		{"no end", sse + delta, 200, false, "unmetered", true},
		{"usage of nothing", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 47\r\n\r\n{\"x\":\"hello\",\"usage\":{\"prompt_tokens\":0,\"n\":1}}", 200, false, "unmetered", true},
		{"trailer", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTrailer: X-Evil\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(delta+usage+"data: [DONE]\n\n") + "0\r\nX-Evil: 1\r\n\r\n", 200, false, "", false},
		{"redirect", "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 502, false, "upstream", false},
		{"switching", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 502, false, "upstream", false},
		{"compressed", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", 502, false, "upstream", true},
		{"HTML 502", "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", 502, false, "upstream", true},
		{"HTML 503", "HTTP/1.1 503 No\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", 503, false, "upstream", false},
		{"JSON 500", "HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"error\":{}}", 500, false, "upstream", false},
		{"400", "HTTP/1.1 400 No\r\nContent-Length: 12\r\n\r\n{\"error\":{}}", 400, false, "upstream", false},
		{"401", "HTTP/1.1 401 No\r\nContent-Length: 12\r\n\r\n{\"error\":{}}", 400, false, "upstream", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, &mock{})
			l := serve(t, func(conn net.Conn) { io.WriteString(conn, c.answer) })
			f.configure(t, caisson.ProviderOpenAI, "http://"+l+"/v1")
			status, h, body := f.post("/v1/chat/completions", hello)
			if status != c.status || strings.HasPrefix(body, "broken") != c.broken || h.Get("Location") != "" || h.Get("X-Evil") != "" {
				t.Errorf("%d %v %s", status, h, body)
			}
			row := f.row()
			if row.Error != c.word || row.Estimated != c.estimated || row.Status != c.status || row.Estimated != (row.Cost > 0) && c.status != 200 {
				t.Errorf("%+v", row)
			}
		})
	}
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// serve answers each request on a raw socket, and closes it.
func serve(t *testing.T, answer func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				answer(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// TestPromise2KeyNeverInside checks that a provider that repeats its request does not reveal the key.
func TestPromise2KeyNeverInside(t *testing.T) {
	b64 := base64.StdEncoding.EncodeToString([]byte("Bearer " + key))
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"error", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":{"message":"bad key %s","headers":%q,"b":%q}}`, key, r.Header, b64)
		}},
		{"part of it", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(429)
			fmt.Fprintf(w, `{"error":"you sent %s..."}`, r.Header.Get("Authorization")[:24])
		}},
		{"no JSON", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w, r.Header.Get("Authorization"))
		}},
		{"headers", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", key)
			w.Header().Set("X-Ratelimit-Limit", r.Header.Get("Authorization"))
			w.Header().Set("Content-Type", "application/json; "+key)
			io.WriteString(w, `{"usage":{"prompt_tokens":1}}`)
		}},
		{"answer", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"echo":%q,"usage":{"prompt_tokens":1}}`, key)
		}},
		{"long answer", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"echo":%q,"usage":{"prompt_tokens":1}}`, strings.Repeat("x", 32<<10-20)+key)
		}},
		{"stream", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", key)
		}},
		{"stream in pieces", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range key {
				io.WriteString(w, key[i:i+1])
				w.(http.Flusher).Flush()
			}
		}},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/?"+key, http.StatusFound)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, c.handler)
			status, h, body := f.post("/v1/chat/completions", hello)
			for what, text := range map[string]string{"headers": fmt.Sprint(h), "body": body, "row": fmt.Sprintf("%+v", f.row())} {
				if strings.Contains(text, key[:14]) || strings.Contains(text, key[10:24]) || strings.Contains(text, b64[16:28]) {
					t.Errorf("%d: %s: %s", status, what, text)
				}
			}
		})
	}
}
