package llm_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestChat(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	status, h, body := f.post("/v1/chat/completions", hello)
	if status != 200 || !strings.Contains(body, `"hello!"`) {
		t.Fatal(status, body)
	}
	if h.Get("Set-Cookie") != "" || h.Get("X-Secret") != "" || h.Get("X-Request-Id") != "req_1" || h.Get("X-Caisson-Call-Id") == "" {
		t.Errorf("headers %v", h)
	}
	row := f.row()
	want := caisson.TokenCount{Input: 20, Output: 7, CacheRead: 10}
	if row.Tokens != want || row.Cost != m.cost || row.Estimated || row.Status != 200 || row.Error != "" || row.Upstream != "gpt-real-name" ||
		row.Model != "small" || row.API != "chat" || row.UpstreamID != "req_1" || row.FirstByte == 0 || row.Duration < row.FirstByte || row.Guest != *f.guest {
		t.Errorf("row %+v", row)
	}
	r := m.seen[0]
	if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+key {
		t.Errorf("request %v %v", r.URL, r.Header)
	}
	if b := m.body[0]; !strings.Contains(b, `"model":"gpt-real-name"`) || !strings.Contains(b, `"max_tokens":1000`) || !strings.Contains(b, `"user":"caisson-`) {
		t.Errorf("body %s", b)
	}
}

func TestStream(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	status, h, body := f.post("/chat/completions", `{"stream":true,`+hello[1:])
	if status != 200 || h.Get("Content-Type") != "text/event-stream" || !strings.HasSuffix(body, "data: [DONE]\n\n") || strings.Count(body, "data: ") != 5 {
		t.Fatal(status, h, body)
	}
	if row := f.row(); row.Cost != m.cost || !row.Stream || row.Estimated {
		t.Errorf("row %+v", row)
	}
	if !strings.Contains(m.body[0], `"stream":true,"stream_options":{"include_usage":true}`) {
		t.Errorf("body %s", m.body[0])
	}
}

// TestPromise5SettledFirst checks that when a guest has the end of an answer, its row is in the ledger; if the row cannot be
// written, the guest does not get the end.
func TestPromise5SettledFirst(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		f := open(t, &mock{}, func(f *fixture) { f.meter.broken = true })
		status, _, body := f.post("/v1/chat/completions", `{"stream":`+stream+`,`+hello[1:])
		if strings.Contains(body, "[DONE]") || strings.Contains(body, "hello!") || status == 200 && !strings.HasPrefix(body, "broken") {
			t.Errorf("stream %s: %d %s", stream, status, body)
		}
		if !f.meter.quiet() {
			t.Error("not settled once")
		}
	}
}

// TestRefusals checks requests that do not reach the provider, and the reasons.
func TestRefusals(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	long := strings.Repeat("x", 33<<20)
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		want                     string
	}{
		{"path above", "POST", "/v1/../v1/chat/completions", hello, nil, 404, "not_found"},
		{"path doubled", "POST", "//v1/chat/completions", hello, nil, 404, "not_found"},
		{"path escaped", "POST", "/v1/chat%2fcompletions", hello, nil, 404, "not_found"},
		{"needless escape", "POST", "/v1/%63hat/completions", hello, nil, 404, "not_found"},
		{"path longer", "POST", "/v1/chat/completions/", hello, nil, 404, "not_found"},
		{"files", "POST", "/v1/files", hello, nil, 404, "not_found"},
		{"admin", "GET", "/key/info", "", nil, 404, "not_found"},
		{"spend", "GET", "/spend/logs", "", nil, 404, "not_found"},
		{"method", "GET", "/v1/chat/completions", "", nil, 404, "not_found"},
		{"delete", "DELETE", "/v1/models", "", nil, 404, "not_found"},
		{"upgrade", "POST", "/v1/chat/completions", hello, []string{"Upgrade", "websocket"}, 400, "upgrade"},
		{"encoded", "POST", "/v1/chat/completions", hello, []string{"Content-Encoding", "gzip"}, 415, "encoded"},
		{"long headers", "POST", "/v1/chat/completions", hello, []string{"X-A", strings.Repeat("a", 33<<10)}, 431, "headers"},
		{"no JSON", "POST", "/v1/chat/completions", "{", nil, 400, "invalid_request"},
		{"huge", "POST", "/v1/chat/completions", `{"x":"` + long + `"}`, nil, 413, "too_large"},
		{"unpriced", "POST", "/v1/chat/completions", strings.Replace(hello, "small", "unpriced", 1), nil, 403, "model_unpriced"},
		{"no limit", "POST", "/v1/chat/completions", strings.Replace(hello, "small", "endless", 1), nil, 400, "max_tokens"},
		{"n", "POST", "/v1/chat/completions", `{"n":2,` + hello[1:], nil, 400, `"n"`},
		{"state", "POST", "/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, nil, 400, "server-state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, _ := http.NewRequest(c.method, f.front.URL, strings.NewReader(c.body))
			req.URL.Opaque = strings.TrimPrefix(f.front.URL, "http:") + c.path
			for i := 0; i < len(c.headers); i += 2 {
				req.Header.Set(c.headers[i], c.headers[i+1])
			}
			resp, err := f.front.Client().Transport.RoundTrip(req)
			if err != nil {
				if c.name == "huge" { // the connection is closed while the body is being sent
					return
				}
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := make([]byte, 4096)
			n, _ := resp.Body.Read(body)
			if got := string(body[:n]); resp.StatusCode != c.status || !strings.Contains(got, c.want) || !strings.Contains(got, `{"error":{"message":`) {
				t.Errorf("%d %s", resp.StatusCode, got)
			}
		})
	}
	if m.calls != 0 || len(f.meter.rows()) != 0 || !f.meter.quiet() {
		t.Errorf("%d calls, %d rows", m.calls, len(f.meter.rows()))
	}
}

func TestStrangers(t *testing.T) {
	f := open(t, &mock{})
	f.guest = nil
	if status, _, body := f.post("/v1/chat/completions", hello, "Authorization", "Bearer "+key); status != 401 {
		t.Error(status, body)
	}
	f.guest = &caisson.Guest{Sandbox: "sb-x", Account: "a"}
	f.grant = nil
	if status, _, body := f.post("/v1/chat/completions", hello); status != 403 {
		t.Error(status, body)
	}
}

// TestUnknownModel checks that a missing or unknown model is replaced by the first one of the grant.
func TestUnknownModel(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	for _, body := range []string{strings.Replace(hello, "small", "gpt-99", 1), strings.Replace(hello, `"model":"small",`, "", 1)} {
		if status, _, body := f.post("/v1/chat/completions", body); status != 200 {
			t.Error(status, body)
		}
	}
	for _, row := range f.meter.rows() {
		if row.Model != "small" {
			t.Error(row.Model)
		}
	}
}

// TestSpoofedAttribution checks that no identity sent by the client reaches the provider.
func TestSpoofedAttribution(t *testing.T) {
	m := &mock{}
	f := open(t, m)
	f.configure(t, caisson.ProviderLiteLLM, f.provider.URL+"/v1")
	spoof := []string{
		"Authorization", "Bearer mine", "X-Api-Key", "evil", "X-Goog-Api-Key", "evil", "Cookie", "evil=1", "X-Litellm-End-User-Id", "evil",
		"X-Litellm-Spend-Logs-Metadata", `{"run_id":"evil"}`, "X-Litellm-Tags", "evil", "X-Litellm-Api-Key", "evil", "OpenAI-Organization", "evil", "OpenAI-Project", "evil",
		"OpenAI-Beta", "evil", "X-Stainless-Lang", "evil", "X-Forwarded-For", "evil", "Forwarded", "evil", "X-Real-Ip", "evil", "Traceparent", "evil", "Baggage", "evil",
		"Langfuse_trace_id", "evil", "Proxy-Authorization", "evil", "Idempotency-Key", "evil", "User-Agent", "evil", "Origin", "evil", "Helicone-Auth", "evil",
	}
	body := `{"user":"evil","metadata":{"user_api_key":"evil"},"litellm_metadata":"evil","safety_identifier":"evil","service_tier":"evil","tags":["evil"],"store":true,` + hello[1:]
	if status, _, body := f.post("/v1/chat/completions?key=evil&api_key=evil", body, spoof...); status != 200 {
		t.Fatal(status, body)
	}
	r := m.seen[0]
	if r.URL.RawQuery != "" || strings.Contains(m.body[0], "evil") || !strings.Contains(m.body[0], `"user":"alice"`) {
		t.Errorf("%v %s", r.URL, m.body[0])
	}
	for name, values := range r.Header {
		if strings.Contains(strings.Join(values, " "), "evil") || strings.Contains(strings.Join(values, " "), "mine") {
			t.Errorf("%s: %v arrived", name, values)
		}
	}
	call := f.row().ID
	want := `{"run_id":"run-1","attempt":2,"user_id":"b\u00f6","graph_id":"openclaw","session_id":"se","caisson_call_id":"` + string(call) + `"}`
	if got := r.Header.Get("X-Litellm-Spend-Logs-Metadata"); got != want || r.Header.Get("X-Litellm-End-User-Id") != "alice" {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLiteLLMSays(t *testing.T) {
	m := &mock{}
	f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Litellm-Call-Id", "call-7")
		w.Header().Set("X-Litellm-Response-Cost", "1.2345678901e-05")
		m.ServeHTTP(w, r)
	}))
	f.configure(t, caisson.ProviderLiteLLM, f.provider.URL)
	f.post("/v1/chat/completions", hello)
	if row := f.row(); row.UpstreamID != "call-7" || row.UpstreamCost == nil || *row.UpstreamCost != 12346 {
		t.Errorf("%+v", row)
	}
}

func TestList(t *testing.T) {
	f := open(t, &mock{})
	resp, err := http.Get(f.front.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, 4096)
	n, _ := resp.Body.Read(body)
	if got := string(body[:n]); !strings.Contains(got, `"id":"small"`) || strings.Contains(got, "other") || strings.Contains(got, "gpt-real-name") {
		t.Error(got)
	}
}

// TestServerState checks that server-side state is only accessible to the account that created it.
func TestServerState(t *testing.T) {
	f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"id":"resp_1","output":[{"id":"msg_1"}],"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}`))
	}))
	f.grant.Allow = []string{caisson.GrantServerState}
	next := `{"model":"small","input":"x","previous_response_id":"resp_1"}`
	if status, _, _ := f.post("/v1/responses", next); status != 404 {
		t.Error("an id that nobody made passed", status)
	}
	f.post("/v1/responses", `{"model":"small","input":"x"}`)
	if status, _, body := f.post("/v1/responses", next); status != 200 {
		t.Error(status, body)
	}
	if status, _, body := f.post("/v1/responses", `{"model":"small","input":[{"type":"item_reference","id":"msg_1"}]}`); status != 200 {
		t.Error(status, body)
	}
	f.guest = &caisson.Guest{Sandbox: "sb-bbbbbbbbbbbbbbbb", Account: "bob"}
	if status, _, body := f.post("/v1/responses", next); status != 404 {
		t.Error("bob has what is alice's", status, body)
	}
}

func TestRecord(t *testing.T) {
	f := open(t, &mock{})
	f.grant.Record = true
	f.post("/v1/chat/completions", strings.Replace(hello, "hello", "my key is "+key+" and ghp_abcdefghijklmnopqrstuvwxyz0123456789", 1))
	if len(f.records.lines) != 1 {
		t.Fatal(f.records.lines)
	}
	line := f.records.lines[0]
	if strings.Contains(line, key[3:]) || strings.Contains(line, "ghp_") || strings.Count(line, "[redacted]") != 2 || !strings.Contains(line, `hello!`) || strings.Count(line, "\n") != 1 {
		t.Error(line)
	}
}
