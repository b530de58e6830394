package coder_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// A done is the result of a run of the agent.
type done struct {
	code   int
	events []caisson.RunEvent
	stderr string
	raw    string
}

// work runs the agent in the way the program does, and checks what holds for every output.
func work(t testing.TB, prompt string, args ...string) *done {
	t.Helper()
	var out, errs bytes.Buffer
	d := &done{code: coder.Main(args, strings.NewReader(prompt), &out, &errs), stderr: errs.String(), raw: out.String()}
	if out.Len() > 0 && !strings.HasSuffix(d.raw, "\n") {
		t.Errorf("the output does not end with a line's end: %q", d.raw)
	}
	for line := range strings.Lines(d.raw) {
		if len(line) > task.MaxLine {
			t.Errorf("a line of %d bytes", len(line))
		}
		if strings.Contains(line, `"seq"`) || strings.HasPrefix(line, `{"at"`) {
			t.Errorf("seq or at in %s", line)
		}
		var e caisson.RunEvent
		r := json.NewDecoder(strings.NewReader(line))
		r.DisallowUnknownFields()
		if err := r.Decode(&e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		d.events = append(d.events, e)
	}
	d.check(t)
	return d
}

// check checks what holds for every output.
func (d *done) check(t testing.TB) {
	t.Helper()
	text := "" // text of the last message
	open := map[string]bool{}
	for i, e := range d.events {
		last := i == len(d.events)-1
		switch e.Type {
		case caisson.EventTextDelta:
			text += e.Delta
		case caisson.EventToolStart:
			open[e.CallID], text = true, ""
			if len(e.Args) > task.MaxArgs {
				t.Errorf("arguments of %d bytes", len(e.Args))
			}
		case caisson.EventToolResult:
			if !open[e.CallID] || len(e.Result) > task.MaxResult {
				t.Errorf("result of a call that did not begin, or of %d bytes: %.100v", len(e.Result), e)
			}
			delete(open, e.CallID)
		case caisson.EventFinal:
			if !last || e.Content != text {
				t.Errorf("the final text is not the last event, or not the last message: %q, %q", e.Content, text)
			}
		case caisson.EventError:
			if !last || e.Error == nil || e.Error.Message == "" {
				t.Errorf("an error that is not the last event, or says nothing: %+v", e)
			}
		}
	}
	if len(d.events) == 0 {
		t.Fatal("no events")
	}
	end := d.events[len(d.events)-1].Type
	if d.code == 0 && end != caisson.EventFinal || d.code != 0 && end != caisson.EventError {
		t.Errorf("exit code %d after %s", d.code, end)
	}
}

// of returns the events of one type.
func (d *done) of(kind string) (all []caisson.RunEvent) {
	for _, e := range d.events {
		if e.Type == kind {
			all = append(all, e)
		}
	}
	return all
}

func (d *done) answer(t testing.TB) string {
	t.Helper()
	if d.code != 0 {
		t.Fatalf("exit %d: %s", d.code, d.raw)
	}
	return d.events[len(d.events)-1].Content
}

func (d *done) failure(t testing.TB) *caisson.RunError {
	t.Helper()
	if d.code == 0 {
		t.Fatalf("exit 0: %s", d.raw)
	}
	return d.events[len(d.events)-1].Error
}

// serve starts a scripted model and returns arguments for work, with an empty workspace.
func serve(t testing.TB, script string, more ...string) (args []string, dir string, calls *scriptedtest.Recorder) {
	t.Helper()
	url, calls := scriptedtest.Serve(t, script)
	dir = t.TempDir()
	return append([]string{"--model", "m", "--gateway", url, "--workspace", dir}, more...), dir, calls
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
