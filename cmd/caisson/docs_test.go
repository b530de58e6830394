package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/internal/pagetest"
	"github.com/caisson-dev/caisson/internal/strictyaml"
	"github.com/caisson-dev/caisson/wire/egress"
)

// TestDocumentedCommandsParse: every command line of the README, the pages of docs and the help is one that the parser understands.
func TestDocumentedCommandsParse(t *testing.T) {
	a := &app{stdio: stdio{out: new(strings.Builder), err: new(strings.Builder), getenv: os.Getenv}, interrupts: newInterrupts(func() {})}
	if err := a.main(t.Context(), []string{"version"}); err != nil { // not --help: the parser would remember it
		t.Fatal(err)
	}
	texts := []string{}
	for _, page := range pagetest.Pages(t) {
		commands, _ := pagetest.Read(t, page)
		for _, c := range commands {
			texts = append(texts, "    "+c.Text)
		}
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		texts = append(texts, n.Detail)
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(a.parser.Model.Node)
	seen := 0
	for _, text := range texts {
		for line := range strings.Lines(text) {
			for _, args := range commandsIn(line) {
				seen++
				if _, err := a.parser.Parse(args); err != nil {
					t.Errorf("%q: %v", strings.TrimSpace(line), err)
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d command lines were found", seen)
	}
}

// pageRuns has the tests that run the commands of each page, or of its sections. They use [pagetest.Run], which fails if a command fails.
var pageRuns = map[string]string{
	"README.md#First run":              "TestGuideReadme",
	"README.md#Agents":                 "TestPages",
	"README.md#Repositories":           "TestPages",
	"README.md#Sandboxes":              "TestGuideReadme",
	"README.md#Into a sandbox":         "TestGuideReadme",
	"README.md#What a sandbox reaches": "TestGuideReadme",
	"README.md#Models":                 "TestGuideReadme",
	"README.md#The daemon":             "TestGuideReadme",
	"docs/agents.md":                   "TestPages",
	"docs/gateway.md":                  "TestPages",
	"docs/models.md":                   "TestGuideModels",
	"docs/operate.md":                  "TestGuideOperate",
	"docs/relay.md":                    "TestPages",
	"docs/runs.md":                     "TestPages",
	"docs/start.md":                    "TestGuideStart",
	"docs/workspaces.md":               "TestPages",
	"docs/guides/claude-code.md":       "TestPages",
	"docs/guides/codex.md":             "TestPages",
	"docs/guides/interactive.md":       "TestGuideInteractive",
	"docs/guides/openclaw.md":          "TestPages",
	"docs/guides/own-agent.md":         "TestGuideOwnAgent",
	"docs/guides/ports.md":             "TestGuidePorts",
	"docs/guides/routes.md":            "TestGuideRoutes",
	"docs/guides/services.md":          "TestGuideServices",
	"docs/guides/ssh.md":               "TestGuideSSH",
}

// TestEveryPageIsRun tests that each command of the pages is run by a test of pageRuns, or is a target of make; that those tests run the
// pages; and that the tests that they name in place of running a command exist.
func TestEveryPageIsRun(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{} // by test
	named := regexp.MustCompile(`pagetest\.Skip\("(\w*)"`)
	var elsewhere []string
	err = filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for part := range strings.SplitSeq(string(text), "\nfunc ") {
			name, _, _ := strings.Cut(part, "(")
			sources[name] = part
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			elsewhere = append(elsewhere, m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range elsewhere {
		if name != "" && sources[name] == "" {
			t.Errorf("a command of a page is to be run by %s, which does not exist", name)
		}
	}
	used := map[string]bool{}
	for _, page := range pagetest.Pages(t) {
		commands, _ := pagetest.Read(t, page)
		for _, c := range commands {
			if words := strings.Fields(c.Text); words[0] == "make" {
				if len(words) != 2 || !strings.Contains("\n"+string(makefile), "\n"+words[1]+":") {
					t.Errorf("%s:%d: %q: the Makefile has no such target", page, c.Line, c.Text)
				}
				if pageRuns[page] == "" && pageRuns[page+"#"+c.Section] == "" {
					continue
				}
			}
			key := page
			if pageRuns[key] == "" {
				key = page + "#" + c.Section
			}
			known := used[key]
			used[key] = true
			if test := pageRuns[key]; test == "" {
				t.Errorf("%s:%d: no test runs %q: have one run the page with pagetest.Run, and add it to pageRuns; what is not a command is in a fence marked text or yaml",
					page, c.Line, c.Text)
			} else if !known && !strings.Contains(sources[test], `"`+key+`"`) {
				t.Errorf("%s is to be run by %s, which does not name it", key, test)
			}
		}
	}
	for key := range pageRuns {
		if !used[key] {
			t.Errorf("%s has no commands any more", key)
		}
	}
}

// TestDocumentedFiles tests that the YAML of the pages is valid, as what it is: a configuration, a policy, a template or an agent.
func TestDocumentedFiles(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, page := range pagetest.Pages(t) {
		_, files := pagetest.Read(t, page)
		for _, f := range files {
			switch f.Format {
			case "text", "":
				continue
			case "yaml":
			default:
				t.Errorf("%s:%d: the mark %q says neither text, sh nor yaml", page, f.Line, f.Format)
				continue
			}
			seen++
			if err := checkDocumented(f.Text); err != nil {
				t.Errorf("%s:%d: %v", page, f.Line, err)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d files were found", seen)
	}
}

// checkDocumented decodes a YAML file as that for which it has the fields.
func checkDocumented(text string) error {
	data := []byte(text)
	has := func(field string) bool { return strings.Contains("\n"+text, "\n"+field+":") }
	switch {
	case has("rules"):
		var p caisson.Policy
		if err := strictyaml.Decode(data, &p); err != nil {
			return err
		}
		_, err := egress.Compile(p)
		return err
	case has("driver"), has("buildPolicy"), has("events"):
		var a caisson.Agent
		if err := strictyaml.Decode(data, &a); err != nil || !has("id") { // without an id it is a part of one
			return err
		}
		_, err := agent.Parse(data)
		return err
	case has("image"):
		return strictyaml.Decode(data, &caisson.Template{})
	default:
		cfg := defaultConfig()
		if err := strictyaml.Decode(data, cfg); err != nil {
			return err
		}
		return errors.Join(cfg.validate())
	}
}

var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// commandsIn returns the arguments of the calls of caisson in a line of an indented block.
func commandsIn(line string) (calls [][]string) {
	if !strings.HasPrefix(line, "    ") {
		return nil
	}
	var args []string
	started, first := false, true // first: no word of the command has been read, but for variables and sudo
	end := func() {
		if started {
			calls = append(calls, args)
		}
		args, started, first = nil, false, true
	}
	for _, w := range word.FindAllString(line, -1) {
		switch {
		case strings.HasPrefix(w, "#"):
			end()
			return calls
		case started && strings.HasPrefix(w, "$("): // stands for a word
			args = append(args, "x")
			end()
			return calls
		case w == "&&" || w == "|" || w == ">" || w == ">>" || w == "<":
			end()
		case first && (w == "caisson" || w == "bin/caisson"):
			started, first = true, false
		case first && (w == "sudo" || strings.Contains(w, "=")):
		case started:
			args = append(args, strings.Trim(w, `'"`))
		default:
			first = false
		}
	}
	end()
	return calls
}
