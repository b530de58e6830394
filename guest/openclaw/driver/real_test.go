package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw/openclawtest"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

const script = `
turns:
- when: {last: use the tool, tool: exec}
  text: "Done: {{result}}"
- when: {last: use the tool}
  text: "I look."
  calls: [{name: exec, arguments: '{"command": "pwd; echo made > made.txt"}'}]
- when: {last: without end}
  text: "one two three four five six seven eight nine ten eleven twelve"
  chunk: 8
  break: {how: hang, after: 40}
- when: {last: which one, model: small}
  text: "I am small."
- when: {last: which one, model: large}
  text: "I am large."
- when: {last: of before, pattern: "(?s)."}
  text: "Nothing."
- when: {last: no money}
  error: {status: 402, message: "the budget is spent"}
fallback: {text: "You said: {{last}}"}
`

// TestRealGateway: prompts, tools, models, personas, sessions, cancellation and refusals through the real gateway.
func TestRealGateway(t *testing.T) {
	testneed.Full(t, "TestOpenClaw runs the real agent")
	url, rec := scriptedtest.Serve(t, script)
	h := openclawtest.New(t, openclaw.Setup{
		Agent: &caisson.Agent{ID: "openclaw", Personas: []caisson.Persona{
			{ID: "reviewer", Model: "large", Deny: []string{"exec"}, Instructions: "You only review, PERSONA-MARK."},
		}},
		Models: openclawtest.Models("small", "large"),
	}, url+"/v1")
	h.Start(t)
	turn := func(t *testing.T, tk task.Task) *recorded {
		t.Helper()
		tk.Port, tk.Workdir, tk.Output = h.Port, h.Workdir, 1<<20
		tk.Time, tk.Grace = caisson.Duration(90*time.Second), caisson.Duration(5*time.Second)
		return run(t, t.Context(), &tk, nil)
	}

	t.Run("tool", func(t *testing.T) {
		r := turn(t, task.Task{Prompt: "please use the tool", Model: "small"})
		if r.end.Error != nil || r.text != "I look.\n\nDone: "+h.Workdir {
			t.Errorf("answer %q, %v", r.text, r.end.Error)
		}
		if b, err := os.ReadFile(filepath.Join(h.Workdir, "made.txt")); err != nil || string(b) != "made\n" {
			t.Errorf("the tool's file: %q, %v", b, err)
		}
		if got := strings.Join(r.tools, " "); got != "start:exec result:"+h.Workdir {
			t.Errorf("tools: %q", got)
		}
		for _, c := range rec.Calls() {
			if c.Header.Get("Connection") != "close" {
				t.Errorf("%s %s keeps its connection, which a snapshot would have: %v", c.Method, c.Path, c.Header)
			}
		}
		if r.end.Agent != openclaw.Version || r.usage == nil || r.usage.Calls != 2 || r.usage.Tokens.Output == 0 {
			t.Errorf("version %q, usage %+v", r.end.Agent, r.usage)
		}
	})
	t.Run("persona and model", func(t *testing.T) {
		r := turn(t, task.Task{Prompt: "which one are you?", Persona: "reviewer"})
		if r.text != "I am large." {
			t.Errorf("the persona's model: %q, %v", r.text, r.end.Error)
		}
		body := lastBody(rec)
		if !strings.Contains(body, "PERSONA-MARK") || strings.Contains(body, `"name":"exec"`) || !strings.Contains(body, `"name":"read"`) {
			t.Errorf("the persona has not its instructions and tools: %.3000s", body)
		}
		if r := turn(t, task.Task{Prompt: "which one are you?", Persona: "reviewer", Model: "small"}); r.text != "I am small." {
			t.Errorf("the run's model: %q, %v", r.text, r.end.Error)
		}
	})
	t.Run("session", func(t *testing.T) {
		turn(t, task.Task{Prompt: "remember FIRST-MARK", Session: "A b:1"})
		turn(t, task.Task{Prompt: "of another", Session: "a b:1"})
		if strings.Contains(lastBody(rec), "FIRST-MARK") {
			t.Error("two sessions share a conversation")
		}
		turn(t, task.Task{Prompt: "and now?", Session: "A b:1", Continue: true})
		if !strings.Contains(lastBody(rec), "FIRST-MARK") {
			t.Error("the session has forgotten")
		}
		turn(t, task.Task{Prompt: "now?", Session: "new", History: []caisson.Message{{Role: "user", Content: "HISTORY-MARK"}}})
		if !strings.Contains(lastBody(rec), "HISTORY-MARK") {
			t.Error("the history is not told")
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tk := &task.Task{Prompt: "without end", Port: h.Port, Workdir: h.Workdir, Output: 1 << 20, Time: caisson.Duration(time.Minute), Grace: caisson.Duration(10 * time.Second)}
		r := run(t, ctx, tk, func(text string) {
			if strings.Contains(text, "three") {
				cancel()
			}
		})
		if r.end.Error == nil || r.end.Error.Code != caisson.RunAborted || !strings.Contains(r.text, "one two three") {
			t.Errorf("%q, %v", r.text, r.end.Error)
		}
		// The conversation accepts the next turn, because the gateway has ended the run.
		if r := turn(t, task.Task{Prompt: "hello again"}); r.end.Error != nil || !strings.Contains(r.text, "hello again") {
			t.Errorf("after a cancelled turn: %q, %v", r.text, r.end.Error)
		}
	})
	t.Run("refused", func(t *testing.T) { // the last one, because OpenClaw then refuses calls for ten minutes
		r := turn(t, task.Task{Prompt: "no money", Session: "money"})
		if r.end.Error == nil || r.end.Error.Code != caisson.RunNoCredits || r.text != "" {
			t.Errorf("%q, %v", r.text, r.end.Error)
		}
	})
}

// TestRealCommandLine: a turn without a gateway.
func TestRealCommandLine(t *testing.T) {
	testneed.Full(t, "TestOpenClaw runs the real agent")
	url, _ := scriptedtest.Serve(t, script)
	h := openclawtest.New(t, openclaw.Setup{Agent: &caisson.Agent{ID: "openclaw"}, Models: openclawtest.Models("small")}, url+"/v1")
	command := h.Local(openclaw.Command())
	for i, a := range command {
		command[i] = strings.NewReplacer("{persona}", "main", "{model}", "small").Replace(a)
	}
	env := map[string]string{}
	for _, kv := range h.Env() {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	h.WritePreload(t)
	r := run(t, t.Context(), &task.Task{
		Prompt: "please use the tool", Model: "small", Command: command, PromptMode: caisson.PromptFile, Env: env, Port: h.Port,
		Workdir: h.Workdir, Output: 1 << 20, Time: caisson.Duration(2 * time.Minute), Grace: caisson.Duration(5 * time.Second),
	}, nil)
	if r.end.Error != nil || !strings.HasSuffix(r.text, "Done: "+h.Workdir) || r.end.Exit == nil || r.end.Exit.Code != 0 {
		t.Errorf("%q, %v, %+v\n%s", r.text, r.end.Error, r.end.Exit, r.log.String())
	}
	if len(r.warnings) != 1 || r.usage == nil || r.usage.Calls != 2 {
		t.Errorf("warnings %q, usage %+v", r.warnings, r.usage)
	}
}

func lastBody(rec *scriptedtest.Recorder) string {
	calls := rec.Calls()
	if len(calls) == 0 {
		return ""
	}
	return string(calls[len(calls)-1].Body)
}
