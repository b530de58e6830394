package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm"
	"github.com/caisson-dev/caisson/wire/llm/openai"
)

const key = "sk-proj-Tz7Qx1Lm9Rk3Vb5Nw8Yc"

// meter is one exact budget for all guests.
type meter struct {
	mu      sync.Mutex
	limit   caisson.USD // 0: none
	used    caisson.USD
	held    caisson.USD
	most    caisson.USD // maximum of used and held amounts
	calls   []caisson.Call
	open    int
	broken  bool // the ledger cannot be written
	twice   bool // a call was settled twice
	refusal error
}

type reserved struct {
	m      *meter
	worst  caisson.USD
	output int64
	done   bool
}

func (m *meter) Reserve(_ context.Context, _ caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusal != nil {
		return nil, m.refusal
	}
	output := d.MaxOutput
	if m.limit > 0 {
		for left := m.limit - m.used - m.held; d.MaxUsage(output).USD > left; output-- {
			if output <= d.MinOutput {
				return nil, &caisson.OverBudget{Budget: "sandbox sb-test", What: "usd", Limit: m.limit.String() + " USD", Left: left.String() + " USD", Busy: m.held > 0, Retry: time.Second}
			}
		}
	}
	r := &reserved{m: m, worst: d.MaxUsage(output).USD, output: output}
	m.held += r.worst
	m.most = max(m.most, m.used+m.held)
	m.open++
	return r, nil
}

func (r *reserved) Output() int64 { return r.output }

func (r *reserved) Settle(c caisson.Call) error {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.m.twice = r.m.twice || r.done
	r.done = true
	r.m.open--
	r.m.held -= r.worst
	if r.m.broken {
		r.m.used += r.worst
		return caisson.Errorf(caisson.Unavailable, "the disk is full")
	}
	r.m.used += c.Cost
	r.m.calls = append(r.m.calls, c)
	return nil
}

func (m *meter) rows() []caisson.Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]caisson.Call(nil), m.calls...)
}

// quiet reports whether every call was settled exactly once.
func (m *meter) quiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open == 0 && !m.twice
}

// A fixture is a gateway and a provider, each on a socket.
type fixture struct {
	*testing.T
	meter    *meter
	grant    *caisson.ModelGrant
	config   llm.Config
	gateway  *llm.Gateway
	provider *httptest.Server
	front    *httptest.Server
	guest    *caisson.Guest
	records  *records
}

type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(p))
	return len(p), nil
}

var prices = &caisson.Prices{Input: caisson.Dollar, Output: 10 * caisson.Dollar, CacheRead: caisson.Dollar / 10}

func models(provider string) []caisson.Model {
	return []caisson.Model{
		{Alias: "small", Provider: provider, Upstream: "gpt-real-name", Prices: prices, Context: 100_000, Output: 1000},
		{Alias: "other", Provider: provider, Prices: prices, Context: 100_000, Output: 1000},
		{Alias: "unpriced", Provider: provider, Context: 1000},
		{Alias: "free", Provider: provider, Free: true},
		{Alias: "endless", Provider: provider, Prices: prices},
	}
}

// open starts a gateway for a provider.
func open(t testing.TB, provider http.Handler, change ...func(*fixture)) *fixture {
	f := &fixture{meter: &meter{}, records: &records{}, guest: &caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "alice", Run: "run-1", Attempt: 2, Session: "se", Agent: "openclaw", User: "bö"}}
	f.T, _ = t.(*testing.T)
	f.grant = &caisson.ModelGrant{Models: []string{"small", "unpriced", "free", "endless"}}
	f.provider = httptest.NewServer(provider)
	t.Cleanup(f.provider.Close)
	var d net.Dialer
	f.config = llm.Config{
		APIs:  []llm.API{{Dialect: openai.New(), Kinds: []string{caisson.ProviderOpenAI, caisson.ProviderLiteLLM}}},
		Meter: f.meter, Grant: func(context.Context, caisson.Guest) *caisson.ModelGrant { return f.grant },
		Dial: d.DialContext, Record: func(caisson.Guest) io.Writer { return f.records },
	}
	for _, c := range change {
		c(f)
	}
	if f.config.Timeouts.Linger == 0 {
		f.config.Timeouts.Linger = 50 * time.Millisecond
	}
	g, err := llm.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	f.gateway = g
	f.configure(t, caisson.ProviderOpenAI, f.provider.URL+"/v1")
	f.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.guest != nil {
			r = r.WithContext(caisson.WithGuest(r.Context(), *f.guest))
		}
		g.ServeHTTP(w, r)
	}))
	t.Cleanup(f.front.Close)
	return f
}

func (f *fixture) configure(t testing.TB, kind, base string) {
	err := f.gateway.Configure(caisson.GatewayConfig{
		Providers: []caisson.Provider{{Name: "p", Kind: kind, BaseURL: base, Credential: "K"}},
		Models:    models("p"),
		Keys:      map[string]string{"p": key},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// post makes a call and returns its complete answer.
func (f *fixture) post(path, body string, headers ...string) (int, http.Header, string) {
	f.Helper()
	req, _ := http.NewRequest("POST", f.front.URL+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := f.front.Client().Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, resp.Header, "broken: " + string(b)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// row returns the only row of the ledger.
func (f *fixture) row() caisson.Call {
	f.Helper()
	rows := f.meter.rows()
	if len(rows) != 1 || !f.meter.quiet() {
		f.Fatalf("rows %+v, settled %v; want one row", rows, f.meter.quiet())
	}
	return rows[0]
}

const hello = `{"model":"small","messages":[{"role":"user","content":"hello"}]}`

// mock answers chats, and records the requests.
type mock struct {
	mu    sync.Mutex
	seen  []*http.Request
	body  []string
	calls int
	cost  caisson.USD
}

func (m *mock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	var body struct {
		Stream bool  `json:"stream"`
		Max    int64 `json:"max_tokens"`
		New    int64 `json:"max_completion_tokens"`
	}
	json.Unmarshal(b, &body)
	m.mu.Lock()
	m.seen, m.body = append(m.seen, r), append(m.body, string(b))
	m.calls++
	out := min(body.Max+body.New, 7)
	m.cost += prices.Cost(caisson.TokenCount{Input: 20, Output: out, CacheRead: 10})
	m.mu.Unlock()
	usage := fmt.Sprintf(`{"prompt_tokens":30,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":10}}`, out, 30+out)
	if body.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, word := range []string{"hel", "lo", "!"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}],\"usage\":null}\n\n", word)
			w.(http.Flusher).Flush()
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":%s}\n\ndata: [DONE]\n\n", usage)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Set-Cookie", "a=b")
	w.Header().Set("X-Request-Id", "req_1")
	w.Header().Set("X-Secret", key)
	fmt.Fprintf(w, `{"id":"x","choices":[{"message":{"content":"hello!"}}],"usage":%s}`, usage)
}
