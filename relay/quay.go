package relay

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
	"github.com/caisson-dev/caisson/gate/check"
)

// A quay is a view, a store over it, and a server that a real git pushes to.
type quay struct {
	t     *testing.T
	store repo
	url   string
	work  string // a clone of what is granted
	base  string // commit that was granted as main

	mu    sync.Mutex
	req   ReceiveRequest
	last  *Received
	err   error
	count int
}

// newQuay has a granted branch main with readme and dir/f, and a clone of it on the branch "work".
func newQuay(t *testing.T) *quay { t.Helper(); return newQuayOf(t, hexSHA1) }

func newQuayOf(t *testing.T, digits int) *quay {
	t.Helper()
	q := &quay{t: t, work: filepath.Join(t.TempDir(), "work")}
	q.store = repo{dir: filepath.Join(t.TempDir(), "store"), view: filepath.Join(t.TempDir(), "view")}
	q.client(".", "init", "-q", "-b", "main", "--object-format="+formats[digits/2], q.work)
	q.write("readme", "hello\n")
	q.write("dir/f", "f\n")
	q.commit("first")
	q.base = q.head()
	q.client(".", "clone", "-q", "--bare", q.work, q.store.view)
	if err := os.Mkdir(q.store.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := q.store.make(digits); err != nil {
		t.Fatal(err)
	}
	q.store.env = []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + q.store.view + "/objects"}
	granted := []Ref{{"refs/heads/main", q.base}}
	if err := q.store.writeRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.req = ReceiveRequest{Granted: granted, Branch: "work"}
	q.serve()
	q.git("remote", "add", "origin", q.url)
	q.git("checkout", "-q", "-b", "work")
	return q
}

func (q *quay) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /r/info/refs", func(w http.ResponseWriter, r *http.Request) {
		service := r.URL.Query().Get("service")
		w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
		if service == "git-upload-pack" {
			fmt.Fprint(w, "001e# service=git-upload-pack\n0000")
			cmd := q.store.git(r.Context(), "upload-pack", "--stateless-rpc", "--advertise-refs", q.store.dir)
			cmd.Stdout = w
			cmd.Run()
			return
		}
		req := q.request()
		req.Advertise, req.Protocol = true, r.Header.Get("Git-Protocol")
		q.note(receive(r.Context(), q.store, r.Body, w, req))
	})
	mux.HandleFunc("POST /r/git-receive-pack", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		q.note(receive(r.Context(), q.store, r.Body, w, q.request()))
		io.CopyN(io.Discard, r.Body, 1<<30)
	})
	mux.HandleFunc("POST /r/git-upload-pack", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		cmd := q.store.git(r.Context(), "upload-pack", "--stateless-rpc", q.store.dir)
		cmd.Stdin, cmd.Stdout = r.Body, w
		cmd.Run()
	})
	s := httptest.NewServer(mux)
	q.t.Cleanup(s.Close)
	q.url = s.URL + "/r"
}

func (q *quay) request() ReceiveRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.req
}

// set changes what pushes are told from then on.
func (q *quay) set(rules check.Rules, limits PushLimits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.req.Rules, q.req.Limits = rules, limits
}

func (q *quay) note(r *Received, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last, q.err = r, err
	q.count++
}

// client runs git as a sandbox would.
func (q *quay) client(dir string, args ...string) string {
	q.t.Helper()
	out, err := q.try(dir, "", args...)
	if err != nil {
		q.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

func (q *quay) try(dir, stdin string, args ...string) (string, error) {
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

func (q *quay) git(args ...string) string { q.t.Helper(); return q.client(q.work, args...) }

func (q *quay) head() string { q.t.Helper(); return q.git("rev-parse", "HEAD") }

func (q *quay) write(name, text string) {
	q.t.Helper()
	path := filepath.Join(q.work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		q.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		q.t.Fatal(err)
	}
}

func (q *quay) commit(message string) string {
	q.t.Helper()
	q.git("add", "-A")
	q.git("-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", message)
	return q.head()
}

// object writes an object as it is, whatever git thinks of it.
func (q *quay) object(typ, content string) string {
	q.t.Helper()
	out, err := q.try(q.work, content, "hash-object", "-t", typ, "-w", "--stdin", "--literally")
	if err != nil {
		q.t.Fatal(out)
	}
	return strings.TrimSpace(out)
}

// push pushes what args say, and returns what git shows and whether it took it.
func (q *quay) push(args ...string) (said string, ok bool) {
	q.t.Helper()
	out, err := q.try(q.work, "", append([]string{"push", "origin"}, args...)...)
	return out, err == nil
}

// raw posts a body of its own making.
func (q *quay) raw(body []byte) (*Received, string, error) {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), time.Minute)
	defer cancel()
	var answer bytes.Buffer
	r, err := receive(ctx, q.store, bytes.NewReader(body), &answer, q.request())
	return r, answer.String(), err
}

// untouched checks that the store has its refs, and no object that it had not.
func (q *quay) untouched(refs string, objects int) {
	q.t.Helper()
	if got := q.refs(); got != refs {
		q.t.Errorf("the refs are\n%s\nand were\n%s", got, refs)
	}
	if got := q.objects(); got != objects {
		q.t.Errorf("the store has %d objects, and had %d", got, objects)
	}
	entries, err := os.ReadDir(filepath.Join(q.store.dir, "objects"))
	if err != nil {
		q.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "pack" && e.Name() != "info" {
			q.t.Errorf("%s is left in the store", e.Name())
		}
	}
}

func (q *quay) refs() string {
	q.t.Helper()
	out, err := q.store.output(q.t.Context(), "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		q.t.Fatal(err)
	}
	return string(out)
}

// sound checks that the store lacks nothing.
func (q *quay) sound() {
	q.t.Helper()
	if out, err := q.store.output(q.t.Context(), "", "fsck", "--strict", "--full", "--no-dangling"); err != nil {
		q.t.Errorf("%s %v", out, err)
	}
}

// objects counts what the store has of its own.
func (q *quay) objects() int {
	q.t.Helper()
	out, err := q.store.with("GIT_ALTERNATE_OBJECT_DIRECTORIES=").output(q.t.Context(), "", "cat-file", "--batch-all-objects", "--batch-check")
	if err != nil {
		q.t.Fatal(err)
	}
	return strings.Count(string(out), "\n")
}

// state is for untouched.
func (q *quay) state() (string, int) { q.t.Helper(); return q.refs(), q.objects() }

func allFindings(r *Received) []caisson.Finding {
	if r == nil {
		return nil
	}
	all := r.Denied
	for _, u := range r.Updates {
		all = append(all, u.Findings...)
	}
	return all
}

// token looks like a secret; it is put together here so that nothing takes this file for one.
func token() string { return "ghp_" + "wJ7aB3xK9mQ2vR5tY8uP1nL4cD6eF0gH2iS7" }

// verdictOf is the worst of what was found.
func verdictOf(r *Received) string {
	verdict := caisson.VerdictPass
	for _, f := range allFindings(r) {
		if f.Verdict == caisson.VerdictDeny || verdict == caisson.VerdictPass {
			verdict = f.Verdict
		}
	}
	return verdict
}

// tree writes a tree object from "<mode> <name>" and ids, as they come.
func (q *quay) tree(entries ...string) string {
	q.t.Helper()
	var b strings.Builder
	for i := 0; i < len(entries); i += 2 {
		b.WriteString(entries[i] + "\x00" + bytesOf(q.t, entries[i+1]))
	}
	return q.object("tree", b.String())
}

// commitOf writes a commit of a tree after the granted one.
func (q *quay) commitOf(tree string) string {
	q.t.Helper()
	return q.object("commit", "tree "+tree+"\nparent "+q.base+"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
}

// send pushes objects that need not make sense to a client: all that are not granted.
func (q *quay) send(tip string, objects ...string) (*Received, string, error) {
	q.t.Helper()
	out, err := q.try(q.work, strings.Join(append(objects, tip), "\n")+"\n", "pack-objects", "--stdout", "-q")
	if err != nil {
		q.t.Fatal(out)
	}
	return q.raw(append(commandLines(zeroID(20)+" "+tip+" refs/heads/work\x00report-status side-band-64k"), out...))
}

// pushed pushes and fails if it is not taken.
func (q *quay) pushed() string {
	q.t.Helper()
	if said, ok := q.push("+work"); !ok {
		q.t.Fatal(said)
	}
	return q.head()
}

// raw commit text of the store.
func (q *quay) stored(id string) string {
	q.t.Helper()
	out, err := q.store.output(q.t.Context(), "", "cat-file", "commit", id)
	if err != nil {
		q.t.Fatal(err)
	}
	return string(out)
}

func (q *quay) untouchedObjects(refs string, objects int) {
	q.t.Helper()
	if q.refs() != refs || q.objects() != objects {
		q.t.Error("something is left in the store")
	}
}

// packOf is what a client would send for a commit.
func (q *quay) packOf(tip string) []byte {
	q.t.Helper()
	out, err := q.try(q.work, tip+"\n^"+q.base+"\n", "pack-objects", "--revs", "--stdout", "-q", "--thin")
	if err != nil {
		q.t.Fatal(out)
	}
	return []byte(out)
}

// bytesOf is the name of an object in binary.
func bytesOf(t *testing.T, id string) string {
	t.Helper()
	b, err := hex.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Verdicts.
const (
	pass = caisson.VerdictPass
	ask  = caisson.VerdictAsk
	deny = caisson.VerdictDeny
)
