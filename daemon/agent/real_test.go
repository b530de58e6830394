package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/internal/npmtest"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/wire/llm"
	"github.com/caisson-dev/caisson/wire/llm/anthropic"
	"github.com/caisson-dev/caisson/wire/llm/gemini"
	"github.com/caisson-dev/caisson/wire/llm/openai"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

var update = flag.Bool("update", false, "write what real agents said to drive/testdata")

// gatewayName is the URL at which agents call models. These tests replace it by the address of a test gateway.
const gatewayName = "http://llm.caisson.internal"

// secret is the provider's key, which agents must not get.
const secret = "sk-real-8Hq2Zt6Wm1Xc9Pd4Lf7Vb"

// A real is the real program of an agent, installed from its lockfile, with a scripted model and a workspace.
type real struct {
	*caisson.Agent
	t         *testing.T
	home      string // replaces /opt/ID
	workspace string
	gateway   *refusals
	model     *scriptedtest.Recorder
}

// refusals is the model gateway. It records the requests and those it refused.
type refusals struct {
	llm *llm.Gateway

	mu   sync.Mutex
	list []string // guarded by mu
	sent []byte   // requests as received; guarded by mu
}

func (g *refusals) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	g.mu.Lock()
	g.sent = append(append(append(g.sent, r.Method+" "+r.URL.RequestURI()+"\n"...), body...), "\n\n"...)
	g.mu.Unlock()
	rec := &status{ResponseWriter: w}
	g.llm.ServeHTTP(rec, r.WithContext(caisson.WithGuest(r.Context(), caisson.Guest{Sandbox: "sb-aaaaaaaaaaaaaaaa", Account: "alice", Run: "rn-aaaaaaaaaaaaaaaa"})))
	if rec.status >= 400 {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.list = append(g.list, r.Method+" "+r.URL.RequestURI()+": "+rec.body.String())
	}
}

type status struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer // only of a refusal
}

func (s *status) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

func (s *status) Write(p []byte) (int, error) {
	if s.status >= 400 {
		s.body.Write(p)
	}
	return s.ResponseWriter.Write(p)
}

func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// unmetered is a ledger without limits.
type unmetered struct{}

func (unmetered) Reserve(_ context.Context, _ caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	return room(d.MaxOutput), nil
}

type room int64

func (r room) Output() int64             { return int64(r) }
func (r room) Settle(caisson.Call) error { return nil }

// newReal installs an agent and starts a gateway with a scripted provider of that kind.
func newReal(t *testing.T, id, kind, script string) *real {
	t.Helper()
	list := agent.Builtin()
	i := slices.IndexFunc(list, func(a *caisson.Agent) bool { return a.ID == id })
	r := &real{Agent: list[i], t: t, home: t.TempDir(), workspace: t.TempDir()}
	r.install()
	url, rec := scriptedtest.Serve(t, script)
	r.model = rec
	if kind == caisson.ProviderOpenAI {
		url += "/v1"
	}
	var d net.Dialer
	g, err := llm.New(llm.Config{
		APIs: []llm.API{
			{Dialect: openai.New(), Kinds: []string{caisson.ProviderOpenAI}},
			{Dialect: anthropic.New(), Kinds: []string{caisson.ProviderAnthropic}, MarkerHeader: "Anthropic-Version"},
			{Dialect: gemini.New(), Kinds: []string{caisson.ProviderGemini}, MarkerHeader: "X-Goog-Api-Key"},
		},
		Meter: unmetered{},
		Grant: func(context.Context, caisson.Guest) *caisson.ModelGrant {
			return &caisson.ModelGrant{Models: []string{"sonnet"}}
		},
		Dial: d.DialContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = g.Configure(caisson.GatewayConfig{
		Providers: []caisson.Provider{{Name: "p", Kind: kind, BaseURL: url, Credential: "K"}},
		Models:    []caisson.Model{{Alias: "sonnet", Provider: "p", Upstream: "upstream-model", Free: true, Context: 200_000, Output: 8000}},
		Keys:      map[string]string{"p": secret},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.gateway = &refusals{llm: g}
	return r
}

// install installs the agent's program from its lockfile into its home.
func (r *real) install() {
	r.t.Helper()
	lock := r.Setup[0].Files[0].Data
	var packages struct {
		Packages map[string]json.RawMessage `json:"packages"`
	}
	if err := json.Unmarshal([]byte(lock), &packages); err != nil {
		r.t.Fatal(err)
	}
	dir := npmtest.Dir(r.t, r.ID, map[string]string{"package.json": string(packages.Packages[""]), "package-lock.json": lock})
	if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(r.home, "node_modules")); err != nil {
		r.t.Fatal(err)
	}
	link := r.Setup[1].Run
	if out, err := exec.Command(link[0], r.here(link[1:])...).CombinedOutput(); err != nil || !strings.Contains(string(out), r.Version) {
		r.t.Fatalf("%s is not version %s (%v): %s", r.ID, r.Version, err, out)
	}
}

// here replaces the paths of a sandbox in list by those of this test.
func (r *real) here(list []string, more ...string) []string {
	places := strings.NewReplacer(append([]string{"/opt/" + r.ID, r.home}, more...)...)
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = places.Replace(s)
	}
	return out
}

// run gives the agent a prompt, as a run does, and returns its output and the error of its exit.
func (r *real) run(prompt string) (stdout string, err error) {
	r.t.Helper()
	front := httptest.NewServer(r.gateway)
	defer front.Close()
	s, err := agent.Resolve(r.Agent, caisson.RunRequest{Agent: r.ID, Prompt: prompt}, agent.Defaults{Models: models("", "sonnet")}, caisson.Caller{Account: "alice"})
	if err != nil {
		r.t.Fatal(err)
	}
	places := []string{gatewayName, front.URL, agent.DefaultWorkdir, r.workspace}
	for _, f := range r.Files {
		at := r.here([]string{f.Path, f.Data}, places...)
		if err := os.MkdirAll(filepath.Dir(at[0]), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(at[0], []byte(at[1]), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	if r.Driver == caisson.DriverCodex { // This test has no client of its server: the same program prints what the dialect codex reads.
		s.Command = []string{s.Command[0], "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--model", s.Model, "{prompt}"}
	}
	command := r.here(s.Command, places...)
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	if r.Prompt == caisson.PromptStdin {
		cmd.Stdin = strings.NewReader(prompt)
	} else {
		for i := range cmd.Args {
			cmd.Args[i] = strings.ReplaceAll(cmd.Args[i], "{prompt}", prompt)
		}
	}
	cmd.Dir = r.workspace
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + r.home, "TMPDIR=" + r.t.TempDir(), "CLAUDE_CODE_TMPDIR=" + r.t.TempDir(), "LANG=C.UTF-8"}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		cmd.Env = append(cmd.Env, name+"="+r.here([]string{s.Env[name]}, places...)[0])
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	r.keep(out.Bytes(), errs.Bytes())
	for line := range strings.Lines(out.String()) {
		if !json.Valid([]byte(line)) {
			r.t.Errorf("not a line of JSON: %q", line)
		}
	}
	if strings.Contains(out.String()+errs.String(), secret) {
		r.t.Error("the agent knows the provider's key")
	}
	return out.String(), err
}

// keep stores outputs and requests as artifacts of the test (go test -artifacts).
func (r *real) keep(stdout, stderr []byte) {
	dir := r.t.ArtifactDir()
	r.gateway.mu.Lock()
	defer r.gateway.mu.Unlock()
	for name, data := range map[string][]byte{
		"stdout": stdout, "stderr": stderr, "sent": r.gateway.sent, "refused": []byte(strings.Join(r.gateway.list, "\n")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			r.t.Error(err)
		}
	}
}

// record writes the output of an agent to the test data of package drive, if the flag -update is set.
func (r *real) record(name, stdout string) {
	if !*update {
		return
	}
	dashes := strings.NewReplacer("/", "-", ".", "-")
	stdout = strings.NewReplacer(r.home, "/opt/"+r.ID, r.workspace, agent.DefaultWorkdir, dashes.Replace(r.workspace), "-workspace").Replace(stdout)
	if err := os.WriteFile(filepath.Join("../../guest/drive/testdata", name), []byte(stdout), 0o644); err != nil {
		r.t.Error(err)
	}
}

// check checks that the agent used a tool, changed a file and answered, and that the gateway refused no request.
func (r *real) check(stdout string) {
	r.t.Helper()
	if got, err := os.ReadFile(filepath.Join(r.workspace, "made.txt")); err != nil || string(got) != "made by a tool\n" {
		r.t.Errorf("the file in the workspace: %q, %v", got, err)
	}
	for _, text := range []string{"I make it.", "The file is there"} {
		if !strings.Contains(stdout, text) {
			r.t.Errorf("%q is not in what it wrote: %s", text, stdout)
		}
	}
	r.gateway.mu.Lock()
	defer r.gateway.mu.Unlock()
	for _, refused := range r.gateway.list {
		r.t.Errorf("the gateway refused %s", refused)
	}
}

// TestReal runs the real programs of agents, in the pinned versions, with the commands, variables and files of the catalog.
// They use one of their tools, change a file and answer; if the model refuses, they report the reason.
func TestReal(t *testing.T) {
	for _, c := range []struct{ id, dialect, kind, tool, arguments string }{
		{"codex", "codex", caisson.ProviderOpenAI, "exec_command", `{"cmd": "echo made by a tool > made.txt"}`},
		{"claude-code", "claude", caisson.ProviderAnthropic, "Bash", `{"command": "echo made by a tool > made.txt", "description": "Make a file"}`},
		{"opencode", "opencode", caisson.ProviderOpenAI, "bash", `{"command": "echo made by a tool > made.txt", "description": "Make a file"}`},
		{"gemini-cli", "gemini", caisson.ProviderGemini, "run_shell_command", `{"command": "echo made by a tool > made.txt"}`},
		{"qwen-code", "qwen", caisson.ProviderOpenAI, "run_shell_command", `{"command": "echo made by a tool > made.txt", "is_background": false}`},
		{"pi", "pi", caisson.ProviderOpenAI, "bash", `{"command": "echo made by a tool > made.txt"}`},
	} {
		t.Run(c.id, func(t *testing.T) {
			if c.id != "codex" {
				testneed.Full(t, "codex is a real coding agent")
			}
			t.Run("tool", func(t *testing.T) {
				r := newReal(t, c.id, c.kind, fmt.Sprintf(`
turns:
- text: "I make it."
  calls: [{name: %s, arguments: '%s'}]
- when: {tool: %[1]s}
  text: "The file is there, and this is what the tool said: {{result}}"
`, c.tool, c.arguments))
				out, err := r.run("Make the file made.txt.")
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				r.check(out)
				r.record(c.dialect+"-tool.jsonl", out)
			})
			t.Run("retried", func(t *testing.T) {
				r := newReal(t, c.id, c.kind, `
turns:
- {once: true, error: {status: 503, message: overloaded}}
- text: "Here is the answer."
`)
				out, err := r.run("Answer.")
				if err != nil || !strings.Contains(out, "Here is the answer.") {
					t.Errorf("%v: %s", err, out)
				}
				r.record(c.dialect+"-retried.jsonl", out)
			})
			t.Run("refused", func(t *testing.T) {
				r := newReal(t, c.id, c.kind, `fallback: {error: {status: 400, message: this model takes no such requests}}`)
				out, err := r.run("Make the file made.txt.")
				if !strings.Contains(out, "this model takes no such requests") {
					t.Errorf("the reason is not in what it wrote (%v): %s", err, out)
				}
				r.record(c.dialect+"-refused.jsonl", out)
			})
		})
	}
}
