package test_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

func TestAgentCodex(t *testing.T) { testAgent(t, "codex", "base") }

func TestAgentClaudeCode(t *testing.T) {
	testneed.Full(t, "TestAgentCodex runs a real coding agent")
	testAgent(t, "claude-code", "sonnet")
}

func TestAgentOpenCode(t *testing.T) {
	testneed.Full(t, "TestAgentCodex runs a real coding agent")
	testAgent(t, "opencode", "base")
}

func TestAgentGeminiCLI(t *testing.T) {
	testneed.Full(t, "TestAgentCodex runs a real coding agent")
	testAgent(t, "gemini-cli", "flash")
}

func TestAgentQwenCode(t *testing.T) {
	testneed.Full(t, "TestAgentCodex runs a real coding agent")
	testAgent(t, "qwen-code", "base")
}

func TestAgentPi(t *testing.T) {
	testneed.Full(t, "TestAgentCodex runs a real coding agent")
	testAgent(t, "pi", "base")
}

// testAgent tests that a real agent from npm uses its tool, changes a file and answers, and that in a session it has
// the earlier conversation.
func testAgent(t *testing.T, id, model string) {
	t.Parallel()
	h := newAgentHost(t)
	h.make(id, false)
	a := shows[caisson.Agent](h.host, "agent", "show", id)
	if !a.Status.Built || a.Status.Problem != "" {
		t.Fatalf("after it was built the agent is %+v", a.Status)
	}
	dir := h.project("of " + id)
	before := h.tree(dir)
	flags := []string{"--model", model, "--session", "s", id}
	r := h.succeeds(append([]string{"-C", dir}, append(flags, "Make the file, "+id+", please. Remember the word heron.")...)...)
	if !strings.Contains(r.Result.Answer, "I make it.") || !strings.Contains(r.Result.Answer, "The file is there") || !strings.Contains(r.Result.Answer, "given by the host") {
		t.Errorf("the answer is %q", r.Result.Answer)
	}
	if changed(r, "made.txt") != "added" || len(r.Result.Changes) != 1 {
		t.Errorf("it has changed %+v", r.Result.Changes)
	}
	if after := h.tree(dir); after != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, after)
	}
	if v := r.Result.Versions; v["agent"] != a.Version || v["digest"] == "" {
		t.Errorf("its versions are %v, not %s", v, a.Version)
	}
	tools, parts := 0, 0
	for _, e := range h.happened(r.ID) {
		if e.Type == caisson.EventTextDelta {
			parts++
		}
		if e.Type == caisson.EventToolStart || e.Type == caisson.EventToolResult && strings.Contains(e.Result, "given by the host") {
			tools++
		}
	}
	if tools != 2 {
		t.Errorf("the call of the tool is not told: %+v", h.happened(r.ID))
	}
	if id == "codex" && parts < 5 { // two messages
		t.Errorf("the answer arrived in %d parts", parts)
	}
	h.counted(r, model)
	r = h.succeeds(append(flags, "Which word was it, "+id+"?")...)
	if !strings.Contains(r.Result.Answer, "The file says: made by a tool") && !strings.Contains(r.Result.Answer, "made by a tool") {
		t.Errorf("in the session it says %q", r.Result.Answer)
	}
	if len(r.Result.Changes) != 1 {
		t.Errorf("after two turns it has changed %+v", r.Result.Changes)
	}
	calls := h.counted(r, model)
	if len(calls) == 0 || !bytes.Contains(calls[0].Body, []byte("/root/.caisson/conversation.md")) {
		t.Errorf("the model is not told what was said before: %d calls", len(calls))
	}
	h.ok("session", "rm", string(r.Session))
}

// counted is accounts for models of any provider. A provider that does not receive the run's ID has calls of one agent
// only, here of one run at a time.
func (h *agentHost) counted(r caisson.Run, model string) []scriptedtest.Call {
	h.t.Helper()
	var provider *upstream
	switch model {
	case "sonnet":
		provider = h.claude
	case "flash":
		provider = h.gemini
	default:
		return h.accounts(r)
	}
	calls := provider.Calls()
	_, tokens := provider.Billed()
	provider.Reset()
	if u := r.Result.Usage; u.Tokens != tokens || u.Calls < int64(len(calls)) || u.Cost == 0 || u.Estimated {
		h.t.Errorf("run %s: the model counted %+v in %d calls, the run says %+v", r.ID, tokens, len(calls), u)
	}
	if sum := h.total("--run", string(r.ID)); sum.Cost != r.Result.Usage.Cost || sum.Calls != r.Result.Usage.Calls {
		h.t.Errorf("run %s: the ledger has %+v, the run says %+v", r.ID, sum, r.Result.Usage)
	}
	return calls
}
