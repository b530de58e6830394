package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// ours are the sequences that a run's view itself writes on a terminal.
var ours = regexp.MustCompile(`\r[|/\\-] [^\r\x1b]*\x1b\[K|\r\x1b\[K`)

// TestRunOnTerminal: the answer and what the agent does are there, and nothing of it has acted on the terminal.
func TestRunOnTerminal(t *testing.T) {
	s := onScreen(t, "run", "caisson",
		"say safe\x1b[2J\x1b]0,title\x07 answer; tool ev\x1b[2Jil x\u202ey; status \x1b[31mbusy\r; change \x1b[Hgo; say \x9b2J last; fail agent_error \x1b[5mno")
	s.await("the run's end", func() bool { return strings.Contains(s.text(), "caisson: agent_error") })
	got := ours.ReplaceAllString(s.text(), "")
	if strings.ContainsAny(got, "\x1b\x07\u202e\u009b") || strings.Contains(strings.ReplaceAll(got, "\r\n", "\n"), "\r") {
		t.Errorf("%q", got)
	}
	for _, want := range []string{"safe", " answer\r\ntool ev", "last\r\nrun rn-", "1 changed: "} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in %q", want, got)
		}
	}
	if err := s.cmd.Wait(); err == nil || s.cmd.ProcessState.ExitCode() != 10 {
		t.Error(err)
	}
}

func TestBrief(t *testing.T) {
	long := strings.Repeat("ü ", 200)
	for in, want := range map[string]string{
		"": "", " a\n\tb  c ": "a b c", long: strings.TrimSuffix(strings.Repeat("ü ", 80), "") + "…",
	} {
		if got := brief(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestApart(t *testing.T) {
	top := t.TempDir()
	for _, d := range []string{"data/runs", "project/sub", "data-2"} {
		if err := os.MkdirAll(filepath.Join(top, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("data/runs", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	for dir, ok := range map[string]bool{
		"project": true, "project/sub": true, "data-2": true, "project/..": false, ".": false, "data": false, "data/runs": false, "link": false, "nowhere": false,
	} {
		err := apart(filepath.Join(top, dir), filepath.Join(top, "data"))
		if (err == nil) != ok || err != nil && caisson.FieldOf(err) != "directory" {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := apart(filepath.Join(top, "project"), filepath.Join(top, "not-yet")); err != nil {
		t.Error(err)
	}
}
