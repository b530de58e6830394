package gate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/worker"
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
	check(t, NewTool(workertest.Runner(t)).Check(t.Context(), o.dir("host"), dst, changes, Rules{}))

	want := map[string]string{
		"a.txt": pass, "new": pass, "new/c": pass, "in": pass, ".gitleaks.toml": pass, ".gitleaksignore": pass, "line": pass,
		"token": ask, "CLAUDE.md": ask, "run.sh": ask, "-rf": ask,
	}
	for _, c := range changes {
		verdict := want[c.Path]
		delete(want, c.Path)
		if verdict == "" {
			verdict = deny
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
	all := secretRulesOf(t)
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
	start := time.Now()
	check(t, NewTool(workertest.Runner(t)).Check(t.Context(), o.dir("host"), dst, changes, Rules{ScanTime: caisson.Duration(300 * time.Millisecond)}))
	t.Logf("took %v: %s", time.Since(start), verdictsOf(changes))
	if got := verdictsOf(changes); got != "deny deny deny deny ask" {
		t.Errorf("%s", got)
	}
}

// brokenRunner breaks down.
type brokenRunner struct{ reply string }

func (r brokenRunner) Run(_ context.Context, req worker.Request, _ any) error {
	if r.reply == "" {
		return errors.New("broken")
	}
	_, err := req.Files[0].WriteString(r.reply)
	return err
}

// TestToolCheckFailsClosed does not believe the job.
func TestToolCheckFailsClosed(t *testing.T) {
	host := checkedHost(t)
	for reply, ok := range map[string]bool{"": false, "{}": false, `{"Verdict":"pass"}`: true, `{"Verdict":"pass"}` + "\n" + `{"Verdict":"pass"}`: false} {
		changes := []caisson.Change{addedAt("a")}
		err := NewTool(brokenRunner{reply}).Check(t.Context(), host, host, changes, Rules{})
		if (err == nil) != ok || (changes[0].Verdict == pass) != ok {
			t.Errorf("the answer %q: %v, %s", reply, err, changes[0].Verdict)
		}
	}
	// It makes nothing milder.
	changes := []caisson.Change{but(addedAt("a"), func(c *caisson.Change) { c.Verdict = caisson.VerdictClash })}
	if err := NewTool(brokenRunner{`{"Verdict":"pass","Findings":null}`}).Check(t.Context(), host, host, changes, Rules{}); err != nil || changes[0].Verdict != caisson.VerdictClash {
		t.Errorf("%v, %s", err, changes[0].Verdict)
	}
	changes = []caisson.Change{addedAt("a")}
	reply := `{"Verdict":"pass","Findings":[{"check":"path","verdict":"deny","message":"x"}]}`
	if err := NewTool(brokenRunner{reply}).Check(t.Context(), host, host, changes, Rules{}); err != nil || changes[0].Verdict != deny {
		t.Errorf("%v, %s", err, changes[0].Verdict)
	}
}

func TestReadChecked(t *testing.T) {
	good := `{"Verdict":"ask","Findings":[{"check":"secret","verdict":"ask","message":"x","line":3}]}` + "\n"
	if got, err := readChecked(strings.NewReader(good+good), 2); err != nil || len(got) != 2 || got[1].Findings[0].Line != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for name, text := range map[string]string{
		"too few":         good,
		"too many":        good + good + good,
		"no verdict":      good + `{"Verdict":"","Findings":null}`,
		"unknown verdict": good + `{"Verdict":"fine"}`,
		"unknown check":   good + strings.Replace(good, "secret", "luck", 1),
		"unknown field":   good + `{"Verdict":"pass","Path":"x"}`,
		"escapes":         good + strings.Replace(good, `"x"`, `"\u001b[2J"`, 1),
		"long":            good + strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 1000)+`"`, 1),
		"endless":         good + strings.Repeat("x", 1<<20),
		"nonsense":        good + "\x00",
	} {
		if got, err := readChecked(strings.NewReader(text), 2); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
