package coder

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

// broken is a server that answers each request with bytes chosen by the test.
type broken struct {
	url     string
	answers []func(conn net.Conn) // one for each request; the last one is used for all further requests

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

// answerOf returns an answer with these events.
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

// outcomeOf is the result of a run.
type outcomeOf struct {
	text  string
	err   *caisson.RunError
	waits []time.Duration
	lines string
	agent *agent
}

// runWith runs a task. Its pauses return at once.
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
