package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

const twoParts = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-1\n+one\n 2\n@@ -9,2 +9,2 @@\n 9\n-10\n+ten\n"

// changed makes a change; how is its verdict, with "2" for one of two parts.
func changed(path, how string) caisson.Change {
	ch := caisson.Change{
		Path: path, Kind: caisson.ChangeModified, Type: "file", OldType: "file", Mode: 0o644, OldMode: 0o644, Hash: "hash of " + path,
		Verdict: strings.TrimSuffix(how, "2"), Patch: "@@ -1 +1 @@\n-1\n+one\n",
	}
	if ch.Verdict != how {
		ch.Patch = twoParts
	}
	if ch.Verdict != caisson.VerdictPass {
		ch.Finding = []caisson.Finding{{Check: "path", Verdict: ch.Verdict, Message: "because"}}
	}
	return ch
}

func TestReview(t *testing.T) {
	pass, ask, deny, clash := caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictDeny, caisson.VerdictConflict
	sel := func(path string, hunks ...int) caisson.Selection {
		return caisson.Selection{Path: path, Hash: "hash of " + path, Hunks: hunks}
	}
	type selections = []caisson.Selection
	for name, tt := range map[string]struct {
		verdicts  []string // of the changes a, b, c, d
		droppable bool
		typed     string
		apply     selections
		drop      []string
		asked     bool
		fails     bool
		shows     string // somewhere in the output
		hides     string
	}{
		"yes and no":             {verdicts: []string{pass, pass, ask}, typed: "y\nn\nn\n", apply: selections{sel("a")}},
		"asked":                  {verdicts: []string{ask, pass}, typed: "y\nn\n", apply: selections{sel("a")}, asked: true, shows: "# needs review: path: because"},
		"all that pass":          {verdicts: []string{pass, pass, ask, pass}, typed: "a\nn\n", apply: selections{sel("a"), sel("b"), sel("d")}, hides: "a/b b/b"},
		"all after one asked":    {verdicts: []string{ask, pass, deny}, typed: "a\n", apply: selections{sel("a"), sel("b")}, asked: true, shows: "c cannot be applied and remains"},
		"all never drops":        {verdicts: []string{pass, deny}, droppable: true, typed: "a\nn\n", apply: selections{sel("a")}},
		"quit keeps":             {verdicts: []string{pass, pass, pass}, typed: "y\nq\n", apply: selections{sel("a")}, hides: "a/c b/c"},
		"the end of input fails": {verdicts: []string{pass, pass}, typed: "y\n", apply: selections{sel("a")}, fails: true},
		"an answer without end":  {verdicts: []string{pass}, typed: "y", apply: selections{sel("a")}},
		"denied":                 {verdicts: []string{deny, clash}, typed: "", shows: "# conflict: path: because"},
		"unknown verdict":        {verdicts: []string{"new"}, typed: "", shows: "denied (new)"},
		"denied takes no yes":    {verdicts: []string{deny}, droppable: true, typed: "y\na\ns\nd\n", drop: []string{"a"}},
		"drop":                   {verdicts: []string{pass, pass}, droppable: true, typed: "d\ny\n", apply: selections{sel("b")}, drop: []string{"a"}},
		"no drop while it runs":  {verdicts: []string{pass}, typed: "d\nn\n", hides: ",d"},
		"nonsense is no answer":  {verdicts: []string{pass}, typed: "\nyes\nx\n?\n Y \n", apply: selections{sel("a")}, shows: "end the review, and apply what was chosen before"},
		"second part":            {verdicts: []string{pass + "2"}, typed: "s\nn\ny\n", apply: selections{sel("a", 1)}, shows: "Part 2 of 2 of a"},
		"all parts":              {verdicts: []string{pass + "2"}, typed: "s\ny\ny\n", apply: selections{sel("a")}},
		"the rest of parts":      {verdicts: []string{ask + "2"}, typed: "s\na\n", apply: selections{sel("a")}, asked: true},
		"no parts":               {verdicts: []string{pass + "2"}, typed: "s\nn\nn\n"},
		"parts until enough":     {verdicts: []string{pass + "2", pass}, typed: "s\ny\nd\ny\n", apply: selections{sel("a", 0), sel("b")}},
		"quit between parts":     {verdicts: []string{pass + "2", pass}, typed: "s\ny\nq\n", apply: selections{sel("a", 0)}},
		"one part is no choice":  {verdicts: []string{pass}, typed: "s\nn\n", hides: ",s"},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []caisson.Change
			for i, v := range tt.verdicts {
				changes = append(changes, changed(string(rune('a'+i)), v))
			}
			var out strings.Builder
			r := reviewer{in: bufio.NewReader(strings.NewReader(tt.typed)), out: &out, droppable: tt.droppable}
			err := r.review(t.Context(), changes)
			if (err != nil) != tt.fails {
				t.Errorf("error %v", err)
			}
			if diff := cmp.Diff(tt.apply, r.apply); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.drop, r.drop); diff != "" || r.needsConsent != tt.asked {
				t.Error(diff, "asked", r.needsConsent)
			}
			if !strings.Contains(out.String(), tt.shows) || tt.hides != "" && strings.Contains(out.String(), tt.hides) {
				t.Errorf("shown: %s", out.String())
			}
		})
	}
}

func TestReviewIsInterrupted(t *testing.T) {
	in, hold := io.Pipe()
	defer hold.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := reviewer{in: bufio.NewReader(in), out: io.Discard}
	if err := r.review(ctx, []caisson.Change{changed("a", caisson.VerdictPass)}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestPatch(t *testing.T) {
	file := func(kind string, ch caisson.Change) caisson.Change {
		if ch.Kind = kind; ch.Type == "" {
			ch.Type = "file"
		}
		if ch.OldType == "" {
			ch.OldType = "file"
		}
		if ch.Verdict == "" {
			ch.Verdict = caisson.VerdictPass
		}
		return ch
	}
	for _, tt := range []struct {
		ch   caisson.Change
		want string
	}{
		{file("added", caisson.Change{Path: "n", OldType: "none", Mode: 0o755, Patch: "--- x\n+++ y\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"}),
			"# may be executed\ndiff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"},
		{file("removed", caisson.Change{Path: "n", Type: "none", OldMode: 0o644, Patch: "@@ -1 +0,0 @@\n--- a/x\n"}),
			"diff --git a/n b/n\ndeleted file mode 100644\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n--- a/x\n"},
		{file("renamed", caisson.Change{Path: "to", OldPath: "from", Mode: 0o644, OldMode: 0o644}),
			"diff --git a/from b/to\nrename from from\nrename to to\n"},
		{file("mode", caisson.Change{Path: "n", Mode: 0o755, OldMode: 0o644, Verdict: "ask", Finding: []caisson.Finding{{Check: "mode", Message: "m"}}}),
			"# needs review: mode: m\ndiff --git a/n b/n\nold mode 100644\nnew mode 100755\n"},
		{file("type", caisson.Change{Path: "n", Type: "symlink", Link: "/etc/\x1b[2Jpasswd", OldMode: 0o644, Verdict: "deny"}),
			"# denied: no reason was given\n# a file became a symlink\n# a symlink that leads to /etc/\\x1b[2Jpasswd\ndiff --git a/n b/n\nold mode 100644\nnew mode 120000\n"},
		{file("added", caisson.Change{Path: "d", Type: "dir", OldType: "none", Mode: 0o755}), "# directory added: d\n"},
		{file("modified", caisson.Change{Path: "b", Binary: true, Size: 2048, OldSize: 1024, Mode: 0o600, OldMode: 0o600, HostChanged: true, Verdict: "clash"}),
			"# conflict: host: its file has also changed\n# binary, 1KiB -> 2KiB\ndiff --git a/b b/b\nBinary files a/b and b/b differ\n"},
		{file("modified", caisson.Change{Path: "e\nvil\u202e\x07", Mode: 0o644, OldMode: 0o644, Patch: "@@ -1 +1 @@\n-\ta\r\n+b\x1b]0;x\x07\u202e\xff\n"}),
			"diff --git a/e\\x0avil\\u202e\\x07 b/e\\x0avil\\u202e\\x07\n--- a/e\\x0avil\\u202e\\x07\n+++ b/e\\x0avil\\u202e\\x07\n@@ -1 +1 @@\n-\ta\\x0d\n+b\\x1b]0;x\\x07\\u202e\\xff\n"},
	} {
		var b strings.Builder
		p := patchPrinter{b: &b}
		p.change(&tt.ch)
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("%s %q: %s", tt.ch.Kind, tt.ch.Path, diff)
		}
	}
	var b strings.Builder
	p := patchPrinter{b: &b, color: true, raw: true}
	p.hunk("@@ -1 +1 @@\n-a\r\n+b\n")
	if want := "\x1b[36m@@ -1 +1 @@\x1b[00m\n\x1b[31m-a\r\x1b[00m\n\x1b[32m+b\x1b[00m\n"; b.String() != want {
		t.Errorf("in colour: %q", b.String())
	}
}

// TestPatchApplies: git makes of the old files what the sandbox has.
func TestPatchApplies(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		testneed.Skip(t, "git", err.Error())
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"f": "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n", "gone": "x\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := changed("f", caisson.VerdictAsk)
	f.Patch = "@@ -1,2 +1,2 @@\n-1\n+one\n 2\n@@ -9,2 +9,2 @@\n 9\n-10\n+ten\n"
	added := caisson.Change{Path: "sub/n", Kind: "added", Type: "file", OldType: "none", Mode: 0o755, Verdict: "pass", Patch: "@@ -0,0 +1 @@\n+n\n"}
	gone := caisson.Change{Path: "gone", Kind: "removed", Type: "none", OldType: "file", OldMode: 0o644, Verdict: "pass", Patch: "@@ -1 +0,0 @@\n-x\n"}
	sub := caisson.Change{Path: "sub", Kind: "added", Type: "dir", OldType: "none", Mode: 0o755, Verdict: "pass"}
	var b strings.Builder
	p := patchPrinter{b: &b}
	for _, ch := range []caisson.Change{f, gone, sub, added} {
		p.change(&ch)
	}
	cmd := exec.Command(git, "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(b.String())
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, b.String())
	}
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	if err != nil || string(got) != "one\n2\n3\n4\n5\n6\n7\n8\n9\nten\n" {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "sub/n")); err != nil || info.Mode()&0o100 == 0 {
		t.Error(info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "gone")); err == nil {
		t.Error("what was removed is there")
	}
}

func FuzzHunks(f *testing.F) {
	for _, s := range []string{twoParts, "", "@@", "@@\n@@\n", "--- @@\n", "\x1b@@\n@@ -1 +1 @@\n+@@ x\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hunks := splitHunks(s)
		if all := strings.Join(hunks, ""); !strings.HasSuffix(s, all) {
			t.Fatalf("%q has the hunks %q", s, hunks)
		}
		var b strings.Builder
		p := patchPrinter{b: &b}
		p.change(&caisson.Change{Path: s, Link: s, Patch: s, Finding: []caisson.Finding{{Message: s}}})
		for _, r := range b.String() {
			if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == '\u202e' {
				t.Fatalf("%q is shown as %q", s, b.String())
			}
		}
	})
}

func TestParseWorkspace(t *testing.T) {
	for _, tt := range []struct {
		in, dir, target string
		bad             bool
	}{
		{in: ".", dir: "."},
		{in: "/a/b", dir: "/a/b"},
		{in: "/a:/src/", dir: "/a", target: "/src"},
		{in: "a:b:/src/../x", dir: "a:b", target: "/x"},
		{in: "a:b", dir: "a:b"},
		{in: "a:/b:c", dir: "a:/b:c"},
		{in: "", bad: true},
		{in: ":/src", bad: true},
		{in: "a:/", bad: true},
		{in: "a:/..", bad: true},
		{in: "a\x00", bad: true},
	} {
		dir, target, err := parseWorkspace(tt.in)
		if dir != tt.dir || target != tt.target || (err != nil) != tt.bad {
			t.Errorf("%q: %q %q %v", tt.in, dir, target, err)
		}
	}
}

func FuzzParseWorkspace(f *testing.F) {
	for _, s := range []string{".", "/a:/b", "a:b:/c", ":/", "x:/../..", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		dir, target, err := parseWorkspace(s)
		if err == nil && (dir == "" || target != "" && (!filepath.IsAbs(target) || target == "/" || filepath.Clean(target) != target)) {
			t.Fatalf("%q became %q, %q", s, dir, target)
		}
	})
}

// TestSyncOnTerminal: a person reviews on a terminal, and exactly what they chose is written.
func TestSyncOnTerminal(t *testing.T) {
	testneed.Root(t)
	dir, own := t.TempDir(), t.TempDir()
	for _, name := range []string{filepath.Join(dir, "one"), filepath.Join(dir, "two")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append(append(os.Environ(), "TERM=xterm"), home(t, own)...)
	t.Cleanup(func() { endDaemon(t, filepath.Join(own, "data")) })
	caisson := func(args ...string) {
		t.Helper()
		cmd := exec.Command("caisson", args...)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	caisson("sandbox", "create", "--name", "web", "--workspace", dir)
	for _, name := range []string{"one", "two"} {
		from := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(from, []byte("wrote "+name+"\x1b[2J\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		caisson("cp", from, "web:/workspace/"+name)
	}
	master, tty, err := pty.Open()
	if err != nil {
		testneed.Skip(t, "pty", err.Error())
	}
	defer master.Close()
	cmd := exec.Command("caisson", "sync")
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, dir, tty, tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	if _, err := io.WriteString(master, "n\ny\n"); err != nil {
		t.Fatal(err)
	}
	seen, _ := io.ReadAll(master) // ends with EIO when the command has ended
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %q", err, seen)
	}
	for _, want := range []string{"Apply this change to two?", "\x1b[32m+wrote one\\x1b[2J\x1b[00m", "applied 1 path, 1 change remaining in the workspace"} {
		if !strings.Contains(string(seen), want) {
			t.Errorf("there is no %q in %q", want, seen)
		}
	}
	for name, want := range map[string]string{"one": "", "two": "wrote two\x1b[2J\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
}
