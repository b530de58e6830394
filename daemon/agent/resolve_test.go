package agent_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

func ours() *caisson.Agent {
	return &caisson.Agent{
		ID: "ours", Name: "Ours", Image: "host", Driver: caisson.DriverExec,
		Command: []string{"/bin/agent", "--model={model}", "--as", "{persona}", "--in", "{workspace}", "--of", "{session}", "{{x}}", "{prompt}"},
		Env:     map[string]string{"A": "agent", "B": "agent"}, Models: []string{"big", "small", "gone"},
		Personas: []caisson.Persona{{ID: "critic", Model: "small"}},
		Limits:   caisson.AgentLimits{Time: caisson.Duration(time.Hour), Cost: new(caisson.USD(caisson.Dollar)), Calls: new(int64(10))},
		Policy:   caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: "example.com"}}},
	}
}

// models returns models of a provider of that kind.
func models(kind string, aliases ...string) (list []caisson.GatewayModel) {
	for _, a := range aliases {
		list = append(list, caisson.GatewayModel{Model: caisson.Model{Alias: a}, Kind: kind})
	}
	return list
}

var common = agent.Defaults{Models: models("", "other", "small", "big"), Limits: caisson.AgentLimits{Memory: 1 << 30, Calls: new(int64(50))}}

var (
	token = caisson.Caller{Account: "a", Token: "tk-aaaaaaaaaaaaaaaa"}
	local = caisson.Caller{Account: "a", Local: true}
)

// TestResolve: values of the request take precedence over the agent's, and those over the defaults.
func TestResolve(t *testing.T) {
	s, err := agent.Resolve(ours(), caisson.RunRequest{Session: "chat:1"}, common, token)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/bin/agent", "--model=big", "--as", "main", "--in", "/workspace", "--of", "chat:1", "{x}", "{prompt}"}
	if !slices.Equal(s.Command, want) || s.Model != "big" || !slices.Equal(s.Models, []string{"big", "small"}) || s.Persona != nil {
		t.Errorf("%+v", s)
	}
	builtin := caisson.DefaultAgentLimits()
	if s.Limits.Time != caisson.Duration(time.Hour) || *s.Limits.Calls != 10 || s.Limits.Memory != 1<<30 || s.Limits.Disk != builtin.Disk || *s.Limits.Cost != caisson.Dollar {
		t.Errorf("limits %+v", s.Limits)
	}
	if s.Env["A"] != "agent" || s.Env["CAISSON_MODEL"] != "big" || s.Env["CAISSON_SESSION"] != "chat:1" || s.Env["CAISSON_PERSONA"] != "main" || s.Env["CAISSON_WORKSPACE"] != "/workspace" {
		t.Errorf("environment %v", s.Env)
	}
	if len(s.Policy.Rules) != 1 {
		t.Errorf("policy %+v", s.Policy)
	}
	a := ours()
	s, err = agent.Resolve(a, caisson.RunRequest{
		Persona: "critic", Env: map[string]string{"B": "request", "OPENAI_API_KEY": "is the caller's to send"}, Policy: &caisson.Policy{},
		Limits: caisson.AgentLimits{Calls: new(int64(5)), Time: caisson.Duration(time.Minute), Tokens: new(int64(1000))},
	}, common, token)
	if err != nil {
		t.Fatal(err)
	}
	if s.Persona == nil || s.Persona.ID != "critic" || s.Model != "small" || !slices.Equal(s.Models, []string{"small", "big"}) || s.Command[3] != "critic" {
		t.Errorf("%+v", s)
	}
	if s.Env["A"] != "agent" || s.Env["B"] != "request" || s.Env["OPENAI_API_KEY"] == "" || len(a.Env) != 2 || len(s.Policy.Rules) != 0 {
		t.Errorf("environment %v, of the agent %v, policy %+v", s.Env, a.Env, s.Policy)
	}
	if *s.Limits.Calls != 5 || s.Limits.Time != caisson.Duration(time.Minute) || *s.Limits.Tokens != 1000 {
		t.Errorf("limits %+v", s.Limits)
	}
	if common.Models[0].Alias != "other" || a.Models[0] != "big" {
		t.Error("what was given has changed")
	}
}

// TestResolveZero: a limit of zero is a limit, in a request and in an agent's file, over a token and locally.
func TestResolveZero(t *testing.T) {
	a := ours()
	a.Limits.Runs = new(int64(0))
	for _, caller := range []caisson.Caller{token, local} {
		s, err := agent.Resolve(a, caisson.RunRequest{
			Limits: caisson.AgentLimits{Cost: new(caisson.USD(0)), Calls: new(int64(0)), Tokens: new(int64(0))},
		}, common, caller)
		if err != nil {
			t.Fatal(err)
		}
		if l := s.Limits; *l.Cost != 0 || *l.Calls != 0 || *l.Tokens != 0 || *l.Runs != 0 {
			t.Errorf("%+v", l)
		}
	}
	a.Limits.Calls = new(int64(0))
	_, err := agent.Resolve(a, caisson.RunRequest{Limits: caisson.AgentLimits{Calls: new(int64(1))}}, common, token)
	wantKind(t, err, caisson.Denied, "limits.calls: is wider than 0")
}

// TestResolveWithin: over a token, the limits of an agent that an account has stored are capped at the defaults.
func TestResolveWithin(t *testing.T) {
	a := ours() // limits: an hour, a dollar and 10 calls
	a.Account, a.Limits.Memory, a.Limits.Runs = "a", 64<<30, new(int64(1<<40))
	builtin := caisson.DefaultAgentLimits()
	s, err := agent.Resolve(a, caisson.RunRequest{}, common, token)
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Limits; l.Time != builtin.Time || l.Memory != common.Limits.Memory || *l.Runs != *builtin.Runs || *l.Calls != 10 || *l.Cost != caisson.Dollar {
		t.Errorf("over a token %+v", l)
	}
	_, err = agent.Resolve(a, caisson.RunRequest{Limits: caisson.AgentLimits{Memory: 2 << 30}}, common, token)
	wantKind(t, err, caisson.Denied, "limits.memory")
	_, err = agent.Resolve(a, caisson.RunRequest{Limits: caisson.AgentLimits{Memory: 2 << 30}}, common, caisson.DaemonCaller("a", "test"))
	wantKind(t, err, caisson.Denied, "limits.memory")
	for _, caller := range []caisson.Caller{local, caisson.HostCaller("a", "test")} {
		s, err = agent.Resolve(a, caisson.RunRequest{}, common, caller)
		if err != nil || s.Limits.Memory != 64<<30 || s.Limits.Time != a.Limits.Time {
			t.Errorf("%+v: %+v, %v", caller, s, err)
		}
	}
	if a.Limits.Memory != 64<<30 {
		t.Error("the agent has changed")
	}
}

func TestResolveRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		req   caisson.RunRequest
		kind  caisson.Kind
		words string
	}{
		{"persona", caisson.RunRequest{Persona: "poet"}, caisson.Invalid, "it has main, critic"},
		{"unknown model", caisson.RunRequest{Model: "huge"}, caisson.Invalid, `there is no model "huge"; ours may use big, small`},
		{"model of others", caisson.RunRequest{Model: "other"}, caisson.Invalid, "it may use big, small"},
		{"model that is gone", caisson.RunRequest{Model: "gone"}, caisson.Invalid, "model"},
		{"name of a variable", caisson.RunRequest{Env: map[string]string{"A=B": "x"}}, caisson.Invalid, "variable"},
		{"variable of ours", caisson.RunRequest{Env: map[string]string{"CAISSON_MODEL": "x"}}, caisson.Invalid, "env.CAISSON_MODEL"},
		{"NUL", caisson.RunRequest{Env: map[string]string{"A": "x\x00y"}}, caisson.Invalid, "env.A"},
		{"session", caisson.RunRequest{Session: "{prompt}"}, caisson.Invalid, "session"},
		{"long session", caisson.RunRequest{Session: strings.Repeat("a", 513)}, caisson.Invalid, "session"},
		{"policy", caisson.RunRequest{Policy: &caisson.Policy{Rules: []caisson.Rule{{}}}}, caisson.Invalid, "policy.rules[0]"},
		{"negative", caisson.RunRequest{Limits: caisson.AgentLimits{Calls: new(int64(-1))}}, caisson.Invalid, "limits.calls"},
		{"little", caisson.RunRequest{Limits: caisson.AgentLimits{Memory: 1}}, caisson.Invalid, "limits.memory"},
		{"more calls", caisson.RunRequest{Limits: caisson.AgentLimits{Calls: new(int64(11))}}, caisson.Denied, "limits.calls: is wider than 10"},
		{"more money", caisson.RunRequest{Limits: caisson.AgentLimits{Cost: new(caisson.USD(2 * caisson.Dollar))}}, caisson.Denied, "limits.cost"},
		{"more time", caisson.RunRequest{Limits: caisson.AgentLimits{Time: caisson.Duration(2 * time.Hour)}}, caisson.Denied, "limits.time"},
		{"more memory than by default", caisson.RunRequest{Limits: caisson.AgentLimits{Memory: 2 << 30}}, caisson.Denied, "limits.memory"},
		{"more runs", caisson.RunRequest{Limits: caisson.AgentLimits{Runs: new(int64(1 << 40))}}, caisson.Denied, "limits.runs"},
	} {
		_, err := agent.Resolve(ours(), c.req, common, token)
		if wantKind(t, err, c.kind, c.words); t.Failed() {
			t.Fatal(c.name)
		}
		if _, err := agent.Resolve(ours(), c.req, common, local); (err == nil) != (c.kind == caisson.Denied) {
			t.Errorf("%s over the unix socket: %v", c.name, err)
		}
	}
}

// TestResolveToolRules: a tool rule that cannot be enforced, but was stored before such rules were refused, makes the runs fail
// to which it applies.
// TestResolveGateway: a request can lower the rate and, over a token, allow nothing that the agent does not.
func TestResolveGateway(t *testing.T) {
	a := ours()
	a.Gateway = caisson.GatewayUse{Rate: caisson.Rate{Requests: 10}, Allow: []string{caisson.GrantBeta}}
	asked := &caisson.GatewayUse{Rate: caisson.Rate{Requests: 20, Tokens: 1000}, Allow: []string{caisson.GrantProviderTools}, Record: true}
	s, err := agent.Resolve(a, caisson.RunRequest{Prompt: "x", Gateway: asked}, common, local)
	want := caisson.GatewayUse{Rate: caisson.Rate{Requests: 10, Tokens: 1000}, Allow: []string{caisson.GrantBeta, caisson.GrantProviderTools}, Record: true}
	if err != nil || !reflect.DeepEqual(s.Gateway, want) || len(a.Gateway.Allow) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = agent.Resolve(a, caisson.RunRequest{Prompt: "x", Gateway: asked}, common, token)
	wantKind(t, err, caisson.Denied, `gateway.allow: "provider-tools" is not in the agent's gateway.allow`)
	asked.Allow = a.Gateway.Allow
	if s, err = agent.Resolve(a, caisson.RunRequest{Prompt: "x", Gateway: asked}, common, token); err != nil || len(s.Gateway.Allow) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []caisson.GatewayUse{{Allow: []string{"everything"}}, {Rate: caisson.Rate{Tokens: -1}}, {Allow: make([]string, 5)}} {
		_, err = agent.Resolve(a, caisson.RunRequest{Prompt: "x", Gateway: &bad}, common, local)
		wantKind(t, err, caisson.Invalid, "gateway.")
	}
}

func TestResolveToolRules(t *testing.T) {
	a := ours()
	a.Personas = append(a.Personas, caisson.Persona{ID: "reader", Deny: []string{"bash"}})
	for _, persona := range []string{"", "main", "critic"} {
		if _, err := agent.Resolve(a, caisson.RunRequest{Persona: persona}, common, token); err != nil {
			t.Errorf("persona %q without a rule: %v", persona, err)
		}
	}
	_, err := agent.Resolve(a, caisson.RunRequest{Persona: "reader"}, common, token)
	wantKind(t, err, caisson.Invalid, "persona: cannot be enforced")
	a.Tools.Deny = []string{"bash"}
	_, err = agent.Resolve(a, caisson.RunRequest{}, common, token)
	wantKind(t, err, caisson.Invalid, "tools: cannot be enforced")
	a.Driver, a.Tools = caisson.DriverOpenClaw, caisson.ToolRule{}
	if _, err := agent.Resolve(a, caisson.RunRequest{Persona: "reader"}, common, token); err != nil {
		t.Error(err)
	}
}

// TestModels: the models of an agent are resolved against those of the configuration.
func TestModels(t *testing.T) {
	a := ours()
	_, err := agent.Resolve(a, caisson.RunRequest{}, agent.Defaults{}, token)
	wantKind(t, err, caisson.Invalid, "no model")
	a.Models = nil
	if s, err := agent.Resolve(a, caisson.RunRequest{Model: "big"}, common, token); err != nil || s.Model != "big" || !slices.Equal(s.Models, []string{"big", "other", "small"}) {
		t.Errorf("all models: %+v, %v", s, err)
	}
	_, err = agent.Resolve(a, caisson.RunRequest{}, agent.Defaults{}, token)
	wantKind(t, err, caisson.Invalid, "no model") // its command has {model}
	a.Command = []string{"/bin/agent"}
	if s, err := agent.Resolve(a, caisson.RunRequest{}, agent.Defaults{}, token); err != nil || s.Model != "" || len(s.Models) != 0 {
		t.Errorf("no models: %+v, %v", s, err)
	}
	a.Models = []string{"-"}
	if s, err := agent.Resolve(a, caisson.RunRequest{}, common, token); err != nil || s.Model != "" || len(s.Models) != 0 {
		t.Errorf("none wanted: %+v, %v", s, err)
	}
	_, err = agent.Resolve(a, caisson.RunRequest{Model: "big"}, common, token)
	wantKind(t, err, caisson.Invalid, "calls no models")
	a.Models, a.Command = nil, []string{"/bin/agent", "{model}"}
	_, err = agent.Resolve(a, caisson.RunRequest{}, agent.Defaults{Models: models("", "a{prompt}")}, token)
	wantKind(t, err, caisson.Invalid, "brace")
}

// TestModelsOfOtherAPIs: the order of the configuration decides among the models that the agent can call; naming one that it
// cannot call is an error.
func TestModelsOfOtherAPIs(t *testing.T) {
	configured := slices.Concat(models("gemini", "a-flash"), models("anthropic", "sonnet", "haiku"), models("openai", "gpt"), models("litellm", "local"), models("scripted", "demo"))
	program := func(driver string, apis ...string) *caisson.Agent {
		return &caisson.Agent{ID: "x", Driver: driver, Command: []string{"/x", "{model}"}, APIs: apis}
	}
	listing := func(a *caisson.Agent, models ...string) *caisson.Agent {
		a.Models = models
		return a
	}
	builtin := func(id string) *caisson.Agent {
		i := slices.IndexFunc(agent.Builtin(), func(a *caisson.Agent) bool { return a.ID == id })
		return agent.Builtin()[i]
	}
	const exec = caisson.DriverExec
	for _, row := range []struct {
		name   string
		agent  *caisson.Agent
		asked  string
		models string // models of the run
		api    string
		err    string
	}{
		{name: "codex", agent: builtin("codex"), models: "gpt local demo", api: "openai"},
		{name: "claude-code", agent: builtin("claude-code"), models: "sonnet haiku demo", api: "anthropic"},
		{name: "opencode", agent: builtin("opencode"), models: "gpt local demo", api: "openai"},
		{name: "openclaw", agent: builtin("openclaw"), models: "gpt local demo", api: "openai"},
		{name: "openclaw of an account", agent: program(caisson.DriverOpenClaw), models: "gpt local demo", api: "openai"},
		{name: "the built-in one", agent: builtin("caisson"), models: "a-flash sonnet haiku gpt local demo", api: "gemini"},
		{name: "not known", agent: program(exec), models: "a-flash sonnet haiku gpt local demo", api: "gemini"},
		{name: "two", agent: program(exec, "anthropic", "openai"), models: "sonnet haiku gpt local demo", api: "anthropic"},
		{name: "asked for", agent: builtin("codex"), asked: "local", models: "local gpt demo", api: "openai"},
		{name: "scripted", agent: builtin("claude-code"), asked: "demo", models: "demo sonnet haiku", api: "anthropic"},
		{name: "scripted, not known", agent: program(exec), asked: "demo", models: "demo a-flash sonnet haiku gpt local", api: "openai"},
		{name: "the agent's order", agent: listing(program(exec, "openai"), "local", "gpt"), models: "local gpt", api: "openai"},
		{name: "refused", agent: builtin("codex"), asked: "sonnet", err: `model: agent "codex" cannot use model "sonnet" (its API is Anthropic): use one of gpt, local, demo`},
		{name: "refused, Gemini", agent: builtin("claude-code"), asked: "a-flash", err: `model: agent "claude-code" cannot use model "a-flash" (its API is Gemini): use one of sonnet, haiku, demo`},
		{name: "in the file", agent: listing(program(exec, "openai"), "gpt", "sonnet"), err: `cannot use model "sonnet" (its API is Anthropic): use one of gpt, local, demo`},
		{name: "alone in the file", agent: listing(program(exec, "gemini"), "sonnet"), err: "use one of a-flash, demo"},
		{name: "a persona's", agent: func() *caisson.Agent {
			a := program(caisson.DriverOpenClaw)
			a.Personas = []caisson.Persona{{ID: "critic", Model: "haiku"}}
			return a
		}(), err: `cannot use model "haiku"`},
	} {
		req := caisson.RunRequest{Model: row.asked}
		if len(row.agent.Personas) > 0 {
			req.Persona = row.agent.Personas[0].ID
		}
		s, err := agent.Resolve(row.agent, req, agent.Defaults{Models: configured}, token)
		if row.err != "" {
			if wantKind(t, err, caisson.Invalid, row.err); t.Failed() {
				t.Fatal(row.name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := strings.Join(s.Models, " "); got != row.models || s.Model != s.Models[0] || s.API != row.api || s.Env["CAISSON_MODEL_API"] != row.api {
			t.Errorf("%s: model %s of %q, API %q; want %q, %q", row.name, s.Model, got, s.API, row.models, row.api)
		}
	}
	// A model that cannot be called is not chosen; if it is named, the error says what to do.
	configured[1].Problem = "its key is missing"
	s, err := agent.Resolve(builtin("claude-code"), caisson.RunRequest{}, agent.Defaults{Models: configured}, token)
	if err != nil || slices.Contains(s.Models, configured[1].Alias) {
		t.Errorf("models %v, %v", s, err)
	}
	_, err = agent.Resolve(builtin("claude-code"), caisson.RunRequest{Model: configured[1].Alias}, agent.Defaults{Models: configured}, token)
	wantKind(t, err, caisson.Invalid, "its key is missing")
	_, err = agent.Resolve(builtin("codex"), caisson.RunRequest{}, agent.Defaults{Models: models("anthropic", "sonnet")}, token)
	wantKind(t, err, caisson.Invalid, `agent "codex" cannot use model "sonnet" (its API is Anthropic): it needs a model of the API OpenAI, and none is configured`)
	lacking := models("openai", "gpt")
	lacking[0].Problem = "run caisson credential set OPENAI_API_KEY"
	err = agent.CheckModels(builtin("openclaw"), slices.Concat(models("anthropic", "sonnet"), lacking))
	wantKind(t, err, caisson.Invalid, `it needs a model of the API OpenAI; calls of "gpt" would be refused: run caisson credential set OPENAI_API_KEY`)
	wantKind(t, agent.CheckModels(listing(program(exec), "gpt-9"), configured), caisson.Invalid, `there is no model "gpt-9"; correct models in the file`)
	wantKind(t, agent.CheckModels(listing(program(exec), "gpt"), lacking), caisson.Invalid, `calls of "gpt" would be refused: run caisson credential`)
	if err := agent.CheckModels(builtin("shell"), nil); err != nil {
		t.Error(err)
	}
}

// TestFill: no value becomes two arguments, and none is treated as the prompt.
func TestFill(t *testing.T) {
	values := map[string]string{"model": "a b", "session": "$(id)", "workspace": `"'\`, "persona": "--flag"}
	for in, want := range map[string]string{
		"{model}": "a b", "x{session}y": "x$(id)y", "{workspace}{persona}": `"'\--flag`, "{prompt}": "{prompt}", "{{}}": "{}", "{{model}}": "{model}",
		"{{{model}}}": "{a b}", "": "", "plain": "plain", "a}}b": "a}b", "{{{{": "{{",
	} {
		got, err := agent.Fill([]string{in, "end"}, values)
		if err != nil || len(got) != 2 || got[0] != want {
			t.Errorf("%q is %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"{", "}", "{model", "model}", "{}", "{unknown}", "{mo{del}", "{{model}", "}{"} {
		if got, err := agent.Fill([]string{in}, values); err == nil {
			t.Errorf("%q is %q", in, got)
		}
	}
	for _, v := range []string{"{prompt}", "{", "}", "a\x00b"} {
		if got, err := agent.Fill([]string{"{model}"}, map[string]string{"model": v}); err == nil {
			t.Errorf("with %q: %q", v, got)
		}
	}
}

func FuzzFill(f *testing.F) {
	for _, s := range []string{"{model}", "{{model}}", "{prompt}{{", "a}b", "{{{prompt}}}", "{session}{"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		got, err := agent.Fill([]string{arg}, map[string]string{"model": "M", "session": "S", "workspace": "W", "persona": "P"})
		if err != nil {
			return
		}
		if len(got) != 1 {
			t.Fatalf("%q became %q", arg, got)
		}
		if !strings.ContainsAny(arg, "{}") && got[0] != arg {
			t.Errorf("%q became %q", arg, got)
		}
		doubled := strings.NewReplacer("{", "{{", "}", "}}").Replace(arg)
		if back, err := agent.Fill([]string{doubled}, nil); err != nil || back[0] != arg {
			t.Errorf("%q, doubled, became %q, %v", arg, back, err)
		}
	})
}
