package test_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// invisible matches what is not visible on a terminal, and spaces: programs move the cursor instead of writing some.
var invisible = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()].|\x1b[^\[]|[\s\x0e\x0f]`)

// shows reports whether text is visible on the terminal, or was.
func (d *desk) shows(text string) bool {
	return strings.Contains(invisible.ReplaceAllString(d.text(), ""), invisible.ReplaceAllString(text, ""))
}

// reads waits until text is visible.
func (d *desk) reads(text string) {
	d.h.t.Helper()
	defer func() {
		if d.h.t.Failed() {
			d.h.t.Logf("waited for %q in %q", text, d.text())
		}
	}()
	poll.Until(d.h.t, hang, func() bool { return d.shows(text) })
}

// enters types a line to a program with an editor of its own, and presses Enter until done: Enter at once after other keys may count as
// pasted.
func (d *desk) enters(line string, done func() bool) {
	d.h.t.Helper()
	d.types(line)
	d.reads(line)
	var pressed time.Time
	defer func() {
		if d.h.t.Failed() {
			d.h.t.Logf("after %q: %q", line, d.text())
		}
	}()
	poll.Until(d.h.t, hang, func() bool {
		if done() {
			return true
		}
		if time.Since(pressed) > 5*time.Second {
			pressed = time.Now()
			_, _ = d.master.WriteString("\r") // an error means that the program has just ended
		}
		return false
	})
}

// hasEnded reports whether the command has ended.
func (d *desk) hasEnded() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// TestAgentConsoles uses real agents at their own terminals: without a question they take a prompt, call a tool and edit a file; the
// user leaves, the daemon restarts, the user comes back to the agent's screen and goes on; the edit is reviewed and applied. The test
// is not parallel, because it restarts the daemon of all tests of agents.
func TestAgentConsoles(t *testing.T) {
	testneed.Full(t, "TestInteractiveRun uses an agent of its own at a terminal")
	for _, c := range []struct{ id, model, screen, quit string }{
		{"claude-code", "sonnet", "Claude Code v", "/exit"},
		{"codex", "base", "Ask Codex to do anything", "/quit"},
		{"opencode", "base", "Ask anything", "/exit"},
		{"gemini-cli", "flash", "Type your message", "/quit"},
		{"qwen-code", "base", "Type your message", "/quit"},
		{"pi", "base", "(caisson) default", "/quit"},
		{"openclaw", "base", "gateway connected", "/exit"},
	} {
		t.Run(c.id, func(t *testing.T) {
			h := newAgentHost(t)
			h.make(c.id, false)
			h.claude.Reset()
			dir := h.project("at the terminal of " + c.id)
			if c.id == "codex" { // it would ask whether to trust such a directory
				h.write(filepath.Join("of "+c.id, "AGENTS.md"), "Write plain English.\n")
				if out, err := exec.Command("git", "init", "--quiet", dir).CombinedOutput(); err != nil {
					t.Fatalf("git init: %v: %s", err, out)
				}
			}
			before := h.tree(dir)
			d := h.sit("run", "-it", c.id, "--model", c.model, "--max-cost", "100", "-C", dir)
			d.reads(c.screen)
			d.enters("Make the file, "+c.id+", please.", func() bool { return d.shows("The file is there") })
			d.reads("given by the host")                                 // the tool's answer
			if c.id != "codex" && c.id != "gemini-cli" && d.shows("⚠") { // Gemini CLI complains about a terminal with few colours.
				t.Errorf("it complains: %q", d.text())
			}
			d.types(leaveKeys)
			d.ends(0)
			back := regexp.MustCompile(`caisson attach (rn-[a-z2-7]{16})`).FindStringSubmatch(d.text())
			if back == nil {
				t.Fatalf("it does not say how to come back: %q", d.text())
			}
			run := back[1]
			h.ok("daemon", "restart")

			d = h.sit("attach", run)
			d.reads("The file is there")
			d.enters("Which word was it, "+c.id+", please.", func() bool { return d.shows("You said heron. The file says") })
			d.enters(c.quit, d.hasEnded)
			d.ends(0)
			r := shows[caisson.Run](h.host, "runs", "show", run)
			if r.State != caisson.RunSucceeded || changed(r, "made.txt") != "added" || len(r.Result.Changes) != 1 {
				t.Fatalf("the run is %s: %+v", r.State, r.Result)
			}
			h.counted(r, c.model)
			if after := h.tree(dir); after != before {
				t.Errorf("before it is applied, the directory was\n%s\nand is\n%s", before, after)
			}
			if diff := h.ok("diff", run); !strings.Contains(diff, "+made by a tool") {
				t.Errorf("the edit is not in %s", diff)
			}
			h.ok("sync", "--yes", run)
			if text, err := os.ReadFile(filepath.Join(dir, "made.txt")); err != nil || string(text) != "made by a tool\n" {
				t.Errorf("after it was applied the file is %q, %v", text, err)
			}
		})
	}
}
