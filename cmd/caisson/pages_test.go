package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/internal/pagetest"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// A pageHost is a home directory in which the commands of a page are run by a shell. It has a git repository, ~/project, with a
// change that is not committed.
type pageHost struct {
	t   *testing.T
	dir string // HOME
	at  string // working directory
	env []string
	ids map[string]string // what stands for the ids in pages
}

func newPageHost(t *testing.T) *pageHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "cp-") // shorter than t.TempDir(): the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	h := &pageHost{t: t, dir: dir, at: dir, ids: map[string]string{}}
	t.Cleanup(func() {
		endDaemon(t, filepath.Join(dir, "data"))
		os.RemoveAll(dir)
	})
	h.env = append(home(t, dir), "PATH="+os.Getenv("PATH"), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b")
	h.write("project/a.txt", "1\n")
	h.write("project/README.md", "read me\n")
	h.must("cd ~/project && git init -q -b main && git add . && git commit -q -m first && echo 2 >> a.txt && git init -q --bare ~/notes.git")
	return h
}

// write creates a file in the home directory.
func (h *pageHost) write(name, text string) {
	h.t.Helper()
	file := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a command line and returns its output and exit code.
func (h *pageHost) run(line string) (stdout, stderr string, code int) {
	for id, is := range h.ids {
		line = strings.ReplaceAll(line, id, is)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), apitest.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", strings.TrimPrefix(line, "sudo "))
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // its children, too
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = h.at, h.env, &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		h.t.Errorf("%s: %v", line, err)
		return "", "", -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs a command line that must succeed, and returns its output without the last newline.
func (h *pageHost) must(line string) string {
	h.t.Helper()
	out, errs, code := h.run(line)
	if code != 0 {
		h.t.Errorf("%s: exit code %d: %s%s", line, code, out, errs)
	}
	return strings.TrimSuffix(out, "\n")
}

// with returns a function that runs a command line with text after it.
func (h *pageHost) with(text string) func(line string) {
	return func(line string) {
		h.t.Helper()
		h.must(line + text)
	}
}

// shows returns a function that runs a command line, whose output must contain text.
func (h *pageHost) shows(text string) func(line string) {
	return func(line string) {
		h.t.Helper()
		if out := h.must(line); !strings.Contains(out, text) {
			h.t.Errorf("%s: there is no %q in %s", line, text, out)
		}
	}
}

// page runs a page.
func (h *pageHost) page(page string, special map[string]func(line string)) {
	h.t.Helper()
	pagetest.Run(h.t, page, special, func(line string) { h.t.Helper(); h.must(line) })
}

// agent adds an agent in place of a built-in one, which needs npm.
func (h *pageHost) agent(id string) {
	h.t.Helper()
	h.write(id+".yaml", "id: "+id+"\nname: x\nimage: host\ndriver: jsonl\nevents: {dialect: caisson}\ncommand: [/image]\n")
	h.must("caisson agent add " + id + ".yaml")
}

// asks returns a function that runs a command line with another prompt, which agents of package coretest understand.
func (h *pageHost) asks(prompt string) func(line string) {
	return func(line string) {
		h.t.Helper()
		h.must(quoted.ReplaceAllString(line, "'"+prompt+"'"))
	}
}

var quoted = regexp.MustCompile(`"[^"]*"$`)

// yaml writes the file of a page that is below its nth mark yaml.
func (h *pageHost) yaml(page string, n int, name string) {
	h.t.Helper()
	_, files := pagetest.Read(h.t, page)
	h.write(name, files[n].Text)
}

// TestPages runs the commands of pages, with cores, store and jobs of the product, on the drivers of package coretest. TestGuide* of package test run others in
// real sandboxes.
func TestPages(t *testing.T) {
	t.Parallel()
	testneed.Root(t)
	const token = "caisson credential set"
	const change = "say done; write new.txt x" // what an agent of package coretest does for this prompt
	for page, run := range map[string]func(h *pageHost, page string){
		"README.md#Agents": func(h *pageHost, page string) {
			h.agent("codex")
			h.at = filepath.Join(h.dir, "project")
			h.write("project/task.md", "write b.txt 1")
			h.page(page, nil)
		},
		"README.md#Repositories": func(h *pageHost, page string) {
			h.page(page, map[string]func(string){
				token: h.with(" < config.yaml"), "caisson run": h.asks(change), "caisson relay ls": h.shows("delivered"),
			})
		},
		"docs/agents.md": func(h *pageHost, page string) {
			h.yaml(page, 0, "reviewer.yaml")
			// Sandboxes of package coretest have neither a package manager nor other models.
			h.must(`sed -i 's|/bin/sh, -c, "apt-get.*"|echo, installed|; s|/bin/chmod|echo|; s|sonnet, small|large, small|' reviewer.yaml`)
			h.agent("codex")
			h.page(page, nil)
		},
		"docs/runs.md": func(h *pageHost, page string) {
			h.write("project/task.md", "fail once it crashed; say done")
			h.at = filepath.Join(h.dir, "project")
			h.page(page, map[string]func(string){
				"caisson run -d": func(line string) { h.ids["rn-abcdefghijklmnop"] = h.must(line) },
				"caisson attach": func(line string) {
					if _, errs, code := h.run(line); code != 10 {
						h.t.Errorf("%s: exit code %d: %s", line, code, errs)
					}
				},
				"caisson cancel": func(line string) {
					failed := h.ids["rn-abcdefghijklmnop"]
					h.ids["rn-abcdefghijklmnop"] = h.must("caisson run -d caisson wait")
					h.must(line)
					h.ids["rn-abcdefghijklmnop"] = failed
				},
				"curl": func(line string) {
					if h.at != h.dir {
						h.at = h.dir
						h.env = append(h.env, "TOKEN="+h.must("caisson token create -q ci"), "URL="+h.must("cat data/url"))
					}
					h.shows(`"state":"`)(line)
				},
				"tar -C project": h.shows(`"state":"queued"`),
			})
		},
		"docs/relay.md": func(h *pageHost, page string) {
			h.write("app.json", `{"appId": 12345, "privateKey": "x"}`)
			h.write(".ssh/known_hosts", "github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAD\n")
			h.must("ssh-keygen -q -t ed25519 -N '' -f key && caisson credential set DEPLOY_KEY --file key")
			h.must("caisson sandbox create --name dev")
			again := func(line string) { // the page adds it in several ways
				h.t.Helper()
				h.run("caisson repo rm web")
				h.must(line)
			}
			held := func() string { // a delivery that is held, because its run has failed
				if _, errs, code := h.run("caisson run caisson --repo web 'write held.txt x; fail agent_error no'"); code != 10 {
					h.t.Errorf("exit code %d: %s", code, errs)
				}
				return h.must("caisson relay ls -q --state held")
			}
			h.page(page, map[string]func(string){
				token: h.with(" < config.yaml"), "caisson credential set ACME_APP": h.with(""), "caisson repo add web": again,
				"caisson run": h.asks(change), "caisson run caisson --repo web --base develop": func(line string) {
					h.asks(change)(strings.Replace(line, "develop", "feature", 1)) // remotes of package coretest have that
				},
				"caisson repo deliver": func(line string) {
					h.must("caisson cp config.yaml dev:/workspace/new.txt")
					h.must(line)
				},
				"caisson relay show": func(line string) {
					h.ids["dl-abcdefghijklmnop"] = held()
					h.ids["rn-abcdefghijklmnop"] = h.must("caisson runs ls -q -n 1")
					h.must(line)
				},
				"caisson relay drop": func(line string) {
					h.ids["dl-abcdefghijklmnop"] = held()
					h.must(line)
				},
			})
		},
		"docs/gateway.md": func(h *pageHost, page string) {
			h.write("gateway.token", "token")
			model := func(line string) { h.must(strings.Replace(line, "sonnet", "large", 1)) }
			sets := 0
			h.page(page, map[string]func(string){
				"sudo caisson credential set RUN_KEY --file run.key": func(line string) {
					if sets++; sets > 1 { // another machine
						h.must("caisson credential rm RUN_KEY")
					}
					h.must(line)
				},
				"caisson sandbox create": model, "caisson gateway run put": model,
				"sudo caisson gateway": pagetest.Skip("TestRemoteGateway", "serves until it is ended"),
				"sudo caisson serve":   pagetest.Skip("TestRemoteGateway", "serves until it is ended"),
				"data=":                pagetest.Skip("TestRemoteGatewayDocs", ""), "sig=": pagetest.Skip("TestRemoteGatewayDocs", ""), "curl ": pagetest.Skip("TestRemoteGatewayDocs", ""),
			})
		},
		"docs/workspaces.md": func(h *pageHost, page string) {
			h.write("project/public.pem", "x")
			h.must("caisson repo add web https://github.com/acme/web")
			h.page(page, map[string]func(string){
				"caisson exec dev": func(string) { // there is no shell in sandboxes of package coretest; TestWorkspaceModes uses one
					h.must("caisson cp config.yaml dev:/workspace/b.md")
				},
				"caisson sync dev": func(line string) {
					h.must(line + " --yes")
					h.at = filepath.Join(h.dir, "project")
				},
				"caisson run": h.asks("say done; write notes.md x"),
				"caisson diff --stat": func(line string) {
					h.must("caisson sandbox create --name again --workspace . && caisson cp a.txt again:/workspace/c.md")
					h.must(line)
				},
				"caisson sync --reset": func(line string) {
					h.must("caisson sandbox stop again")
					h.must(line)
				},
				"caisson sync show": func(line string) {
					h.ids["rc-abcdefghijklmnop"] = h.must("caisson sync log -q | head -n 1")
					h.must(line)
				},
			})
		},
		"docs/guides/claude-code.md": func(h *pageHost, page string) {
			h.agent("claude-code")
			h.at = filepath.Join(h.dir, "project")
			h.page(page, map[string]func(string){
				token: h.with(" < ~/config.yaml"), "caisson run claude-code -C ~/project --max-cost 1": h.asks(change), "caisson diff": h.shows("+x"), "caisson sync": h.with(" --yes"),
			})
		},
		"docs/guides/codex.md": func(h *pageHost, page string) {
			h.agent("codex")
			h.at = filepath.Join(h.dir, "project")
			h.page(page, map[string]func(string){
				token: h.with(" < ~/config.yaml"), "caisson run codex -C ~/project --max-cost 1": h.asks(change), "caisson diff": h.shows("+x"), "caisson sync": h.with(" --yes"),
			})
		},
		"docs/guides/openclaw.md": func(h *pageHost, page string) {
			h.write(".openclaw/openclaw.json", "{}")
			h.page(page, map[string]func(string){
				token: h.with(" < ~/config.yaml"), "caisson session rm": func(line string) {
					h.ids["se-abcdefghijklmnop"] = h.must("caisson session ls -q")
					h.must(line)
				},
			})
		},
	} {
		t.Run(strings.ReplaceAll(page, "/", "_"), func(t *testing.T) {
			t.Parallel()
			run(newPageHost(t), page)
		})
	}
}
