package coder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestRefusals(t *testing.T) {
	for _, row := range []struct {
		status int
		header string
		body   string
		code   string
		text   string
		calls  int
	}{
		{400, "", `{"error":{"message":"bad field","code":"invalid_request"}}`, caisson.RunAgentError, "bad field", 1},
		{401, "", `{"error":{"message":"who are you"}}`, caisson.RunAgentError, "who are you", 1},
		{402, "", `{"error":{"message":"the budget is spent","code":"over_budget"}}`, caisson.RunNoCredits, "the budget is spent", 1},
		{403, "", `{"error":{"message":"no grant","code":"model_not_allowed"}}`, caisson.RunAgentError, "no grant", 1},
		{404, "", `no such model`, caisson.RunNotFound, "no such model", 1},
		{429, "", `{"error":{"message":"slow down"}}`, caisson.RunRateLimit, "slow down", 5},
		{429, "Retry-After: 3600\r\n", `{"error":{"message":"slow down"}}`, caisson.RunRateLimit, "slow down", 1},
		{429, "", `{"error":{"message":"pay","code":"insufficient_quota"}}`, caisson.RunNoCredits, "pay", 1},
		{500, "", `{"error":{"message":"oops"}}`, caisson.RunInternal, "oops", 5},
		{502, "", `<html>bad gateway</html>`, caisson.RunInternal, "bad gateway", 3},
		{529, "", ``, caisson.RunInternal, "529", 5},
		{503, "", "\x00\x1b[31m\xff", caisson.RunInternal, "503", 5},
		{418, "", `{"error":"teapot"}`, caisson.RunAgentError, "teapot", 1},
		{204, "", ``, caisson.RunAgentError, "204", 1},
		{413, "", `{"error":{"message":"too large"}}`, caisson.RunInvalid, "too large", 1},
		{400, "", `{"error":{"message":"This model's maximum context length is 10"}}`, caisson.RunInvalid, "does not fit", 1},
	} {
		s := serveBroken(t, refusal(row.status, row.header, row.body))
		o := runWith(t, s.url, nil)
		if o.err == nil || o.err.Code != row.code || !strings.Contains(o.err.Message, row.text) || s.requests() != row.calls {
			t.Errorf("%d %s: %+v after %d requests, want %s", row.status, row.body, o.err, s.requests(), row.code)
		}
	}
}

// TestRefusalsBeforeTheBody: a refusal is reported if the server sends it and closes the connection while the request's body is
// still being sent.
func TestRefusalsBeforeTheBody(t *testing.T) {
	large := []message{{Role: roleUser, Content: strings.Repeat("x", 16<<20)}} // larger than the socket buffers
	for _, status := range []int{403, 413, 429} {
		for name, refuse := range map[string]http.HandlerFunc{
			"closes": func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				refusal(status, "Retry-After: 3600\r\n", `{"error":{"message":"too much"}}`)(conn)
			},
			"closes later": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3600")
				http.Error(w, `{"error":{"message":"too much"}}`, status)
			},
		} {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				t.Parallel()
				srv := httptest.NewServer(refuse)
				defer srv.Close()
				gateway, err := parseServer(srv.URL)
				if err != nil {
					t.Fatal(err)
				}
				retry := func(context.Context, time.Duration) error { return errors.New("it retries") }
				c := &chat{gateway: gateway, alias: "m", api: openAI{}, out: newOutput(io.Discard), wait: retry}
				_, err = c.ask(t.Context(), large, false)
				if f, ok := errors.AsType[*failure](err); !ok || f.status != status || f.text != "too much" {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

func TestRedirectionsAreNotFollowed(t *testing.T) {
	other := serveBroken(t, fine)
	s := serveBroken(t, refusal(307, "Location: "+other.url+"/v1/chat/completions\r\n", ""))
	o := runWith(t, s.url, nil)
	if o.err == nil || !strings.Contains(o.err.Message, "not followed") || other.requests() != 0 || s.requests() != 1 {
		t.Errorf("%+v; %d requests elsewhere", o.err, other.requests())
	}
}

func TestTriesAgain(t *testing.T) {
	for _, row := range []struct {
		name   string
		answer func(net.Conn)
		least  time.Duration
	}{
		{"429", refusal(429, "Retry-After: 7\r\n", ""), 7 * time.Second},
		{"in a moment", refusal(429, "Retry-After-Ms: 20\r\n", ""), 20 * time.Millisecond},
		{"503", refusal(503, "", ""), time.Second},
		{"no answer", says(""), time.Second},
		{"not HTTP", says("SSH-2.0-OpenSSH\r\n"), time.Second},
		{"upgrade", says("HTTP/1.1 101 X\r\n\r\n"), time.Second},
		{"headers without end", says("HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", 20_000)), time.Second},
		{"a line without end", says("HTTP/1.1 200 OK\r\n" + strings.Repeat("a", 100_000)), time.Second},
		{"interim only", says(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100)), time.Second},
		{"compressed", says("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"), time.Second},
		{"transfer encoding", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"), time.Second},
		{"no length", says("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), time.Second},
		{"nothing", says(eventStream), time.Second},
		{"done, without anything", answerOf("[DONE]"), time.Second},
		{"no JSON", answerOf("{"), time.Second},
		{"no object", answerOf(`"text"`), time.Second},
		{"wrong types", answerOf(`{"choices":[{"delta":{"content":7}}]}`), time.Second},
		{"calls that break off", answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"list","arguments":"{"}}]}}]}`), time.Second},
		{"an error inside", answerOf(`{"error":{"message":"overloaded","type":"overloaded_error"}}`), time.Second},
		{"a chunk's length", says(strings.Replace(eventStream, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 1)), time.Second},
		{"a cut chunk", says(strings.Replace(eventStream, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\ndata: {}\n\n", 1)), time.Second},
		{"a negative chunk", says(strings.Replace(eventStream, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n", 1)), time.Second},
		{"less than its length", says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"), time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := serveBroken(t, row.answer, fine)
			o := runWith(t, s.url, nil)
			if o.err != nil || o.text != "fine" || s.requests() != 2 {
				t.Fatalf("%q, %+v after %d requests", o.text, o.err, s.requests())
			}
			if len(o.waits) != 1 || o.waits[0] < row.least || o.waits[0] > row.least+row.least/4 {
				t.Errorf("waited %v", o.waits)
			}
			if !strings.Contains(o.lines, "trying again") {
				t.Error("nothing was said about it")
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	o := runWith(t, "http://"+l.Addr().String(), nil)
	if o.err == nil || o.err.Code != caisson.RunInternal || len(o.waits) != maxTries-1 {
		t.Errorf("%+v, waited %v", o.err, o.waits)
	}
}

// TestProviderDown tests that a provider that cannot be reached and has not answered any call is tried three times, with a message before each
// retry, and one that has answered a call, five times.
func TestProviderDown(t *testing.T) {
	down := refusal(502, "", `{"error":{"message":"the provider cannot be reached","code":"upstream"}}`)
	o := runWith(t, serveBroken(t, down, down, down, down, down).url, nil)
	if o.err == nil || len(o.waits) != newTries-1 || strings.Count(o.lines, "trying again") != newTries-1 {
		t.Errorf("%+v, waited %v", o.err, o.waits)
	}
	s := serveBroken(t, answerOf("{"), down, down, down, down)
	if o = runWith(t, s.url, nil); o.err == nil || len(o.waits) != maxTries-1 {
		t.Errorf("%+v, waited %v", o.err, o.waits)
	}
}
