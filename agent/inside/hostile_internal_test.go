package inside

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// broken is a server that answers each request with bytes of a test's choice.
type broken struct {
	url     string
	answers []func(conn net.Conn) // of the first request and so on; the last one answers all that follow

	mu     sync.Mutex
	bodies [][]byte // guarded by mu
}

func serveBroken(t testing.TB, answers ...func(net.Conn)) *broken {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &broken{url: "http://" + l.Addr().String(), answers: answers}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				s.answer(conn)
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return s
}

func (s *broken) answer(conn net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	n := min(len(s.bodies), len(s.answers)-1)
	s.bodies = append(s.bodies, body)
	s.mu.Unlock()
	s.answers[n](conn)
}

// asked returns the messages of the n-th request.
func (s *broken) asked(t testing.TB, n int) []message {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var req chatRequest
	if err := json.Unmarshal(s.bodies[n], &req); err != nil {
		t.Fatal(err)
	}
	return req.Messages
}

func (s *broken) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bodies)
}

func says(text string) func(net.Conn) { return func(c net.Conn) { io.WriteString(c, text) } }

const eventStream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

// stream returns an answer of these events.
func answerOf(data ...string) func(net.Conn) {
	var b strings.Builder
	b.WriteString(eventStream)
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return says(b.String())
}

func refusal(status int, header, body string) func(net.Conn) {
	return says(fmt.Sprintf("HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s", status, header, len(body), body))
}

func textEvent(s string) string {
	b, _ := json.Marshal(s)
	return `{"choices":[{"delta":{"content":` + string(b) + `}}]}`
}

const (
	stopEvent   = `{"choices":[{"delta":{},"finish_reason":"stop"}]}`
	lengthEvent = `{"choices":[{"delta":{},"finish_reason":"length"}]}`
	callsEvent  = `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`
)

var fine = answerOf(textEvent("fine"), stopEvent, "[DONE]")

// outcomeOf is how a run ended.
type outcomeOf struct {
	text  string
	err   *caisson.RunError
	waits []time.Duration
	lines string
	agent *agent
}

// runWith runs a task, with pauses that take no time.
func runWith(t testing.TB, url string, change func(*config)) *outcomeOf {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return runUntil(t, ctx, url, change)
}

func runUntil(t testing.TB, ctx context.Context, url string, change func(*config)) *outcomeOf {
	t.Helper()
	c, err := parseArgs([]string{"--model", "m", "--gateway", url, "--workspace", t.TempDir()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(c)
	}
	var lines bytes.Buffer
	o := &outcomeOf{}
	out := newOutput(&lines)
	if o.agent, err = newAgent(c, out); err != nil {
		t.Fatal(err)
	}
	o.agent.chat.wait = func(ctx context.Context, d time.Duration) error {
		o.waits = append(o.waits, d)
		return ctx.Err()
	}
	err = o.agent.run(ctx, strings.NewReader("do it"))
	o.agent.close()
	if err != nil {
		o.err = runError(ctx, err)
	}
	o.lines = lines.String()
	for line := range strings.Lines(o.lines) {
		var e caisson.RunEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		o.text += e.Delta
	}
	return o
}

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
		{502, "", `<html>bad gateway</html>`, caisson.RunInternal, "bad gateway", 5},
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

// TestTextIsSaidOnce: what was passed on before an answer broke off is not said again.
func TestTextIsSaidOnce(t *testing.T) {
	s := serveBroken(t, answerOf(textEvent("The answer ")), answerOf(textEvent("is forty")), answerOf(textEvent("-two."), stopEvent, "[DONE]"))
	o := runWith(t, s.url, nil)
	if o.err != nil || o.text != "The answer is forty-two." {
		t.Fatalf("%q, %+v", o.text, o.err)
	}
	last := s.asked(t, 2)
	if n := len(last); n != 4 || last[2].Content != "The answer is forty" || last[3].Content != goOnBroken {
		t.Errorf("asked with %+v", last[1:])
	}
	if kept := o.agent.talk; len(kept) != 2 || kept[1].Content != o.text {
		t.Errorf("keeps %+v", kept)
	}
}

func TestLongAnswersAreContinued(t *testing.T) {
	s := serveBroken(t, answerOf(textEvent("one "), lengthEvent), answerOf(textEvent("two "), lengthEvent), answerOf(textEvent("three"), stopEvent))
	if o := runWith(t, s.url, nil); o.err != nil || o.text != "one two three" {
		t.Errorf("%q, %+v", o.text, o.err)
	}
	s = serveBroken(t, answerOf(textEvent("more "), lengthEvent))
	o := runWith(t, s.url, nil)
	if o.err != nil || s.requests() != goOns+1 || !strings.Contains(o.lines, "cut at the limit") {
		t.Errorf("%q, %+v after %d requests", o.text, o.err, s.requests())
	}
}

func TestEmptyAnswers(t *testing.T) {
	empty := answerOf(stopEvent, "[DONE]")
	if o := runWith(t, serveBroken(t, empty, empty, fine).url, nil); o.err != nil || o.text != "fine" {
		t.Errorf("%q, %+v", o.text, o.err)
	}
	s := serveBroken(t, empty)
	if o := runWith(t, s.url, nil); o.err == nil || o.err.Code != caisson.RunAgentError || s.requests() != maxEmpty+1 {
		t.Errorf("%+v after %d requests", o.err, s.requests())
	}
}

func TestTheModelRefuses(t *testing.T) {
	for _, answer := range []func(net.Conn){
		answerOf(`{"choices":[{"delta":{"refusal":"I would rather not."}}]}`, stopEvent),
		answerOf(`{"choices":[{"delta":{"content":"I"},"finish_reason":"content_filter"}]}`),
	} {
		if o := runWith(t, serveBroken(t, answer).url, nil); o.err == nil || o.err.Code != caisson.RunAgentError {
			t.Errorf("%q, %+v", o.text, o.err)
		}
	}
}

// TestEndlessAnswers: each of these would never end, or fill the memory.
func TestEndlessAnswers(t *testing.T) {
	for name, piece := range map[string]string{
		"text":      "data: " + textEvent(strings.Repeat("x", 10_000)) + "\n\n",
		"comments":  strings.Repeat(": still here\n", 1000),
		"one event": "data: " + strings.Repeat("x", 10_000) + "\n",
		"one line":  strings.Repeat("x", 10_000),
		"reasoning": `data: {"choices":[{"delta":{"reasoning_content":"` + strings.Repeat("x", 10_000) + `"}}]}` + "\n\n",
		"arguments": `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + strings.Repeat("x", 10_000) + `"}}]}}]}` + "\n\n",
		"calls":     `data: {"choices":[{"delta":{"tool_calls":[{"index":99,"function":{"name":"list"}}]}}]}` + "\n\n",
		"name":      `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"` + strings.Repeat("x", 10_000) + `"}}]}}]}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveBroken(t, func(c net.Conn) {
				io.WriteString(c, eventStream)
				for {
					if _, err := io.WriteString(c, piece); err != nil {
						return
					}
				}
			})
			o := runWith(t, s.url, nil)
			if o.err == nil || o.err.Code != caisson.RunAgentError || s.requests() != 1 {
				t.Errorf("%+v after %d requests", o.err, s.requests())
			}
			if len(o.text) > maxAnswer+10_000 {
				t.Errorf("%d bytes of text", len(o.text))
			}
		})
	}
}

// TestAnAnswerEndsWhenTheModelHas: a server may forget to close the stream.
func TestAnAnswerEndsWhenTheModelHas(t *testing.T) {
	gone := make(chan struct{})
	s := serveBroken(t, func(c net.Conn) {
		io.WriteString(c, eventStream+"data: "+textEvent("fine")+"\n\ndata: "+stopEvent+"\n\ndata: [DONE]\n\n")
		io.Copy(io.Discard, c) // until the agent goes
		close(gone)
	})
	if o := runWith(t, s.url, nil); o.err != nil || o.text != "fine" {
		t.Errorf("%q, %+v", o.text, o.err)
	}
	<-gone
}

// TestASilentServerEndsWithTheTask: nothing comes, and the task is ended.
func TestASilentServerEndsWithTheTask(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := serveBroken(t, func(c net.Conn) {
		io.WriteString(c, eventStream+": wait\n\n")
		cancel()
		io.Copy(io.Discard, c)
	})
	if o := runUntil(t, ctx, s.url, nil); o.err == nil || o.err.Code != caisson.RunAborted {
		t.Errorf("%+v", o.err)
	}
}

func TestAWholeAnswerInsteadOfAStream(t *testing.T) {
	body := `{"choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"fi"},{"type":"thinking","thinking":[]},{"type":"text","text":"ne"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`
	o := runWith(t, serveBroken(t, refusal(200, "Content-Type: application/json\r\n", body)).url, nil)
	if o.err != nil || o.text != "fine" || !strings.Contains(o.lines, `"input":5`) {
		t.Errorf("%q, %+v: %s", o.text, o.err, o.lines)
	}
}

// TestWrongIDs: each call has an id of its own when it is sent back, and its result has the same.
func TestWrongIDs(t *testing.T) {
	one := func(index, id, name, args string) string {
		return `{"choices":[{"delta":{"tool_calls":[{` + index + `"id":` + id + `,"function":{"name":` + name + `,"arguments":` + args + `}}]}}]}`
	}
	for name, events := range map[string][]string{
		"same id":         {one(`"index":0,`, `"a"`, `"list"`, `"{}"`), one(`"index":1,`, `"a"`, `"list"`, `"{}"`)},
		"no id":           {one(`"index":0,`, `""`, `"list"`, `"{}"`), one(`"index":1,`, `""`, `"list"`, `"{}"`)},
		"same index":      {one(`"index":0,`, `"a"`, `"list"`, `"{}"`), one(`"index":0,`, `"b"`, `"list"`, `"{}"`)},
		"no index":        {one(``, `"a"`, `"list"`, `"{}"`), one(``, `"b"`, `"list"`, `"{}"`)},
		"an index is out": {one(`"index":0,`, `"a"`, `"list"`, `"{}"`), one(`"index":5,`, `"b"`, `"list"`, `"{}"`)},
		"objects":         {one(`"index":0,`, `"a"`, `"list"`, `{}`), one(`"index":1,`, `"b"`, `"list"`, `null`)},
		"long id":         {one(`"index":0,`, `"`+strings.Repeat("x", 300)+`"`, `"list"`, `"{}"`), one(`"index":1,`, `"\u0000"`, `"list"`, `""`)},
		"in pieces": {one(`"index":0,`, `"a"`, `"list"`, `"{\"depth\""`), one(`"index":0,`, `""`, `""`, `": 1}"`),
			one(`"index":1,`, `"b"`, `"list"`, `"{}"`)},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveBroken(t, answerOf(append(events, callsEvent, "[DONE]")...), answerOf(append(events, callsEvent, "[DONE]")...), fine)
			o := runWith(t, s.url, nil)
			if o.err != nil || o.text != "fine" {
				t.Fatalf("%q, %+v", o.text, o.err)
			}
			asked := s.asked(t, 2)
			if problem := pairs(asked); problem != "" || len(asked) != 8 {
				t.Errorf("%s in %d messages: %+v", problem, len(asked), asked[1:])
			}
			if strings.Contains(o.lines, `"isError":true`) {
				t.Errorf("a call failed: %s", o.lines)
			}
		})
	}
}

// pairs returns what is wrong with a conversation: each call has one result, right after it, and each id is used once.
func pairs(talk []message) string {
	open, seen := map[string]bool{}, map[string]bool{}
	for i, m := range talk {
		if m.Role != roleTool && len(open) > 0 {
			return fmt.Sprintf("message %d comes before the results of %v", i, open)
		}
		if m.Role == roleTool {
			if !open[m.ToolCallID] {
				return fmt.Sprintf("message %d is the result of no call", i)
			}
			delete(open, m.ToolCallID)
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" || seen[c.ID] {
				return fmt.Sprintf("message %d has the id %q", i, c.ID)
			}
			open[c.ID], seen[c.ID] = true, true
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("no results of %v", open)
	}
	return ""
}

// TestTheRestGoesBack: what some models want back of their answers.
func TestTheRestGoesBack(t *testing.T) {
	s := serveBroken(t, answerOf(
		`{"choices":[{"delta":{"reasoning_content":"I think"}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"list","arguments":"{}"},"extra_content":{"signature":"s"}}]}}]}`,
		callsEvent), fine)
	o := runWith(t, s.url, nil)
	m := s.asked(t, 1)[2]
	if o.err != nil || m.Reasoning != "I think" || string(m.ToolCalls[0].Extra) != `{"signature":"s"}` {
		t.Errorf("%+v, %+v", o.err, m)
	}
	if strings.Contains(o.lines, "I think") {
		t.Error("thoughts are no part of the answer")
	}
}

// TestArgumentsThatAreNoJSON are said to the model, and do not end the run.
func TestArgumentsThatAreNoJSON(t *testing.T) {
	s := serveBroken(t, answerOf(
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"write","arguments":"{\"path\": \"x"}},{"index":1,"id":"b","function":{"name":"fly","arguments":"{}"}}]}}]}`,
		lengthEvent), fine)
	o := runWith(t, s.url, nil)
	asked := s.asked(t, 1)
	if o.err != nil || !strings.Contains(asked[3].Content, "no JSON object") || !strings.Contains(asked[4].Content, "There are: shell") {
		t.Errorf("%+v, %+v", o.err, asked[1:])
	}
}

// TestALongConversationIsShortened when the model says that it is too long.
func TestALongConversationIsShortened(t *testing.T) {
	call := answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"shell","arguments":"{\"command\":\"head -c 20000 /dev/zero | tr '\\\\0' x\"}"}}]}}]}`, callsEvent)
	tooLong := refusal(400, "", `{"error":{"message":"prompt is too long: 9999 tokens > 999 maximum"}}`)
	s := serveBroken(t, call, call, call, call, call, call, call, call, tooLong, tooLong, fine)
	o := runWith(t, s.url, nil)
	if o.err != nil || o.text != "fine" || !strings.Contains(o.lines, "compacting") {
		t.Fatalf("%q, %+v", o.text, o.err)
	}
	before, after := s.asked(t, 8), s.asked(t, 10)
	if problem := pairs(after); problem != "" || after[1].Content != "do it" || sizeOf(after) > sizeOf(before)/2 {
		t.Errorf("%s; %d bytes, then %d; %+v", problem, sizeOf(before), sizeOf(after), after[1])
	}
	if got := after[len(after)-1]; len(got.Content) < 20_000 {
		t.Errorf("the last result has %d bytes", len(got.Content))
	}
}

// TestTheEstimateShortens keeps a conversation below the limit without being told.
func TestTheEstimateShortens(t *testing.T) {
	call := answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"shell","arguments":"{\"command\":\"head -c 20000 /dev/zero | tr '\\\\0' x\"}"}}]}}]}`, callsEvent)
	s := serveBroken(t, call)
	o := runWith(t, s.url, func(c *config) { c.context, c.steps = 20_000, 30 })
	if o.err == nil { // it never stops calling
		t.Fatal("no error")
	}
	for i := range s.requests() {
		talk := s.asked(t, i)
		if problem := pairs(talk); problem != "" || talk[1].Content != "do it" {
			t.Fatalf("request %d: %s", i, problem)
		}
		if n := sizeOf(talk); n > 20_000*bytesPerToken {
			t.Errorf("request %d has %d bytes", i, n)
		}
	}
}
