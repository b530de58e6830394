package coder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// TestTextIsSaidOnce: text that was written before an answer was interrupted is not repeated.
func TestTextIsSaidOnce(t *testing.T) {
	s := serveBroken(t, answerOf(textEvent("The answer ")), answerOf(textEvent("is forty")), answerOf(textEvent("-two."), stopEvent, "[DONE]"))
	o := runWith(t, s.url, nil)
	if o.err != nil || o.text != "The answer is forty-two." {
		t.Fatalf("%q, %+v", o.text, o.err)
	}
	last := s.asked(t, 2)
	if n := len(last); n != 4 || last[2].Content != "The answer is forty" || last[3].Content != msgContinueBroken {
		t.Errorf("asked with %+v", last[1:])
	}
	if kept := o.agent.messages; len(kept) != 2 || kept[1].Content != o.text {
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
	if o.err != nil || s.requests() != maxContinues+1 || !strings.Contains(o.lines, "cut at the limit") {
		t.Errorf("%q, %+v after %d requests", o.text, o.err, s.requests())
	}
}

func TestEmptyAnswers(t *testing.T) {
	empty := answerOf(stopEvent, "[DONE]")
	if o := runWith(t, serveBroken(t, empty, empty, fine).url, nil); o.err != nil || o.text != "fine" {
		t.Errorf("%q, %+v", o.text, o.err)
	}
	s := serveBroken(t, empty)
	if o := runWith(t, s.url, nil); o.err == nil || o.err.Code != caisson.RunAgentError || s.requests() != maxEmptyAnswers+1 {
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

// TestEndlessAnswers: each of these answers would be endless, or fill the memory.
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

// TestAnAnswerEndsWhenTheModelHas: the server does not close the stream.
func TestAnAnswerEndsWhenTheModelHas(t *testing.T) {
	gone := make(chan struct{})
	s := serveBroken(t, func(c net.Conn) {
		io.WriteString(c, eventStream+"data: "+textEvent("fine")+"\n\ndata: "+stopEvent+"\n\ndata: [DONE]\n\n")
		io.Copy(io.Discard, c) // until the agent closes the connection
		close(gone)
	})
	if o := runWith(t, s.url, nil); o.err != nil || o.text != "fine" {
		t.Errorf("%q, %+v", o.text, o.err)
	}
	<-gone
}

// TestLastEventWithoutEnd: the last event of a stream counts even if the server does not end it with an empty line.
func TestLastEventWithoutEnd(t *testing.T) {
	for _, end := range []string{"", "\n", "\r", "\r\n"} {
		s := serveBroken(t, says(eventStream+"data: "+textEvent("fine")+"\n\ndata: "+stopEvent+end))
		if o := runWith(t, s.url, nil); o.err != nil || o.text != "fine" || s.requests() != 1 {
			t.Errorf("%q: %q, %+v after %d requests", end, o.text, o.err, s.requests())
		}
	}
}

// TestASilentServerEndsWithTheTask: the server sends nothing, and the task is cancelled.
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

// TestWrongIDs: each call has a unique id when it is sent back, and its result has the same id.
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

// pairs returns an error message if a conversation is invalid: each call must have one result, right after it, and each id must
// be used once.
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

// TestTheRestGoesBack: fields that some models require back are sent back.
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

// TestArgumentsThatAreNoJSON: invalid arguments are reported to the model, and do not end the run.
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

// TestALongConversationIsShortened: the conversation is shortened when the model reports that it is too long.
func TestALongConversationIsShortened(t *testing.T) {
	call := answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"shell","arguments":"{\"command\":\"head -c 20000 /dev/zero | tr '\\\\0' x\"}"}}]}}]}`, callsEvent)
	tooLong := refusal(400, "", `{"error":{"message":"prompt is too long: 9999 tokens > 999 maximum"}}`)
	s := serveBroken(t, call, call, call, call, call, call, call, call, tooLong, tooLong, fine)
	o := runWith(t, s.url, nil)
	if o.err != nil || o.text != "fine" || !strings.Contains(o.lines, "compacting") {
		t.Fatalf("%q, %+v", o.text, o.err)
	}
	before, after := s.asked(t, 8), s.asked(t, 10)
	if problem := pairs(after); problem != "" || after[1].Content != "do it" || messagesSize(after) > messagesSize(before)/2 {
		t.Errorf("%s; %d bytes, then %d; %+v", problem, messagesSize(before), messagesSize(after), after[1])
	}
	if got := after[len(after)-1]; len(got.Content) < 20_000 {
		t.Errorf("the last result has %d bytes", len(got.Content))
	}
}

// TestTheEstimateShortens: the estimated size keeps a conversation below the limit without an error of the model.
func TestTheEstimateShortens(t *testing.T) {
	call := answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"shell","arguments":"{\"command\":\"head -c 20000 /dev/zero | tr '\\\\0' x\"}"}}]}}]}`, callsEvent)
	s := serveBroken(t, call)
	o := runWith(t, s.url, func(c *config) { c.maxTokens, c.maxSteps = 20_000, 30 })
	if o.err == nil { // the model never stops calling tools
		t.Fatal("no error")
	}
	for i := range s.requests() {
		talk := s.asked(t, i)
		if problem := pairs(talk); problem != "" || talk[1].Content != "do it" {
			t.Fatalf("request %d: %s", i, problem)
		}
		if n := messagesSize(talk); n > 20_000*bytesPerToken {
			t.Errorf("request %d has %d bytes", i, n)
		}
	}
}

// TestMemoryFails: a task continues without its memory, with a warning.
func TestMemoryFails(t *testing.T) {
	c := &config{model: "m", gateway: serveBroken(t, fine).url, workspace: t.TempDir(), state: t.TempDir(), session: "s", maxSteps: 1, maxTokens: 1000}
	var lines bytes.Buffer
	a, err := newAgent(c, newOutput(&lines))
	if err != nil {
		t.Fatal(err)
	}
	a.memory.close() // has the same effect as a full disk
	err = a.run(t.Context(), strings.NewReader("do it"))
	a.close()
	if err != nil || strings.Count(lines.String(), "can no longer be kept") != 1 || !strings.Contains(lines.String(), `"content":"fine"`) {
		t.Errorf("%v: %s", err, lines.String())
	}
}

// TestLinesAreText: for any output of the model, the lines are valid and no longer than the driver's limit.
func TestLinesAreText(t *testing.T) {
	evil := strings.Repeat(`\u0001\u001b[31m"\\\n\t\u2028<`, 20_000)
	s := serveBroken(t,
		answerOf(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"list\u001b","arguments":{"path":"`+"\xff"+`"}}}]}}]}`, callsEvent),
		answerOf(`{"choices":[{"delta":{"content":"`+strings.ReplaceAll(evil, `"`, `\"`)+`\u001b"}}]}`, textEvent("[31m red"), stopEvent))
	o := runWith(t, s.url, nil)
	if o.err != nil || !strings.HasSuffix(o.text, "[31m red") || strings.ContainsAny(o.text, "\x01\x1b") {
		t.Errorf("%+v, %.100q", o.err, o.text)
	}
	for line := range strings.Lines(o.lines) {
		if len(line) > task.MaxLine || !utf8.ValidString(line) || strings.Contains(line, `\u001b`) {
			t.Errorf("%d bytes: %.300q", len(line), line)
		}
	}
}
