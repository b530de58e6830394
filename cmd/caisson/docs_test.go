package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestDocumentedCommandsParse: every command line of the README, the pages of docs and the help is one that the parser understands.
func TestDocumentedCommandsParse(t *testing.T) {
	a := &app{stdio: stdio{out: new(strings.Builder), err: new(strings.Builder), getenv: os.Getenv}, interrupts: newInterrupts(func() {})}
	if err := a.main(t.Context(), []string{"version"}); err != nil { // not --help: the parser would remember it
		t.Fatal(err)
	}
	var texts []string
	pages := []string{"../../README.md", "../../SECURITY.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/guides/*.md"} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, list...)
	}
	for _, name := range pages {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
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
