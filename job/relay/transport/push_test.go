package transport_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/relay/push"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

// A berth is a remote repository, and a store with a commit to push to it.
type berth struct {
	*yard
	server      *gitserver.Server
	bare        string
	place       place
	store, view *os.File
	first, next string
}

func newBerth(t *testing.T, o gitserver.Options) *berth {
	t.Helper()
	b := &berth{yard: newYard(t), server: gitserver.New(t, o)}
	b.bare = b.server.Create("r.git")
	b.place = place{url: b.server.RepoURL("r.git")}
	if o.Password != "" {
		b.place.auth = secret(o.User, o.Password)
	}
	if o.TLS {
		b.place.root = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.server.Certificate().Raw}))
	}
	b.prepare()
	return b
}

// prepare fills the remote and creates a store with an additional commit, as if it had been pushed by a sandbox.
func (b *berth) prepare() {
	b.t.Helper()
	work, first := gitserver.Seed(b.t, b.bare, map[string]string{"a": "a\n"})
	remote, err := b.fetch(b.place)
	b.must(err)
	b.store, b.view = b.sandbox("s", remote.Refs, "refs/heads/main")
	b.first, b.next = first, gitserver.Commit(b.t, work, "next", map[string]string{"a": "b\n"})
	take := gitserver.Command(b.t, b.path("store-s"), "fetch", "-q", work, "HEAD:refs/heads/topic")
	take.Env = append(take.Env, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+b.path("view-s")+"/objects")
	out, err := take.CombinedOutput()
	if err != nil {
		b.t.Fatalf("%v\n%s", err, out)
	}
	b.own("store-s")
}

// own makes the account the owner of a directory that a test has written.
func (y *yard) own(name string) {
	y.t.Helper()
	y.must(filepath.Walk(y.path(name), func(path string, _ os.FileInfo, err error) error {
		y.must(err)
		return os.Lchown(path, owner, owner)
	}))
}

func (b *berth) remoteTip() string {
	out, err := gitserver.TryGit(b.t, b.bare, "rev-parse", "-q", "--verify", "refs/heads/caisson/x")
	if err != nil {
		return ""
	}
	return out
}

func TestPushFailures(t *testing.T) {
	b := newBerth(t, gitserver.Options{User: "ada", Password: "hunter2"})
	tests := []struct {
		name   string
		set    func(*gitserver.Options)
		auth   transport.Auth
		kind   caisson.Kind
		says   string
		landed bool
	}{
		{"wrong password", nil, secret("ada", "hunter3"), caisson.Denied, "does not accept the credential", false},
		{"no password", nil, transport.Auth{}, caisson.Denied, "does not accept the credential", false},
		{"503", func(o *gitserver.Options) { o.FailPushes = 1 }, b.place.auth, caisson.Unavailable, "come back later", false},
		{"403", func(o *gitserver.Options) { o.ReadOnly = true }, b.place.auth, caisson.Denied, "you may only read this", false},
		{"hook", func(o *gitserver.Options) { o.Reject = "\x1b[31mno \u202ebranches on Fridays" }, b.place.auth, caisson.Denied, "branches on Fridays", false},
		{"cut", func(o *gitserver.Options) { o.CutPushes = 1 }, b.place.auth, caisson.Unavailable, "connection", false},
		{"lost", func(o *gitserver.Options) { o.LosePushes = 1 }, b.place.auth, caisson.Unavailable, "connection", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b.server.Set(func(o *gitserver.Options) {
				*o = gitserver.Options{User: "ada", Password: "hunter2"}
				if tt.set != nil {
					tt.set(o)
				}
			})
			p := b.place
			p.auth = tt.auth
			_, err := b.push(p, b.store, b.view, b.next, "caisson/x", "")
			msg := caisson.MessageOf(err)
			if err == nil || caisson.KindOf(err) != tt.kind || !strings.Contains(msg, tt.says) {
				t.Errorf("%v: %v, want %v with %q", caisson.KindOf(err), err, tt.kind, tt.says)
			}
			if strings.ContainsAny(msg, "\n\x1b\u202e") || strings.Contains(msg, "hunter2") {
				t.Errorf("a message that is not plain: %q", msg)
			}
			if (b.remoteTip() == b.next) != tt.landed {
				t.Errorf("the remote's branch is at %q", b.remoteTip())
			}
		})
	}
	b.server.Set(func(o *gitserver.Options) { *o = gitserver.Options{User: "ada", Password: "hunter2"} })
	if pushed, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", ""); err != nil || !pushed.Already {
		t.Errorf("after a push whose answer was lost: %+v, %v", pushed, err)
	}
	none := strings.Repeat("1", 40)
	if _, err := b.push(b.place, b.store, b.view, none, "caisson/y", ""); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("a commit that is not there: %v", err)
	}
	for _, branch := range []string{"", "-f", "--mirror", "a..b", "x:refs/heads/main", "a b", "../../config", "a\nb", "refs^{}"} {
		if _, err := b.push(b.place, b.store, b.view, b.next, branch, ""); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("pushed to %q: %v", branch, err)
		}
	}
}

// TestPushNeedsLeave checks that a link that was opened for fetches refuses pushes, regardless of the git job's requests.
func TestPushNeedsLeave(t *testing.T) {
	b := newBerth(t, gitserver.Options{})
	for _, p := range []place{b.place, {url: b.bare}} {
		err := b.over(p, false, func(near *os.File) error {
			_, err := push.Run(t.Context(), b.jobs, b.store, b.view, near, push.Request{Transport: p.transport(), Commit: b.next, Branch: "caisson/x"})
			return err
		})
		if caisson.KindOf(err) != caisson.Denied || b.remoteTip() != "" {
			t.Errorf("%s: %v, the remote is at %q", p.url, err, b.remoteTip())
		}
	}
}

func TestTLS(t *testing.T) {
	b := newBerth(t, gitserver.Options{Password: "hunter2", TLS: true})
	if _, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", ""); err != nil || b.remoteTip() != b.next {
		t.Errorf("with a bearer's token over TLS: %v", err)
	}
	stranger := b.place
	stranger.root = ""
	if _, err := b.fetch(stranger); caisson.KindOf(err) != caisson.Denied || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("a certificate that nobody knows: %v", err)
	}
	other := b.place
	other.url = strings.Replace(other.url, "https://", "http://", 1)
	if _, err := b.fetch(other); err == nil {
		t.Error("fetched in the clear")
	}
}

// TestPromise3TokenIsNotGits searches all processes for the token while the remote delays a push.
func TestPromise3TokenIsNotGits(t *testing.T) {
	const token = "tok-5f1dd0a1b2c3d4e5"
	b := newBerth(t, gitserver.Options{User: "x", Password: token})
	hook := filepath.Join(b.bare, "hooks", "update")
	release := filepath.Join(b.top, "release")
	b.must(os.WriteFile(hook, []byte("#!/bin/sh\nwhile [ ! -e '"+release+"' ]; do sleep 0.05; done\n"), 0o755))
	done := make(chan error, 1)
	go func() {
		_, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", "")
		done <- err
	}()
	seen := 0
	poll.Until(t, 2*time.Minute, func() bool {
		seen = lookForToken(t, token)
		return seen > 0
	})
	b.must(os.WriteFile(release, nil, 0o600))
	b.must(<-done)
}

// lookForToken searches the readable data of all processes for token and returns the number of git processes of the push.
func lookForToken(t *testing.T, token string) (pushing int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		line, _ := os.ReadFile(dir + "/cmdline")
		env, _ := os.ReadFile(dir + "/environ")
		if strings.Contains(string(line), token) || strings.Contains(string(env), token) {
			t.Errorf("a process knows the token: %q", line)
		}
		if strings.Contains(string(line), "core.hooksPath=/dev/null") && strings.Contains(string(line), "caisson/x") {
			pushing++
		}
	}
	return pushing
}
