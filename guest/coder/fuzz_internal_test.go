package coder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzAnswer reads the response of a hostile gateway, from the status line on.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		eventStream + "data: " + textEvent("hi") + "\n\ndata: " + stopEvent + "\n\ndata: [DONE]\n\n",
		eventStream + "event: x\ndata: {\"choices\":\ndata: []}\n\n: c\n\ndata",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n5;x=y\r\ndata:\r\n2\r\n\n\n\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.1 100 C\r\n\r\nHTTP/1.0 200\r\nContent-Length: 2\r\n\r\n{}",
		eventStream + `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"list","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}` + "\n",
		eventStream + "data: " + messageStart + "\n\ndata: " + startOf(0, `{"type":"thinking","thinking":"x","signature":"y"}`) + "\n\ndata: " + startOf(1, `{"type":"tool_use","name":"list","input":{"a":1}}`) + "\n\ndata: " + stopOf("tool_use") + "\n\n",
		eventStream + "data: " + geminiOf(`{"functionCall":{"name":"list","args":{}},"thoughtSignature":"x"}`, `,"finishReason":"STOP"`) + "\n\n",
		"HTTP/1.1 429 X\r\nRetry-After: Mon, 02 Jan 2006 15:04:05 GMT\r\n\r\n{\"error\":{\"code\":7}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		res, err := (&stream{Conn: canned{r: bytes.NewReader(data)}}).exchange(httptest.NewRequest("POST", "/", nil))
		if err != nil {
			return
		}
		all, err := io.ReadAll(res.Body)
		if len(all) > len(data) {
			t.Fatalf("%d bytes of %d", len(all), len(data))
		}
		if _, again := res.Body.Read(make([]byte, 1)); again == nil {
			t.Fatalf("reads on after %v", err)
		}
		f := parseFailure(res.StatusCode, all)
		if !utf8.ValidString(f.Error()) || f.runError().Message == "" || retryAfter(res.Header) < 0 {
			t.Fatalf("%+v", f)
		}
		for _, api := range []api{openAI{}, anthropic{}, gemini{}} {
			checkAnswer(t, api, all)
		}
	})
}

// canned is a connection that returns the content of r.
type canned struct {
	net.Conn
	r io.Reader
}

func (c canned) Read(p []byte) (int, error)     { return c.r.Read(p) }
func (canned) Write(p []byte) (int, error)      { return len(p), nil }
func (canned) SetReadDeadline(time.Time) error  { return nil }
func (canned) SetWriteDeadline(time.Time) error { return nil }

// checkAnswer reads events in an API, and checks what holds for every answer.
func checkAnswer(t *testing.T, api api, events []byte) {
	answer, e := &reply{}, newEvents(bytes.NewReader(events))
	for {
		event, err := e.Next()
		if err != nil {
			break
		}
		if _, err := api.add(answer, event.Data); err != nil {
			break
		}
	}
	answer.normalizeCalls(func(id string) bool { return id == "a" })
	talk := []message{{Role: roleUser, Content: "x"}, {Role: roleAssistant, ToolCalls: answer.calls, thoughts: answer.thoughts}}
	for _, c := range answer.calls {
		if c.ID == "a" || c.Function.Name == "" || c.Function.Arguments == "" {
			t.Fatalf("%+v", c)
		}
		talk = append(talk, message{Role: roleTool, ToolCallID: c.ID})
	}
	if problem := pairs(talk); problem != "" {
		t.Fatal(problem)
	}
	_, _, body := api.request(&modelRequest{model: "m", talk: talk})
	if _, err := json.Marshal(body); err != nil {
		t.Fatal(err)
	}
	if u := answer.usage; u != nil && (u.Input < 0 || u.Output < 0 || u.CacheRead < 0 || u.CacheWrite < 0) {
		t.Fatalf("%+v", u)
	}
}

// FuzzReplace: an edit replaces only the given text.
func FuzzReplace(f *testing.F) {
	f.Add("a\nb\nc\n", "b\n", "x", false)
	f.Add("a\r\nb\r\n", "a\nb", "c\nd", false)
	f.Add("aaaa", "aa", "a", true)
	f.Add("\tfoo(1)\n", "  foo(1)", "x", false)
	f.Add("\xff\xfe", "\xff", "\x00", false)
	f.Fuzz(func(t *testing.T, text, old, with string, all bool) {
		got, n, err := replace(text, old, with, all)
		if err != nil {
			if got != "" || err.Error() == "" || len(err.Error()) > 4<<10 {
				t.Fatalf("%q, %v", got, err)
			}
			if old != "" && old != with && strings.Count(text, old) == 1 {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		if n < 1 || n > 1 && !all {
			t.Fatalf("%d places", n)
		}
		if strings.Contains(text, old) {
			if want := strings.ReplaceAll(text, old, with); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		} else if !strings.Contains(text, "\r\n") {
			t.Fatalf("%q is not in %q", old, text)
		}
	})
}

// conversationOf makes a valid conversation from bytes: each byte determines the number of calls, or the size, of a message.
func conversationOf(data []byte) []message {
	var talk []message
	for i, c := range data {
		text := strings.Repeat("é", int(c)*8+1)
		switch c % 4 {
		case 0:
			talk = append(talk, message{Role: roleUser, Content: text})
		case 1:
			talk = append(talk, message{Role: roleAssistant, Content: text})
		default:
			m := message{Role: roleAssistant}
			for k := range int(c%7) + 1 {
				m.ToolCalls = append(m.ToolCalls, call{ID: fmt.Sprint(i, "-", k), Function: function{Name: "list", Arguments: "{}"}})
			}
			talk = append(talk, m)
			for _, c := range m.ToolCalls {
				talk = append(talk, message{Role: roleTool, Content: text, ToolCallID: c.ID})
			}
		}
	}
	return talk
}

// FuzzTrim: a shortened conversation is valid, in order, contains the whole task and the last unit, and is within the budget if
// that is possible.
func FuzzTrim(f *testing.F) {
	f.Add([]byte{0, 2, 3, 7, 255, 254, 1, 0, 6}, 0, int64(2000))
	f.Add([]byte{4, 250, 251, 8, 250, 251, 250}, 3, int64(10_000))
	f.Add([]byte{}, -1, int64(0))
	f.Fuzz(func(t *testing.T, data []byte, task int, budget int64) {
		talk := conversationOf(data[:min(len(data), 200)])
		if task < 0 || task >= len(talk) || talk[task].Role == roleTool {
			task = -1
		}
		budget = min(max(budget, 0), 1<<40)
		got, at := trim(talk, task, budget)
		if problem := pairs(got); problem != "" {
			t.Fatal(problem)
		}
		if messagesSize(talk) <= budget && len(got) != len(talk) {
			t.Fatal("shortened without need")
		}
		if task >= 0 && (at < 0 || got[at].Content != talk[task].Content || got[at].Role != talk[task].Role) {
			t.Fatalf("the task is at %d of %d", at, len(got))
		}
		next := 0 // each message corresponds to one of talk, in order
		for _, m := range got {
			for next < len(talk) && (talk[next].Role != m.Role || talk[next].ToolCallID != m.ToolCallID || m.Role != roleTool && talk[next].Content != m.Content) {
				next++
			}
			if next == len(talk) || !utf8.ValidString(m.Content) || len(m.Content) > len(talk[next].Content) {
				t.Fatalf("%.60v is not of the conversation", m)
			}
			next++
		}
		if len(talk) > 0 && got[len(got)-1].Role != talk[len(talk)-1].Role {
			t.Fatal("the last unit is gone")
		}
		if excess := messagesSize(got) - budget; excess > 0 {
			least := int64(0)
			for _, m := range got {
				least += min(m.size(), 2*shortResult+100)
				if m.Role != roleTool {
					least += m.size()
				}
			}
			if units := len(got); units > 0 && messagesSize(got) > least {
				t.Fatalf("%d bytes too many in %d messages", excess, units)
			}
		}
	})
}

// FuzzRepair: any conversation that was read from a file is valid for requests.
func FuzzRepair(f *testing.F) {
	f.Add(`{"role":"user","content":"a"}`, `{"role":"assistant","tool_calls":[{"id":"a"},{"id":"a"}]}`, `{"role":"tool","tool_call_id":"a"}`)
	f.Add(`{"role":"tool"}`, `{"role":"assistant"}`, `{"role":"system","content":"a"}`)
	f.Fuzz(func(t *testing.T, a, b, c string) {
		var talk []message
		for _, line := range []string{a, b, c, b, a} {
			var m message
			if json.Unmarshal([]byte(line), &m) == nil {
				talk = append(talk, m)
			}
		}
		got := repair(talk)
		if problem := pairs(got); problem != "" {
			t.Fatalf("%s: %+v", problem, got)
		}
		if again := repair(got); len(again) != len(got) {
			t.Fatalf("repaired twice: %d messages, then %d", len(got), len(again))
		}
	})
}

// FuzzGlob: any line of a .gitignore is a rule or is ignored.
func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"*.go", "/a/**/b", "[!a-z]?", `\#x`, "[", "!**", "[\\]", "a/", "[]]", "[^"} {
		f.Add(seed, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if r, ok := parseIgnore(pattern, ""); ok {
			ignores{r}.match(path, true)
		}
		if strings.ContainsAny(pattern, `*?[\`) || !utf8.ValidString(pattern) {
			return
		}
		if re, err := glob(pattern); err != nil || !re.MatchString(pattern) {
			t.Errorf("%q does not match itself: %v", pattern, err)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[31mb\r\nc\x00\xff")
	f.Add("\x1b[")
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if !isPlain(got) || len(got) > 3*len(s) || isPlain(s) && got != s {
			t.Errorf("%q becomes %q", s, got)
		}
		for n := range min(len(s), 20) {
			if a, b := clip(got, n), clipEnd(got, n); len(a) > n || len(b) > n || !utf8.ValidString(a) || !utf8.ValidString(b) {
				t.Errorf("%d bytes of %q: %q and %q", n, got, a, b)
			}
		}
	})
}
