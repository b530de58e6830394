package drive_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func init() {
	others["acp/tools"] = func() {
		v := newACPVoice()
		v.ReadPrompt()
		v.update(obj{"sessionUpdate": "plan", "entries": []any{obj{"status": "completed"}, obj{"status": "pending"}}})
		v.update(obj{"sessionUpdate": "agent_thought_chunk", "content": obj{"type": "text", "text": "hm"}})
		v.update(obj{"sessionUpdate": "agent_thought_chunk", "content": obj{"type": "text", "text": "hm"}})
		v.Delta("I look.")
		v.update(obj{"sessionUpdate": "tool_call", "toolCallId": "1", "title": "List files", "kind": "execute", "status": "pending", "rawInput": obj{}})
		v.update(obj{"sessionUpdate": "tool_call_update", "toolCallId": "1", "name": "shell", "rawInput": obj{"command": "ls"}})
		v.update(obj{"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "in_progress"})
		v.update(obj{"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed", "content": []any{
			obj{"type": "content", "content": obj{"type": "text", "text": "a.txt"}}, obj{"type": "diff", "path": "x", "newText": "y"},
		}})
		v.update(obj{"sessionUpdate": "tool_call", "toolCallId": "2", "title": "Read a.txt", "kind": "read", "status": "failed", "rawOutput": "no such file"})
		v.update(obj{"sessionUpdate": "of_tomorrow", "anything": 1})
		v.write(obj{"method": "session/update", "params": obj{"sessionId": "another", "update": obj{"sessionUpdate": "agent_message_chunk", "content": obj{"type": "text", "text": "NOT THIS"}}}})
		v.Delta("Done.")
		v.write(obj{"id": v.id, "result": obj{"stopReason": "end_turn", "usage": obj{"inputTokens": 7, "outputTokens": 8, "cachedReadTokens": 1}}})
		v.ReadPrompt()
	}
	others["acp/asks"] = func() { // permissions and files; its answer contains the responses
		v := newACPVoice()
		v.ReadPrompt()
		options := []any{obj{"optionId": "always", "kind": "allow_always", "name": "a"}, obj{"optionId": "once", "kind": "allow_once", "name": "b"}, obj{"optionId": "no", "kind": "reject_once", "name": "c"}}
		for _, tool := range []obj{{"toolCallId": "1", "name": "shell", "kind": "execute"}, {"toolCallId": "2", "kind": "fetch", "title": "Get x"}, {"toolCallId": "3", "name": "Shell2"}} {
			v.ask("session/request_permission", obj{"sessionId": "sess-1", "toolCall": tool, "options": options})
		}
		v.ask("session/request_permission", obj{"sessionId": "sess-1", "toolCall": obj{"toolCallId": "4", "kind": "fetch"}, "options": options[:1]})
		dir, _ := os.Getwd()
		v.ask("fs/write_text_file", obj{"sessionId": "sess-1", "path": filepath.Join(dir, "deep/f"), "content": "1\n2\n3\n4\n"})
		v.ask("fs/read_text_file", obj{"sessionId": "sess-1", "path": filepath.Join(dir, "deep/f"), "line": 2, "limit": 2})
		v.ask("fs/read_text_file", obj{"sessionId": "sess-1", "path": "deep/f"})
		v.ask("fs/read_text_file", obj{"sessionId": "sess-1", "path": "/dev/zero"})
		v.ask("fs/read_text_file", obj{"sessionId": "sess-1", "path": filepath.Join(dir, "none")})
		v.ask("terminal/create", obj{"sessionId": "sess-1"})
		v.ask("fs/read_text_file", 5)
		v.End()
		v.ReadPrompt()
	}
	others["acp/cancelled"] = func() { // ends its turn when it gets session/cancel
		v := newACPVoice()
		v.ReadPrompt()
		v.Delta("so far")
		for r := v.read(); r.Method != "session/cancel"; r = v.read() {
		}
		v.Delta(", and cancelled")
		v.stop("cancelled")
		v.ReadPrompt()
	}
	for _, reason := range []string{"max_tokens", "max_turn_requests", "refusal", "cancelled", "of_tomorrow"} {
		others["acp/stops/"+reason] = func() {
			v := newACPVoice()
			v.ReadPrompt()
			v.stop(reason)
			v.ReadPrompt()
		}
	}
	others["acp/version"] = func() {
		v := newACPVoice()
		v.write(obj{"id": v.read().ID, "result": obj{"protocolVersion": 2}})
		v.read()
	}
	others["acp/refuses"] = func() {
		v := newACPVoice()
		v.write(obj{"id": v.read().ID, "error": obj{"code": -32000, "message": "Authentication required", "data": obj{"why": "no key"}}})
		v.read()
	}
	others["acp/strings"] = func() { // answers numeric ids with strings, and sends unknown messages
		v := newACPVoice()
		id := func(r *acpRequest) string { return string(r.ID) }
		v.write(obj{"id": 4711, "result": obj{}})
		v.write(obj{"method": "of/tomorrow", "params": []any{1}})
		os.Stdout.WriteString("starting up...\n")
		v.write(obj{"id": id(v.read()), "result": obj{"protocolVersion": 1}})
		v.write(obj{"id": id(v.read()), "result": obj{"sessionId": "sess-1"}})
		r := v.read()
		v.Delta("fine")
		v.write(obj{"id": id(r), "result": obj{"stopReason": "end_turn"}})
		v.read()
	}
}

// ask sends a request to the client and adds the response to the answer.
func (v *acpVoice) ask(method string, params any) {
	v.write(obj{"id": "q", "method": method, "params": params})
	r := v.read()
	answer := r.Result
	if len(r.Error) > 0 {
		var e struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(r.Error, &e)
		answer = json.RawMessage("error " + e.Message)
	}
	v.Delta(string(answer) + "\n")
}

// events returns a short form of the lines, without text, marks and logs.
func events(r *Result) []string {
	var all []string
	for _, l := range r.Lines {
		switch l.Type {
		case caisson.EventStatus:
			all = append(all, strings.TrimSpace(l.Phase+" "+l.Label))
		case caisson.EventToolStart:
			all = append(all, fmt.Sprintf("start %s %s", l.Tool, l.Args))
		case caisson.EventToolResult:
			all = append(all, fmt.Sprintf("result %q %v", l.Result, l.IsError))
		case caisson.EventUsage:
			all = append(all, fmt.Sprintf("usage %+v", l.Usage.Tokens))
		}
	}
	return all
}

func TestACPTools(t *testing.T) {
	r := Do(t, Task(t, caisson.DriverACP, "acp/tools"))
	if r.Text != "I look.\n\nDone." || r.Code() != "" || r.End.Agent != "9.8" {
		t.Errorf("text %q, end %+v", r.Text, r.End)
	}
	want := []string{
		"running", "running plan: 1 of 2 done", "thinking", `start shell {"command":"ls"}`, `result "a.txt" false`,
		`start read {"title":"Read a.txt"}`, `result "no such file" true`, "usage {Input:7 Output:8 CacheRead:1 CacheWrite:0}",
	}
	if d := cmp.Diff(want, events(r)); d != "" {
		t.Error(d)
	}
}

func TestACPAsks(t *testing.T) {
	k := Task(t, caisson.DriverACP, "acp/asks")
	k.Tools = caisson.ToolRule{Deny: []string{"FETCH"}}
	r := Do(t, k)
	want := []string{
		`{"outcome":{"optionId":"once","outcome":"selected"}}`, `{"outcome":{"optionId":"no","outcome":"selected"}}`, `{"outcome":{"optionId":"once","outcome":"selected"}}`,
		`{"outcome":{"outcome":"cancelled"}}`, `{}`, `{"content":"2\n3\n"}`, `error "deep/f" is not an absolute path`, `error /dev/zero is no regular file`,
		`error open ` + k.Workdir + `/none: no such file or directory`, `error this client does not have the method terminal/create`,
		`error json: cannot unmarshal number into Go value of type drive.acpFile`,
	}
	if d := cmp.Diff(want, strings.Split(strings.ReplaceAll(strings.TrimSpace(r.Text), "\n\n", "\n"), "\n")); d != "" || r.Code() != "" {
		t.Errorf("%s %+v", d, r.End)
	}
	if b, err := os.ReadFile(filepath.Join(k.Workdir, "deep/f")); string(b) != "1\n2\n3\n4\n" {
		t.Errorf("%q, %v", b, err)
	}
	all := strings.Join(events(r), "\n")
	for _, s := range []string{"tool_use allowed: shell", "warning denied: fetch"} {
		if !strings.Contains(all, s) {
			t.Errorf("not said: %s\n%s", s, all)
		}
	}
	k = Task(t, caisson.DriverACP, "acp/asks")
	k.Tools = caisson.ToolRule{Allow: []string{"shell", "read"}}
	r = Do(t, k)
	if n := strings.Count(r.Text, `"optionId":"no"`); n != 2 || !strings.Contains(r.Text, "error fs/write_text_file is denied to this agent") {
		t.Errorf("%s", r.Text)
	}
}

func TestACPCancel(t *testing.T) {
	k := Task(t, caisson.DriverACP, "acp/cancelled")
	k.Time, k.Grace = caisson.Duration(2*time.Second), caisson.Duration(20*time.Second)
	r := Do(t, k)
	if r.Text != "so far, and cancelled" || r.Code() != caisson.RunTimeout {
		t.Errorf("text %q, %v", r.Text, r.End.Error)
	}
	if r.Took > 15*time.Second {
		t.Errorf("it took %v", r.Took)
	}
}

func TestACPErrors(t *testing.T) {
	for agent, want := range map[string]string{
		"stops/max_tokens": "all tokens", "stops/max_turn_requests": "all calls", "stops/refusal": "refuses", "stops/cancelled": "cancelled",
		"stops/of_tomorrow": "not known: of_tomorrow", "version": "version 2", "refuses": `Authentication required {"why":"no key"}`,
	} {
		r := Do(t, Task(t, caisson.DriverACP, "acp/"+agent))
		if r.Code() != caisson.RunAgentError || !strings.Contains(r.End.Error.Message, want) {
			t.Errorf("%s: %v", agent, r.End.Error)
		}
	}
	r := Do(t, Task(t, caisson.DriverACP, "acp/strings"))
	if r.Text != "fine" || r.Code() != "" || !strings.Contains(r.Logs[caisson.LogStdout], "starting up") {
		t.Errorf("text %q, %v, log %q", r.Text, r.End.Error, r.Logs)
	}
}

// TestACPSession: the agent's id of a conversation is kept, and messages of earlier turns are not repeated.
func TestACPSession(t *testing.T) {
	k := Task(t, caisson.DriverACP, "acp/answer")
	k.Session = "conversation"
	if r := Do(t, k); r.Text != "You said: the prompt" {
		t.Fatalf("text %q, %v", r.Text, r.End.Error)
	}
	k.Continue = true
	r := Do(t, k)
	if r.Text != "You said: the prompt" || strings.Contains(strings.Join(events(r), " "), "warning") {
		t.Errorf("text %q, %v", r.Text, events(r))
	}
	if left, err := os.ReadDir(k.Workdir); err != nil || len(left) > 0 {
		t.Errorf("in the workspace are %v, %v", left, err)
	}
	if err := os.Remove(filepath.Join(Home(k), ".caisson/acp-session")); err != nil {
		t.Fatal(err)
	}
	if r := Do(t, k); r.Text != "You said: the prompt" || !strings.Contains(strings.Join(events(r), " "), "does not remember") {
		t.Errorf("text %q, %v", r.Text, events(r))
	}
}
