package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
)

func TestProblemRoundTrip(t *testing.T) {
	cause := errors.New("cause: secret")
	for kind, status := range statuses {
		for _, field := range []string{"", "resources.memory"} {
			err := &caisson.Error{Kind: kind, Field: field, Msg: "say what: to do", Err: cause}
			p := ProblemOf(err)
			b, jsonErr := json.Marshal(p)
			if jsonErr != nil {
				t.Fatal(jsonErr)
			}
			if p.Status != status || bytes.Contains(b, []byte("secret")) {
				t.Errorf("%s", b)
			}
			got := ParseProblem(p.Status, b)
			if caisson.KindOf(got) != kind || caisson.FieldOf(got) != field || caisson.MessageOf(got) != caisson.MessageOf(err) {
				t.Errorf("%v became %v", err, got)
			}
		}
		if KindOf(status) != kind {
			t.Errorf("%d is not %s", status, kind)
		}
	}
	if p := ProblemOf(cause); p.Status != 500 || strings.Contains(p.Detail, "secret") {
		t.Errorf("%+v", p)
	}
	if p := ProblemOf(&caisson.Error{Kind: "of tomorrow", Msg: "m"}); p.Status != 500 {
		t.Errorf("%+v", p)
	}
	for body, status := range map[string]int{"": 404, "<html>": 503, `{"code":"of tomorrow","detail":"d"}`: 409, "null": 418} {
		if err := ParseProblem(status, []byte(body)); caisson.KindOf(err) != KindOf(status) {
			t.Errorf("%d %q became %v of kind %s", status, body, err, caisson.KindOf(err))
		}
	}
}

func TestOutput(t *testing.T) {
	for _, tt := range []struct {
		kept string
		size int64
		text string
		trim bool
	}{
		{"", 0, "", false},
		{"abc", 3, "abc", false},
		{"a\xff", 2, "", false},
		{"ab\xe2\x82", 10, "ab", true}, // a rune cut in the middle
		{"ab\xe2\x82", 4, "", false},   // a rune the process never finished
		{"\xff\xff", 10, "", true},
	} {
		o := NewOutput([]byte(tt.kept), tt.size)
		if o.Text != tt.text || o.Truncated != tt.trim || o.Text == "" && string(o.Bytes()) != tt.kept {
			t.Errorf("%q of %d: %+v", tt.kept, tt.size, o)
		}
	}
}

func TestFlow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := NewCredit()
	if n, err := c.Take(ctx, WindowSize+1); n != WindowSize || err != nil {
		t.Fatal(n, err)
	}
	if err := c.Grant(WindowSize + 1); err == nil {
		t.Error("more than a window was granted")
	}
	taken := make(chan int)
	go func() { n, _ := c.Take(ctx, 10); taken <- n }()
	if err := c.Grant(3); err != nil {
		t.Fatal(err)
	}
	if n := <-taken; n != 3 {
		t.Errorf("took %d", n)
	}
	cancel()
	if _, err := c.Take(ctx, 1); err == nil {
		t.Error("an ended wait succeeds")
	}

	granted := 0
	q := NewQueue(func(n int) { granted += n })
	if err := q.Push(make([]byte, WindowSize)); err != nil {
		t.Fatal(err)
	}
	if err := q.Push([]byte{1}); !errors.Is(err, ErrWindow) {
		t.Error(err)
	}
	io.ReadFull(q, make([]byte, WindowSize-1))
	if granted == 0 || granted > WindowSize {
		t.Errorf("granted %d", granted)
	}
	q.Close(nil)
	q.Close(errors.New("too late"))
	if b, err := io.ReadAll(q); len(b) != 1 || err != nil {
		t.Error(b, err)
	}
	if err := q.Push([]byte{1}); err != nil {
		t.Error("what comes after the end is dropped:", err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, m := range []Message{
		{Type: MsgResize, Rows: 1, Cols: 2},
		{Type: MsgSignal, Signal: 9},
		{Type: MsgWindow, Channel: Stdout, Bytes: WindowSize},
		{Type: MsgExit, Exit: &caisson.ExitStatus{Code: 1}},
		{Type: MsgError, Problem: ProblemOf(errors.New("x"))},
		{Type: MsgStarted, PID: 1},
	} {
		f.Add(m.Frame())
	}
	for _, s := range []string{"", "\x00", "\x04", "\x03{}", "\x03{\"type\":\"signal\",\"signal\":-1}", "\x03{\"type\":\"window\",\"channel\":3,\"bytes\":1}", "\x03{\"type\":\"exit\"}", "\x03[]", "\x03{\"type\":\"closeStdin\"}{}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		channel, data, err := ParseFrame(b)
		if err != nil {
			return
		}
		if channel > Control || len(data) != len(b)-1 {
			t.Fatalf("channel %d, %d bytes", channel, len(data))
		}
		m, err := ParseMessage(data)
		if err != nil {
			return
		}
		if m.Type == MsgExit && m.Exit == nil || m.Type == MsgError && m.Problem == nil || m.Type == MsgSignal && (m.Signal < 1 || m.Signal > 64) ||
			m.Type == MsgWindow && (m.Bytes <= 0 || m.Bytes > WindowSize || m.Channel >= Control) {
			t.Fatalf("%+v", m)
		}
		// What was understood survives the way to the other end.
		_, data, err = ParseFrame(m.Frame())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseMessage(data); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
	})
}

// TestSSE checks that package sse reads what Encode returns.
func TestSSE(t *testing.T) {
	for _, want := range []SSE{{7, EventHappened, []byte(`{"a":"b\nc"}`)}, {Data: []byte("{}")}} {
		e, err := sse.NewReader(bytes.NewReader(want.Encode()), MaxEvent).Next()
		id, _ := strconv.ParseInt(string(e.ID), 10, 64)
		if err != nil || id != want.ID || string(e.Name) != want.Name || !bytes.Equal(e.Data, want.Data) {
			t.Errorf("%+v became %q, %v", want, e.Data, err)
		}
	}
}
