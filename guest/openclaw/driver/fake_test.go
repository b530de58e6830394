package driver_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// request is a request of a client of the gateway.
type request struct {
	ID, Method string
	Params     map[string]any
}

// fakeGateway starts a gateway that greets each client and then calls serve. It returns the port.
func fakeGateway(t *testing.T, serve func(ctx context.Context, c *websocket.Conn, r request)) int {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		c, err := websocket.Accept(w, hr, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		ctx := hr.Context()
		say(ctx, c, `{"type":"event","event":"connect.challenge","payload":{"nonce":"n","ts":1}}`)
		for {
			_, b, err := c.Read(ctx)
			if err != nil {
				return
			}
			var r request
			if json.Unmarshal(b, &r) != nil {
				return
			}
			if r.Method == "connect" {
				say(ctx, c, `{"type":"res","id":"`+r.ID+`","ok":true,"payload":{"server":{"version":"9.9"}}}`)
				continue
			}
			serve(ctx, c, r)
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.Listener.Addr().(*net.TCPAddr).Port
}

func say(ctx context.Context, c *websocket.Conn, s string) {
	_ = c.Write(ctx, websocket.MessageText, []byte(s))
}

// answers answers a prompt with events, in which RUN is replaced by the run's id and ID by the request's.
func answers(lines ...string) func(context.Context, *websocket.Conn, request) {
	return func(ctx context.Context, c *websocket.Conn, r request) {
		run, _ := r.Params["idempotencyKey"].(string)
		for _, l := range lines {
			say(ctx, c, strings.NewReplacer("RUN", run, "ID", r.ID).Replace(l))
		}
	}
}

func event(stream, data string) string {
	return `{"type":"event","event":"agent","payload":{"runId":"RUN","stream":"` + stream + `","data":` + data + `}}`
}

const isAccepted = `{"type":"res","id":"ID","ok":true,"payload":{"status":"accepted"}}`

func final(text string) string {
	return `{"type":"res","id":"ID","ok":true,"payload":{"runId":"RUN","status":"ok","result":{"payloads":[{"text":"` + text + `"}],"meta":{}}}}`
}

// TestStreams: the lines that result from the events of a gateway.
func TestStreams(t *testing.T) {
	for _, c := range []struct {
		name       string
		lines      []string
		text, code string
	}{
		{"streamed and said again", []string{isAccepted, event("assistant", `{"text":"ab","itemId":"1"}`), event("assistant", `{"text":"abc","itemId":"1"}`), final("abc")}, "abc", ""},
		{"only at the end", []string{isAccepted, final("abc")}, "abc", ""},
		{"the end is longer", []string{isAccepted, event("assistant", `{"text":"ab","itemId":"1"}`), final("abc")}, "abc", ""},
		{"the end is shorter", []string{isAccepted, event("assistant", `{"text":"ab <tag>","itemId":"1"}`), event("assistant", `{"text":"ab","replace":true,"itemId":"1"}`), final("ab")}, "ab <tag>", ""},
		{"of another run", []string{isAccepted, strings.ReplaceAll(event("assistant", `{"text":"no","itemId":"1"}`), "RUN", "other"), final("abc")}, "abc", ""},
		{"a preamble twice", []string{
			isAccepted, event("assistant", `{"text":"I look.","itemId":"1"}`), event("item", `{"kind":"preamble","phase":"end","progressText":"I look."}`),
			event("tool", `{"phase":"start","name":"exec","toolCallId":"c","args":{}}`), event("tool", `{"phase":"result","name":"exec","toolCallId":"c","result":"x"}`),
			event("assistant", `{"text":"Done.","itemId":"2"}`), final("Done."),
		}, "I look.\n\nDone.", ""},
		{"a preamble as an item", []string{
			isAccepted, event("item", `{"kind":"preamble","phase":"end","progressText":"I look."}`), event("tool", `{"phase":"start","name":"exec","toolCallId":"c"}`), final("Done."),
		}, "I look.\n\nDone.", ""},
		{"nonsense between", []string{isAccepted, event("assistant", `[]`), event("tool", `3`), event("item", `null`), event("lifecycle", `""`), `{"type":"event","event":"agent","payload":7}`, final("abc")}, "abc", ""},
		{"no answer", []string{isAccepted, final("")}, "", caisson.RunAgentError},
		{"not JSON", []string{isAccepted, `x`}, "", caisson.RunAgentError},
		{"refused", []string{`{"type":"res","id":"ID","ok":false,"error":{"code":"INVALID_REQUEST","message":"no"}}`}, "", caisson.RunAgentError},
		{"refused without a reason", []string{`{"type":"res","id":"ID","ok":false}`}, "", caisson.RunAgentError},
		{"billing", []string{
			isAccepted, event("lifecycle", `{"phase":"error","errorObservation":{"failoverReason":"billing"}}`),
			`{"type":"res","id":"ID","ok":false,"error":{"code":"UNAVAILABLE","message":"⚠️ no"}}`,
		}, "", caisson.RunNoCredits},
		{"too large", []string{isAccepted, `{"type":"event","event":"x","payload":"` + strings.Repeat("x", 27<<20) + `"}`}, "", caisson.RunAgentError},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := fakeGateway(t, answers(c.lines...))
			r := run(t, t.Context(), &task.Task{Prompt: "p", Port: port, Output: 1 << 20, Time: caisson.Duration(time.Minute)}, nil)
			code := ""
			if r.end.Error != nil {
				code = r.end.Error.Code
			}
			if r.text != c.text || code != c.code || r.end.Agent != "9.9" {
				t.Errorf("%q, %v, version %q", r.text, r.end.Error, r.end.Agent)
			}
		})
	}
}

// TestCancelAborts: a cancelled turn is aborted in the gateway, and abandoned if it does not end.
func TestCancelAborts(t *testing.T) {
	for _, ends := range []bool{true, false} {
		aborted := make(chan string, 1)
		var prompt request
		port := fakeGateway(t, func(ctx context.Context, c *websocket.Conn, r request) {
			switch r.Method {
			case "agent":
				prompt = r
				answers(isAccepted, event("assistant", `{"text":"begun","itemId":"1"}`))(ctx, c, r)
			case "chat.abort":
				key, _ := r.Params["sessionKey"].(string)
				aborted <- key
				if ends {
					answers(`{"type":"res","id":"ID","ok":true,"payload":{"status":"ok","result":{"payloads":[],"meta":{"aborted":true}}}}`)(ctx, c, prompt)
				}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		tk := &task.Task{Prompt: "p", Session: "s", Port: port, Output: 1 << 20, Time: caisson.Duration(time.Minute), Grace: caisson.Duration(100 * time.Millisecond)}
		if ends {
			tk.Grace = caisson.Duration(time.Minute)
		}
		r := run(t, ctx, tk, func(string) { cancel() })
		cancel()
		if r.end.Error == nil || r.end.Error.Code != caisson.RunAborted || r.text != "begun" {
			t.Errorf("%q, %v", r.text, r.end.Error)
		}
		if key := <-aborted; !strings.HasPrefix(key, "agent:main:caisson-") {
			t.Errorf("aborted %q", key)
		}
	}
}

// TestNobody: without a gateway and a command, the error says so.
func TestNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	r := run(t, t.Context(), &task.Task{Prompt: "p", Port: port}, nil)
	if r.end.Error == nil || !strings.Contains(r.end.Error.Message, "connection refused on port") {
		t.Errorf("%v", r.end.Error)
	}
	for _, c := range []struct{ script, text, code string }{
		{`echo '{"payloads":[{"text":"hi '"$1"'"}],"meta":{}}'`, "hi p", ""},
		{`echo '{"payloads":[{"text":"hi"}],"meta":{}}'; exit 3`, "", caisson.RunAgentError},
		{`echo plain`, "", caisson.RunAgentError},
		{`exit 2`, "", caisson.RunAgentError},
	} {
		tk := &task.Task{
			Prompt: "p", Port: port, Command: []string{"/bin/sh", "-c", c.script, "sh", "{prompt}"}, Workdir: t.TempDir(), Output: 1 << 20,
			Time: caisson.Duration(time.Minute), Grace: caisson.Duration(time.Second), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		}
		r := run(t, t.Context(), tk, nil)
		code := ""
		if r.end.Error != nil {
			code = r.end.Error.Code
		}
		if r.text != c.text || code != c.code || len(r.warnings) != 1 {
			t.Errorf("%s: %q, %v, %q", c.script, r.text, r.end.Error, r.warnings)
		}
	}
}
