package gemini

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/dialecttest"
)

// The events of an answer: thoughts, text, a function call, the end.
const (
	thought = `{"candidates":[{"content":{"parts":[{"text":"hm","thought":true}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"totalTokenCount":140,"thoughtsTokenCount":40},"modelVersion":"gemini","responseId":"r1"}`
	hello   = `{"candidates":[{"content":{"parts":[{"text":"Hello"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":2,"totalTokenCount":142,"thoughtsTokenCount":40},"modelVersion":"gemini"}`
	fn      = `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"read","args":{"path":"a"}},"thoughtSignature":"c2ln"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":12,"totalTokenCount":152,"thoughtsTokenCount":40}}`
	empty   = `{"candidates":[{"content":{"parts":[{"text":""}]},"finishReason":"STOP"}]}`
	usage   = `{"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":3,"toolUsePromptTokenCount":5,"totalTokenCount":15}}`
	blocked = `{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":9,"totalTokenCount":9}}`
	failure = `{"error":{"code":503,"message":"overloaded","status":"UNAVAILABLE"}}`
)

func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\r\n\r\n")
	}
	return b.String()
}

func array(data ...string) string { return "[" + strings.Join(data, "\n,\r\n") + "]\n" }

func TestMeter(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"events", events(thought, hello, fn), "in 40 out 52 read 60 write 0 complete true seen 50 done true ids []"},
		{"events, cut off", events(thought, hello, fn)[:600], "in 40 out 42 read 60 write 0 complete false seen 11 done false ids []"},
		{"events, line feeds", strings.ReplaceAll(events(thought, hello, fn), "\r", ""), "in 40 out 52 read 60 write 0 complete true seen 50 done true ids []"},
		{"usage after the reason", events(empty, usage), "in 12 out 3 read 0 write 0 complete true seen 0 done true ids []"},
		{"no usage", events(empty), "in 0 out 0 read 0 write 0 complete false seen 0 done true ids []"},
		{"usage before the reason", events(usage, empty), "in 12 out 3 read 0 write 0 complete false seen 0 done true ids []"},
		{"blocked", events(blocked), "in 9 out 0 read 0 write 0 complete true seen 0 done true ids []"},
		{"error in the stream", events(hello, failure, fn), "in 40 out 42 read 60 write 0 complete false seen 5 done true ids []"},
		{"array", array(thought, hello, fn), "in 40 out 52 read 60 write 0 complete true seen ALL done true ids []"},
		{"array, cut off", array(thought, hello, fn)[:560], "in 40 out 42 read 60 write 0 complete false seen ALL done false ids []"},
		{"array, error", array(hello, failure), "in 40 out 42 read 60 write 0 complete false seen ALL done true ids []"},
		{"array, only an error", array(failure), "in 0 out 0 read 0 write 0 complete true seen ALL done true ids []"},
		{"plain", fn, "in 40 out 52 read 60 write 0 complete true seen ALL done true ids []"},
		{"plain, indented", strings.NewReplacer(":", ": ", ",", ",\n  ").Replace(fn) + "\n", "in 40 out 52 read 60 write 0 complete true seen ALL done true ids []"},
		{"plain, blocked", blocked, "in 9 out 0 read 0 write 0 complete true seen ALL done true ids []"},
		{"plain, cut off", fn[:280], "in 0 out 0 read 0 write 0 complete false seen ALL done false ids []"},
		{"plain error", failure, "in 0 out 0 read 0 write 0 complete true seen ALL done true ids []"},
		{"more in the total", `{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":1,"totalTokenCount":100}}`, "in 10 out 90 read 0 write 0 complete true seen ALL done true ids []"},
		{"absurd numbers", `{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":-5,"cachedContentTokenCount":9223372036854775807,"candidatesTokenCount":1e9}}`, "in 0 out 0 read 1099511627776 write 0 complete true seen ALL done true ids []"},
		{"nothing", "", "in 0 out 0 read 0 write 0 complete false seen 0 done false ids []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := dialecttest.Meter(t, func() dialect.Meter { return New().Meter(stream, true) }, tt.in)
			want := strings.Replace(tt.want, "ALL", strconv.Itoa(len(strings.TrimSpace(tt.in))), 1)
			if got := dialecttest.Describe(m); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	long := New().Meter(stream, true)
	_, _ = long.Write([]byte(events(strings.Replace(hello, "Hello", strings.Repeat("x", 2*maxEvent), 1))))
	if _, complete := long.Usage(); complete || long.OutputBytes() < 2*maxEvent {
		t.Errorf("an event too long: %s", dialecttest.Describe(long))
	}
	m := New().Meter(count, false)
	_, _ = m.Write([]byte(`{"totalTokens":31,"usageMetadata":{"promptTokenCount":31}}`))
	if got, want := dialecttest.Describe(m), "in 0 out 0 read 0 write 0 complete true seen 58 done true ids []"; got != want {
		t.Errorf("counting is free: %s", got)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add(events(thought, hello, fn), 3, 9)
	f.Add(array(thought, hello, failure), 10, 1)
	f.Add(fn, 100, 20)
	f.Fuzz(func(t *testing.T, in string, a, b int) {
		dialecttest.Meter(t, func() dialect.Meter { return New().Meter(stream, true) }, in, a%(len(in)+1), b%(len(in)+1))
	})
}

func BenchmarkMeterEvent(b *testing.B) {
	m := New().Meter(stream, true)
	event := []byte(events(hello))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = m.Write(event)
	}
}

func TestEndpoint(t *testing.T) {
	for path, want := range map[string]dialect.Endpoint{
		"/v1beta/models/flash:generateContent":        call,
		"/v1beta/models/flash:streamGenerateContent":  stream,
		"/v1beta/models/flash:countTokens":            count,
		"/v1/models/gemini-2.5-pro_x:generateContent": {API: "generate", Model: "gemini-2.5-pro_x", Path: "/v1/models/{model}:generateContent"},
	} {
		if got, ok := New().Endpoint("POST", path); !ok || got != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	for _, path := range []string{"/v1beta/models", "/v1/models"} {
		if e := dialecttest.Endpoint(t, New(), "GET", path); !e.List {
			t.Errorf("%+v", e)
		}
	}
	for _, path := range []string{
		"/v1beta/models/flash:batchGenerateContent", "/v1beta/models/flash:generatecontent", "/v1beta/models/flash:generateContent/", "/v1beta/models/flash%3AgenerateContent",
		"/v1beta/models/fl%61sh:generateContent", "/v1beta/models//flash:generateContent", "/v1beta//models/flash:generateContent", "/v1beta/models/../models/flash:generateContent",
		"/v1beta/models/..:generateContent", "/v1beta/models/.:generateContent", "/v1beta/models/:generateContent", "/v1beta/models/a/b:generateContent", "/v1beta/models/a%2fb:generateContent",
		"/v1beta/models/{model}:generateContent", "/v1beta/models/flash:generateContent:generateContent", "/v1beta/tunedModels/flash:generateContent", "/v1alpha/models/flash:generateContent",
		"/v1beta/modelsflash:generateContent", "/v1beta/models:generateContent", "/v1beta/models/flash", "/v1beta/models/" + strings.Repeat("a", 200) + ":generateContent", "/v1beta/cachedContents",
		"/V1beta/models/flash:generateContent", "v1beta/models/flash:generateContent", "/v1beta/models/flash:generateContent?key=x", "/v1beta/models/flash :generateContent", "/v1beta/models/flash\x00:generateContent",
	} {
		if e, ok := New().Endpoint("POST", path); ok {
			t.Errorf("%q is accepted: %+v", path, e)
		}
	}
	for _, method := range []string{"GET", "PUT", "HEAD", "post", ""} {
		if _, ok := New().Endpoint(method, "/v1beta/models/flash:generateContent"); ok {
			t.Errorf("%q is accepted", method)
		}
	}
}

func TestHeader(t *testing.T) {
	guest := http.Header{"X-Goog-Api-Key": {"dummy"}, "Authorization": {"Bearer x"}, "X-Goog-User-Project": {"p"}, "X-Goog-Api-Client": {"x"}, "Cookie": {"a"}, "Accept": {"*/*"}}
	want := http.Header{"X-Goog-Api-Key": {"key"}, "Content-Type": {"application/json"}}
	if d := cmp.Diff(want, New().Header(guest, caisson.NewSecret("key"), all)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(http.Header{"Content-Type": {"application/json"}}, New().Header(guest, caisson.Secret{}, all)); d != "" {
		t.Error(d)
	}
}

func TestError(t *testing.T) {
	for status, name := range map[int]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "RESOURCE_EXHAUSTED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 413: "INVALID_ARGUMENT",
		429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
	} {
		w := httptest.NewRecorder()
		New().Error(w, &dialect.Refusal{Status: status, Code: "x", Message: "no", Param: "contents", Retry: 7})
		got := decode(t, w.Body.String())["error"].(map[string]any)
		want := map[string]any{
			"code": float64(status), "message": "contents: no", "status": name,
			"details": []any{map[string]any{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}},
		}
		if d := cmp.Diff(want, got); d != "" || w.Code != status || w.Header().Get("Retry-After") != "7" {
			t.Errorf("%d: %d %v %s", status, w.Code, w.Header(), d)
		}
	}
}

func TestList(t *testing.T) {
	got := string(New().List([]caisson.Model{{Alias: "flash", Context: 1000, Output: 100}}))
	want := `{"models":[{"name":"models/flash","baseModelId":"flash","version":"1","displayName":"flash","inputTokenLimit":1000,"outputTokenLimit":100,"supportedGenerationMethods":["generateContent","countTokens"]}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(New().List(nil)); got != `{"models":[]}` {
		t.Error(got)
	}
}
