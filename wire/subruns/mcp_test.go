package subruns_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/subruns"
)

const (
	accept   = "application/json, text/event-stream"
	revision = "Mcp-Protocol-Version"
	june     = "2025-06-18"
	march    = "2025-03-26"
)

func callOf(id, tool, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, args)
}

func TestMCP(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	for _, row := range []struct {
		name     string
		revision string
		body     string
		status   int
		want     string // expected in the response; "" means no response
	}{
		{"initialize", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, 200, `"id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"caisson"`},
		{"the older revision", "", `{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-03-26"}}`, 200, `"id":"a","result":{"protocolVersion":"2025-03-26"`},
		{"a revision to come", "2030-01-01", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2030-01-01"}}`, 200, `"protocolVersion":"2025-06-18"`},
		{"no revision", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, 200, `"code":-32602`},
		{"initialized", june, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, 202, ""},
		{"any notification", june, `{"jsonrpc":"2.0","method":"notifications/whatever","params":{"a":1}}`, 202, ""},
		{"a reply to nothing", june, `{"jsonrpc":"2.0","id":7,"result":{}}`, 202, ""},
		{"ping", june, `{"jsonrpc":"2.0","id":-5,"method":"ping","params":null}`, 200, `{"jsonrpc":"2.0","id":-5,"result":{}}`},
		{"list", june, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{}}}`, 200, `"name":"run_agent"`},
		{"no such method", june, `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, 200, `"code":-32601`},
		{"no such revision", "2025-01-01", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 400, `"code":-32000`},

		{"list_agents", june, callOf("1", "list_agents", `{}`), 200, `"text":"caisson: Caisson. codes\n"}],"isError":false`},
		{"no arguments", june, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_agents"}}`, 200, `"text":"caisson:`},
		{"start_agent", june, callOf("1", "start_agent", `{"agent":"caisson","prompt":"p","model":"m"}`), 200, `{\"id\":\"rn-aaaaaaaaaaaaaaaa\",\"state\":\"running\"}`},
		{"agent_result", june, callOf("1", "agent_result", `{"id":"rn-aaaaaaaaaaaaaaaa"}`), 200, `is running. Ask again later."}],"isError":false`},
		{"cancel_agent", june, callOf("1", "cancel_agent", `{"id":"rn-aaaaaaaaaaaaaaaa"}`), 200, `is being ended.`},
		{"what became of it", june, callOf("1", "agent_result", `{"id":"rn-aaaaaaaaaaaaaaaa","wait":300}`), 200, `failed: aborted: cancelled\n"}],"isError":true`},
		{"run_agent", june, callOf("1", "run_agent", `{"agent":"caisson","prompt":"p"}`), 200, `failed: aborted`},

		{"no such tool", june, callOf("1", "shell", `{}`), 200, `"code":-32602`},
		{"no tool", june, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, 200, `"code":-32602`},
		{"a wrong argument", june, callOf("1", "run_agent", `{"agent":"caisson","prompt":"p","policy":{}}`), 200, `unknown field`},
		{"a missing argument", june, callOf("1", "start_agent", `{"agent":"caisson"}`), 200, `prompt: is missing`},
		{"no id of a run", june, callOf("1", "agent_result", `{"id":"../../agents"}`), 200, `is not an id`},
		{"too long a wait", june, callOf("1", "agent_result", `{"id":"rn-aaaaaaaaaaaaaaaa","wait":301}`), 200, `not a number of seconds`},

		{"no JSON", june, `{`, 400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700`},
		{"two values", june, `{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, 400, `"code":-32700`},
		{"a name twice", june, `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}`, 400, `"code":-32700`},
		{"nothing", june, ``, 400, `"code":-32700`},
		{"a number", june, `7`, 400, `"code":-32600`},
		{"another version", june, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, `"code":-32600`},
		{"an id that is none", june, `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400, `"code":-32600`},
		{"an id that is an object", june, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, 400, `"code":-32600`},
		{"a fraction as id", june, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, 400, `"code":-32600`},
		{"a long id", june, `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 300) + `","method":"ping"}`, 400, `"code":-32600`},
		{"both at once", june, `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, 400, `"code":-32600`},
		{"neither", june, `{"jsonrpc":"2.0","id":1}`, 400, `"code":-32600`},
		{"params that are none", june, `{"jsonrpc":"2.0","id":1,"method":"ping","params":7}`, 400, `"code":-32600`},
		{"too much", june, strings.Repeat(" ", 256<<10+1), 413, `256KiB`},

		{"a batch", march, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},` + callOf(`"b"`, "list_agents", `{}`) + `]`, 200, `"id":"b"`},
		{"a batch without a revision", "", ` [{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 200, `[{"jsonrpc":"2.0","id":1,"result":{}}]`},
		{"a batch of notifications", march, `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, 202, ""},
		{"a batch with a fault", march, `[{"id":1},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, 200, `[{"jsonrpc":"2.0","id":null,"error":{"code":-32600`},
		{"a batch in the newer revision", june, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 400, `"code":-32600`},
		{"an empty batch", march, `[]`, 400, `"code":-32600`},
		{"a large batch", march, `[` + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 16) + `{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 400, `"code":-32600`},
		{"initialize in a batch", march, `[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]`, 200, `comes alone`},
	} {
		header := []string{"Accept", "application/json"}
		if row.revision != "" {
			header = append(header, revision, row.revision)
		}
		status, body := do(t, srv, "POST", "/mcp", row.body, header...)
		if status != row.status || !strings.Contains(body, row.want) || row.want == "" && body != "" {
			t.Errorf("%s: %d %.400s, want %d and %s", row.name, status, body, row.status, row.want)
		}
	}
}

// An event is an event of a stream.
type event struct {
	ID     int    `json:"id"`
	Method string `json:"method"`
	Params struct {
		Token    any     `json:"progressToken"`
		Progress float64 `json:"progress"`
		Message  string  `json:"message"`
	} `json:"params"`
	Result *struct {
		Content []struct{ Type, Text string } `json:"content"`
		IsError bool                          `json:"isError"`
	} `json:"result"`
}

// open posts a message and returns the response, which must be a stream.
func open(t testing.TB, ctx context.Context, srv *httptest.Server, body string) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set(revision, june)
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("%d %s", resp.StatusCode, kind)
	}
	return bufio.NewScanner(resp.Body)
}

// next returns the next event, or nil at the end.
func next(t testing.TB, in *bufio.Scanner) *event {
	t.Helper()
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		return &e
	}
	return nil
}

func TestStreamedRun(t *testing.T) {
	e := &engineClient{}
	e.set(`"state":"queued"`)
	srv := serve(t, e)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	in := open(t, ctx, srv, `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"run_agent","arguments":{"agent":"caisson","prompt":"p"},"_meta":{"progressToken":"tok"}}}`)
	last := 0.0
	for _, state := range []string{"queued", "running", "succeeded"} {
		got := next(t, in)
		if got == nil || got.Method != "notifications/progress" || got.Params.Token != "tok" || got.Params.Progress <= last ||
			!strings.HasSuffix(got.Params.Message, " is "+state) || !strings.Contains(got.Params.Message, string(runID)) {
			t.Fatalf("of %s: %+v", state, got)
		}
		last = got.Params.Progress
		switch state {
		case "queued":
			e.set(`"state":"running"`)
		case "running":
			e.set(`"state":"succeeded","answer":"forty-two","cut":true`)
		}
	}
	got := next(t, in)
	if got == nil || got.ID != 9 || got.Result == nil || got.Result.IsError || got.Result.Content[0].Text != "forty-two\n[the answer was longer]" {
		t.Fatalf("%+v", got)
	}
	if more := next(t, in); more != nil {
		t.Errorf("there is more: %+v", more)
	}
	// A client that requests no progress gets none.
	in = open(t, ctx, srv, callOf("1", "agent_result", `{"id":"rn-aaaaaaaaaaaaaaaa","wait":5}`))
	if got := next(t, in); got == nil || got.Result == nil {
		t.Errorf("%+v", got)
	}
}

// A run whose client disconnects while it waits is cancelled, because no client can receive its answer.
func TestAbandonedRun(t *testing.T) {
	for _, way := range []string{"it goes away", "it says so"} {
		t.Run(way, func(t *testing.T) {
			e := &engineClient{}
			srv := serve(t, e)
			ctx, leave := context.WithTimeout(t.Context(), hang)
			defer leave()
			in := open(t, ctx, srv, callOf(`"q"`, "run_agent", `{"agent":"caisson","prompt":"p"}`))
			poll.Until(t, hang, func() bool { return e.count("run") >= 1 })
			other := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q","reason":"r"}}`
			// Neither a request of another sandbox nor another request is cancelled.
			do(t, srv, "POST", "/mcp", other, revision, june, "Test-Sandbox", "other")
			do(t, srv, "POST", "/mcp", strings.Replace(other, `"q"`, `"p"`, 1), revision, june)
			was := e.count("run")
			poll.Until(t, hang, func() bool { return e.count("run") > was+1 })
			if e.count("cancel") != 0 {
				t.Fatal("the run was cancelled by somebody else")
			}
			if way == "it goes away" {
				leave()
			} else if status, _ := do(t, srv, "POST", "/mcp", other, revision, june); status != 202 {
				t.Errorf("status %d", status)
			} else {
				for in.Scan() { // until the end of the stream
				}
			}
			poll.Until(t, hang, func() bool { return e.count("cancel") == 1 })
		})
	}
}

// Two clients in a sandbox may use the same id for their requests. Then neither is cancelled.
func TestTwoRequestsOfOneName(t *testing.T) {
	e := &engineClient{}
	srv := serve(t, e)
	ctx, leave := context.WithTimeout(t.Context(), hang)
	defer leave()
	for range 2 {
		open(t, ctx, srv, callOf("1", "run_agent", `{"agent":"caisson","prompt":"p"}`))
	}
	do(t, srv, "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, revision, june)
	was := e.count("run")
	poll.Until(t, hang, func() bool { return e.count("run") > was+4 })
	if e.count("cancel") != 0 {
		t.Error("one was cancelled")
	}
}

// For any request, the response is JSON with a matching status, the engine only receives requests that it supports, and these are
// valid.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"agent":"caisson","prompt":"p","limits":{"time":"1m"},"history":[{"role":"user","content":"x"}],"env":{"A":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]`,
		callOf("1", "run_agent", `{"agent":"caisson","prompt":"p","model":"m"}`), callOf(`"x"`, "agent_result", `{"id":"rn-aaaaaaaaaaaaaaaa","wait":1}`),
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_agents","_meta":{"progressToken":1}}}`, `{`, `[[[[`, `null`, "\"\xff\"",
	} {
		f.Add("/mcp", body, june, true)
		f.Add("/mcp", body, "", false)
		f.Add("/v1/runs", body, "", false)
	}
	f.Add("/v1/runs/rn-aaaaaaaaaaaaaaaa/cancel", "", "x", true)
	f.Fuzz(func(t *testing.T, path, body, version string, streams bool) {
		e := &engineClient{}
		e.set(`"state":"succeeded","answer":"<ok>"`)
		h := subruns.Handler(func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error) {
			if !json.Valid(in) || name != "agents" && name != "start" && name != "run" && name != "cancel" {
				t.Errorf("the engine is asked %q for %q", name, in)
			}
			return e.call(ctx, name, in)
		})
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.URL.Path = path
		r.Header.Set(revision, version)
		if streams {
			r.Header.Set("Accept", accept)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), caisson.Guest{Sandbox: "sb-a", Account: "local"})))
		kind := w.Header().Get("Content-Type")
		switch {
		case w.Code == 202 && w.Body.Len() == 0:
		case kind == "application/json" && json.Valid(w.Body.Bytes()) && w.Code >= 200 && w.Code < 500:
		case kind == "text/event-stream" && streams && w.Code == 200:
		default:
			t.Errorf("%d %s %.300q", w.Code, kind, w.Body)
		}
	})
}
