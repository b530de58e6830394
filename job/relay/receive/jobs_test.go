package receive_test

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/packtest"
	"github.com/caisson-dev/caisson/job/relay/prepare"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
	"github.com/caisson-dev/caisson/job/worker"
)

const accountUID = 1 << 20

// give makes an account the owner of a directory and its content, and opens it.
func give(t *testing.T, dir string) *os.File {
	t.Helper()
	err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, accountUID, accountUID)
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// exchange sends body to the job and returns the answer.
func exchange(t *testing.T, runner worker.Starter, store, view *os.File, req receive.Request, body []byte) (*receive.Result, string, error) {
	t.Helper()
	near, far, err := socketpair.New()
	if err != nil {
		t.Fatal(err)
	}
	p, err := git.NewClientConn(near)
	if err != nil {
		t.Fatal(err)
	}
	near.Close()
	defer p.Close()
	answer := make(chan string, 1)
	go func() {
		go func() {
			p.Conn.Write(body)
			p.Conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		text, _ := io.ReadAll(p.Conn)
		answer <- string(text)
	}()
	r, err := receive.Run(t.Context(), runner, store, view, far, req)
	far.Close()
	return r, <-answer, err
}

// TestToolReceive pushes to a sealed job and prepares the accepted commits in another one.
func TestToolReceive(t *testing.T) {
	runner := workertest.Runner(t)
	q := relaytest.New(t)
	store, view := give(t, q.Store.Dir), give(t, q.Store.View)
	if err := os.WriteFile(filepath.Join(q.Store.Dir, "objects/info/alternates"), []byte("/view/objects\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	req := q.Req
	req.Advertise = true
	r, answer, err := exchange(t, runner, store, view, req, nil)
	if err != nil || len(relaytest.AllFindings(r)) != 0 || !strings.HasPrefix(answer, "001f# service=git-receive-pack\n0000") || !strings.Contains(answer, q.Base+" refs/heads/main") {
		t.Fatalf("%q %v", answer, err)
	}
	req.Advertise = false
	q.Write("CLAUDE.md", "x\n")
	q.Write("readme", "hello you\n")
	tip := q.Commit("add")
	line := quarantine.ZeroID(20) + " " + tip + " refs/heads/work\x00report-status side-band-64k"
	r, answer, err = exchange(t, runner, store, view, req, append(packtest.CommandLines(line), q.PackOf(tip)...))
	if err != nil || len(r.Updates) != 1 || r.Updates[0].New != tip || len(r.Updates[0].Findings) != 1 || !strings.Contains(answer, "ok refs/heads/work") {
		t.Fatalf("%+v %q %v", r, answer, err)
	}

	// A denied push: the answer reports it, and nothing is stored.
	before, objects := q.State()
	q.Write(".github/workflows/x.yml", "x\n")
	denied := q.Commit("workflow")
	line = tip + " " + denied + " refs/heads/work\x00report-status side-band-64k"
	r, answer, err = exchange(t, runner, store, view, req, append(packtest.CommandLines(line), q.PackOf(denied)...))
	if err != nil || len(r.Updates) != 0 || len(r.Denied) == 0 || !strings.Contains(answer, ".github/workflows/x.yml") {
		t.Fatalf("%+v %q %v", r, answer, err)
	}
	q.CheckUnchanged(before, objects)
	req.Rules = check.Rules{Allow: []string{".github"}}
	if r, answer, err = exchange(t, runner, store, view, req, append(packtest.CommandLines(line), q.PackOf(denied)...)); err != nil || len(r.Updates) != 1 {
		t.Fatalf("%+v %q %v", r, answer, err)
	}

	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	sign, err := prepare.SSHSign(pem.EncodeToMemory(block))
	if err != nil {
		t.Fatal(err)
	}
	prep := prepare.Request{Base: q.Base, Commit: denied, Name: "N", Email: "e@f", Rules: req.Rules, Sign: sign}
	p, err := prepare.Run(t.Context(), runner, store, view, prep)
	if err != nil || len(p.Commits) != 2 || len(p.Findings) != 1 {
		t.Fatalf("%+v %v", p, err)
	}
	if text := q.Stored(p.Commit); !strings.Contains(text, "author N <e@f> 1700000000 +0100\n") || !strings.Contains(text, "gpgsig -----BEGIN SSH SIGNATURE-----\n ") {
		t.Error(text)
	}
	prep.Sign = func([]byte) (string, error) { return "", caisson.Errorf(caisson.Unavailable, "no key") }
	if _, err := prepare.Run(t.Context(), runner, store, view, prep); caisson.KindOf(err) != caisson.Unavailable {
		t.Error(err)
	}
	prep.Sign, prep.Authors = nil, caisson.AuthorKeep
	if p, err := prepare.Run(t.Context(), runner, store, view, prep); err != nil || p.Commit != denied {
		t.Errorf("%+v %v", p, err)
	}
}

// TestToolReceiveStalls tests clients that stop sending.
func TestToolReceiveStalls(t *testing.T) {
	runner := workertest.Runner(t)
	q := relaytest.New(t)
	before, objects := q.State()
	store, view := give(t, q.Store.Dir), give(t, q.Store.View)
	near, far, err := socketpair.New()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if _, err := near.Write(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+q.Base+" refs/heads/work\x00report-status"), "PACK"...)); err != nil {
		t.Fatal(err)
	}
	req := q.Req
	req.Limits.Time = 5 * time.Second // the job must wait for more data until then
	answer := make(chan string, 1)
	go func() {
		buf, said := make([]byte, 1000), ""
		for !strings.Contains(said, "took longer") { // it may arrive in pieces
			n, err := near.Read(buf)
			if said += string(buf[:n]); err != nil {
				break
			}
		}
		near.Close() // so that the job does not wait for the rest
		answer <- said
	}()
	start := time.Now()
	r, err := receive.Run(t.Context(), runner, store, view, far, req)
	far.Close()
	if caisson.KindOf(err) != caisson.Exhausted || time.Since(start) > time.Minute {
		t.Errorf("%+v %v after %v", r, err, time.Since(start))
	}
	if said := <-answer; !strings.Contains(said, "took longer") {
		t.Errorf("%q", said)
	}
	q.CheckUnchanged(before, objects)
}

// brokenRunner replies with given values.
type brokenRunner struct{ reply func(any) }

func (b brokenRunner) Run(_ context.Context, _ worker.Request, reply any) error {
	b.reply(reply)
	return nil
}

// TestToolReceiveBelievesNothing checks that invalid replies of jobs are rejected.
func TestToolReceiveBelievesNothing(t *testing.T) {
	id := strings.Repeat("a", 40)
	good := receive.Update{Name: "refs/heads/x", New: id}
	for name, r := range map[string]receive.Result{
		"a tag":        {Updates: []receive.Update{{Name: "refs/tags/x", New: id}}},
		"no ref":       {Updates: []receive.Update{{Name: "refs/heads/../x", New: id}}},
		"no commit":    {Updates: []receive.Update{{Name: "refs/heads/x", New: "--all"}}},
		"nothing":      {Updates: []receive.Update{{Name: "refs/heads/x"}}},
		"denied taken": {Updates: []receive.Update{{Name: "refs/heads/x", New: id, Findings: []caisson.Finding{commit.DeniedFinding("x", "y")}}}},
		"escapes":      {Denied: []caisson.Finding{commit.DeniedFinding("x", "\x1b[2J")}},
		"long":         {Denied: []caisson.Finding{commit.DeniedFinding("x", strings.Repeat("x", 5000))}},
		"verdict":      {Denied: []caisson.Finding{{Check: "x", Verdict: "fine"}}},
		"too many":     {Updates: slicesRepeat(good, 65)},
	} {
		runner := brokenRunner{func(reply any) { *reply.(*receive.Result) = r }}
		if got, err := receive.Run(t.Context(), runner, nil, nil, nil, receive.Request{}); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	runner := brokenRunner{func(reply any) { *reply.(*receive.Result) = receive.Result{Updates: []receive.Update{good}} }}
	if _, err := receive.Run(t.Context(), runner, nil, nil, nil, receive.Request{}); err != nil {
		t.Error(err)
	}
	req := prepare.Request{Base: id, Commit: id, Name: "N", Email: "e"}
	for name, p := range map[string]prepare.Result{
		"nothing":   {},
		"other":     {Commit: strings.Repeat("b", 40)},
		"not last":  {Commit: id, Commits: []prepare.Commit{{ID: strings.Repeat("b", 40)}}},
		"no commit": {Commit: "HEAD"},
		"subject":   {Commit: id, Commits: []prepare.Commit{{ID: id, Subject: "a\nb"}}},
		"denied":    {Commit: id, Findings: []caisson.Finding{commit.DeniedFinding("x", "y")}},
	} {
		runner := brokenRunner{func(reply any) { *reply.(*prepare.Result) = p }}
		if got, err := prepare.Run(t.Context(), runner, nil, nil, req); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func slicesRepeat(u receive.Update, n int) (all []receive.Update) {
	for range n {
		all = append(all, u)
	}
	return all
}
