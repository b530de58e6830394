package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// ours are the sequences that a run's view itself writes on a terminal.
var ours = regexp.MustCompile(`\r[|/\\-] [^\r\x1b]*\x1b\[K|\r\x1b\[K`)

// TestRunOnTerminal: the answer and what the agent does are there, and nothing of it has acted on the terminal.
func TestRunOnTerminal(t *testing.T) {
	s := onScreen(t, "run", "caisson",
		`say safe\u001b[2J\u001b]0,title\u0007 answer; tool ev\u001b[2Jil x\u202ey; status \u001b[31mbusy\u000d; write \u001b[Hgo x; `+
			`say \u009b2J last; fail agent_error \u001b[5mno`)
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
		if got := oneLine(in); got != want {
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
		err := checkOutsideDataDir(filepath.Join(top, dir), filepath.Join(top, "data"))
		if (err == nil) != ok || err != nil && caisson.FieldOf(err) != "directory" {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := checkOutsideDataDir(filepath.Join(top, "project"), filepath.Join(top, "not-yet")); err != nil {
		t.Error(err)
	}
}

// TestTook: a run took as long as its user has waited for it, the queue and the start of its sandbox included.
func TestTook(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) time.Time {
		return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
	}
	for _, c := range []struct {
		name  string
		run   caisson.Run
		asked time.Time
		want  time.Duration
	}{
		{"waited for", caisson.Run{Attempt: 1, CreatedAt: at(0), StartedAt: at(0.7), EndedAt: at(2.4)}, at(-0.5), 3100 * time.Millisecond},
		{"a later attempt, waited for", caisson.Run{Attempt: 2, CreatedAt: at(-500), StartedAt: at(0.7), EndedAt: at(2.4)}, at(0), 2600 * time.Millisecond},
		{"shown again", caisson.Run{Attempt: 1, CreatedAt: at(0), StartedAt: at(0.7), EndedAt: at(2.4)}, time.Time{}, 2400 * time.Millisecond},
		{"a later attempt, shown again", caisson.Run{Attempt: 2, CreatedAt: at(-500), StartedAt: at(0.7), EndedAt: at(2.4)}, time.Time{}, 1700 * time.Millisecond},
		{"never begun", caisson.Run{Attempt: 1, CreatedAt: at(0), EndedAt: at(0.3)}, time.Time{}, 300 * time.Millisecond},
	} {
		if got := elapsed(&c.run, c.asked, at(2.6)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestCost: what all attempts of a run cost is printed, or what they can cost at most while calls are under way.
func TestCost(t *testing.T) {
	last := &caisson.RunResult{Usage: caisson.RunUsage{Cost: caisson.Dollar}}
	for _, c := range []struct {
		run  caisson.Run
		want string
	}{
		{caisson.Run{Result: last}, "$1"},
		{caisson.Run{Result: last, Usage: caisson.RunUsage{Cost: 3 * caisson.Dollar}}, "$3"},
		{caisson.Run{Result: last, Usage: caisson.RunUsage{Cost: 3 * caisson.Dollar, Estimated: true}}, "about $3"},
		{caisson.Run{Result: last, Usage: caisson.RunUsage{Cost: 3 * caisson.Dollar, Estimated: true, MaxCost: 4 * caisson.Dollar}}, "at most $4"},
	} {
		if got := costText(totalUsage(&c.run)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.run.Usage, got, c.want)
		}
	}
}
