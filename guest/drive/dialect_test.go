package drive

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// record is an Out that records each call as a line.
type record struct {
	lines []string
	text  strings.Builder
	apart bool
}

func (r *record) Text(s string) {
	if r.apart && r.text.Len() > 0 {
		r.text.WriteString("\n\n")
	}
	r.apart = false
	r.text.WriteString(s)
}
func (r *record) Separate() { r.apart = true }
func (r *record) note(format string, args ...any) {
	r.lines = append(r.lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
func (r *record) Status(phase, label string) { r.note("status %s %s", phase, label) }
func (r *record) ToolStart(id, name string, args any) {
	r.note("start %s %s", name, encodeArguments(args))
}
func (r *record) ToolResult(id, result string, isError bool) {
	r.note("result %q %v", result, isError)
}
func (r *record) Usage(u caisson.RunUsage) {
	r.note("usage %d+%d %d/%d %s", u.Tokens.Input, u.Tokens.Output, u.Tokens.CacheRead, u.Tokens.CacheWrite, u.Cost)
}
func (r *record) Log(string, []byte) {}
func (r *record) Mark(string)        {}

// hear passes lines to a dialect and returns the result.
func hear(t *testing.T, events map[string]string, input []byte) (*record, *turnState, *caisson.RunError) {
	t.Helper()
	d, err := newDialect(events)
	if err != nil {
		t.Fatal(err)
	}
	out := &record{}
	s := newTurnState(&task.Task{Output: 1 << 20}, out)
	valid, other := 0, 0
	for line := range bytes.Lines(input) {
		if d.line(bytes.TrimSpace(line), s) {
			valid++
		} else {
			other++
		}
	}
	return out, s, turnError(s, d, nil, valid, other)
}

// varies matches text that differs between recordings.
var varies = regexp.MustCompile(`(Chunk ID|Wall time|Process Group PGID): ([0-9a-f.]+|\(none\))`)

// TestRealAgents parses recordings of real agents: one turn in which a tool makes a file, and one in which the model's API
// refuses.
func TestRealAgents(t *testing.T) {
	for _, c := range []struct {
		agent, text, fault, version string
		lines                       []string
	}{
		{
			agent: "codex-tool",
			text:  "I make it.\n\nThe file is there, and this is what the tool said: Chunk ID: …\nWall time: … seconds\nProcess exited with code 0\nOriginal token count: 0\nOutput:\n",
			lines: []string{
				"status warning Model metadata for `sonnet` not found. Defaulting to fallback metadata; this can degrade performance and cause issues.",
				"status running", `start shell {"command":"/bin/bash -lc 'echo made by a tool > made.txt'"}`, `result "" false`, "usage 11299+55 0/0 0",
			},
		},
		{agent: "codex-refused", fault: "agent_error: this model takes no such requests"},
		{
			agent: "claude-tool", version: "2.1.330",
			text: "I make it.\n\nThe file is there, and this is what the tool said: (Bash completed with no output)",
			lines: []string{
				"status running", `start Bash {"command":"echo made by a tool > made.txt","description":"Make a file"}`,
				`result "(Bash completed with no output)" false`, "usage 30549+44 0/0 0.061537999",
			},
		},
		{agent: "claude-refused", fault: "this model takes no such requests", version: "2.1.330"},
		{
			agent: "opencode-tool", text: "I make it.\n\nThe file is there, and this is what the tool said: (no output)",
			lines: []string{
				"status running", `start bash {"command":"echo made by a tool > made.txt","description":"Make a file"}`, `result "(no output)" false`,
				"usage 6193+23 0/0 0", "status running", "usage 12410+39 0/0 0",
			},
		},
		{agent: "opencode-refused", fault: "agent_error: this model takes no such requests"},
		{
			agent: "gemini-tool", text: "I make it.\n\nThe file is there, and this is what the tool said: <untrusted_context>\nOutput: (empty)\nProcess Group PGID: …\n</untrusted_context>",
			lines: []string{`start run_shell_command {"command":"echo made by a tool > made.txt"}`, `result "" false`, "usage 18194+52 0/0 0"},
		},
		{agent: "gemini-retried", text: "Here is the answer."},
		{agent: "gemini-refused", fault: "this model takes no such requests"},
		{
			agent: "qwen-tool", version: "0.24.4",
			text: "I make it.\n\nThe file is there, and this is what the tool said: Command: echo made by a tool > made.txt\nDirectory: (root)\n" +
				"Output: (empty)\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: …",
		},
		{agent: "qwen-retried", text: "Here is the answer.", version: "0.24.4"},
		{
			agent: "qwen-refused", text: "[API Error: 400 this model takes no such requests]", version: "0.24.4",
			fault: "agent_error: [API Error: 400 this model takes no such requests]",
		},
		{
			agent: "pi-tool", text: "I make it.\n\nThe file is there, and this is what the tool said: (no output)",
			lines: []string{`start bash {"command":"echo made by a tool > made.txt"}`, `result "(no output)" false`},
		},
		{agent: "pi-retried", text: "Here is the answer."},
		{agent: "pi-refused", fault: "this model takes no such requests"},
	} {
		input, err := os.ReadFile("testdata/" + c.agent + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		dialect, _, _ := strings.Cut(c.agent, "-")
		ways := []map[string]string{{"dialect": dialect}, nil} // named, and guessed
		if id := map[string]string{"gemini": "gemini-cli", "qwen": "qwen-code", "pi": "pi"}[dialect]; id != "" {
			ways = []map[string]string{builtinEvents(t, id)}
		}
		for _, events := range ways {
			out, s, fail := hear(t, events, input)
			if got := varies.ReplaceAllString(out.text.String(), "$1: …"); got != c.text {
				t.Errorf("%s: text %q, want %q", c.agent, got, c.text)
			}
			if fail == nil && c.fault != "" || fail != nil && (c.fault == "" || !strings.Contains(fail.Error(), c.fault)) {
				t.Errorf("%s: %v, want %q", c.agent, fail, c.fault)
			}
			if d := cmp.Diff(c.lines, out.lines); c.lines != nil && d != "" {
				t.Errorf("%s: %s", c.agent, d)
			}
			if s.version != c.version {
				t.Errorf("%s: version %q", c.agent, s.version)
			}
		}
	}
}

// builtinEvents returns the events of a built-in agent.
func builtinEvents(t *testing.T, id string) map[string]string {
	t.Helper()
	file, err := os.ReadFile("../../daemon/agent/builtin/" + id + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var a caisson.Agent
	if err := strictyaml.Decode(file, &a); err != nil {
		t.Fatal(err)
	}
	return a.Events
}

// TestDialects: lines of real agents in turns that are not recorded.
func TestDialects(t *testing.T) {
	for _, c := range []struct {
		name, dialect, in, text, fault string
		lines                          []string
	}{
		{
			name: "codex items", dialect: "codex", in: `
{"type":"item.completed","item":{"id":"1","type":"reasoning","text":"hm"}}
{"type":"item.started","item":{"id":"2","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"a":1},"status":"in_progress"}}
{"type":"item.completed","item":{"id":"2","type":"mcp_tool_call","server":"s","tool":"t","arguments":{"a":1},"result":{"content":[{"type":"text","text":"r1"},{"type":"text","text":"r2"}]},"status":"completed"}}
{"type":"item.completed","item":{"id":"3","type":"web_search","query":"q"}}
{"type":"item.completed","item":{"id":"4","type":"file_change","changes":[{"path":"a","kind":"add"}],"status":"failed"}}
{"type":"item.updated","item":{"id":"5","type":"todo_list","items":[{"text":"x","completed":true},{"text":"y","completed":false}]}}
{"type":"item.completed","item":{"id":"6","type":"command_execution","command":"false","aggregated_output":"no","exit_code":1,"status":"failed"}}
{"type":"error","message":"Reconnecting... 1/5"}
{"type":"item.completed","item":{"id":"7","type":"agent_message","text":"done"}}
{"type":"turn.completed","usage":{"input_tokens":10,"cached_input_tokens":4,"cache_write_input_tokens":1,"output_tokens":2}}`,
			text: "done", lines: []string{
				"status thinking", `start s.t {"a":1}`, `result "r1\nr2" false`, `start web_search {"query":"q"}`, `result "" false`,
				`start apply_patch {"changes":[{"path":"a","kind":"add"}]}`, `result "failed" true`, "status running plan: 1 of 2 done",
				`start shell {"command":"false"}`, `result "no" true`, "status warning Reconnecting... 1/5", "usage 5+2 4/1 0",
			},
		},
		{
			name: "codex fails", dialect: "codex", in: `{"type":"turn.failed","error":{"message":"exceeded retry limit, last status: 429 Too Many Requests"}}`,
			fault: "rate_limit: exceeded",
		},
		{name: "codex does not end", dialect: "codex", in: `{"type":"item.completed","item":{"type":"agent_message","text":"half"}}`, text: "half", fault: "without saying that it is done"},
		{
			name: "claude subagent", dialect: "claude", in: `
{"type":"assistant","parent_tool_use_id":"p","message":{"content":[{"type":"text","text":"not the answer"},{"type":"tool_use","id":"t1","name":"Read","input":{"f":"x"}}]}}
{"type":"user","parent_tool_use_id":"p","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"content"}],"is_error":true}]}}
{"type":"user","message":{"content":"just text"}}
{"type":"system","subtype":"compact_boundary"}
{"type":"stream_event","parent_tool_use_id":"p","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"nor this"}}}
{"type":"stream_event","event":{"type":"content_block_start","content_block":{"type":"thinking"}}}
{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}}
{"type":"result","subtype":"success","is_error":false,"result":"the answer","modelUsage":{"a":{"inputTokens":1,"outputTokens":2,"cacheReadInputTokens":3,"cacheCreationInputTokens":4},"b":{"inputTokens":10,"outputTokens":20}},"total_cost_usd":0.25}`,
			text:  "the answer",
			lines: []string{`start Read {"f":"x"}`, `result "content" true`, "status compacting", "status thinking", "usage 11+22 3/4 0.25"},
		},
		{
			name: "claude has no credit", dialect: "claude", in: `{"type":"result","subtype":"success","is_error":true,"api_error_status":402,"result":"API Error: 402"}`,
			fault: "insufficient_credits: API Error",
		},
		{
			name: "claude has no turns left", dialect: "claude", in: `{"type":"result","subtype":"error_max_turns","is_error":false,"errors":[]}`,
			fault: "agent_error: the agent has ended with error_max_turns",
		},
		{
			name: "opencode tool fails", dialect: "opencode", in: `
{"type":"reasoning","sessionID":"s","part":{"text":"hm"}}
{"type":"tool_use","sessionID":"s","part":{"callID":"c","tool":"bash","state":{"status":"error","input":{"command":"x"},"error":"no"}}}
{"type":"text","sessionID":"s","part":{"text":"sorry"}}`,
			text: "sorry", lines: []string{"status thinking", `start bash {"command":"x"}`, `result "no" true`},
		},
		{
			name: "caisson", dialect: "caisson", in: `
{"type":"tool_call_start","toolCallId":"1","toolName":"shell","args":{"c":"ls"}}
{"type":"tool_call_result","toolCallId":"1","result":"a"}
{"type":"text_delta","delta":"x"}
{"type":"usage_report","usage":{"calls":1,"tokens":{"input":2,"output":3},"cost":0.5}}
{"type":"assistant_final","content":"x y"}`,
			text: "x y", lines: []string{`start shell {"c":"ls"}`, `result "a" false`, "usage 2+3 0/0 0.5"},
		},
		{
			name: "caisson fails", dialect: "caisson", in: `
{"type":"error","error":{"code":"insufficient_credits","message":"first"}}
{"type":"error","error":{"code":"internal","message":"second"}}`, fault: "insufficient_credits: first",
		},
		{name: "caisson has a code of its own", dialect: "caisson", in: `{"type":"error","error":{"code":"x","message":"m"}}`, fault: "agent_error: m"},
		{name: "nothing known", in: "{}\n[1]\n\"x\"\nnull", fault: "without a line of JSON that is known (4 others"},
		{name: "wrong types", dialect: "claude", in: `{"type":"assistant","message":{"content":{"a":1}}}` + "\n" + `{"type":5}`, fault: "without saying"},
	} {
		events := map[string]string{"dialect": c.dialect}
		if c.dialect == "" {
			events = nil
		}
		out, _, fail := hear(t, events, []byte(strings.TrimSpace(c.in)))
		if got := out.text.String(); got != c.text {
			t.Errorf("%s: text %q, want %q", c.name, got, c.text)
		}
		if fail == nil && c.fault != "" || fail != nil && (c.fault == "" || !strings.Contains(fail.Error(), c.fault)) {
			t.Errorf("%s: %v, want %q", c.name, fail, c.fault)
		}
		if d := cmp.Diff(c.lines, out.lines); c.lines != nil && d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

func TestPaths(t *testing.T) {
	events := map[string]string{
		"text": "choices.0.delta", "final": "result.text", "error": "err", "usage.input": "u.in", "usage.output": "u.out", "usage.cost": "u.usd",
		"usage.calls": "u.n", "usage.cacheRead": "u.cr", "usage.cacheWrite": "u.cw",
	}
	out, s, fail := hear(t, events, []byte(`{"choices":[{"no":1}]}
{"choices":[{"delta":"a"}],"u":{"in":1}}
{"choices":[{"delta":"b"}],"u":{"in":-5,"out":1e300}}
{"choices":["x"],"result":{"text":7}}
{"result":{"text":"abc"},"u":{"in":3,"out":4,"usd":0.1,"n":2,"cr":5,"cw":6}}`))
	if out.text.String() != "abc" || fail != nil {
		t.Errorf("text %q, %v", out.text.String(), fail)
	}
	if want := (caisson.RunUsage{Calls: 2, Cost: 1e8, Tokens: caisson.TokenCount{Input: 3, Output: 4, CacheRead: 5, CacheWrite: 6}}); s.usage != want {
		t.Errorf("usage %+v", s.usage)
	}
	for _, e := range []string{`{"err":"bad"}`, `{"err":{"message":"bad"}}`} {
		if _, _, fail := hear(t, events, []byte(e)); fail == nil || fail.Message != "bad" {
			t.Errorf("%s: %v", e, fail)
		}
	}
	for _, bad := range []map[string]string{
		{"dialect": "x"}, {"text": ""}, {"usage.input": "a"}, {"text": "a", "usage.x": "b"}, {"text": "a", "tools": "b"},
		{"text": "a", "text.when": "type"}, {"text": "a", "text.when": "type=a,"}, {"text": "a", "text.when": "=a"}, {"text": "a", "text.when": ""},
	} {
		if _, err := newDialect(bad); err == nil {
			t.Errorf("%v is a dialect", bad)
		}
	}
}

// TestPathsWhen: fields count only in lines for which the conditions hold, and calls of tools are told.
func TestPathsWhen(t *testing.T) {
	events := map[string]string{
		"text": "content", "text.when": "type=message, role=assistant", "final": "content", "final.when": "type=message,n=2,last=true",
		"error": "messages.-1.error", "error.when": "type=end,retry=false", "usage.input": "in", "usage.when": "type=end",
		"tool": "name", "tool.id": "id", "tool.args": "args", "tool.when": "type=call",
		"result": "out", "result.id": "id", "result.failed": "status=error", "result.when": "type=called",
	}
	out, s, fail := hear(t, events, []byte(`{"type":"message","role":"user","content":"a question","in":1}
{"type":"message","role":"assistant","content":"I look."}
{"type":"message","role":["assistant"],"content":"not this"}
{"type":"thought","role":"assistant","content":"nor this"}
{"type":"call","name":"read","id":7,"args":{"file":"a"}}
{"type":"called","id":7,"out":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}
{"type":"call","name":"write","id":"8"}
{"type":"called","id":"8","out":{"code":1},"status":"error"}
{"type":"called","id":"8","out":"again"}
{"type":"end","retry":true,"messages":[{"error":"passing"}],"in":3}
{"type":"message","n":2,"last":true,"content":"It is x."}`))
	if want := "I look.\n\nIt is x."; out.text.String() != want || fail != nil || s.usage.Tokens.Input != 3 {
		t.Errorf("text %q, usage %+v, %v", out.text.String(), s.usage, fail)
	}
	want := []string{`start read {"file":"a"}`, `result "x\ny" false`, "start write", `result "{\"code\":1}" true`, "usage 3+0 0/0 0"}
	if d := cmp.Diff(want, out.lines); d != "" {
		t.Error(d)
	}
	if _, _, fail := hear(t, events, []byte(`{"type":"end","retry":false,"messages":[{"error":"first"},{"error":"last"}]}`)); fail == nil || fail.Message != "last" {
		t.Errorf("the error is %v", fail)
	}
}

// FuzzDialects: no input makes a dialect crash, and the resulting text is valid.
func FuzzDialects(f *testing.F) {
	names, err := os.ReadDir("testdata")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile("testdata/" + name.Name())
		if err != nil {
			f.Fatal(err)
		}
		for line := range bytes.Lines(b) { // one by one, because long inputs are hardly mutated
			if len(line) < 1<<10 {
				f.Add(line)
			}
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, events := range []map[string]string{{"dialect": "codex"}, {"dialect": "claude"}, {"dialect": "opencode"}, {"dialect": "caisson"}, {"text": "a.0", "error": "e"}, {"text": "a.-1", "text.when": "b=1", "result": "c", "tool": "d"}, nil} {
			if _, _, fail := hear(t, events, in); fail != nil && (fail.Message == "" || len(fail.Message) > task.MaxMessage) {
				t.Fatalf("%+v", fail)
			}
		}
	})
}
