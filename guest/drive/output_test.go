package drive

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// said ends a stream of lines and reads it as the engine does.
func said(t *testing.T, b *bytes.Buffer, w *task.Writer, limit caisson.Size) []task.Line {
	t.Helper()
	if code := writeEnd(w, TurnResult{Error: newError("", "")}, false); code != 0 {
		t.Fatal("no end")
	}
	var all []task.Line
	for r := task.NewReader(b, limit); ; {
		l, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
}

// TestOutputIsBounded: any output of a driver is accepted by the Reader and within the limits.
func TestOutputIsBounded(t *testing.T) {
	const limit = 100_000
	var b bytes.Buffer
	w := task.NewWriter(&b)
	o := newOutput(w, limit, func(err error) { t.Error(err) })
	odd := "\x00\x1b[1m\xff\u202e\n" + strings.Repeat("€\"\\", 100_000)
	for range 3 {
		o.Status("of tomorrow", odd)
		o.ToolStart(odd, odd, map[string]any{"a\x00": odd})
		o.ToolStart("", "", json.RawMessage(`{"a":"\u0000`+"\xff"+`"}`))
		o.ToolStart("1", "t", json.RawMessage(`{"broken`))
		o.ToolResult("", odd, true)
		o.Usage(caisson.RunUsage{Calls: -1, Cost: -5})
		o.Mark(task.MarkPrompt)
		o.Text(odd)
		o.Separate()
		o.Log(caisson.LogStdout, []byte(odd))
		o.Log("of tomorrow", []byte(odd))
	}
	if !o.close() {
		t.Error("nothing was cut")
	}
	o.Text("too late")
	o.Mark(task.MarkAnswer)
	if n := b.Len(); n < limit || n > limit*3 {
		t.Errorf("%d bytes", n)
	}
	seen := map[string]int{}
	for _, l := range said(t, &b, w, limit) {
		seen[l.Type]++
	}
	if seen[task.LineMark] != 1 || seen[caisson.EventToolStart] < 3 || seen[caisson.EventTextDelta] == 0 || seen[task.LineLog] == 0 {
		t.Errorf("%v", seen)
	}
}

// TestManyShortLines: the limit includes the size of lines without their content, also for logs.
func TestManyShortLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10_000
		var b bytes.Buffer
		o := newOutput(task.NewWriter(&b), limit, func(err error) { t.Error(err) })
		for range 10_000 {
			o.Text("a")
			o.Log(caisson.LogStderr, []byte("b"))
			time.Sleep(time.Second)
		}
		if cut := o.close(); !cut || b.Len() > 3*limit {
			t.Errorf("%d bytes, cut %v", b.Len(), cut)
		}
	})
}

// TestTextIsPutTogether: the first text is written at once, further text every 20 milliseconds.
func TestTextIsPutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		w := task.NewWriter(&b)
		o := newOutput(w, 1<<20, func(err error) { t.Error(err) })
		o.Text("first ")
		if !strings.Contains(b.String(), "first") {
			t.Error("the first text waits")
		}
		for range 30 {
			o.Text("x")
			time.Sleep(1500 * time.Microsecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		o.Text("y")
		o.Separate()
		o.Separate()
		o.Text("z\n")
		o.Separate()
		o.Text("end\n\n")
		o.Separate()
		o.Text("\xe2\x82")
		o.close()
		var text []string
		for _, l := range said(t, &b, w, 1<<20) {
			if l.Type == caisson.EventTextDelta {
				text = append(text, l.Delta)
			}
		}
		want := "first |" + strings.Repeat("x", 14) + "|" + strings.Repeat("x", 13) + "|" + strings.Repeat("x", 3) + "|y|\n\nz\n\nend\n\n\ufffd"
		if got := strings.Join(text, "|"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestBrokenReader: a failed write is reported once and at once.
func TestBrokenReader(t *testing.T) {
	var mu sync.Mutex
	var told []error
	o := newOutput(task.NewWriter(failing{}), 1000, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, err)
	})
	o.Text("x")
	o.close()
	mu.Lock()
	defer mu.Unlock()
	if len(told) == 0 || !errors.Is(told[0], io.ErrClosedPipe) {
		t.Errorf("%v", told)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
