package drive_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func init() {
	codex := func(f func(v *codexServerVoice)) func() {
		return func() {
			v := &codexServerVoice{acpVoice: newACPVoice()}
			v.ReadPrompt()
			f(v)
			for v.read().Method != "" { // until its input is closed
			}
		}
	}
	others["codex/tools"] = codex(func(v *codexServerVoice) {
		v.item("item/started", obj{"type": "commandExecution", "id": "c1", "command": "make", "status": "inProgress", "aggregatedOutput": nil, "exitCode": nil})
		v.item("item/completed", obj{"type": "commandExecution", "id": "c1", "command": "make", "status": "failed", "aggregatedOutput": "no rule", "exitCode": 2})
		v.item("item/completed", obj{"type": "fileChange", "id": "c2", "changes": []any{obj{"path": "a", "kind": obj{"type": "add"}}}, "status": "completed"})
		v.item("item/completed", obj{"type": "mcpToolCall", "id": "c3", "server": "s", "tool": "t", "arguments": obj{"a": 1}, "result": obj{"content": []any{obj{"type": "text", "text": "found"}}}})
		v.item("item/completed", obj{"type": "later", "result": 7})
		v.notify("turn/plan/updated", obj{"plan": []any{obj{"step": "a", "status": "completed"}, obj{"step": "b", "status": "pending"}}})
		v.notify("error", obj{"error": obj{"message": "connection lost"}, "willRetry": true})
		v.write(obj{"method": "item/agentMessage/delta", "params": obj{"threadId": "th-2", "delta": "of another thread"}})
		v.write(obj{"id": 7, "method": "item/commandExecution/requestApproval", "params": obj{"threadId": "th-1"}})
		v.Message("refused: " + string(v.read().Error))
		v.End()
	})
	others["codex/fails"] = codex(func(v *codexServerVoice) {
		v.end("failed", obj{"message": "exceeded retry limit, last status: 429 Too Many Requests"})
	})
	others["codex/exits"] = codex(func(*codexServerVoice) { os.Exit(3) })
	others["codex/interrupted"] = codex(func(v *codexServerVoice) {
		v.Delta("half")
		for r := v.read(); ; r = v.read() {
			if r.Method == "turn/interrupt" {
				v.write(obj{"id": r.ID, "result": obj{}})
				v.Delta(", interrupted")
				v.end("interrupted", nil)
				return
			}
		}
	})
}

func TestCodexServerItems(t *testing.T) {
	r := Do(t, Task(t, caisson.DriverCodex, "codex/tools"))
	if want := `refused: {"code":-32601,`; r.Code() != "" || !strings.HasPrefix(r.Text, want) || strings.Contains(r.Text, "another") || r.End.Agent != "9.8" {
		t.Errorf("text %q, end %+v", r.Text, r.End)
	}
	want := []string{
		"running", `start shell {"command":"make"}`, `result "no rule" true`, `start apply_patch {"changes":[{"kind":{"type":"add"},"path":"a"}]}`, `result "completed" false`,
		`start s.t {"a":1}`, `result "found" false`, "running plan: 1 of 2 done", "warning connection lost", "usage {Input:6 Output:3 CacheRead:4 CacheWrite:0}",
	}
	if d := cmp.Diff(want, events(r)); d != "" {
		t.Error(d)
	}
}

func TestCodexServerErrors(t *testing.T) {
	for agent, want := range map[string]string{"codex/fails": "429 Too Many Requests", "codex/exits": "exit code 3"} {
		r := Do(t, Task(t, caisson.DriverCodex, agent))
		if r.End == nil || r.End.Error == nil || !strings.Contains(r.End.Error.Message, want) {
			t.Errorf("%s: %v", agent, r.End.Error)
		}
	}
	k := Task(t, caisson.DriverCodex, "codex/interrupted")
	k.Time, k.Grace = caisson.Duration(2*time.Second), caisson.Duration(20*time.Second)
	if r := Do(t, k); r.Text != "half, interrupted" || r.Code() != caisson.RunTimeout || r.Took > 15*time.Second {
		t.Errorf("text %q, %v after %v", r.Text, r.End.Error, r.Took)
	}
}
