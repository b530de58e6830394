package gate

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
)

// TestToolCheck has a sandbox write everything that the gate is there to stop, and looks at it as the daemon does.
func TestToolCheck(t *testing.T) {
	o := newOverlay(t, func(host string) {
		write(t, host+"/a.txt", "one\n")
		write(t, host+"/readme", "old\n")
		write(t, host+"/dir/b", "b\n")
		check(t, os.Chown(host, 1234, 1234))
		check(t, os.Chmod(host, 0o750))
	})
	token := githubToken()
	for name, text := range map[string]string{
		"a.txt": "two\n", "new/c": "c\n", "README": "x\n", ".GIT/hooks/post-checkout": "x\n", ".husky/x": "x\n", "-rf": "x\n", "a\nb": "x\n",
		"\xff": "x\n", "x\u202ey": "x\n", "token": token + " gitleaks:allow\n", ".gitleaks.toml": "[allowlist]\npaths=['.*']\n",
		".gitleaksignore": "token:github-pat:1\n", "CLAUDE.md": "x\n", "line": strings.Repeat("x", 1<<20), "bare/HEAD": "x\n", "bare/config": "x\n",
	} {
		write(t, o.box+"/"+name, text)
	}
	check(t, os.MkdirAll(o.box+"/bare/objects", 0o755))
	check(t, os.MkdirAll(o.box+"/bare/refs", 0o755))
	check(t, os.Symlink("/etc/passwd", o.box+"/out"))
	check(t, os.Symlink("dir/b", o.box+"/in"))
	check(t, unix.Mkfifo(o.box+"/fifo", 0o644))
	check(t, unix.Mknod(o.box+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	write(t, o.box+"/suid", "x\n")
	check(t, os.Chmod(o.box+"/suid", 0o755|os.ModeSetuid))
	write(t, o.box+"/run.sh", "x\n")
	check(t, os.Chmod(o.box+"/run.sh", 0o755))
	huge, err := os.Create(o.box + "/huge")
	check(t, err)
	check(t, huge.Truncate(50<<30))
	check(t, huge.Close())

	dst, _ := o.freeze(FreezeLimits{})
	diffs, _ := o.compareWith(dst, CompareOptions{})
	changes := changesOf(diffs)
	check(t, newCheckTool(workertest.Runner(t)).Check(t.Context(), o.dir("host"), dst, changes, Rules{}))

	want := map[string]string{
		"a.txt": caisson.VerdictPass, "new": caisson.VerdictPass, "new/c": caisson.VerdictPass, "in": caisson.VerdictPass, ".gitleaks.toml": caisson.VerdictPass, ".gitleaksignore": caisson.VerdictPass, "line": caisson.VerdictPass,
		"token": caisson.VerdictAsk, "CLAUDE.md": caisson.VerdictAsk, "run.sh": caisson.VerdictAsk, "-rf": caisson.VerdictAsk,
	}
	for _, c := range changes {
		verdict := want[c.Path]
		delete(want, c.Path)
		if verdict == "" {
			verdict = caisson.VerdictDeny
		}
		if c.Path == "bare" {
			continue // the directory itself is harmless
		}
		if c.Verdict != verdict {
			t.Errorf("%q: %s %v, want %s", c.Path, c.Verdict, c.Finding, verdict)
		}
		for _, f := range c.Finding {
			if strings.Contains(f.Message, token[8:]) {
				t.Errorf("%q: the message has the secret", c.Path)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not among the changes: %v", want)
	}
	// It agrees with the function.
	again := changesOf(diffs)
	f, err := OpenFrozen(dst)
	check(t, err)
	defer f.Close()
	check(t, Check(t.Context(), again, o.dir("host"), f.Object, Rules{}))
	if a, b := asJSON(t, changes), asJSON(t, again); a != b {
		t.Errorf("the job says\n%s\nand the function\n%s", a, b)
	}
}

func changesOf(diffs []Difference) []caisson.Change {
	var changes []caisson.Change
	for _, d := range diffs {
		changes = append(changes, d.Change)
	}
	return changes
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	check(t, err)
	return string(b)
}

// TestToolCheckHostile gives the job texts that take long to search.
func TestToolCheckHostile(t *testing.T) {
	all, err := loadSecretRules()
	check(t, err)
	var keywords []string
	for _, r := range all.Rules {
		keywords = append(keywords, r.Keywords...)
	}
	dense := strings.Repeat(strings.Join(keywords, " "), 1<<20/len(strings.Join(keywords, " ")))
	o := newOverlay(t, func(string) {})
	for _, name := range []string{"a", "b", "c", "d"} {
		write(t, o.box+"/"+name, name+dense)
	}
	write(t, o.box+"/e", strings.Repeat("key=", 9<<18)) // 9 MiB
	dst, _ := o.freeze(FreezeLimits{})
	diffs, _ := o.compareWith(dst, CompareOptions{})
	changes := changesOf(diffs)
	check(t, newCheckTool(workertest.Runner(t)).Check(t.Context(), o.dir("host"), dst, changes, Rules{ScanTime: caisson.Duration(300 * time.Millisecond)}))
	var verdicts []string
	for _, c := range changes {
		verdicts = append(verdicts, c.Verdict)
	}
	if got := strings.Join(verdicts, " "); got != "deny deny deny deny ask" {
		t.Errorf("%s", got)
	}
}
