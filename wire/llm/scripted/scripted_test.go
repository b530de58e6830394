package scripted_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// post sends a request like a client and returns the response.
func post(t testing.TB, url, path, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if strings.Contains(path, "messages") {
		req.Header.Set("Anthropic-Version", "2023-06-01")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

const choosing = `
turns:
- when: {last: once only}
  once: true
  text: first
- when: {last: once only}
  text: later
- when: {pattern: '^\d+$', model: gpt-*}
  text: number for {{model}}
- when: {api: messages, last: which api}
  text: anthropic
- when: {tool: sh, result: README}
  text: "found {{result}}"
- when: {resultPattern: '^exit [1-9]'}
  calls: [{name: sh}]
  text: again
  repeat: true
- when: {last: work}
  calls: [{name: sh, arguments: '{"a": 1}'}]
- when: {last: work}
  calls: [{name: cat}]
- when: {last: work}
  calls: [{name: absent}]
- when: {last: work}
  text: done
fallback: {text: "no: {{last}}"}
`

func TestChoice(t *testing.T) {
	for _, api := range slices.Concat(apis, []inAPI{generate}) {
		t.Run(api.name, func(t *testing.T) {
			url, _ := scriptedtest.Serve(t, choosing)
			other := "no: which api"
			if api.name == "messages" {
				other = "anthropic"
			}
			for _, c := range []struct {
				model, user string
				rounds      []string
				want        string
			}{
				{"m", "once only", nil, "first"},
				{"m", "once only", nil, "later"},
				{"m", "once only, again", nil, "later"},
				{"gpt-5", "42", nil, "number for gpt-5"},
				{"m", "42", nil, "no: 42"},
				{"gpt-5", "42.", nil, "no: 42."},
				{"m", "which api", nil, other},
				{"m", "{{last}} {{model}}", nil, "no: {{last}} {{model}}"},
				{"m", "work", nil, "sh"},
				{"m", "work", []string{"sh:nothing"}, "cat"},
				{"m", "work", []string{"sh:nothing", "cat:nothing"}, "done"},
				{"m", "work", []string{"sh:nothing", "cat:nothing", "cat:more"}, "no: work"},
				{"m", "work", []string{"sh:a README"}, "found a README"},
				{"m", "work", []string{"cat:a README"}, "cat"},
				{"m", "work", []string{"sh:a README", "sh:nothing"}, "cat"},
				{"m", "work", []string{"sh:exit 1"}, "again sh"},
				{"m", "work", []string{"sh:exit 1", "sh:exit 2"}, "again sh"},
				{"m", "work", []string{"sh:exit 1", "sh:exit 2", "sh:exit 0"}, "cat"},
			} {
				status, body, err := post(t, url, strings.Replace(api.path, "MODEL", c.model, 1), api.body(c.model, c.user, c.rounds...))
				if err != nil || status != 200 {
					t.Fatalf("%v: %d %s %v", c, status, body, err)
				}
				if got := said(t, body); got != c.want {
					t.Errorf("%q after %q: %q, want %q", c.rounds, c.user, got, c.want)
				}
			}
		})
	}
}

// TestStreamsSayTheSame checks that the pieces of a stream add up to the answer that is not streamed, and that every line is well
// formed.
func TestStreamsSayTheSame(t *testing.T) {
	url, rec := scriptedtest.Serve(t, `
chunk: 3
turns:
- text: "Grüße, 世界! <b>&</b>"
  calls: [{name: sh, arguments: '{"x": "ü"}'}]
  tokens: {input: 7, output: 9, cacheRead: 3, cacheWrite: 2}
`)
	pieces := map[string]func(e map[string]any) string{
		"chat": func(e map[string]any) string {
			choices := e["choices"].([]any)
			if len(choices) == 0 {
				return ""
			}
			d := choices[0].(map[string]any)["delta"].(map[string]any)
			s, _ := d["content"].(string)
			if calls, ok := d["tool_calls"].([]any); ok {
				s += calls[0].(map[string]any)["function"].(map[string]any)["arguments"].(string)
			}
			return s
		},
		"responses": func(e map[string]any) string { s, _ := e["delta"].(string); return s },
		"messages": func(e map[string]any) string {
			d, _ := e["delta"].(map[string]any)
			s, _ := d["text"].(string)
			j, _ := d["partial_json"].(string)
			return s + j
		},
	}
	for _, api := range apis {
		t.Run(api.name, func(t *testing.T) {
			rec.Reset()
			body := strings.Replace(api.body("m", "x"), "{", `{"stream":true,`, 1)
			if api.name == "chat" {
				body = strings.Replace(body, "{", `{"stream_options":{"include_usage":true},`, 1)
			}
			_, first, err := post(t, url, api.path, body)
			if err != nil {
				t.Fatal(err)
			}
			if _, second, _ := post(t, url, api.path, body); second != first {
				t.Error("the same request got another answer")
			}
			var text string
			events := strings.Split(strings.TrimSuffix(first, "\n\n"), "\n\n")
			for i, ev := range events {
				name, data, _ := strings.Cut(ev, "\n")
				if api.name == "chat" {
					name, data = "", ev
				}
				data = strings.TrimPrefix(data, "data: ")
				if data == "[DONE]" && i == len(events)-1 && api.name == "chat" {
					continue
				}
				var e map[string]any
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Fatalf("%q: %v", ev, err)
				}
				if name != "" && name != "event: "+e["type"].(string) {
					t.Errorf("event %s is called %s", e["type"], name)
				}
				text += pieces[api.name](e)
			}
			if text != `Grüße, 世界! <b>&</b>{"x": "ü"}` {
				t.Errorf("text %q", text)
			}
			calls, billed := rec.Billed()
			if want := (caisson.TokenCount{Input: 14, Output: 18, CacheRead: 6, CacheWrite: 4}); calls != 2 || billed != want {
				t.Errorf("billed %d calls, %+v", calls, billed)
			}
			if c := rec.Calls()[0]; !c.Done || c.Status != 200 || string(c.Body) != body || c.Path != api.path {
				t.Errorf("recorded %+v", c)
			}
		})
	}
}

// TestLimits checks that an answer is not longer than the request's limit, and reports that it was truncated.
func TestLimits(t *testing.T) {
	url, rec := scriptedtest.Serve(t, `
turns:
- when: {last: call}
  text: "I call."
  calls: [{name: sh, arguments: '{"command": "something long enough"}'}]
- when: {last: says}
  tokens: {output: 500}
  text: short
fallback: {text: "äöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöü"}
`)
	for _, c := range []struct {
		path, user, limit, finish, text string
		output                          int64
	}{
		{"/v1/chat/completions", "x", `"max_tokens":2`, `"finish_reason":"length"`, "äöüä", 2},
		{"/v1/chat/completions", "x", `"max_completion_tokens":100`, `"finish_reason":"stop"`, strings.Repeat("äöü", 18), 27},
		{"/v1/chat/completions", "call", `"max_tokens":5`, `"finish_reason":"length"`, "I call.", 2},
		{"/v1/chat/completions", "call", `"max_tokens":50`, `"finish_reason":"tool_calls"`, "I call. sh", 12},
		{"/v1/chat/completions", "says", `"max_tokens":50`, `"finish_reason":"length"`, "short", 50},
		{"/v1/chat/completions", "says", `"user":"x"`, `"finish_reason":"stop"`, "short", 500},
		{"/v1/responses", "x", `"max_output_tokens":16`, `"incomplete_details":{"reason":"max_output_tokens"}`, strings.Repeat("äöü", 10) + "äö", 16},
		{"/v1/messages", "x", `"max_tokens":1`, `"stop_reason":"max_tokens"`, "äö", 1},
	} {
		rec.Reset()
		body := chatBody("m", c.user)
		switch c.path {
		case "/v1/responses":
			body = responsesBody("m", c.user)
		case "/v1/messages":
			body = strings.Replace(messagesBody("m", c.user), `"max_tokens":1000,`, "", 1)
		}
		status, answer, err := post(t, url, c.path, "{"+c.limit+","+body[1:])
		if err != nil || status != 200 || !strings.Contains(answer, c.finish) || said(t, answer) != c.text {
			t.Errorf("%s %s %s: %d %s %v", c.path, c.user, c.limit, status, answer, err)
		}
		if _, billed := rec.Billed(); billed.Output != c.output || billed.Input < 1 {
			t.Errorf("%s %s %s: billed %+v", c.path, c.user, c.limit, billed)
		}
	}
}

func TestBadDays(t *testing.T) {
	url, rec := scriptedtest.Serve(t, `
chunk: 4
turns:
- when: {last: busy}
  error: {status: 429, message: slow down, retryAfter: 3}
- when: {last: odd}
  error: {status: 502, body: "<html>"}
- when: {last: cut at once}
  break: {how: cut}
- when: {last: cut}
  text: "0123456789012345"
  break: {how: cut, after: 10}
- when: {last: report at once}
  break: {how: error}
- when: {last: report}
  text: "0123456789012345"
  break: {how: error, after: 10}
- when: {last: finally}
  text: "0123"
  break: {how: cut, after: 1000}
- when: {last: silent}
  text: "0123"
  silent: true
`)
	for _, api := range apis {
		for _, stream := range []bool{false, true} {
			for _, c := range []struct {
				user    string
				status  int
				broken  bool
				has     string
				output  int64 // billed output
				streams bool  // applies to streams only
			}{
				{"busy", 429, false, "slow down", 0, false},
				{"odd", 502, false, "<html>", 0, false},
				{"cut at once", 0, true, "", 0, false},
				{"cut", 200, true, "", 3, true},
				{"report at once", 500, false, `"error"`, 0, false},
				{"report", 200, true, `error`, 3, true},
				{"finally", 200, true, "0123", 1, true},
				{"silent", 200, false, "0123", 1, false},
				{"nothing matches", 400, false, "no turn of the script matches", 0, false},
			} {
				if c.streams && !stream {
					continue
				}
				t.Run(fmt.Sprint(api.name, stream, c.user), func(t *testing.T) {
					rec.Reset()
					status, body, err := post(t, url, api.path, fmt.Sprintf(`{"stream":%t,`, stream)+api.body("m", c.user)[1:])
					if status != c.status || (err != nil) != c.broken || !strings.Contains(body, c.has) {
						t.Errorf("%d %q %v", status, body, err)
					}
					if strings.Contains(body, "01234567890") || c.user == "silent" && strings.Contains(body, `tokens":`) && api.name != "responses" {
						t.Errorf("too much in %q", body)
					}
					if _, billed := rec.Billed(); billed.Output != c.output {
						t.Errorf("billed %+v", billed)
					}
				})
			}
			if !stream {
				status, body, err := post(t, url, api.path, api.body("m", "cut"))
				if err == nil || json.Valid([]byte(body)) || status != 200 {
					t.Errorf("a plain answer that was cut off: %d %q %v", status, body, err)
				}
			}
		}
	}
}

// TestHangs checks that a hanging answer ends when its client disconnects, before and after its first byte.
func TestHangs(t *testing.T) {
	m, err := scripted.New([]byte(`
turns:
- {when: {last: slow}, text: late, delay: {first: 10m}}
- {when: {last: drip}, text: very late, chunk: 1, delay: {chunk: 10m}}
- {when: {last: mute}, text: x, break: {how: hang}}
- {text: xyz, break: {how: hang, after: 2}}
`))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{}, 1)
	began := make(chan struct{}, 1)
	rec := scriptedtest.NewRecorder(m)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { left <- struct{}{} }()
		began <- struct{}{}
		rec.ServeHTTP(w, r)
	}))
	defer srv.Close()
	for _, user := range []string{"slow", "mute", "drip", "half"} {
		for _, stream := range []bool{true, false} {
			if user == "drip" && !stream {
				continue
			}
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions",
				strings.NewReader(fmt.Sprintf(`{"stream":%t,`, stream)+chatBody("m", user)[1:]))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			go func() {
				<-began
				if user == "half" || user == "drip" {
					return // disconnects later, when there is something to read
				}
				cancel()
			}()
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
					t.Errorf("%s: %v", user, err)
				}
				cancel()
				resp.Body.Close()
			}
			cancel()
			select {
			case <-left:
			case <-time.After(2 * time.Minute):
				t.Fatalf("%s, stream %t: still there", user, stream)
			}
		}
	}
}

// TestConcurrent checks that turns with a limited number of answers reach it exactly, and that the bill is correct.
func TestConcurrent(t *testing.T) {
	url, rec := scriptedtest.Serve(t, `
turns:
- {times: 30, text: rare, tokens: {input: 3, output: 1}}
fallback: {text: often, tokens: {input: 2, output: 1}}
`)
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 10 {
				_, body, err := post(t, url, "/v1/chat/completions", chatBody("m", "x"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				got[said(t, body)]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	calls, billed := rec.Billed()
	if got["rare"] != 30 || got["often"] != 70 || calls != 100 || billed != (caisson.TokenCount{Input: 230, Output: 100}) {
		t.Errorf("%v, %d billed: %+v", got, calls, billed)
	}
	if cost := rec.Cost(caisson.Prices{Input: caisson.Dollar, Output: 2 * caisson.Dollar}); cost.String() != "0.00043" {
		t.Errorf("cost %s", cost)
	}
}

func TestDefault(t *testing.T) {
	url, _ := scriptedtest.Serve(t, scripted.Default)
	for _, c := range []struct {
		user   string
		rounds []string
		want   string
	}{
		{"Hello there", nil, "Hello! I am a scripted model"},
		{"what is this?", nil, "You said: what is this?"},
	} {
		if _, body, err := post(t, url, "/v1/chat/completions", chatBody("scripted", c.user, c.rounds...)); err != nil || !strings.HasPrefix(said(t, body), c.want) {
			t.Errorf("%s: %s %v", c.user, body, err)
		}
	}
	bash := strings.ReplaceAll(chatBody("scripted", "list the files", "bash:README.md"), `"sh"`, `"bash"`)
	if _, body, err := post(t, url, "/v1/chat/completions", bash); err != nil || said(t, body) != "This is what I found: README.md" {
		t.Errorf("%s %v", body, err)
	}
}
