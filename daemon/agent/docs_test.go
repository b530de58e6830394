package agent_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/wire/egress"
)

// TestDocs: the example in the documentation is valid, and every field is explained.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, rest, ok := strings.Cut(example, "```\n")
	if !ok {
		t.Fatal("there is no example")
	}
	a, err := agent.Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []caisson.Policy{a.Policy, a.BuildPolicy} {
		if _, err := egress.Compile(p); err != nil {
			t.Error(err)
		}
	}
	for _, v := range []any{caisson.Agent{}, caisson.AgentLimits{}, caisson.Warm{}, caisson.Persona{}, caisson.ToolRule{}, caisson.SetupStep{}, caisson.SeedFile{}} {
		for i := range reflect.TypeOf(v).NumField() {
			name := reflect.TypeOf(v).Field(i).Tag.Get("yaml")
			if name != "-" && !strings.Contains(rest, "`"+name+"`") {
				t.Errorf("%T.%s is not explained", v, name)
			}
		}
	}
	for _, a := range agent.Builtin() {
		if !strings.Contains(rest, "| `"+a.ID+"` |") {
			t.Errorf("%s is not in the table of built-in agents", a.ID)
		}
	}
}
