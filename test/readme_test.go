package test_test

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/internal/pagetest"
	"github.com/caisson-dev/caisson/internal/poll"
)

// A shell runs the command lines of pages on a host, whose directory is its home.
type shell struct {
	*modelHost
	at    string // working directory
	stdin string // for commands that read it
}

// run runs a command line, which must succeed, and returns its output.
func (s *shell) run(line string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", line)
	cmd.Env, cmd.Dir, cmd.Stdin = s.env, s.at, strings.NewReader(s.stdin)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.t.Errorf("%s: %v: %s%s", line, err, out, errs.String())
	}
	return string(out)
}

// with returns a function that runs a command line with text after it.
func (s *shell) with(text string) func(string) {
	return func(line string) { s.t.Helper(); s.run(line + text) }
}

// shows returns a function that runs a command line, whose output must contain text.
func (s *shell) shows(text string) func(string) {
	return func(line string) {
		s.t.Helper()
		if out := s.run(line); !strings.Contains(out, text) {
			s.t.Errorf("%s: there is no %q in %s", line, text, out)
		}
	}
}

// page runs a page, or a section of one.
func (s *shell) page(page string, special map[string]func(string)) {
	s.t.Helper()
	pagetest.Run(s.t, page, special, func(line string) { s.t.Helper(); s.run(line) })
}

// sample writes the sample of the built-in agent to ~/project.
func (s *shell) sample() string {
	s.t.Helper()
	dir := filepath.Join(s.dir, "project")
	if err := sample.Write(dir); err != nil {
		s.t.Fatal(err)
	}
	s.owned(dir)
	return dir
}

// yamlOf returns the YAML of a page that begins with text.
func yamlOf(t *testing.T, page, begin string) string {
	t.Helper()
	_, files := pagetest.Read(t, page)
	for _, f := range files {
		if f.Format == "yaml" && strings.HasPrefix(f.Text, begin) {
			return f.Text
		}
	}
	t.Fatalf("%s has no YAML that begins with %q", page, begin)
	return ""
}

// TestGuideReadme runs the commands of the README in real sandboxes, except for those that TestPages of cmd/caisson runs.
func TestGuideReadme(t *testing.T) {
	t.Parallel()
	h := &shell{modelHost: &modelHost{host: newHost(t)}}
	h.at = h.dir
	project := h.sample()
	u := newUpstream(t, caisson.ProviderAnthropic, sample.Script, false, nil)
	h.configure("idleExit: 10m")
	h.page("README.md#First run", map[string]func(string){
		"make demo": pagetest.Skip("TestDemo", ""), "make test": pagetest.Skip("", "it is what runs this"),
		"export": func(string) { h.env = append(h.env, "ANTHROPIC_API_KEY="+u.key, "ANTHROPIC_BASE_URL="+u.url) },
		"caisson run": func(line string) {
			h.shows(sample.Answer)(line)
			h.at = project
		},
		"caisson diff": h.shows("+4 IV"), "caisson sync": h.with(" --yes"), "caisson model ls": h.shows("claude-sonnet-5"),
	})
	h.at = h.dir
	h.write("src/a.txt", "1\n")
	h.write("tools.yaml", yamlOf(t, "README.md", "# tools.yaml"))
	h.write("policy.yaml", yamlOf(t, "README.md", "# policy.yaml"))
	h.run("git init -q --bare -b main web.git && git clone -q web.git web 2> /dev/null && cd web && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git push -q origin HEAD:main")
	h.run("caisson repo add web ~/web.git")
	h.page("README.md#Sandboxes", map[string]func(string){
		"caisson exec dev": h.shows("42"), "caisson shell dev": func(line string) {
			d := h.sit(wordsOf(line)[1:]...)
			d.types("exit\n")
			d.ends(0)
		},
		"caisson cp dev:": func(line string) {
			h.sh("dev", "echo 1 > /root/project/result.txt")
			h.run(line)
		},
		"caisson top":                          h.shows("dev"),
		"caisson exec --rm docker.io":          pagetest.Skip("TestImageFromRegistry", "needs a registry"),
		"caisson exec --rm tools -- cat state": h.shows("ready"),
	})
	port := freePort(t)
	h.configure("idleExit: 10m", "ingress: {listen: 127.0.0.1:"+freePort(t)+"}", "listen: 127.0.0.1:"+port, yamlOf(t, "README.md", "# /etc/caisson/config.yaml"))
	h.run("caisson daemon restart && caisson sandbox create --name dev")
	h.page("README.md#Into a sandbox", map[string]func(string){
		"caisson run -it":        pagetest.Skip("TestAgentConsoles", "needs an agent from npm"),
		"caisson port-forward":   pagetest.Skip("TestGuidePorts", "runs until it is interrupted"),
		"caisson open dev 5173":  h.with(" --no-browser"),
		"caisson ssh dev":        pagetest.Skip("TestGuideSSH", "needs a terminal"),
		"caisson service apply ": func(line string) { h.run(line); h.await("ready", "caisson service ls dev") },
	})
	h.run("caisson sandbox rm dev")
	h.page("README.md#What a sandbox reaches", map[string]func(string){"caisson policy explain": h.shows("no rule allows it")})
	h.write(".env", "OTHER_API_KEY=x\n")
	h.page("README.md#Models", map[string]func(string){
		"caisson model ls": h.shows("demo"), "caisson exec agent": h.shows(`"choices"`),
	})
	var token string
	h.page("README.md#The daemon", map[string]func(string){
		"caisson daemon logs -f": func(line string) { h.run(strings.Replace(line, " -f", "", 1)) }, // it would follow the log
		"caisson backup":         func(line string) { h.run(strings.Replace(line, "/backup/", h.dir+"/", 1)) },
		"caisson token create":   func(line string) { token = strings.TrimSpace(h.run(line)) },
		"caisson serve":          func(string) { h.run("caisson ps") }, // which starts a daemon with listen of the configuration
		"CAISSON_HOST=": func(line string) {
			h.shows("dev")(strings.NewReplacer("7070", port, "caisson_…", token).Replace(line))
		},
	})
}

// await waits until a command line shows a text.
func (s *shell) await(text, line string) {
	s.t.Helper()
	poll.Until(s.t, settle, func() bool { return strings.Contains(s.run(line), text) })
}

// TestGuideOperate runs the commands of docs/operate.md, but for those that change this machine.
func TestGuideOperate(t *testing.T) {
	t.Parallel()
	h := &shell{modelHost: &modelHost{host: newHost(t)}}
	h.at = h.dir
	machine := pagetest.Skip("", "changes this machine")
	systemd := pagetest.Skip("", "needs systemd")
	h.run("caisson sandbox create --name dev")
	h.page("docs/operate.md", map[string]func(string){
		"make build": machine, "install ": machine, "rm -r": machine, "systemctl": systemd, "journalctl": systemd,
		"caisson doctor": func(string) { h.host.run("doctor") }, // it fails where something is missing
		"caisson init":   h.with(" --force"), "caisson events": h.with(" --for 100ms"),
		"caisson backup": func(line string) { h.run(strings.Replace(line, "/backup/", h.dir+"/", 1)) },
		"caisson restore": func(line string) {
			h.run(strings.Replace(line, "/backup/", "--data "+h.dir+"/restored "+h.dir+"/", 1))
		},
		"tar -C": func(line string) {
			h.run(strings.NewReplacer("/var/lib", h.dir, "/backup/", h.dir+"/", " caisson", " d").Replace(line))
		},
		"caisson daemon logs -f": func(line string) { h.run(strings.Replace(line, " -f", "", 1)) }, // it would follow the log
	})
}

// TestGuideModels runs the commands of docs/models.md, with providers of the test.
func TestGuideModels(t *testing.T) {
	t.Parallel()
	h := &shell{modelHost: &modelHost{host: newHost(t)}, stdin: "sk-stored\n"}
	h.at = h.dir
	h.configure("idleExit: 10m")
	openAI := newUpstream(t, caisson.ProviderOpenAI, sample.Script, false, nil)
	local := newUpstream(t, caisson.ProviderOpenAI, sample.Script, false, lists("qwen3"))
	plain := h.env
	h.page("docs/models.md", map[string]func(string){
		"caisson model ls": h.shows("claude-sonnet-5"),
		"export OPENAI_API_KEY": func(string) {
			h.run("caisson credential rm ANTHROPIC_API_KEY")
			h.env = append(plain[:len(plain):len(plain)], "OPENAI_API_KEY="+openAI.key, "OPENAI_BASE_URL="+openAI.url)
		},
		"export OPENAI_BASE_URL": func(line string) {
			h.env = append(plain[:len(plain):len(plain)], regexp.MustCompile(`http\S+`).ReplaceAllString(strings.TrimPrefix(line, "export "), local.url))
		},
	})
	if got := h.ok("credential", "ls", "-q"); got != "" {
		t.Errorf("stored are %q", got)
	}
	for _, u := range []*upstream{openAI, local} {
		if n, _ := u.Billed(); n == 0 {
			t.Errorf("the provider at %s was not called", u.url)
		}
	}
}

// lists returns a handler that lists a model as servers with OpenAI's API do.
func lists(model string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models") {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"object": "list", "data": [{"id": "` + model + `"}]}`))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
