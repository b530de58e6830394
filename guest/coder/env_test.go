package coder_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestToolsOfTheRun: the environment, as set by package runs, determines the available tools; flags take precedence.
func TestToolsOfTheRun(t *testing.T) {
	for _, row := range []struct {
		name             string
		url, allow, deny string
		args             []string
		want             string // tools, in the order of the request
	}{
		{name: "all", url: "http://tools.caisson.internal", want: "shell read write edit list search run_agent list_agents"},
		{name: "no sub-runs", want: "shell read write edit list search"},
		{name: "allowed", url: "http://tools.caisson.internal", allow: "read,run_agent", want: "read run_agent"},
		{name: "denied", url: "http://tools.caisson.internal", deny: "shell,run_agent", want: "read write edit list search list_agents"},
		{name: "flags", url: "http://tools.caisson.internal", allow: "read", deny: "list", args: []string{"--allow", "shell,list", "--deny", "", "--tools-url", ""}, want: "shell list"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("CAISSON_TOOLS_URL", row.url)
			t.Setenv("CAISSON_TOOLS_ALLOW", row.allow)
			t.Setenv("CAISSON_TOOLS_DENY", row.deny)
			args, _, calls := serve(t, "fallback: {text: ok}", row.args...)
			work(t, "hello", args...).answer(t)
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
			if got := strings.Join(names, " "); got != row.want {
				t.Errorf("the model is offered %q, want %q", got, row.want)
			}
		})
	}
}

// TestToolsOfTheRunAreChecked: a rule without effect, or an invalid URL, is reported before the task starts.
func TestToolsOfTheRunAreChecked(t *testing.T) {
	for name, value := range map[string]string{"CAISSON_TOOLS_URL": "https://elsewhere", "CAISSON_TOOLS_ALLOW": "no_such_tool", "CAISSON_TOOLS_DENY": "shel"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			args, _, calls := serve(t, "fallback: {text: ok}")
			d := work(t, "hello", args...)
			if d.code == 0 || len(d.of(caisson.EventError)) != 1 || len(calls.Calls()) != 0 {
				t.Errorf("exit code %d, %d calls: %s", d.code, len(calls.Calls()), d.raw)
			}
		})
	}
}
