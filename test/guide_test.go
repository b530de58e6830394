package test_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/internal/poll"
)

// word matches a word of a command line in a page.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// guide runs the commands of a page of docs/guides, in their order: the indented lines, and those of blocks marked sh. special has the
// functions that run those that begin with a text instead; the others must succeed as they are. Each of special must be used.
func (h *host) guide(page string, special map[string]func(words []string)) {
	h.t.Helper()
	text, err := os.ReadFile("../docs/guides/" + page)
	if err != nil {
		h.t.Fatal(err)
	}
	unused := maps.Clone(special)
	block, shell := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			block, shell = !block, line == "```sh"
			continue
		}
		command, indented := strings.CutPrefix(line, "    ")
		if (block || !indented) && !shell || strings.HasPrefix(command, " ") {
			continue
		}
		command, _, _ = strings.Cut(command, " #")
		var words []string
		for _, w := range word.FindAllString(command, -1) {
			words = append(words, strings.Trim(w, `'"`))
		}
		if len(words) == 0 {
			continue
		}
		name := ""
		for begin := range special {
			if strings.HasPrefix(command, begin) && len(begin) > len(name) {
				name = begin
			}
		}
		delete(unused, name)
		switch run := special[name]; {
		case run != nil:
			run(words)
		case words[0] == "caisson":
			h.ok(words[1:]...)
		default:
			h.t.Errorf("%s: %q is run by nothing", page, command)
		}
	}
	if len(unused) > 0 {
		h.t.Errorf("%s has no longer %q", page, slices.Sorted(maps.Keys(unused)))
	}
}

// skip is for commands that another test runs.
func skip([]string) {}

// TestGuideInteractive runs the commands of docs/guides/interactive.md, with the agent shell in place of those from npm, which
// TestAgentConsoles uses in the same way.
func TestGuideInteractive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.dir = h.userDir("project", map[string]string{"a.txt": "1\n"})
	var run string
	h.guide("interactive.md", map[string]func([]string){
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
	h.guide("services.md", map[string]func([]string){
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
	h.guide("routes.md", map[string]func([]string){
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
	h.guide("ssh.md", map[string]func([]string){
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
		// TestEditor runs these.
		"ssh dev.caisson code-server": skip, "ssh -N -D": skip, "chromium": skip,
	})
}

// TestGuideOwnAgent tests that the first agent of docs/guides/own-agent.md works as the page says.
func TestGuideOwnAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	page, err := os.ReadFile("../docs/guides/own-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	agent, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no agent")
	}
	h.ok("agent", "add", h.write("count-lines.yaml", agent))
	h.ok("agent", "check", "count-lines")
	dir := h.userDir("project", map[string]string{"a.txt": "1\n2\n", "b.txt": "3\n", "c.md": "4\n"})
	r := h.succeeds("-C", dir, "count-lines", "txt")
	if got := strings.TrimSpace(r.Result.Answer); got != "3" {
		t.Errorf("the answer is %q", got)
	}
	if change := h.diff(string(r.ID))["lines.txt"]; change.Kind != caisson.ChangeAdded {
		t.Errorf("lines.txt is %+v in the diff", change)
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
	h.guide("../start.md", map[string]func([]string){
		"make build": skip, "install": skip, "cd": skip, "caisson run -it claude-code": skip, "caisson agent warm": skip, "caisson run openclaw": skip,
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
