package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func valid() *Task {
	return &Task{Driver: "exec", Workdir: "/w", Time: caisson.Duration(time.Minute), Prompt: "do <it> & more", Command: []string{"a", "{prompt}"}}
}

func TestTask(t *testing.T) {
	in := valid()
	in.Env = map[string]string{"A": "b"}
	in.History = []caisson.Message{{Role: "user", Content: "x"}}
	in.Files = []caisson.SeedFile{{Path: "/f", Data: "d", Mode: 0o600}}
	in.Tools = caisson.ToolRule{Deny: []string{"web"}}
	b, err := Encode(in)
	if err != nil || bytes.ContainsAny(b, "\n") {
		t.Fatalf("%q, %v", b, err)
	}
	out, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Error(d)
	}
}

func TestBadTasks(t *testing.T) {
	for name, change := range map[string]func(*Task){
		"names no driver":     func(k *Task) { k.Driver = "" },
		"workdir":             func(k *Task) { k.Workdir = "w" },
		"track":               func(k *Task) { k.Track = "w" },
		"no time":             func(k *Task) { k.Time = 0 },
		"negative":            func(k *Task) { k.Output = -1 },
		"which the task":      func(k *Task) { k.Remove = []string{"x"} },
		"file":                func(k *Task) { k.Files = []caisson.SeedFile{{Path: "x"}} },
		"shorten the prompt,": func(k *Task) { k.Prompt = strings.Repeat("x", MaxTask) },
	} {
		k := valid()
		change(k)
		if _, err := Encode(k); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []string{"", "{}", "[]", `{"driver":"exec","workdir":"/","time":"1s","more":1}`, `{"driver":"exec","workdir":"/","time":"1s"} {}`, "{\"driver\":\"\xff\"}"} {
		if _, err := Decode([]byte(s)); err == nil {
			t.Errorf("%q is a task", s)
		}
	}
}

// all has one line of each type, in a valid order.
func all() []Line {
	ev := func(e caisson.RunEvent) Line { return Line{RunEvent: e} }
	return []Line{
		{RunEvent: caisson.RunEvent{Type: LineMark}, Mark: MarkStarted},
		ev(caisson.RunEvent{Type: caisson.EventStatus, Phase: "running", Label: "x"}),
		ev(caisson.RunEvent{Type: caisson.EventTextDelta, Delta: "a\n<b>\t\u202e"}),
		ev(caisson.RunEvent{Type: caisson.EventToolStart, CallID: "1", Tool: "shell", Args: json.RawMessage(`{"a":[1,"\n"]}`)}),
		ev(caisson.RunEvent{Type: caisson.EventToolResult, CallID: "1", Result: "r", IsError: true}),
		ev(caisson.RunEvent{Type: caisson.EventUsage, Usage: &caisson.RunUsage{Calls: 1, Cost: 5, Tokens: caisson.TokenCount{Input: 3}}}),
		{RunEvent: caisson.RunEvent{Type: LineLog}, Stream: "stderr", Data: []byte("\x00\xff\x1b")},
		ev(caisson.RunEvent{Type: caisson.EventFinal}),
		{
			RunEvent: caisson.RunEvent{Type: LineChanges},
			Changes:  []caisson.FileChange{{Path: "a/b", Kind: "added", Added: 1}}, Patch: "+x\r\n",
		},
		{RunEvent: caisson.RunEvent{Type: LineEnd}, Cut: true, Agent: "1.0", Exit: &caisson.ExitStatus{Code: 0}},
	}
}

func TestLines(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	total := 0
	for _, l := range all() {
		n, err := w.Write(l)
		if err != nil {
			t.Fatalf("%s: %v", l.Type, err)
		}
		total += n
	}
	if total != b.Len() {
		t.Errorf("%d bytes said, %d written", total, b.Len())
	}
	r := NewReader(iotest.OneByteReader(&b), 1000)
	for _, want := range all() {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Error(err)
	}
}

const end = `{"type":"end"}` + "\n"

func TestHostileLines(t *testing.T) {
	long := strings.Repeat("x", MaxDelta+1)
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", "unexpected EOF"},
		{"cut off", `{"type":"end"}`, "unexpected EOF"},
		{"empty line", "\n", "line 1: unexpected EOF"},
		{"not json", "x\n", "line 1: invalid"},
		{"two values", `{"type":"assistant_final"}{"type":"end"}` + "\n", "more than one"},
		{"not an object", "[]\n", "line 1: json"},
		{"not utf-8", "{\"type\":\"text_delta\",\"delta\":\"\xff\"}\n", "not UTF-8"},
		{"unknown type", `{"type":"done"}` + "\n", `type "done" is not known`},
		{"unknown field", `{"type":"end","seq":1}` + "\n", "unknown field"},
		{"time", `{"type":"status","phase":"running","at":"2020-01-01T00:00:00Z"}` + "\n", "unknown field"},
		{"content", `{"type":"assistant_final","content":"x"}` + "\n", "unknown field"},
		{"another's field", `{"type":"status","phase":"running","delta":"x"}` + "\n", "of another type"},
		{"error outside", `{"type":"status","phase":"running","error":{"code":"internal","message":"m"}}` + "\n", "of another type"},
		{"phase", `{"type":"status","phase":"queued"}` + "\n", `phase is "queued"`},
		{"label of two lines", `{"type":"status","phase":"running","label":"a\nb"}` + "\n", "control character"},
		{"nul", `{"type":"text_delta","delta":"a\u0000b"}` + "\n", "control character (U+0000)"},
		{"escape", `{"type":"text_delta","delta":"a\u001b[2Jb"}` + "\n", "control character (U+001B)"},
		{"c1", `{"type":"text_delta","delta":"\u009b2J"}` + "\n", "control character (U+009B)"},
		{"long delta", `{"type":"text_delta","delta":"` + long + `"}` + "\n", "65537 bytes"},
		{"no tool", `{"type":"tool_call_start","toolCallId":"1"}` + "\n", "toolName is empty"},
		{"args with nul", `{"type":"tool_call_start","toolCallId":"1","toolName":"t","args":{"a\u0000":1}}` + "\n", "args has a control"},
		{"long args", `{"type":"tool_call_start","toolCallId":"1","toolName":"t","args":"` + strings.Repeat("x", MaxArgs) + `"}` + "\n", "args has 8194"},
		{"no usage", `{"type":"usage_report"}` + "\n", "usage is missing"},
		{"negative usage", `{"type":"usage_report","usage":{"calls":-1,"tokens":{"input":0,"output":0},"cost":0}}` + "\n", "negative"},
		{"stream", `{"type":"log","stream":"gateway","data":"eA=="}` + "\n", `stream is "gateway"`},
		{"no data", `{"type":"log","stream":"stdout"}` + "\n", "data has 0 bytes"},
		{"mark", `{"type":"mark","mark":"x"}` + "\n", `mark is "x"`},
		{"mark twice", strings.Repeat(`{"type":"mark","mark":"prompt"}`+"\n", 2), "line 2: a second mark"},
		{"final twice", strings.Repeat(`{"type":"assistant_final"}`+"\n", 2), "line 2: a second"},
		{"text after final", `{"type":"assistant_final"}` + "\n" + `{"type":"text_delta","delta":"x"}` + "\n", "line 2: text after"},
		{"changes twice", strings.Repeat(`{"type":"changes"}`+"\n", 2), "line 2: a second"},
		{"no answer", end, "either assistant_final"},
		{"answer and error", `{"type":"assistant_final"}` + "\n" + `{"type":"end","error":{"code":"internal","message":"m"}}` + "\n", "either assistant_final"},
		{"after the end", `{"type":"assistant_final"}` + "\n" + end + end, "line 3: a line after the end"},
		{"path out", `{"type":"changes","changes":[{"path":"../x","kind":"added"}]}` + "\n", "does not lead"},
		{"path of root", `{"type":"changes","changes":[{"path":"/x","kind":"added"}]}` + "\n", "does not lead"},
		{"path not clean", `{"type":"changes","changes":[{"path":"a/../../x","kind":"added"}]}` + "\n", "does not lead"},
		{"path with newline", `{"type":"changes","changes":[{"path":"a\nb","kind":"added"}]}` + "\n", "control"},
		{"kind", `{"type":"changes","changes":[{"path":"a","kind":"eaten"}]}` + "\n", "kind"},
		{"many changes", `{"type":"changes","changes":[` + strings.TrimSuffix(strings.Repeat(`{"path":"a","kind":"added"},`, MaxChanges+1), ",") + `]}` + "\n", "1001 changes"},
		{"exit", `{"type":"end","exit":{"code":4000}}` + "\n", "cannot be"},
		{"code", `{"type":"end","error":{"code":"x","message":"m"}}` + "\n", `code is "x"`},
		{"no message", `{"type":"end","error":{"code":"internal","message":""}}` + "\n", "without a message"},
		{"deep", `{"type":"tool_call_start","toolCallId":"1","toolName":"t","args":` + strings.Repeat("[", 1<<20) + "\n", "line 1"},
		{"endless line", strings.Repeat("x", MaxLine+1) + "\n", "longer than"},
	} {
		r := NewReader(strings.NewReader(c.in), 1<<20)
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if err == io.EOF || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if _, again := r.Next(); !errors.Is(again, err) {
			t.Errorf("%s: then %v", c.name, again)
		}
	}
}

// TestEndless: a stream that exceeds the limit is not read further.
func TestEndless(t *testing.T) {
	line := `{"type":"status","phase":"running"}` + "\n"
	r := NewReader(&repeated{line: line}, 1000)
	n := 0
	for ; ; n += len(line) {
		if _, err := r.Next(); err != nil {
			if !strings.Contains(err.Error(), "the output is too large") {
				t.Error(err)
			}
			break
		}
	}
	if n > 16<<20 {
		t.Errorf("%d bytes read", n)
	}
}

type repeated struct {
	line string
	at   int
}

func (r *repeated) Read(b []byte) (int, error) {
	n := copy(b, r.line[r.at:])
	r.at = (r.at + n) % len(r.line)
	return n, nil
}

// TestWriterRefuses: a line that a Reader would reject is not written, and the stream remains valid.
func TestWriterRefuses(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, l := range []Line{
		{},
		{RunEvent: caisson.RunEvent{Type: caisson.EventDone}},
		{RunEvent: caisson.RunEvent{Type: caisson.EventTextDelta, Delta: "\x1b"}},
		{RunEvent: caisson.RunEvent{Type: caisson.EventTextDelta, Delta: "\xff"}},
		{RunEvent: caisson.RunEvent{Type: caisson.EventToolStart, CallID: "1", Tool: "t", Args: json.RawMessage("{")}},
		{RunEvent: caisson.RunEvent{Type: LineEnd}},
	} {
		if n, err := w.Write(l); n != 0 || !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %d, %v", l, n, err)
		}
	}
	if b.Len() > 0 {
		t.Errorf("written: %q", b.Bytes())
	}
	for _, l := range all() {
		if _, err := w.Write(l); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Write(all()[1]); !errors.Is(err, ErrRefused) {
		t.Errorf("after the end: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriterStops(t *testing.T) {
	w := NewWriter(failing{})
	for range 2 {
		if _, err := w.Write(all()[0]); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrRefused) {
			t.Error(err)
		}
	}
}

func TestCleanJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"\u0000"}`:             `{"a":"\ufffd"}`,
		`"\\u0000"`:                  `"\\u0000"`,
		`"\\\u001b"`:                 `"\\\ufffd"`,
		`"\u000a\u0009\u0041"`:       `"\u000a\u0009\u0041"`,
		`"\u009B\u0000\u007f"`:       `"\ufffd\ufffd\ufffd"`,
		"\"\xff\"":                   "\"\ufffd\"",
		strings.Repeat(`\u0000`, 9):  strings.Repeat(`\ufffd`, 9),
		`"` + strings.Repeat("x", 9): `"` + strings.Repeat("x", 9),
	} {
		if got := string(CleanJSON([]byte(in))); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
