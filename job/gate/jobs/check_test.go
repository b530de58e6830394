package jobs_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// TestToolCheck has a sandbox write everything that the gate must stop, and checks it in the same way as the daemon.
func TestToolCheck(t *testing.T) {
	o := overlaytest.New(t, func(host string) {
		gatetest.Write(t, host+"/a.txt", "one\n")
		gatetest.Write(t, host+"/readme", "old\n")
		gatetest.Write(t, host+"/dir/b", "b\n")
		gatetest.Must(t, os.Chown(host, 1234, 1234))
		gatetest.Must(t, os.Chmod(host, 0o750))
	})
	token := gatetest.GithubToken()
	for name, text := range map[string]string{
		"a.txt": "two\n", "new/c": "c\n", "README": "x\n", ".GIT/hooks/post-checkout": "x\n", ".husky/x": "x\n", "-rf": "x\n", "a\nb": "x\n",
		"\xff": "x\n", "x\u202ey": "x\n", "token": token + " gitleaks:allow\n", ".gitleaks.toml": "[allowlist]\npaths=['.*']\n",
		".gitleaksignore": "token:github-pat:1\n", "CLAUDE.md": "x\n", "line": strings.Repeat("x", 1<<20), "bare/HEAD": "x\n", "bare/config": "x\n",
	} {
		gatetest.Write(t, o.Box+"/"+name, text)
	}
	gatetest.Must(t, os.MkdirAll(o.Box+"/bare/objects", 0o755))
	gatetest.Must(t, os.MkdirAll(o.Box+"/bare/refs", 0o755))
	gatetest.Must(t, os.Symlink("/etc/passwd", o.Box+"/out"))
	gatetest.Must(t, os.Symlink("dir/b", o.Box+"/in"))
	gatetest.Must(t, unix.Mkfifo(o.Box+"/fifo", 0o644))
	gatetest.Must(t, unix.Mknod(o.Box+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	gatetest.Write(t, o.Box+"/suid", "x\n")
	gatetest.Must(t, os.Chmod(o.Box+"/suid", 0o755|os.ModeSetuid))
	gatetest.Write(t, o.Box+"/run.sh", "x\n")
	gatetest.Must(t, os.Chmod(o.Box+"/run.sh", 0o755))
	huge, err := os.Create(o.Box + "/huge")
	gatetest.Must(t, err)
	gatetest.Must(t, huge.Truncate(50<<30))
	gatetest.Must(t, huge.Close())

	dst, _ := o.Freeze(overlay.FreezeLimits{})
	diffs, _ := o.CompareWith(dst, compare.Options{})
	changes := changesOf(diffs)
	gatetest.Must(t, check.RunChanges(t.Context(), workertest.Runner(t), o.Dir("host"), dst, changes, check.Rules{}))

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
	// The job and the function agree.
	again := changesOf(diffs)
	f, err := overlay.OpenFrozen(dst)
	gatetest.Must(t, err)
	defer f.Close()
	gatetest.Must(t, check.Changes(t.Context(), again, o.Dir("host"), f.Object, check.Rules{}))
	if a, b := asJSON(t, changes), asJSON(t, again); a != b {
		t.Errorf("the job says\n%s\nand the function\n%s", a, b)
	}
}

func changesOf(diffs []compare.Difference) []caisson.Change {
	var changes []caisson.Change
	for _, d := range diffs {
		changes = append(changes, d.Change)
	}
	return changes
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	gatetest.Must(t, err)
	return string(b)
}

// TestToolCheckHostile passes texts to the job that take long to search.
func TestToolCheckHostile(t *testing.T) {
	all, err := check.LoadSecretRules()
	gatetest.Must(t, err)
	var keywords []string
	for _, r := range all.Rules {
		keywords = append(keywords, r.Keywords...)
	}
	dense := strings.Repeat(strings.Join(keywords, " "), 1<<20/len(strings.Join(keywords, " ")))
	o := overlaytest.New(t, func(string) {})
	for _, name := range []string{"a", "b", "c", "d"} {
		gatetest.Write(t, o.Box+"/"+name, name+dense)
	}
	gatetest.Write(t, o.Box+"/e", strings.Repeat("key=", 9<<18)) // 9 MiB
	dst, _ := o.Freeze(overlay.FreezeLimits{})
	diffs, _ := o.CompareWith(dst, compare.Options{})
	changes := changesOf(diffs)
	gatetest.Must(t, check.RunChanges(t.Context(), workertest.Runner(t), o.Dir("host"), dst, changes, check.Rules{ScanTime: caisson.Duration(300 * time.Millisecond)}))
	var verdicts []string
	for _, c := range changes {
		verdicts = append(verdicts, c.Verdict)
	}
	if got := strings.Join(verdicts, " "); got != "deny deny deny deny ask" {
		t.Errorf("%s", got)
	}
}
