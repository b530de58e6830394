package openclaw

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

func tree(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, data := range files {
		m[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return m
}

const imported = `{
  // mine
  agents: {
    defaults: {model: {primary: "anthropic/claude-sonnet-4-5"}, workspace: "~/.openclaw/workspace", sandbox: {mode: "all"}},
    list: [{id: "main", model: "openai/gpt-5"}, {id: "rev", model: "anthropic/claude-sonnet-4-5", workspace: "/srv/rev", tools: {deny: ["Bash", "bad tool"]}}, {id: "Bad Name"}],
  },
  models: {providers: {openai: {apiKey: "sk-openai-SECRET1", models: [{id: "gpt-5", contextWindow: 400000, maxTokens: 1000}]}, ref: {apiKey: "${REF}"}}},
  env: {vars: {GH_TOKEN: "ghp-SECRET2"}, PLAIN_KEY: "SECRET3-plain"},
  channels: {telegram: {botToken: "123:SECRET4", accounts: [{appPassword: "SECRET5-deep"}]}},
  gateway: {auth: {token: "SECRET6-gateway"}}, skills: {entries: {weather: {apiKey: "SECRET7-skill", env: {W: "SECRET8-env"}}}},
  tools: {deny: ["cron"], profile: "full"}, cron: {enabled: true},
}`

// TestImport: what is imported and what is not; secrets occur only among the secrets.
func TestImport(t *testing.T) {
	in, err := Import(tree(map[string]string{
		"openclaw.json": imported, ".env": "export A_KEY='SECRET9-dotenv'\n# x\nB=\"${A}\"\n",
		"agents/main/agent/auth-profiles.json": `{"profiles":{"anthropic:default":{"provider":"anthropic","key":"SECRET10-profile"},"x:me":{"provider":"x","access":"SECRET11-acc","refresh":"SECRET12-ref"}}}`,
		"workspace/SOUL.md":                    "I am kind. My key is SECRET10-profile.",
		"workspace/AGENTS.md":                  "Work well.",
		"workspace/skills/w/SKILL.md":          "---\nname: w\n---\nUse sk-openai-SECRET1.",
		"workspace/skills/w/run.sh":            "echo hi",
		"workspace/skills/w/.env":              "X=SECRET13-skill",
		"credentials/whatsapp/creds.json":      "{}",
	}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range in.Secrets {
		got[s.Name] = s.Value.Reveal()
	}
	want := map[string]string{
		"OPENAI_API_KEY": "sk-openai-SECRET1", "GH_TOKEN": "ghp-SECRET2", "PLAIN_KEY": "SECRET3-plain", "CHANNELS_TELEGRAM_BOTTOKEN": "123:SECRET4",
		"CHANNELS_TELEGRAM_ACCOUNTS_APPPASSWORD": "SECRET5-deep", "GATEWAY_AUTH_TOKEN": "SECRET6-gateway", "WEATHER_API_KEY": "SECRET7-skill",
		"W": "SECRET8-env", "A_KEY": "SECRET9-dotenv", "ANTHROPIC_API_KEY": "SECRET10-profile", "X_ACCESS_TOKEN": "SECRET11-acc", "X_REFRESH_TOKEN": "SECRET12-ref",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("secrets (-want +got):\n%s", d)
	}
	all, err := json.Marshal([]any{in.Agent, in.Models, in.Report})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all), "SECRET") {
		t.Errorf("a secret is outside of the secrets: %s", all)
	}
	if s := fmt.Sprintf("%+v", in); strings.Contains(s, "SECRET") {
		t.Errorf("secrets can be printed: %s", s)
	}
	a := in.Agent
	if d := cmp.Diff([]string{"gpt-5", "claude-sonnet-4-5"}, a.Models); d != "" {
		t.Error(d)
	}
	if len(a.Personas) != 1 || a.Personas[0].ID != "rev" || a.Personas[0].Model != "claude-sonnet-4-5" || !cmp.Equal(a.Personas[0].Deny, []string{"exec"}) || !cmp.Equal(a.Tools.Deny, []string{"automations"}) {
		t.Errorf("personas %+v, tools %+v", a.Personas, a.Tools)
	}
	report := fmt.Sprint(in.Report)
	for _, part := range []string{"channels", "cron", "workspace of rev", "agent Bad Name", "credentials/*", "agents.defaults.sandbox", "login x:me", "list of allowed tools"} {
		if !strings.Contains(report, part) {
			t.Errorf("%s is not reported: %s", part, report)
		}
	}
	files, err := Config(Setup{Agent: &a, Models: in.Models})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(files)
	for _, part := range []string{"I am kind. My key is [ANTHROPIC_API_KEY].", "Work well."} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is lost: %s", part, text)
		}
	}
}

// TestImportRefuses: invalid configurations are errors.
func TestImportRefuses(t *testing.T) {
	for _, c := range []string{"", "[]", "{", "3", `{"a":` + strings.Repeat("[", 1000)} {
		if _, err := Import(tree(map[string]string{"openclaw.json": c})); err == nil {
			t.Errorf("%.20q is taken", c)
		}
	}
	if _, err := Import(tree(nil)); err == nil {
		t.Error("nothing is taken")
	}
}

func FuzzImport(f *testing.F) {
	f.Add(imported, "# x")
	f.Add(`{agents:{entries:{a:{workspace:"../../x",model:{primary:"/"}}}}}`, "---\nmetadata: {openclaw: {requires: {bins: [1]}}}\n---\n")
	f.Fuzz(func(t *testing.T, config, skill string) {
		in, err := Import(tree(map[string]string{"openclaw.json": config, "skills/s/SKILL.md": skill}))
		if err != nil {
			return
		}
		for _, file := range in.Agent.Files {
			if !strings.HasPrefix(file.Path, Home+"/") || strings.Contains(file.Path, "..") {
				t.Errorf("%q would be written", file.Path)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	fsys := tree(map[string]string{
		"ok/SKILL.md":   "---\nname: fine\nmetadata: { \"openclaw\": { \"requires\": { \"bins\": [\"sh\"], }, } }\n---\nSee https://allowed.dev/x\n",
		"gh/SKILL.md":   "---\nname: github\nmetadata:\n  {\n    \"openclaw\": { \"requires\": { \"bins\": [\"gh\"], \"env\": [\"GH_TOKEN\"], \"config\": [\"browser.enabled\"] }, \"install\": [{\"kind\": \"brew\", \"formula\": \"gh\"}] }\n  }\n---\nhttps://api.github.com/x\n",
		"any/SKILL.md":  "---\nname: any\nmetadata: {openclaw: {requires: {anyBins: [a, sh]}}}\n---\n",
		"mac/SKILL.md":  "---\nname: mac\nmetadata: {openclaw: {os: [darwin]}}\n---\n",
		"bad/SKILL.md":  "no front matter",
		"bomb/SKILL.md": "---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d]\nmetadata: {openclaw: {os: [*e,*e]}}\n---\n",
		"esc/SKILL.md":  "---\nname: \"\\e[31mred\"\n---\n",
	})
	var got []string
	for _, c := range Check(fsys, Environment{HasProgram: func(n string) bool { return n == "sh" }, CanReach: func(h string) bool { return h == "allowed.dev" }}) {
		got = append(got, c.Status+" "+c.Subject+": "+c.Detail)
		if c.Status != caisson.CheckOK && c.Remedy == "" {
			t.Errorf("%s has no remedy", c.Subject)
		}
	}
	text := strings.Join(got, "\n")
	for _, want := range []string{
		"ok skill fine: ", "failed skill github: programs are missing: gh", "failed skill github: variables are not set: GH_TOKEN",
		"warning skill github: it needs OpenClaw's setting browser.enabled", "warning skill github: its text names hosts that the agent may not reach: api.github.com",
		"ok skill any", "failed skill mac: it is for darwin only", "failed skill bad: ", "failed skill bomb: ", `ok skill \x1b[31mred`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not among\n%s", want, text)
		}
	}
}

func FuzzParseSkill(f *testing.F) {
	f.Add([]byte("---\nname: x\nmetadata: {openclaw: {requires: {bins: [a]}}}\n---\nhttps://x.org"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSkill("d", b)
		if err == nil && (len(s.Programs) > maxNeeds || len(s.Hosts) > maxHosts) {
			t.Error("more than there may be")
		}
	})
}
