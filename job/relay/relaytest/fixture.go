// Package relaytest has a store that a git client can push to, for tests.
package relaytest

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/packtest"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
	"github.com/caisson-dev/caisson/job/relay/receive"
)

// Fixture is a view, a store that borrows its objects, and an HTTP server that a git client can push to.
type Fixture struct {
	T     *testing.T
	Store git.Repo // the repository that is pushed to
	Url   string   // URL of the store on the HTTP server
	Work  string   // directory of a clone of the granted branch
	Base  string   // commit of the granted branch main

	Mu    sync.Mutex      // guards Req, Last, Err and count
	Req   receive.Request // settings of the pushes that the server receives
	Last  *receive.Result // result of the last request to git-receive-pack
	Err   error           // error of the last request to git-receive-pack
	count int             // number of requests to git-receive-pack
}

// New returns a Fixture with a granted branch main, which has the files readme and dir/f, and a clone of it on the branch "work".
// Object names are SHA-1.
func New(t *testing.T) *Fixture { t.Helper(); return NewOf(t, git.HexSHA1) }

// NewOf returns a Fixture with a granted branch main and a clone on branch "work". digits is the length of object names in hex.
func NewOf(t *testing.T, digits int) *Fixture {
	t.Helper()
	q := &Fixture{T: t, Work: filepath.Join(t.TempDir(), "work")}
	q.Store = git.Repo{Dir: filepath.Join(t.TempDir(), "store"), View: filepath.Join(t.TempDir(), "view")}
	q.Client(".", "init", "-q", "-b", "main", "--object-format="+receive.Formats[digits/2], q.Work)
	q.Write("readme", "hello\n")
	q.Write("dir/f", "f\n")
	q.Commit("first")
	q.Base = q.Head()
	q.Client(".", "clone", "-q", "--bare", q.Work, q.Store.View)
	if err := os.Mkdir(q.Store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := q.Store.Init(digits); err != nil {
		t.Fatal(err)
	}
	q.Store.Env = []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + q.Store.View + "/objects"}
	granted := []git.Ref{{Name: "refs/heads/main", Commit: q.Base}}
	if err := q.Store.WriteRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.Req = receive.Request{Granted: granted, Branch: "work"}
	q.serve()
	q.Git("remote", "add", "origin", q.Url)
	q.Git("checkout", "-q", "-b", "work")
	return q
}

// serve starts the HTTP server.
func (q *Fixture) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /r/info/refs", func(w http.ResponseWriter, r *http.Request) {
		service := r.URL.Query().Get("service")
		w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
		if service == "git-upload-pack" {
			fmt.Fprint(w, "001e# service=git-upload-pack\n0000")
			cmd := q.Store.Git(r.Context(), "upload-pack", "--stateless-rpc", "--advertise-refs", q.Store.Dir)
			cmd.Stdout = w
			cmd.Run()
			return
		}
		req := q.request()
		req.Advertise, req.Protocol = true, r.Header.Get("Git-Protocol")
		q.record(receive.Receive(r.Context(), q.Store, r.Body, w, req))
	})
	mux.HandleFunc("POST /r/git-receive-pack", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		q.record(receive.Receive(r.Context(), q.Store, r.Body, w, q.request()))
		io.CopyN(io.Discard, r.Body, 1<<30)
	})
	mux.HandleFunc("POST /r/git-upload-pack", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		cmd := q.Store.Git(r.Context(), "upload-pack", "--stateless-rpc", q.Store.Dir)
		cmd.Stdin, cmd.Stdout = r.Body, w
		cmd.Run()
	})
	s := httptest.NewServer(mux)
	q.T.Cleanup(s.Close)
	q.Url = s.URL + "/r"
}

// request returns the current Req.
func (q *Fixture) request() receive.Request {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	return q.Req
}

// Set sets the rules and limits of later pushes.
func (q *Fixture) Set(rules check.Rules, limits receive.Limits) {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	q.Req.Rules, q.Req.Limits = rules, limits
}

// record stores the outcome of a request to git-receive-pack.
func (q *Fixture) record(r *receive.Result, err error) {
	q.Mu.Lock()
	defer q.Mu.Unlock()
	q.Last, q.Err = r, err
	q.count++
}

// Client runs git as in a sandbox and fails the test if git fails.
func (q *Fixture) Client(dir string, args ...string) string {
	q.T.Helper()
	out, err := q.Try(dir, "", args...)
	if err != nil {
		q.T.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

// Try runs git as in a sandbox, with stdin as its input, and returns its output.
func (q *Fixture) Try(dir, stdin string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=Agent",
		"GIT_AUTHOR_EMAIL=agent@example.com", "GIT_COMMITTER_NAME=Agent", "GIT_COMMITTER_EMAIL=agent@example.com", "LC_ALL=C",
		"GIT_AUTHOR_DATE=1700000000 +0100", "GIT_COMMITTER_DATE=1700000001 +0100", "GIT_TERMINAL_PROMPT=0",
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Git runs git in the clone Work and returns its output. The test fails if git fails.
func (q *Fixture) Git(args ...string) string { q.T.Helper(); return q.Client(q.Work, args...) }

// Head returns the commit that is checked out in the clone Work.
func (q *Fixture) Head() string { q.T.Helper(); return q.Git("rev-parse", "HEAD") }

// Write writes a file in the clone Work.
func (q *Fixture) Write(name, text string) {
	q.T.Helper()
	path := filepath.Join(q.Work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		q.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		q.T.Fatal(err)
	}
}

// Commit commits all changes in the clone Work, and returns the commit.
func (q *Fixture) Commit(message string) string {
	q.T.Helper()
	q.Git("add", "-A")
	q.Git("-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", message)
	return q.Head()
}

// Object writes an object without git's validation.
func (q *Fixture) Object(typ, content string) string {
	q.T.Helper()
	out, err := q.Try(q.Work, content, "hash-object", "-t", typ, "-w", "--stdin", "--literally")
	if err != nil {
		q.T.Fatal(out)
	}
	return strings.TrimSpace(out)
}

// Push runs git push origin with args, and returns its output and whether it succeeded.
func (q *Fixture) Push(args ...string) (said string, ok bool) {
	q.T.Helper()
	out, err := q.Try(q.Work, "", append([]string{"push", "origin"}, args...)...)
	return out, err == nil
}

// PostRaw sends body as a push, and returns the result and the answer that a client would get.
func (q *Fixture) PostRaw(body []byte) (*receive.Result, string, error) {
	q.T.Helper()
	ctx, cancel := context.WithTimeout(q.T.Context(), time.Minute)
	defer cancel()
	var answer bytes.Buffer
	r, err := receive.Receive(ctx, q.Store, bytes.NewReader(body), &answer, q.request())
	return r, answer.String(), err
}

// CheckUnchanged checks that the store has exactly refs and the given number of objects, and no leftover directories.
func (q *Fixture) CheckUnchanged(refs string, objects int) {
	q.T.Helper()
	if got := q.Refs(); got != refs {
		q.T.Errorf("the refs are\n%s\nand were\n%s", got, refs)
	}
	if got := q.Objects(); got != objects {
		q.T.Errorf("the store has %d objects, and had %d", got, objects)
	}
	entries, err := os.ReadDir(filepath.Join(q.Store.Dir, "objects"))
	if err != nil {
		q.T.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "pack" && e.Name() != "info" {
			q.T.Errorf("%s is left in the store", e.Name())
		}
	}
}

// Refs returns the refs of the store, one a line.
func (q *Fixture) Refs() string {
	q.T.Helper()
	out, err := q.Store.Output(q.T.Context(), "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		q.T.Fatal(err)
	}
	return string(out)
}

// CheckIntact checks the store with git fsck.
func (q *Fixture) CheckIntact() {
	q.T.Helper()
	if out, err := q.Store.Output(q.T.Context(), "", "fsck", "--strict", "--full", "--no-dangling"); err != nil {
		q.T.Errorf("%s %v", out, err)
	}
}

// Objects returns the number of the store's own objects.
func (q *Fixture) Objects() int {
	q.T.Helper()
	out, err := q.Store.With("GIT_ALTERNATE_OBJECT_DIRECTORIES=").Output(q.T.Context(), "", "cat-file", "--batch-all-objects", "--batch-check")
	if err != nil {
		q.T.Fatal(err)
	}
	return strings.Count(string(out), "\n")
}

// State returns the arguments for CheckUnchanged and UntouchedObjects: the refs and the number of objects of the store.
func (q *Fixture) State() (string, int) { q.T.Helper(); return q.Refs(), q.Objects() }

// AllFindings returns the findings of a push: those that denied it, and those about its updates.
func AllFindings(r *receive.Result) []caisson.Finding {
	if r == nil {
		return nil
	}
	all := r.Denied
	for _, u := range r.Updates {
		all = append(all, u.Findings...)
	}
	return all
}

// Token returns text that looks like a secret. It is concatenated so that secret scanners do not report this file.
func Token() string { return "ghp_" + "wJ7aB3xK9mQ2vR5tY8uP1nL4cD6eF0gH2iS7" }

// VerdictOf returns the most severe verdict of the findings.
func VerdictOf(r *receive.Result) string {
	verdict := caisson.VerdictPass
	for _, f := range AllFindings(r) {
		if f.Verdict == caisson.VerdictDeny || verdict == caisson.VerdictPass {
			verdict = f.Verdict
		}
	}
	return verdict
}

// Tree writes a tree object from pairs of "<mode> <name>" and id, in the given order.
func (q *Fixture) Tree(entries ...string) string {
	q.T.Helper()
	var b strings.Builder
	for i := 0; i < len(entries); i += 2 {
		b.WriteString(entries[i] + "\x00" + BytesOf(q.T, entries[i+1]))
	}
	return q.Object("tree", b.String())
}

// CommitOf writes a commit of a tree whose parent is the granted commit.
func (q *Fixture) CommitOf(tree string) string {
	q.T.Helper()
	return q.Object("commit", "tree "+tree+"\nparent "+q.Base+"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
}

// Send pushes a new branch, work, at the commit with the id tip. The pack has exactly this object and those with the other ids,
// which need not be valid. It returns the result and the answer that a client would get.
func (q *Fixture) Send(tip string, objects ...string) (*receive.Result, string, error) {
	q.T.Helper()
	out, err := q.Try(q.Work, strings.Join(append(objects, tip), "\n")+"\n", "pack-objects", "--stdout", "-q")
	if err != nil {
		q.T.Fatal(out)
	}
	return q.PostRaw(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+tip+" refs/heads/work\x00report-status side-band-64k"), out...))
}

// Pushed pushes the branch work, fails the test if the push is refused, and returns the pushed commit.
func (q *Fixture) Pushed() string {
	q.T.Helper()
	if said, ok := q.Push("+work"); !ok {
		q.T.Fatal(said)
	}
	return q.Head()
}

// Stored returns the content of a commit object of the store.
func (q *Fixture) Stored(id string) string {
	q.T.Helper()
	out, err := q.Store.Output(q.T.Context(), "", "cat-file", "commit", id)
	if err != nil {
		q.T.Fatal(err)
	}
	return string(out)
}

// UntouchedObjects checks that the store has exactly refs and the given number of objects. Other files in it are ignored.
func (q *Fixture) UntouchedObjects(refs string, objects int) {
	q.T.Helper()
	if q.Refs() != refs || q.Objects() != objects {
		q.T.Error("something is left in the store")
	}
}

// PackOf returns the pack that a client would send for a commit.
func (q *Fixture) PackOf(tip string) []byte {
	q.T.Helper()
	out, err := q.Try(q.Work, tip+"\n^"+q.Base+"\n", "pack-objects", "--revs", "--stdout", "-q", "--thin")
	if err != nil {
		q.T.Fatal(out)
	}
	return []byte(out)
}

// BytesOf returns the name of an object in binary form.
func BytesOf(t *testing.T, id string) string {
	t.Helper()
	b, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Short names of the verdicts.
const (
	Pass = caisson.VerdictPass
	Ask  = caisson.VerdictAsk
	Deny = caisson.VerdictDeny
)
