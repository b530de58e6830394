package test_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

const forgeToken = "ghp_RelayTestToken0123456789abcdefABCDEF"

// addForge adds a forge's repository to a daemon as "app".
func (h *host) addForge(f *forgetest.Forge, flags ...string) {
	h.t.Helper()
	if r := h.runWith(strings.NewReader(forgeToken), "credential", "set", "FORGE"); r.code != 0 {
		h.t.Fatal(r)
	}
	h.ok(append([]string{"repo", "add", "app", f.URL, "--forge", "github", "--api", f.API, "--credential", "FORGE"}, flags...)...)
}

// newRelay returns a host whose daemon retries soon, and a forge whose repository it has.
func newRelay(t *testing.T, o forgetest.Options, flags ...string) (*host, *forgetest.Forge) {
	t.Helper()
	h := newHost(t)
	o.Token = forgeToken
	f := forgetest.New(t, o)
	h.configure("relay: {firstRetry: 200ms}")
	h.addForge(f, flags...)
	return h, f
}

// gitOut returns the output of git in a repository on the host.
func gitOut(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := gitserver.TryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(out)
}

// TestRelayPullRequest tests that a run with a repository ends with a branch, a pull request and its URL although the
// first two pushes fail, and that no credential is inside. A later run of the session continues the same branch and
// pull request.
func TestRelayPullRequest(t *testing.T) {
	t.Parallel()
	h, f := newRelay(t, forgetest.Options{Kind: caisson.ForgeGitHub, FailPushes: 2})
	r := h.succeeds("--repo", "app", "--pr", "--title", "Mend it", "--session", "s1", "shell", `set -e
cd /workspace; test -f README.md; git log --oneline | head -3; git branch --show-current
env; cat .git/config; cat /proc/self/environ | tr '\0' '\n'; git config -l
echo mended > fix.txt; git add fix.txt; git commit -q -m "mend it"; git push 2>&1
git fetch; git ls-remote origin
echo done`)
	d := r.Result.Delivery
	if d == nil || d.State != caisson.DeliveryDelivered || d.Branch != "caisson/"+string(r.ID) {
		t.Fatalf("the delivery is %+v", d)
	}
	pulls := f.Pulls()
	if len(pulls) != 1 || !pulls[0].Draft || pulls[0].Head != d.Branch || pulls[0].Base != "main" || pulls[0].Title != "Mend it" {
		t.Fatalf("the pull requests are %+v", pulls)
	}
	if !strings.HasSuffix(d.URL, "/pull/1") {
		t.Errorf("the URL is %q", d.URL)
	}
	if commit := f.Branches()[d.Branch]; commit != d.Commit {
		t.Errorf("the branch is at %s, want %s", commit, d.Commit)
	}
	if who := gitOut(t, f.Dir, "log", "-1", "--format=%an <%ae> %cn %s", d.Branch); who != "Caisson <caisson@localhost> Caisson mend it" {
		t.Errorf("the commit is by %q", who)
	}
	for name, text := range map[string]string{"answer": r.Result.Answer, "log": h.ok("logs", string(r.ID))} {
		if strings.Contains(text, forgeToken) || strings.Contains(text, "127.0.0.1") {
			t.Errorf("the %s has the token or the address of the forge: %.2000q", name, text)
		}
	}
	full := shows[caisson.Delivery](h, "relay", "show", "-o", "json", string(d.ID))
	if full.Attempts != 3 || full.Number != 1 || full.Commits != 1 {
		t.Errorf("the delivery is %+v", full)
	}
	if events := h.happened(r.ID); !slices.ContainsFunc(events, func(e caisson.RunEvent) bool { return strings.Contains(e.Label, d.URL) }) {
		t.Errorf("no event has the URL: %+v", events)
	}
	r2 := h.succeeds("--repo", "app", "--pr", "--session", "s1", "shell", `cd /workspace; git log -1 --format=%s; echo more > more.txt; echo done`)
	if d2 := r2.Result.Delivery; d2 == nil || d2.State != caisson.DeliveryDelivered || d2.Branch != d.Branch || d2.URL != d.URL {
		t.Fatalf("the second delivery is %+v", d2)
	}
	if log := gitOut(t, f.Dir, "log", "--format=%H", d.Branch); !strings.Contains(log, d.Commit) || strings.Count(log, "\n") != 2 {
		t.Errorf("the branch has %q, want what was sent before and one more", log)
	}
	if n := len(f.Pulls()); n != 1 {
		t.Errorf("there are %d pull requests", n)
	}
	if files := gitOut(t, f.Dir, "ls-tree", "--name-only", d.Branch); files != "README.md\nfix.txt\nmore.txt" {
		t.Errorf("the branch has %q", files)
	}
}

// TestPromise3Relay tests that commits that a check rejects never leave the sandbox, not even in the middle of a
// history, that the agent gets the reason, and that rejected commits are kept.
func TestPromise3Relay(t *testing.T) {
	t.Parallel()
	h, f := newRelay(t, forgetest.Options{Kind: caisson.ForgeGitHub}, "--protect", "release-*")
	before := f.Branches()
	h.fails(2, "choose another branch", "run", "--repo", "app", "--branch", "main", "shell", "true")
	h.fails(2, "protected", "run", "--repo", "app", "--branch", "release-1", "shell", "true")
	h.fails(3, "no-such", "run", "--repo", "no-such", "shell", "true")
	r := h.succeeds("--repo", "app", "--pr", "shell", `cd /workspace
try() { if git push "$@" >/tmp/out 2>&1; then echo "TAKEN $*"; else echo "REFUSED $*: $(tr '\n' ' ' </tmp/out)"; fi; }
echo 'token = "ghp_016C7e5dIuwN8kVbXo3RZqLmTyHs4A2PfJc9"' > leak.py; git add .; git commit -q -m one; git rm -q leak.py; git commit -q -m two
try; git reset -q --hard origin/main
mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml; git add .; git commit -q -m ci; try; git reset -q --hard origin/main
ln -s ../../etc/passwd out; git add out; git commit -q -m link; try; git reset -q --hard origin/main
echo x > f; git add f; git commit -q -m fine
try origin HEAD:refs/heads/main; try origin HEAD:refs/tags/v1; try origin :refs/heads/main; try origin HEAD:refs/heads/-rf
try http://git.caisson.internal/other HEAD:refs/heads/x
curl -s -o /dev/null http://git.caisson.internal/ || true
echo 'token = "ghp_016C7e5dIuwN8kVbXo3RZqLmTyHs4A2PfJc9"' > leak.py; echo done`)
	answer := r.Result.Answer
	if strings.Contains(answer, "TAKEN") || strings.Count(answer, "REFUSED") != 8 || !strings.Contains(answer, "leak.py") || !strings.Contains(answer, "ci.yml") {
		t.Errorf("the sandbox was told:\n%s", answer)
	}
	if strings.Contains(answer, "7e5dIuwN8kVbXo3") {
		t.Error("a refusal repeats the secret")
	}
	d := r.Result.Delivery
	if d == nil || d.State != caisson.DeliveryFailed || d.ID != "" || !strings.Contains(d.Error, "leak.py") {
		t.Fatalf("the delivery is %+v", d)
	}
	if sb := h.show(string(r.Result.Sandbox)); sb.State != caisson.Stopped {
		t.Errorf("the sandbox with what could not be taken is %s", sb.State)
	}
	if after := f.Branches(); len(after) != len(before) {
		t.Errorf("the remote has %v", after)
	}
	for _, q := range f.Requests() {
		if strings.Contains(q.Path, "receive-pack") {
			t.Errorf("something was pushed: %+v", q)
		}
	}
	// A user fixes the commit there and has it delivered.
	h.ok("sandbox", "start", string(r.Result.Sandbox))
	h.sh(string(r.Result.Sandbox), "cd /workspace && git reset -q --hard origin/main && echo y > y.txt")
	h.ok("repo", "deliver", "app", string(r.Result.Sandbox)+":/workspace", "--pr")
	h.waitFor(func() bool { return len(f.Pulls()) == 1 })
}

// TestPromise2Relay tests that a sandbox can read only the branches of the repository that it was granted, whichever
// names it requests.
func TestPromise2Relay(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := filepath.Join(h.dir, "origin")
	work := t.TempDir()
	gitserver.Git(t, work, "init", "-q", "-b", "main")
	gitserver.Commit(t, work, "one", map[string]string{"a.txt": "a\n"})
	gitserver.Git(t, work, "checkout", "-q", "-b", "secret")
	hidden := gitserver.Commit(t, work, "hidden", map[string]string{"hidden.txt": "hidden\n"})
	gitserver.Git(t, work, "checkout", "-q", "main")
	gitserver.Git(t, work, "clone", "-q", "--bare", work, dir)
	if out, err := exec.Command("chown", "-R", "1000:1000", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.ok("repo", "add", "app", dir)
	r := h.succeeds("--repo", "app", "shell", `cd /workspace
git ls-remote origin; git branch -r
git fetch -q origin `+hidden+` 2>&1 && echo GOT; git fetch -q origin secret 2>&1 && echo GOT
git cat-file -e `+hidden+` && echo GOT
git clone -q http://git.caisson.internal/other x 2>&1 && echo GOT
echo new > b.txt; echo done`)
	if strings.Contains(r.Result.Answer, "GOT") || strings.Contains(r.Result.Answer, "refs/heads/secret") {
		t.Errorf("the sandbox says:\n%s", r.Result.Answer)
	}
	d := r.Result.Delivery
	if d == nil || d.State != caisson.DeliveryDelivered {
		t.Fatalf("the delivery is %+v", d)
	}
	if files := gitOut(t, dir, "-c", "safe.directory=*", "ls-tree", "--name-only", d.Branch); files != "a.txt\nb.txt" {
		t.Errorf("the branch has %q", files)
	}
	h.ok("repo", "ls")
	h.fails(2, "no address", "repo", "add", "bad", "ext::sh -c true")
}

// TestRelayOutlives tests that commits that cannot be sent are kept after the end of the daemon and the sandbox, and
// are delivered once.
func TestRelayOutlives(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := forgetest.New(t, forgetest.Options{Kind: caisson.ForgeGitHub, Token: forgeToken, FailPushes: 1_000})
	h.configure("relay: {firstRetry: 200ms}", "runs: {deliver: 4s}")
	d := h.serve()
	h.addForge(f)
	r := caisson.Run{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r = h.succeeds("--repo", "app", "--pr", "shell", "cd /workspace; echo x > x.txt; echo done")
	}()
	h.waitFor(func() bool {
		return strings.Contains(h.ok("relay", "ls", "-o", "json"), `"attempts": 3`) || isDone(done)
	})
	<-done
	if r.Result.Delivery == nil || r.Result.Delivery.State == caisson.DeliveryDelivered {
		t.Fatalf("the delivery is %+v", r.Result.Delivery)
	}
	id := string(r.Result.Delivery.ID)
	d.kill()
	f.Set(func(o *forgetest.Options) { o.FailPushes, o.LosePullAnswers = 0, 1 })
	h.serve()
	h.waitFor(func() bool {
		d := shows[caisson.Delivery](h, "relay", "show", "-o", "json", id)
		if d.State == caisson.DeliveryWaiting { // The response to the first pull request was lost.
			if r := h.run("relay", "retry", id); r.code != 0 && r.code != 4 { // A conflict: a retry is in progress.
				t.Errorf("%v", r)
			}
		}
		return d.State == caisson.DeliveryDelivered
	})
	if pulls := f.Pulls(); len(pulls) != 1 {
		t.Errorf("there are %d pull requests", len(pulls))
	}
	if got := shows[caisson.Run](h, "runs", "show", "-o", "json", string(r.ID)).Result.Delivery; got == nil || got.State != caisson.DeliveryDelivered || got.URL == "" {
		t.Errorf("the run has %+v", got)
	}
	h.fails(4, "delivered", "relay", "drop", id)
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-time.After(20 * time.Millisecond):
		return false
	}
}

// TestPromise7Relay tests that an agent's work is not lost when the daemon dies: pushed commits are held until a user
// sends them, and other changes are in the sandbox, which is kept.
func TestPromise7Relay(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	f := forgetest.New(t, forgetest.Options{Kind: caisson.ForgeGitHub, Token: forgeToken})
	d := h.serve()
	h.addForge(f)
	ended := make(chan struct{}, 2)
	for _, script := range []string{
		"cd /workspace; echo x > pushed.txt; git add .; git commit -q -m x; git push -q; echo begun; sleep 600",
		"cd /workspace; echo x > left.txt; echo begun; sleep 600",
	} {
		go func() {
			h.run("run", "--repo", "app", "shell", script)
			ended <- struct{}{}
		}()
	}
	var list []caisson.Run
	h.waitFor(func() bool {
		list = shows[[]caisson.Run](h, "runs", "ls", "-o", "json")
		begun := 0
		for _, r := range list {
			log := h.run("logs", string(r.ID))
			if strings.Contains(log.stdout, "begun") {
				begun++
			}
		}
		return begun == 2
	})
	d.kill()
	<-ended
	<-ended
	h.serve()
	for _, l := range list {
		r := shows[caisson.Run](h, "runs", "show", "-o", "json", string(l.ID))
		got := r.Result.Delivery
		if r.State != caisson.RunFailed || got == nil {
			t.Fatalf("the run is %s with %+v", r.State, got)
		}
		file := "pushed.txt"
		if strings.Contains(r.Request.Prompt, "left.txt") {
			file = "left.txt"
			if sb := h.show(string(r.Result.Sandbox)); got.ID != "" || got.State != caisson.DeliveryFailed || sb.State != caisson.Stopped {
				t.Fatalf("what was not pushed: %+v, the sandbox is %s", got, sb.State)
			}
			h.ok("sandbox", "start", string(r.Result.Sandbox))
			h.ok("repo", "deliver", "app", string(r.Result.Sandbox)+":/workspace")
		} else {
			if got.State != caisson.DeliveryHeld {
				t.Fatalf("what was pushed: %+v", got)
			}
			h.ok("relay", "retry", string(got.ID))
		}
		branch := "caisson/" + string(r.ID)
		h.waitFor(func() bool { return f.Branches()[branch] != "" })
		if files := gitOut(t, f.Dir, "ls-tree", "--name-only", branch); files != "README.md\n"+file {
			t.Errorf("the branch has %q", files)
		}
	}
}
