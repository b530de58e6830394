package coder_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/wire/llm/anthropic"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/gemini"
	"github.com/caisson-dev/caisson/wire/llm/openai"
)

// TestFixesAFailingTest covers the main task, from the prompt to a repository whose tests pass.
func TestFixesAFailingTest(t *testing.T) {
	for _, api := range apis {
		t.Run(api.name, func(t *testing.T) { fixesAFailingTest(t, api.name) })
	}
}

func fixesAFailingTest(t *testing.T, api string) {
	args, dir, calls := serve(t, sample.Script, "--api", api)
	if err := sample.Write(dir); err != nil {
		t.Fatal(err)
	}
	d := work(t, sample.Prompt, args...)
	if a := d.answer(t); !strings.Contains(a, sample.Answer) {
		t.Errorf("answer %q", a)
	}
	if got := readFile(t, filepath.Join(dir, "roman.sh")); !strings.Contains(got, "\n4 IV\n") {
		t.Errorf("not fixed:\n%s", got)
	}
	var tools []string
	for _, e := range d.of(caisson.EventToolResult) {
		tools = append(tools, fmt.Sprint(e.IsError))
	}
	if got := strings.Join(tools, " "); got != "false true false false false" {
		t.Errorf("errors of tools: %s", got)
	}
	usage := d.of(caisson.EventUsage)
	last := usage[len(usage)-1].Usage
	if n, billed := calls.Billed(); n != 5 || last.Calls != 5 || last.Tokens != billed {
		t.Errorf("says %+v, billed %+v in %d calls", last, billed, n)
	}
	if d.stderr != "" {
		t.Errorf("stderr: %s", d.stderr)
	}
}

// apis are the APIs that the agent implements, with the gateway's implementation of each.
var apis = []struct {
	name    string
	dialect dialect.Dialect
	path    string
	off     string // part of a request in which no tool may be called
}{
	{"openai", openai.New(), "/v1/chat/completions", `"tool_choice":"none"`},
	{"anthropic", anthropic.New(), "/v1/messages", `"tool_choice":{"type":"none"}`},
	{"gemini", gemini.New(), "/v1beta/models/m:streamGenerateContent?alt=sse", `"functionCallingConfig":{"mode":"NONE"}`},
}

// TestGatewayAllowsEveryField: the gateway neither drops nor refuses any field that the agent sends.
func TestGatewayAllowsEveryField(t *testing.T) {
	for _, api := range apis {
		t.Run(api.name, func(t *testing.T) {
			args, dir, calls := serve(t, sample.Script, "--tools-url", "http://tools.caisson.internal", "--api", api.name)
			if err := sample.Write(dir); err != nil {
				t.Fatal(err)
			}
			work(t, sample.Prompt, args...).answer(t)
			for _, c := range calls.Calls() {
				if c.Path != api.path {
					t.Errorf("the path is %s", c.Path)
				}
				path, query, _ := strings.Cut(c.Path, "?")
				e, ok := api.dialect.Endpoint("POST", path)
				if !ok || e.Query != query {
					t.Fatalf("%s is no call that the gateway serves", c.Path)
				}
				req, err := api.dialect.Parse(e, c.Body, dialect.Allow{})
				if err != nil {
					t.Fatal(err)
				}
				if !req.Stream() || req.Model() != "m" {
					t.Errorf("the gateway reads model %q, stream %v", req.Model(), req.Stream())
				}
			}
		})
	}
}

// TestParallelCalls: all calls of an answer are executed, and all results are in one request.
func TestParallelCalls(t *testing.T) {
	for _, api := range apis {
		t.Run(api.name, func(t *testing.T) {
			args, dir, calls := serve(t, `
chunk: 3
turns:
- text: "Both at once."
  calls: [{name: write, arguments: '{"path": "a", "content": "{\"ü\": 1}"}'}, {name: read, arguments: '{"path": "none"}'}, {name: shell, arguments: '{"command": "echo so"}'}]
- {when: {tool: read, result: no such file}, calls: [{name: read, arguments: '{"path": "a"}'}]}
- {when: {tool: read, result: "ü"}, text: "done: {{result}}"}
`, "--api", api.name)
			d := work(t, "go", args...)
			if a := d.answer(t); !strings.Contains(a, `{"ü": 1}`) {
				t.Errorf("answer %q", a)
			}
			if got := readFile(t, filepath.Join(dir, "a")); got != `{"ü": 1}` {
				t.Errorf("the file has %q", got)
			}
			if n := len(calls.Calls()); n != 3 || len(d.of(caisson.EventToolResult)) != 4 {
				t.Errorf("%d calls of the model, %d results", n, len(d.of(caisson.EventToolResult)))
			}
		})
	}
}

func TestSystemPromptSaysWhereItIs(t *testing.T) {
	args, dir, calls := serve(t, "fallback: {text: ok}")
	if err := os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("Use tabs.\x1b[31m"+strings.Repeat("x", 100<<10)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("AGENTS.md", filepath.Join(dir, "CLAUDE.md")); err != nil {
		t.Fatal(err)
	}
	work(t, "hello", args...).answer(t)
	system := messages(t, calls.Calls()[0].Body)[0].Content
	for _, want := range []string{"Workspace: " + dir, "linux/", "Use tabs.", "[cut here"} {
		if !strings.Contains(system, want) {
			t.Errorf("no %q in the system prompt:\n%.3000s", want, system)
		}
	}
	if strings.Contains(system, "\x1b") || strings.Count(system, "Use tabs") != 1 || len(system) > 24<<10 {
		t.Errorf("%d bytes, not clean, or said twice", len(system))
	}
}

type sent struct {
	Role       string
	Content    string
	ToolCalls  []struct{ ID string } `json:"tool_calls"`
	ToolCallID string                `json:"tool_call_id"`
}

func messages(t testing.TB, body []byte) []sent {
	t.Helper()
	var req struct{ Messages []sent }
	if err := json.Unmarshal(body, &req); err != nil {
		t.Fatal(err)
	}
	return req.Messages
}

func TestEndsAtTheLimitOfSteps(t *testing.T) {
	for _, api := range apis {
		t.Run(api.name, func(t *testing.T) { endsAtTheLimitOfSteps(t, api.name, api.off) })
	}
}

func endsAtTheLimitOfSteps(t *testing.T, api, off string) {
	args, _, calls := serve(t, `
turns:
- {when: {last: "All 3 steps"}, text: "I listed a lot."}
- {calls: [{name: list}], repeat: true}
`, "--steps", "3", "--api", api)
	d := work(t, "go", args...)
	if a := d.answer(t); a != "I listed a lot." {
		t.Errorf("answer %q", a)
	}
	if n := len(calls.Calls()); n != 4 {
		t.Errorf("%d calls", n)
	}
	if body := string(calls.Calls()[3].Body); !strings.Contains(body, off) {
		t.Error("tools are not off at the end")
	}
}

// TestModelThatNeverStops: the model calls tools even when they are off.
func TestModelThatNeverStops(t *testing.T) {
	args, _, _ := serve(t, `turns: [{calls: [{name: list}], repeat: true}]`, "--steps", "2")
	if e := work(t, "go", args...).failure(t); e.Code != caisson.RunAgentError {
		t.Errorf("%+v", e)
	}
}

func TestBadCallsAreAnswered(t *testing.T) {
	args, _, calls := serve(t, `
turns:
- {calls: [{name: list, arguments: '{"depth": {}}'}, {name: list, arguments: '{"path": "none"}'}], repeat: false}
- {text: "done: {{result}}"}
`)
	d := work(t, "go", args...)
	a := d.answer(t)
	for _, want := range []string{"are not as they should be", "no such file"} {
		if !strings.Contains(a, want) {
			t.Errorf("no %q in %q", want, a)
		}
	}
	if n := len(calls.Calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
}

func TestEndsWhenItIsStuck(t *testing.T) {
	args, _, calls := serve(t, `turns: [{calls: [{name: read, arguments: '{"path": "none"}'}], repeat: true}]`)
	d := work(t, "go", args...)
	if e := d.failure(t); e.Code != caisson.RunAgentError || !strings.Contains(e.Message, "repeats") {
		t.Errorf("%+v", e)
	}
	results := d.of(caisson.EventToolResult)
	if len(results) != 6 || strings.Contains(results[1].Result, "Do not repeat") || !strings.Contains(results[2].Result, "Do not repeat") {
		t.Errorf("%d results: %+v", len(results), results)
	}
	if n := len(calls.Calls()); n != 6 {
		t.Errorf("%d calls", n)
	}
}

// TestTestsThatFailBetweenEditsAreWork: the same command may fail often if something was changed in between.
func TestTestsThatFailBetweenEditsAreWork(t *testing.T) {
	var script strings.Builder
	script.WriteString("turns:\n")
	for i := range 8 {
		fmt.Fprintf(&script, "- calls: [{name: write, arguments: '{\"path\": \"a\", \"content\": \"%d\"}'}, {name: shell, arguments: '{\"command\": \"exit 1\"}'}]\n", i)
	}
	script.WriteString("- text: done\n")
	args, _, _ := serve(t, script.String())
	if a := work(t, "go", args...).answer(t); a != "done" {
		t.Errorf("answer %q", a)
	}
}

func TestToolsAreAllowedAndDenied(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{nil, "edit list read search shell write"},
		{[]string{"--tools-url", "http://tools.caisson.internal"}, "edit list list_agents read run_agent search shell write"},
		{[]string{"--allow", "read,list, search"}, "list read search"},
		{[]string{"--deny", "shell,run_agent"}, "edit list read search write"},
		{[]string{"--allow", "read,shell", "--deny", "shell"}, "read"},
		{[]string{"--deny", "edit,list,read,search,shell,write"}, ""},
	} {
		args, dir, calls := serve(t, `
turns: [{when: {last: run}, calls: [{name: shell, arguments: '{"command": "touch ran"}'}]}]
fallback: {text: ok}`, row.args...)
		work(t, "run", args...).answer(t)
		var req struct {
			Tools []struct{ Function struct{ Name string } }
		}
		if err := json.Unmarshal(calls.Calls()[0].Body, &req); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range req.Tools {
			names = append(names, tool.Function.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != row.want {
			t.Errorf("%v: %s, want %s", row.args, got, row.want)
		}
		_, err := os.Stat(filepath.Join(dir, "ran"))
		if ran := err == nil; ran != slices.Contains(names, "shell") {
			t.Errorf("%v: the shell ran: %v", row.args, ran)
		}
	}
}

func TestArguments(t *testing.T) {
	dir := t.TempDir()
	for _, row := range []struct {
		args []string
		in   string
		want string
	}{
		{nil, "go", "--model is missing"},
		{[]string{"--model", "m", "--none"}, "go", "not defined"},
		{[]string{"--model", "m", "go"}, "go", "standard input"},
		{[]string{"--model", "m", "--steps", "0"}, "go", "--steps"},
		{[]string{"--model", "m", "--context", "10"}, "go", "--context"},
		{[]string{"--model", "m", "--session", "a"}, "go", "--state"},
		{[]string{"--model", "m", "--session", "a/../b", "--state", dir}, "go", "--session"},
		{[]string{"--model", "m", "--workspace", dir + "/none"}, "go", "--workspace"},
		{[]string{"--model", "m", "--gateway", "https://x"}, "go", "http://"},
		{[]string{"--model", "m", "--gateway", "http://a b"}, "go", "does not have the form"},
		{[]string{"--model", "m", "--deny", "shel"}, "go", "no tool"},
		{[]string{"--model", "m", "--api", "cohere"}, "go", "is not openai, anthropic or gemini"},
		{[]string{"--model", "a/m", "--api", "gemini"}, "go", "part of a path"},
		{[]string{"--model", "m"}, " \n", "prompt is empty"},
		{[]string{"--model", "m"}, strings.Repeat("x", 2<<20+1), "2 MiB"},
	} {
		d := work(t, row.in, append([]string{"--workspace", dir}, row.args...)...)
		if e := d.failure(t); e.Code != caisson.RunInvalid || !strings.Contains(e.Message, row.want) {
			t.Errorf("%v: %+v, want %q", row.args, e, row.want)
		}
		if !strings.Contains(d.stderr, row.want) {
			t.Errorf("%v: stderr %q", row.args, d.stderr)
		}
	}
}
