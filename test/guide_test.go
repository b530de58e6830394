package test_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/internal/pagetest"
	"github.com/caisson-dev/caisson/internal/poll"
)

// word matches a word of a command line in a page.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// guide runs the commands of a page, or of a section of it, in their order. special has the functions that run those that begin with a text
// instead; the others must be commands of caisson and succeed as they are.
func (h *host) guide(page string, special map[string]func(words []string)) {
	h.t.Helper()
	lines := map[string]func(line string){}
	for begin, run := range special {
		lines[begin] = func(line string) { run(wordsOf(line)) }
	}
	pagetest.Run(h.t, page, lines, func(line string) {
		h.t.Helper()
		words := wordsOf(line)
		if words[0] != "caisson" {
			h.t.Errorf("%s: %q is run by nothing", page, line)
			return
		}
		h.ok(words[1:]...)
	})
}

// wordsOf returns the words of a command line, without their quotes.
func wordsOf(line string) (words []string) {
	for _, w := range word.FindAllString(line, -1) {
		words = append(words, strings.Trim(w, `'"`))
	}
	return words
}

// elsewhere is for commands that another test runs; see [pagetest.Skip].
func elsewhere(skip func(string)) func([]string) { return func([]string) { skip("") } }

// TestGuideInteractive runs the commands of docs/guides/interactive.md, with the agent shell in place of those from npm, which
// TestAgentConsoles uses in the same way.
func TestGuideInteractive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.dir = h.userDir("project", map[string]string{"a.txt": "1\n"})
	var run string
	h.guide("docs/guides/interactive.md", map[string]func([]string){
		"caisson run -it claude-code": func(words []string) {
			words[3] = "shell"
			d := h.sit(words[1:]...)
			d.types("echo two >> a.txt; echo mar''ked\n")
			d.sees("marked")
			d.types(leaveKeys)
			d.ends(0)
			run = regexp.MustCompile(`rn-[a-z2-7]{16}`).FindString(d.text())
			d = h.sit("attach", run)
			d.types("exit\n")
			d.ends(0)
		},
		"caisson diff": func(words []string) {
			if diff := h.ok(words[1:]...); !strings.Contains(diff, "+two") {
				t.Errorf("the diff is %s", diff)
			}
		},
		"caisson sync": func(words []string) { h.ok(append(words[1:], "--yes")...) },
		"caisson attach rn-": func(words []string) {
			words[2] = run
			h.run(words[1:]...) // it has ended
		},
		"caisson run -dit": func(words []string) {
			words[3] = "shell"
			h.ok("cancel", h.ok(words[1:]...))
		},
		"caisson exec -it": func(words []string) {
			d := h.sit(words[1:]...)
			d.types("echo mar''ked\n")
			d.sees("marked")
			d.types(leaveKeys)
			d.ends(0)
		},
		"caisson attach": func(words []string) {
			d := h.sit(words[1:]...)
			d.sees("marked")
			d.types(leaveKeys)
			d.ends(0)
		},
		"caisson attach --read-only": func(words []string) {
			d := h.sit(words[1:]...)
			d.sees("marked")
			d.types("\x03")
			d.ends(exitInterrupted)
		},
	})
}

// exitInterrupted is the exit code of a command that Ctrl-C has ended.
const exitInterrupted = 130

// TestGuideServices runs the commands of docs/guides/services.md.
func TestGuideServices(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	text, err := os.ReadFile("../docs/guides/services.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	site, _, _ := strings.Cut(rest, "```")
	h.dir = h.userDir("site", map[string]string{"site.yaml": site})
	h.guide("docs/guides/services.md", map[string]func([]string){
		"caisson service ls": func(words []string) {
			poll.Until(t, settle, func() bool { return strings.Contains(h.ok(words[1:]...), "ready") })
		},
	})
}

// TestGuideRoutes runs the commands of docs/guides/routes.md.
func TestGuideRoutes(t *testing.T) {
	t.Parallel()
	h := newRoutedHost(t)
	h.startServer("my-sandbox", "5173")
	h.guide("docs/guides/routes.md", map[string]func([]string){
		"caisson open": func(words []string) {
			url := strings.TrimSpace(h.ok(words[1:]...))
			h.reach(url)
		},
		"caisson sandbox create": func(words []string) {
			h.ok("sandbox", "rm", "my-sandbox")
			h.ok(words[1:]...)
		},
		"caisson route ls": func(words []string) {
			h.reach(h.at("app.localhost", "/"))
			if list := h.ok(words[1:]...); strings.Count(list, "my-sandbox") != 3 && strings.Count(list, "sb-") != 3 {
				t.Errorf("the routes are %s", list)
			}
		},
	})
}

// TestGuideSSH runs the commands of docs/guides/ssh.md.
func TestGuideSSH(t *testing.T) {
	t.Parallel()
	needPrograms(t, "ssh", "scp", "sftp", "rsync")
	h := &sshHost{host: newHost(t)}
	h.configure("idleExit: 10m", "ssh: {listen: 127.0.0.1:"+freePort(t)+"}")
	h.dir = h.userDir("home", map[string]string{"src/a.txt": "1\n", "Makefile": "test:\n\techo tested\n"})
	key := h.newKey("id_ed25519")
	over := func(words []string) { // ssh and the like, with the configuration that was written
		args := append([]string{"-F", h.config}, words[1:]...)
		if words[0] == "rsync" {
			args = append([]string{"-e", "ssh -F " + h.config}, words[1:]...)
		}
		if words[0] == "ssh" {
			args = append(args, "true")
		}
		if r := h.tool(nil, words[0], args...); r.code != 0 {
			t.Errorf("%v", r)
		}
	}
	h.guide("docs/guides/ssh.md", map[string]func([]string){
		"caisson sandbox create": func(words []string) {
			h.ok(words[1:]...)
			h.ok("cp", h.dir+"/Makefile", "dev:/root/Makefile")
			h.ok("exec", "dev", "--", "mkdir", "/root/work")
		},
		"caisson ssh dev": func(words []string) {
			d := h.sit(words[1:]...)
			if len(words) == 3 {
				d.types("echo mar''ked; exit\n")
				d.sees("marked")
			}
			d.ends(0)
		},
		"caisson --raw-tty ssh dev": func(words []string) {
			d := h.sit(words[1:]...)
			d.types("exit\n")
			d.ends(0)
		},
		"caisson ssh-config >>": func(words []string) { h.config = h.write("ssh-config", h.ok("ssh-config")+"\n") },
		"scp":                   over, "sftp": over, "rsync": over, "ssh": over,
		"CAISSON_RAW_TTY=1 ssh": func(words []string) {
			h.env = append(h.env, words[0])
			over(words[1:])
		},
		"caisson token create": func(words []string) {
			words[slices.Index(words, "--ssh-key")+1] = key + ".pub"
			h.ok(words[1:]...)
		},
		"ssh dev.caisson code-server": elsewhere(pagetest.Skip("TestEditor", "")), "ssh -N -D": elsewhere(pagetest.Skip("TestEditor", "")),
		"chromium": elsewhere(pagetest.Skip("TestEditor", "")),
	})
}

// TestGuideOwnAgent tests that the agents of docs/guides/own-agent.md work as the page says, and fail where the gateway refuses their call.
func TestGuideOwnAgent(t *testing.T) {
	t.Parallel()
	needPrograms(t, "curl", "jq")
	h := newHost(t)
	defer func(dir string) { h.dir = dir }(h.dir)
	h.configure("idleExit: 10m", "providers: [{name: demo, kind: scripted}]", "models: [{alias: demo, provider: demo, prices: {input: 1, output: 1}, output: 2000}]")
	page, err := os.ReadFile("../docs/guides/own-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for i, block := range strings.Split(string(page), "```") {
		if agent, ok := strings.CutPrefix(block, "yaml\nid: "); ok && i%2 == 1 {
			id, _, _ := strings.Cut(agent, "\n")
			files[id] = h.write(id+".yaml", "id: "+agent)
		}
	}
	if len(files) != 3 {
		t.Fatalf("the page has the agents %v", files)
	}
	dir := h.userDir("project", map[string]string{"a.txt": "1\n2\n", "b.txt": "3\n", "c.md": "4\n"})
	h.guide("docs/guides/own-agent.md", map[string]func([]string){
		"caisson agent add": func(words []string) { h.ok("agent", "add", files[strings.TrimSuffix(words[3], ".yaml")]) },
		"caisson run": func(words []string) {
			at := slices.Index(words, "~/project")
			if at < 0 {
				prompt := words[len(words)-1]
				if answer := strings.TrimSpace(h.ok(words[1:]...)); answer != "You said: "+prompt {
					t.Errorf("the answer is %q", answer)
				}
				return
			}
			words[at] = dir
			if answer := strings.TrimSpace(h.ok(words[1:]...)); answer != "3" {
				t.Errorf("the answer is %q", answer)
			}
			h.dir = dir
		},
		"caisson diff": func(words []string) {
			if diff := h.ok(words[1:]...); !strings.Contains(diff, "lines.txt") {
				t.Errorf("the diff is %s", diff)
			}
		},
	})
	const prompt = `say "hello" {twice} \ $HOME`
	for _, id := range []string{"ask", "stream"} {
		r := h.succeeds(id, prompt)
		if got := strings.TrimSpace(r.Result.Answer); got != "You said: "+prompt || r.Usage.Calls != 1 {
			t.Errorf("%s says %q after %d calls", id, got, r.Usage.Calls)
		}
		if r = h.does("--max-tokens", "10", id, prompt); r.State != caisson.RunFailed {
			t.Errorf("without a budget %s says %q", id, r.Result.Answer)
		}
	}
}

// TestGuideStart runs the commands of docs/start.md with the built-in agent, and a provider of the test. TestAgentConsoles and TestOpenClaw
// run those with agents from npm.
func TestGuideStart(t *testing.T) {
	t.Parallel()
	h := &modelHost{host: newHost(t)}
	h.configure("# nothing") // instead of no file: the host that runs this test may have one
	u := newUpstream(t, caisson.ProviderAnthropic, sample.Script, false, nil)
	dir := filepath.Join(h.dir, "project")
	if err := sample.Write(dir); err != nil {
		t.Fatal(err)
	}
	h.owned(dir)
	before := h.tree(dir)
	run := func(words []string) string {
		t.Helper()
		if i := slices.Index(words, "~/project"); i >= 0 {
			words[i] = dir
		}
		return h.ok(words[1:]...)
	}
	h.host.dir = dir
	h.guide("docs/start.md", map[string]func([]string){
		"make build": elsewhere(pagetest.Skip("", "has been run")), "install": elsewhere(pagetest.Skip("", "changes this machine")),
		"cd": elsewhere(pagetest.Skip("", "is done already")), "caisson run -it claude-code": elsewhere(pagetest.Skip("TestAgentConsoles", "")),
		"caisson agent warm": elsewhere(pagetest.Skip("TestOpenClaw", "")), "caisson run openclaw": elsewhere(pagetest.Skip("TestOpenClaw", "")),
		"caisson doctor": func(words []string) { h.run(words[1:]...) }, // it fails where something is missing
		"export": func([]string) {
			h.env = append(h.env, "ANTHROPIC_API_KEY="+u.key, "ANTHROPIC_BASE_URL="+u.url)
		},
		"caisson run caisson": func(words []string) {
			if answer := run(words); !strings.Contains(answer, sample.Answer) && !strings.Contains(words[len(words)-1], "dependencies") {
				t.Errorf("the agent says %s", answer)
			}
			if after := h.tree(dir); after != before {
				t.Errorf("the directory was\n%s\nand is\n%s", before, after)
			}
		},
		"caisson diff": func(words []string) {
			if diff := run(words); !strings.Contains(diff, "+4 IV") {
				t.Errorf("the diff is %s", diff)
			}
		},
		"caisson sync": func(words []string) {
			run(append(words, "--yes"))
			if h.tree(dir) == before {
				t.Error("nothing was applied")
			}
		},
		"caisson sync undo": func(words []string) {
			run(words)
			if program, err := os.ReadFile(filepath.Join(dir, "roman.sh")); err != nil || strings.Contains(string(program), "4 IV") {
				t.Errorf("after undo the program is %s, %v", program, err)
			}
			before = h.tree(dir)
		},
	})
}
