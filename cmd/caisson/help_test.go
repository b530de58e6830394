package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson/internal/frozen"
)

// TestHelp: the help of every command, hidden ones too, is that of testdata/help.golden.
func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "100")
	var text strings.Builder
	a := &app{stdio: stdio{out: &text, err: &text, getenv: func(string) string { return "" }}, interrupts: newInterrupts(func() {})}
	if err := a.main(t.Context(), []string{"version"}); err != nil { // makes the parser
		t.Fatal(err)
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		fmt.Fprintf(&text, "==== %s\n", n.FullPath())
		trace, err := kong.Trace(a.parser, append(strings.Fields(n.FullPath())[1:], "--help"))
		if err != nil || trace.PrintUsage(false) != nil {
			t.Errorf("%s has no help: %v", n.FullPath(), err)
		}
		for _, f := range n.Flags {
			if f.Hidden {
				fmt.Fprintf(&text, "\nHidden: --%s  %s\n", f.Name, f.Help)
			}
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	text.Reset()
	walk(a.parser.Model.Node)
	// They are the same for all.
	global := regexp.MustCompile(`\nGlobal flags:\n( .*\n)+`).FindString(text.String())
	got := strings.ReplaceAll(text.String(), global, "\n(global flags)\n")
	got = "With these as (global flags):\n" + global + got

	const golden = "testdata/help.golden"
	if frozen.Updating() {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the help has changed; if that is intended, CAISSON_TEST_UPDATE=1 writes %s\n%s", golden, diff)
	}
}
