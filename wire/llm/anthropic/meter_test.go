package anthropic

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/dialecttest"
)

// events returns a stream; each event consists of its data.
func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		var v struct{ Type string }
		_ = json.Unmarshal([]byte(d), &v)
		b.WriteString("event: " + v.Type + "\ndata: " + d + "\n\n")
	}
	return b.String()
}

const (
	start = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[],"stop_reason":null,"usage":{"input_tokens":12,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":0},"output_tokens":3,"service_tier":"standard"}}}`
	block = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	delta = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`
	ping  = `{"type": "ping"}`
	bstop = `{"type":"content_block_stop","index":0}`
	last  = `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}`
	stop  = `{"type":"message_stop"}`
)

func TestMeter(t *testing.T) {
	long := strings.Repeat("x", 2*maxEvent)
	for _, tt := range []struct{ name, in, want string }{
		{"text", events(start, block, ping, delta, delta, bstop, last, stop), "in 12 out 15 read 2000 write 100 complete true seen 10 done true ids []"},
		{"carriage returns", strings.ReplaceAll(events(start, block, ping, delta, bstop, last, stop), "\n", "\r\n"), "in 12 out 15 read 2000 write 100 complete true seen 5 done true ids []"},
		{"no names", strings.ReplaceAll(events(start, delta, last, stop), "event:", ":"), "in 12 out 15 read 2000 write 100 complete true seen 5 done true ids []"},
		{"cut off before the first event ends", events(start)[:200], "in 0 out 0 read 0 write 0 complete false seen 0 done false ids []"},
		{"cut off", events(start, block, delta, delta), "in 12 out 3 read 2000 write 100 complete false seen 10 done false ids []"},
		{"cut off after the last word", events(start, block, delta, bstop, last), "in 12 out 15 read 2000 write 100 complete true seen 5 done false ids []"},
		{"a delta without a reason", events(start, `{"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":9}}`), "in 12 out 9 read 2000 write 100 complete false seen 0 done false ids []"},
		{"thinking and tools", events(
			start,
			`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm\n"}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"abcdefgh"}}`,
			bstop,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"Read","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"path\":"}}`,
			bstop,
			`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":12,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"output_tokens":89}}`,
			stop,
		), "in 12 out 89 read 2000 write 100 complete true seen 28 done true ids []"},
		{"error", events(start, delta, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, last, stop), "in 12 out 3 read 2000 write 100 complete false seen 5 done true ids []"},
		{"after the end", events(start, last, stop, start, delta, `{"type":"message_delta","delta":{"stop_reason":"x"},"usage":{"output_tokens":9999}}`), "in 12 out 15 read 2000 write 100 complete true seen 0 done true ids []"},
		{"the provider's tools", events(
			start,
			`{"type":"content_block_start","index":1,"content_block":{"type":"code_execution_tool_result","tool_use_id":"t","content":{"type":"code_execution_result","stdout":"","content":[{"type":"code_execution_output","file_id":"file_1"}]}}}`,
			`{"type":"message_delta","delta":{"stop_reason":"end_turn","container":{"id":"container_1","expires_at":"x"}},"usage":{"input_tokens":900,"output_tokens":15,"server_tool_use":{"web_search_requests":1}}}`, stop,
		), "in 900 out 15 read 2000 write 100 complete true seen 109 done true ids [file_1 container_1]"},
		{"an hour", events(`{"type":"message_start","message":{"usage":{"input_tokens":1,"cache_creation_input_tokens":1100,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":1000},"output_tokens":1}}}`), "in 1 out 1 read 0 write 1700 complete false seen 0 done false ids []"},
		{"an event too long", "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"" + long + "\"}}\n\n" + events(last, stop), "in 0 out 15 read 0 write 0 complete true seen 2097222 done true ids []"},
		{"compaction", events(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":5,"output_tokens":6,"iterations":[{"type":"compaction","input_tokens":1000,"output_tokens":50},{"type":"message","input_tokens":5,"output_tokens":6}]}}`), "in 1005 out 56 read 0 write 0 complete true seen 0 done false ids []"},
		{"plain", `{"id":"msg_1","type":"message","content":[{"type":"text","text":"\"usage\":{}"}],"container":{"id":"c1"},"usage":{"input_tokens":5,"cache_read_input_tokens":null,"output_tokens":7}}` + "\n", "in 5 out 7 read 0 write 0 complete true seen 181 done true ids [c1]"},
		{"plain, cut off", `{"id":"msg_1","type":"message","usage":{"input_tokens":5,"output_tokens":7}`, "in 0 out 0 read 0 write 0 complete false seen 75 done false ids []"},
		{"plain without usage", `{"id":"msg_1","type":"message","content":[]}`, "in 0 out 0 read 0 write 0 complete false seen 44 done true ids []"},
		{"plain error", `{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`, "in 0 out 0 read 0 write 0 complete true seen 72 done true ids []"},
		{"absurd numbers", events(`{"type":"message_start","message":{"usage":{"input_tokens":-5,"cache_creation_input_tokens":9223372036854775807,"cache_creation":{"ephemeral_1h_input_tokens":9223372036854775807},"output_tokens":1e3}}}`), "in 0 out 0 read 0 write 1759218604442 complete false seen 0 done false ids []"},
		{"nothing", "", "in 0 out 0 read 0 write 0 complete false seen 0 done false ids []"},
		{"a page", "<html><body>502</body></html>", "in 0 out 0 read 0 write 0 complete false seen 0 done false ids []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			open := func() dialect.Meter { return New().Meter(call, true) }
			m := open()
			if len(tt.in) < 1<<16 {
				m = dialecttest.Meter(t, open, tt.in)
			} else {
				_, _ = m.Write([]byte(tt.in))
			}
			if got := dialecttest.Describe(m); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	m := New().Meter(count, false)
	_, _ = m.Write([]byte(`{"input_tokens":500}`))
	if got, want := dialecttest.Describe(m), "in 0 out 0 read 0 write 0 complete true seen 20 done true ids []"; got != want {
		t.Errorf("counting is free: %s", got)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add(events(start, block, ping, delta, bstop, last, stop), 3, 9)
	f.Add(`{"type":"message","usage":{"input_tokens":5}}`, 10, 1)
	f.Add("\ufeff"+strings.ReplaceAll(events(start, last), "\n", "\r"), 100, 20)
	f.Fuzz(func(t *testing.T, in string, a, b int) {
		dialecttest.Meter(t, func() dialect.Meter { return New().Meter(call, true) }, in, a%(len(in)+1), b%(len(in)+1))
	})
}

func BenchmarkMeterEvent(b *testing.B) {
	m := New().Meter(call, true)
	_, _ = m.Write([]byte(events(start, block)))
	event := []byte(events(delta))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = m.Write(event)
	}
}

func TestEndpoint(t *testing.T) {
	if e := dialecttest.Endpoint(t, New(), "POST", "/v1/messages"); e != call {
		t.Errorf("%+v", e)
	}
	if e := dialecttest.Endpoint(t, New(), "POST", "/v1/messages/count_tokens"); e != count {
		t.Errorf("%+v", e)
	}
	if e := dialecttest.Endpoint(t, New(), "GET", "/v1/models"); !e.List {
		t.Errorf("%+v", e)
	}
	for _, path := range []string{"/v1/messages/batches", "/v1/files", "/v1/complete", "/v1/organizations", "/v1/models/claude", "/v1/skills"} {
		if _, ok := New().Endpoint("POST", path); ok {
			t.Errorf("%s is accepted", path)
		}
	}
}

func TestHeader(t *testing.T) {
	guest := http.Header{
		"X-Api-Key": {"dummy"}, "Authorization": {"Bearer dummy"}, "Cookie": {"a=b"}, "Anthropic-Version": {"2024-01-02"}, "X-Forwarded-For": {"1.2.3.4"},
		"Anthropic-Beta": {"context-1m-2025-08-07, files-api-2025-04-14", "a b,x\r\ny,,UP"}, "Anthropic-Dangerous-Direct-Browser-Access": {"true"}, "Content-Type": {"text/plain"},
		"Accept-Encoding": {"gzip"}, "Anthropic-Organization-Id": {"x"},
	}
	want := http.Header{"X-Api-Key": {"key"}, "Anthropic-Version": {"2024-01-02"}, "Content-Type": {"application/json"}}
	if d := cmp.Diff(want, New().Header(guest, caisson.NewSecret("key"), dialect.Allow{})); d != "" {
		t.Error(d)
	}
	want.Set("Anthropic-Beta", "context-1m-2025-08-07,files-api-2025-04-14")
	if d := cmp.Diff(want, New().Header(guest, caisson.NewSecret("key"), dialect.Allow{Beta: true})); d != "" {
		t.Error(d)
	}
	for _, v := range []string{"", "latest", "2023-06-01\r\nX: y", "2023-6-1", "2023/06/01", "20230-6-01", "----------"} {
		h := New().Header(http.Header{"Anthropic-Version": {v}}, caisson.Secret{}, all)
		if d := cmp.Diff(http.Header{"Anthropic-Version": {Version}, "Content-Type": {"application/json"}}, h); d != "" {
			t.Errorf("%q: %s", v, d)
		}
	}
}

func TestError(t *testing.T) {
	for status, typ := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error",
		413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
	} {
		w := httptest.NewRecorder()
		New().Error(w, &dialect.Refusal{Status: status, Code: "x", Message: "say \"no\"", Param: "tools[0].type", Retry: 7})
		want := `{"type":"error","error":{"type":"` + typ + `","message":"tools[0].type: say \"no\""}}` + "\n"
		if w.Code != status || w.Body.String() != want || w.Header().Get("Retry-After") != "7" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d: %d %v %s", status, w.Code, w.Header(), w.Body)
		}
	}
}

func TestList(t *testing.T) {
	got := string(New().List([]caisson.Model{{Alias: "small"}, {Alias: "large"}}))
	want := `{"data":[{"type":"model","id":"small","display_name":"small","created_at":"1970-01-01T00:00:00Z"},{"type":"model","id":"large","display_name":"large","created_at":"1970-01-01T00:00:00Z"}],"has_more":false,"first_id":"small","last_id":"large"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(New().List(nil)); got != `{"data":[],"has_more":false,"first_id":null,"last_id":null}` {
		t.Error(got)
	}
}
