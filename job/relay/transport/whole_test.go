package transport_test

import (
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

func secret(user, s string) transport.Auth {
	return transport.Auth{User: user, Secret: caisson.NewSecret(s)}
}

// TestWholeWay fetches from a remote, clones and pushes as a sandbox, and pushes to the remote.
func TestWholeWay(t *testing.T) {
	y := newYard(t)
	s := gitserver.New(t, gitserver.Options{User: "ada", Password: "hunter2"})
	bare := s.Create("o/r.git")
	work, first := gitserver.Seed(t, bare, map[string]string{"a.txt": "a\n", "dir/b.txt": strings.Repeat("b\n", 5000)})
	gitserver.Git(t, work, "tag", "-a", "v1", "-m", "one")
	gitserver.Git(t, work, "checkout", "-q", "-b", "hidden")
	hidden := gitserver.Commit(t, work, "hidden", map[string]string{"hidden.txt": "for nobody\n"})
	gitserver.Git(t, work, "push", "-q", bare, "hidden", "v1")
	p := place{url: s.RepoURL("o/r.git"), auth: secret("ada", "hunter2")}

	remote, err := y.fetch(p)
	y.must(err)
	if remote.Head != "refs/heads/main" || len(remote.Refs) != 3 {
		t.Fatalf("fetched %+v", remote)
	}
	again, err := relay.Refs(t.Context(), y.jobs, y.mirror)
	y.must(err)
	if len(again.Refs) != 3 || again.Head != remote.Head || again.Refs[0] != remote.Refs[0] {
		t.Errorf("the mirror has %+v, want %+v", again, remote)
	}

	granted := []git.Ref{{Name: "refs/heads/main", Commit: first}}
	store, view := y.sandbox("a", granted, "refs/heads/main")
	if out, err := gitserver.TryGit(t, y.path("view-a"), "cat-file", "-e", hidden); err == nil {
		t.Errorf("the view has what was not granted: %s", out)
	}
	url := y.serve(store, view, "topic", granted)
	for _, version := range []string{"0", "1", "2"} {
		for _, args := range [][]string{{}, {"--depth=1"}, {"--filter=blob:none", "--no-checkout"}, {"--mirror"}} {
			dir := t.TempDir()
			gitserver.Git(t, dir, append(append([]string{"-c", "protocol.version=" + version, "clone", "-q"}, args...), url, "c")...)
			if got := gitserver.Git(t, dir+"/c", "rev-parse", "refs/heads/main"); got != first {
				t.Errorf("version %s, %v: main is at %s", version, args, got)
			}
			if out, err := gitserver.TryGit(t, dir+"/c", "-c", "protocol.version="+version, "fetch", url, hidden); err == nil {
				t.Errorf("version %s: what was not granted can be fetched: %s", version, out)
			}
		}
	}

	dir := t.TempDir()
	gitserver.Git(t, dir, "clone", "-q", url, "c")
	c := dir + "/c"
	gitserver.Git(t, c, "checkout", "-q", "-b", "topic")
	done := gitserver.Commit(t, c, "work", map[string]string{"a.txt": "better\n"})
	if out, err := gitserver.TryGit(t, c, "push", "origin", "topic"); err != nil {
		t.Fatalf("push: %v\n%s", err, out)
	}

	pushed, err := y.push(p, store, view, done, "caisson/run1", "")
	y.must(err)
	if got := gitserver.Git(t, bare, "rev-parse", "refs/heads/caisson/run1"); got != done || pushed.Already {
		t.Errorf("the remote is at %s, want %s; %+v", got, done, pushed)
	}
	if pushed, err = y.push(p, store, view, done, "caisson/run1", ""); err != nil || !pushed.Already {
		t.Errorf("pushed again: %+v, %v", pushed, err)
	}
	if _, err := y.push(p, store, view, first, "caisson/run1", ""); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("pushed to a branch that should not be there: %v", err)
	}
	if _, err := y.push(p, store, view, first, "caisson/run1", first); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("pushed to a branch that has moved: %v", err)
	}
	if _, err := y.push(p, store, view, first, "caisson/run1", done); err != nil {
		t.Errorf("moved back: %v", err)
	}
	os.Stdout.Sync()
}
