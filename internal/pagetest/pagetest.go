// Package pagetest reads the pages of the documentation for tests that run their commands.
//
// An indented block, or a fenced block with the mark sh, contains commands, one per line; a backslash at the end of a line
// continues the command. Any other fenced block is a file, and its mark, such as yaml, json or text, is the format of the file.
package pagetest

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A Command is a command line in a page of the documentation.
type Command struct {
	Section string // the last heading above the command, without number signs
	Line    int    // line number in the page
	Text    string // the command without a comment at its end
}

// A File is a file that a page of the documentation contains as a fenced block.
type File struct {
	Line   int    // line number of the first line of the file in the page
	Format string // the mark of the fenced block, such as yaml
	Text   string // the content of the file
}

// Pages returns the paths of all pages of the documentation with commands for users and developers, relative to the root of the
// module.
func Pages(t testing.TB) []string {
	t.Helper()
	list := []string{"README.md", "SECURITY.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "docs/guides/*.md"} {
		found, err := fs.Glob(root(t), pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// root returns the files of the module.
func root(t testing.TB) fs.FS {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.DirFS(dir)
		}
	}
	t.Fatal("there is no go.mod")
	return nil
}

// Read returns the commands and the files in a page of the documentation. page is its path, relative to the root of the module.
func Read(t testing.TB, page string) ([]Command, []File) {
	t.Helper()
	text, err := fs.ReadFile(root(t), page)
	if err != nil {
		t.Fatal(err)
	}
	return parse(string(text))
}

// parse returns the commands and the files in the text of a page of the documentation.
func parse(text string) (commands []Command, files []File) {
	section, mark := "", ""
	fenced, above := false, true // above means that the line before is empty or indented; an indented line is then code
	number, continued := 0, false
	command := func(line string) {
		if continued {
			last := &commands[len(commands)-1]
			last.Text += " " + strings.TrimSpace(line)
		} else {
			commands = append(commands, Command{section, number, strings.TrimSpace(line)})
		}
		last := &commands[len(commands)-1]
		last.Text, continued = strings.CutSuffix(last.Text, " \\")
		if before, comment, ok := strings.Cut(last.Text, " # "); ok && !strings.ContainsAny(comment, `'"`) {
			last.Text = strings.TrimSpace(before)
		}
	}
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "    ") && above
		above = line == "" || indented
		switch {
		case strings.HasPrefix(line, "```"):
			fenced, mark = !fenced, strings.TrimPrefix(line, "```")
			if fenced && mark != "sh" {
				files = append(files, File{number + 1, mark, ""})
			}
		case fenced && mark != "sh":
			files[len(files)-1].Text += line + "\n"
		case fenced, indented:
			command(line)
		case strings.HasPrefix(line, "#"):
			section = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	return commands, files
}

// Skip returns a function for [Run] that runs nothing, because of reason. by is the name of the test that runs the command
// instead, or "" if there is none; a test checks that a test of this name exists.
func Skip(by, reason string) func(line string) {
	_ = reason // only for readers of the source
	return func(string) {}
}

// Run runs the commands of a page of the documentation (a path), or of one of its sections (PATH#SECTION), in their order. A
// command that begins with a key of special is passed to the function of the longest such key, and other commands to run. The
// test fails if a key of special is not used.
func Run(t testing.TB, page string, special map[string]func(line string), run func(line string)) {
	t.Helper()
	page, section, part := strings.Cut(page, "#")
	commands, _ := Read(t, page)
	unused, ran := maps.Clone(special), 0
	for _, c := range commands {
		if part && c.Section != section {
			continue
		}
		ran++
		name := ""
		for begin := range special {
			if strings.HasPrefix(c.Text, begin) && len(begin) > len(name) {
				name = begin
			}
		}
		delete(unused, name)
		begin := time.Now()
		if f := special[name]; f != nil {
			f(c.Text)
		} else {
			run(c.Text)
		}
		t.Logf("%s:%d: %s (%.1fs)", page, c.Line, c.Text, time.Since(begin).Seconds())
	}
	if len(unused) > 0 {
		t.Errorf("%s has no longer %q", page, slices.Sorted(maps.Keys(unused)))
	}
	if ran == 0 {
		t.Errorf("%s has no commands in %q", page, section)
	}
}
