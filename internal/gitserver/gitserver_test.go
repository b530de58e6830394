package gitserver_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/gitserver"
)

func TestServer(t *testing.T) {
	s := gitserver.New(t, gitserver.Options{User: "ada", Password: "secret"})
	work, first := gitserver.Seed(t, s.Create("o/r.git"), map[string]string{"a.txt": "a\n"})
	url := strings.Replace(s.RepoURL("o/r.git"), "http://", "http://ada:secret@", 1)

	if out, err := gitserver.TryGit(t, t.TempDir(), "clone", s.RepoURL("o/r.git"), "c"); err == nil {
		t.Errorf("let in without a password: %s", out)
	}
	dir := t.TempDir()
	gitserver.Git(t, dir, "clone", "-q", url, "c")
	if got := gitserver.Git(t, dir+"/c", "rev-parse", "HEAD"); got != first {
		t.Errorf("cloned %s, want %s", got, first)
	}

	second := gitserver.Commit(t, work, "second", map[string]string{"a.txt": strings.Repeat("b\n", 1000)})
	push := func() (string, error) { return gitserver.TryGit(t, work, "push", url, "HEAD:refs/heads/topic") }
	tip := func() string {
		out, _ := gitserver.TryGit(t, s.Dir+"/o/r.git", "rev-parse", "-q", "--verify", "topic")
		return out
	}
	s.Set(func(o *gitserver.Options) { o.FailPushes, o.CutPushes, o.LosePushes = 1, 1, 1 })
	for _, want := range []string{"", "", second} { // 503, cut, lost.
		if out, err := push(); err == nil || tip() != want {
			t.Errorf("push: %v, topic at %q, want %q\n%s", err, tip(), want, out)
		}
	}
	if out, err := push(); err != nil || !strings.Contains(out, "up-to-date") {
		t.Errorf("push: %v\n%s", err, out)
	}

	gitserver.Commit(t, work, "third", nil)
	s.Set(func(o *gitserver.Options) { o.Reject = "not like this" })
	if out, err := push(); err == nil || !strings.Contains(out, "remote: not like this") {
		t.Errorf("push with a hook: %v\n%s", err, out)
	}
	s.Set(func(o *gitserver.Options) { o.Reject, o.ReadOnly = "", true })
	if out, err := push(); err == nil || !strings.Contains(out, "403") {
		t.Errorf("push without rights: %v\n%s", err, out)
	}
}
