package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/wire/egress"
)

// TestBuiltin: every built-in agent is valid, has policies that compile, and has a version.
func TestBuiltin(t *testing.T) {
	entries, err := os.ReadDir("builtin")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join("builtin", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := agent.Parse(data); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
	if t.Failed() {
		return
	}
	list := agent.Builtin()
	if len(list) != len(entries) || !slices.ContainsFunc(list, func(a *caisson.Agent) bool { return a.ID == "caisson" }) {
		t.Errorf("%d agents of %d files", len(list), len(entries))
	}
	for _, a := range list {
		if a.Version == "" || a.Description == "" || a.Account != "" {
			t.Errorf("%s: version %q, description %q, account %q", a.ID, a.Version, a.Description, a.Account)
		}
		for _, p := range []caisson.Policy{a.Policy, a.BuildPolicy} {
			if _, err := egress.Compile(p); err != nil {
				t.Errorf("%s: %v", a.ID, err)
			}
		}
		if len(a.Policy.Rules) > 0 {
			t.Errorf("%s reaches more than the model gateway", a.ID)
		}
	}
	list[0].Name = "changed"
	if agent.Builtin()[0].Name == "changed" {
		t.Error("a caller changes what others get")
	}
}

const good = `id: mine
name: Mine
image: host
driver: exec
command: [/bin/agent, --model, "{model}"]
`

// coder is an agent that runs the built-in agent's program; persona adds personas, one of which has a tool rule.
const (
	coder   = "id: mine\nname: Mine\nimage: host\ndriver: jsonl\nevents: {dialect: caisson}\ncommand: [/.caisson/agent, code]\n"
	persona = "personas: [{id: x}, {id: y, deny: [bash]}]\n"
)

func TestParseFaults(t *testing.T) {
	for _, c := range []struct{ name, yaml, field, words string }{
		{"unknown key", good + "colour: red\n", "colour", "line 6"},
		{"twice", good + "name: x\n", "name", "twice"},
		{"no id", "name: x\nimage: host\ndriver: exec\ncommand: [a]\n", "id", "missing"},
		{"bad id", strings.Replace(good, "mine", "My Agent", 1), "id", "line 1"},
		{"id of an object", strings.Replace(good, "mine", "sb-aaaaaaaaaaaaaaaa", 1), "id", "looks like"},
		{"no image", strings.Replace(good, "image: host\n", "", 1), "image", "missing"},
		{"two origins", good + "template: web\n", "template", "line 6"},
		{"driver", strings.Replace(good, "exec", "ssh", 1), "driver", "line 4"},
		{"no command", strings.Replace(good, `command: [/bin/agent, --model, "{model}"]`, "", 1), "command", "driver exec"},
		{"empty program", strings.Replace(good, "/bin/agent", `""`, 1), "command[0]", "empty"},
		{"placeholder", strings.Replace(good, "{model}", "{home}", 1), "command[2]", "known are"},
		{"open brace", strings.Replace(good, "{model}", "{model", 1), "command[2]", "twice"},
		{"close brace", strings.Replace(good, "{model}", "model}", 1), "command[2]", "twice"},
		{"literal prompt", strings.Replace(good, "{model}", "{{prompt}}", 1), "command[2]", "cannot contain the literal"},
		{"literal prompt in a prompt", strings.Replace(good, "{model}", "{{{prompt}}}", 1), "", ""},
		{"stdin and place", good + "prompt: stdin\n" + "env: {A: b}\n", "", ""},
		{"file without place", good + "prompt: file\n", "command", "{prompt}"},
		{"service", good + "service: [x, \"{model}\"]\n", "service", "only command"},
		{"ready elsewhere", good + "ready: http://10.0.0.1:80/\n", "ready", "127.0.0.1"},
		{"ready without port", good + "ready: http://127.0.0.1/\n", "ready", "PORT"},
		{"ready with https", good + "ready: https://127.0.0.1:1/\n", "ready", "http://"},
		{"env name", good + "env: {\"A B\": x}\n", "env", "variable"},
		{"env of ours", good + "env: {CAISSON_MODEL: x}\n", "env.CAISSON_MODEL", "set by Caisson"},
		{"workdir", good + "workdir: work\n", "workdir", "absolute"},
		{"braces in workdir", good + "workdir: \"/{prompt}\"\n", "workdir", "brace"},
		{"user", good + "user: \"a b\"\n", "user", "not a user"},
		{"file in proc", good + "files: [{path: /proc/../dev/x, data: y}]\n", "files[0].path", "line 6"},
		{"file of ours", good + "files: [{path: /.caisson/agent, data: y}]\n", "files[0].path", "cannot be written to"},
		{"setuid file", good + "files: [{path: /x, mode: 2541, data: y}]\n", "files[0].mode", "mode"},
		{"two files", good + "files: [{path: /x, data: y}, {path: //x, data: z}]\n", "files[1].path", "twice"},
		{"setup", good + "setup: [{run: []}]\n", "setup[0].run", "program to run"},
		{"rule", good + "policy: {rules: [{action: permit, host: a}]}\n", "policy.rules[0].action", "allow, deny"},
		{"rule of nothing", good + "policy: {rules: [{action: allow}]}\n", "policy.rules[0]", "either"},
		{"dialect", strings.Replace(good, "exec", "jsonl", 1) + "events: {dialect: basic}\n", "events.dialect", "codex"},
		{"dialect and path", strings.Replace(good, "exec", "jsonl", 1) + "events: {dialect: codex, text: .a}\n", "events", "remove the other keys"},
		{"event", strings.Replace(good, "exec", "jsonl", 1) + "events: {delta: .a}\n", "events.delta", "known are"},
		{"paths of usage", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, usage.calls: b.n, usage.input: b.in, usage.output: b.out, usage.cacheRead: b.r, usage.cacheWrite: b.w, usage.cost: b.usd}\n", "", ""},
		{"conditions", strings.Replace(good, "exec", "jsonl", 1) + `events: {text: a, text.when: "type=message, role=assistant", tool: b, tool.id: c, tool.when: "n=1"}` + "\n", "", ""},
		{"no condition", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, text.when: message}\n", "events.text.when", "not a condition such as"},
		{"half a condition", strings.Replace(good, "exec", "jsonl", 1) + `events: {text: a, text.when: "type=a,"}` + "\n", "events.text.when", "not a condition"},
		{"condition alone", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, error.when: type=a}\n", "events.error.when", "without the path of error"},
		{"condition of no usage", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, usage.when: type=a}\n", "events.usage.when", "without the path of usage.calls"},
		{"tool without an id", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, tool: b}\n", "events.tool.id", "tool needs it"},
		{"no answer", strings.Replace(good, "exec", "jsonl", 1) + "events: {usage.calls: a}\n", "events", "text or final"},
		{"no path", strings.Replace(good, "exec", "jsonl", 1) + `events: {text: a, final: ""}` + "\n", "events.final", "is empty"},
		{"usage without a kind", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, usage: b}\n", "events.usage", "usage.calls"},
		{"usage with keys", strings.Replace(good, "exec", "jsonl", 1) + "events: {text: a, usage: {input: b}}\n", "events.usage", "as in usage.input"},
		{"no driver", strings.Replace(good, "driver: exec\n", "", 1), "driver", "is missing; write one of exec"},
		{"model", good + "model: a\n", "model", "did you mean models?"},
		{"events of exec", good + "events: {text: .a}\n", "events", "jsonl only"},
		{"model with spaces", good + "models: [\"a b\"]\n", "models[0]", "printable"},
		{"model twice", good + "models: [a, a]\n", "models[1]", "twice"},
		{"persona", good + "personas: [{id: main}]\n", "personas[0].id", "without a persona"},
		{"model of persona", good + "models: [a]\npersonas: [{id: x, model: b}]\n", "personas[0].model", "among"},
		{"memory", good + "limits: {memory: 1M}\n", "limits.memory", "64MiB"},
		{"cpus", good + "limits: {cpus: .nan}\n", "limits.cpus", "between"},
		{"calls", good + "limits: {calls: -1}\n", "limits.calls", "negative"},
		{"randomness", good + "warm: {randomness: hope}\n", "warm.randomness", "kernel"},
		{"no randomness", good + "warm: {prompt: hi}\n", "warm.randomness", "kernel"},
		{"kernel with a service", good + "service: [x]\nwarm: {randomness: kernel}\n", "warm.randomness", "nothing runs"},
		{"kernel with OpenClaw", strings.Replace(good, "exec", "openclaw", 1) + "warm: {randomness: kernel}\n", "warm.randomness", "nothing runs"},
		{"openssl with a service", good + "service: [x]\nwarm: {randomness: openssl}\n", "", ""}, // is left to the administrator
		{"pool", good + "warm: {randomness: kernel, pool: 100}\n", "warm.pool", "between"},
		{"pool", good + "service: [x]\nwarm: {randomness: openssl, pool: 65}\n", "warm.pool", "between 0 and 64"},
		{"directory of a service", good + "service: [x]\nserviceDir: y\n", "serviceDir", "absolute"},
		{"directory of no service", good + "serviceDir: /y\n", "serviceDir", "no service"},
		{"tools of exec", good + "tools: {deny: [Bash]}\n", "tools", "cannot be enforced"},
		{"tools of codex", strings.Replace(good, "exec", "jsonl", 1) + "events: {dialect: codex}\ntools: {allow: [Read]}\n", "tools", "cannot be enforced"},
		{"tools of ACP", strings.Replace(good, "exec", "acp", 1) + "tools: {deny: [bash]}\n", "", ""},
		{"tools of the built-in agent", coder + "tools: {deny: [bash]}\n", "", ""},
		{"tools of a role", strings.Replace(coder, "code", "service, x", 1) + "tools: {deny: [x]}\n", "tools", "be enforced"},
		{"tools of no role", strings.Replace(coder, ", code", "", 1) + "tools: {deny: [bash]}\n", "tools", "cannot be enforced"},
		{"tools and a flag", strings.Replace(coder, "code", "code, -deny=", 1) + "tools: {deny: [bash]}\n", "tools", "-deny="},
		{"tools, two flags", strings.Replace(coder, "code", "code, --allow, x", 1) + "tools: {allow: [y]}\n", "tools", "--allow"},
		{"a flag alone", strings.Replace(coder, "code", "code, --deny, bash", 1), "", ""},
		{"tools of a persona of exec", good + persona, "personas[1].deny", "cannot be enforced"},
		{"tools of a persona of jsonl", strings.Replace(good, "exec", "jsonl", 1) + persona, "personas[1].deny", "line 6"},
		{"tools of a persona of ACP", strings.Replace(good, "exec", "acp", 1) + persona, "personas[1].deny", "enforced"},
		{"tools of a persona of the built-in agent", coder + persona, "personas[1].deny", "cannot be enforced"},
		{"tools of a persona of OpenClaw", strings.Replace(good, "exec", "openclaw", 1) + persona, "", ""},
		{"name of two lines", strings.Replace(good, "Mine", "\"a\\nb\"", 1), "name", "one line"},
		{"escape in name", strings.Replace(good, "Mine", "\"a\\e[2J\"", 1), "name", "control"},
		{"no yaml", "a: [", "", "YAML"},
		{"two documents", good + "---\n" + good, "", "more than one"},
		{"too large", strings.Repeat("#", agent.MaxFile+1), "", "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := agent.Parse([]byte(c.yaml))
			if c.field == "" && c.words == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || caisson.KindOf(err) != caisson.Invalid || !names(err, c.field) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error %v, want field %q and %q", err, c.field, c.words)
			}
		})
	}
}

// names reports whether one of the joined errors names the field.
func names(err error, field string) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if names(e, field) {
				return true
			}
		}
		return false
	}
	e, ok := errors.AsType[*caisson.Error](err)
	return ok && e.Field == field
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	entries, err := os.ReadDir("builtin")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join("builtin", e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := agent.Parse(data)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid && !strings.Contains(err.Error(), "\n") {
				t.Errorf("kind %s of %v", caisson.KindOf(err), err)
			}
			return
		}
		if err := agent.Validate(a); err != nil {
			t.Errorf("parsed, and not valid: %v", err)
		}
		values := map[string]string{"model": "m", "session": "s", "workspace": "/w", "persona": "main"}
		if _, err := agent.Fill(a.Command, values); err != nil {
			t.Errorf("parsed, and cannot be filled: %v", err)
		}
	})
}
