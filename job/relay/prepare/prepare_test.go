package prepare

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

func preparedOf(q *relaytest.Fixture, req Request) *Result {
	q.T.Helper()
	if req.Base == "" {
		req.Base = q.Base
	}
	if req.Name == "" {
		req.Name, req.Email = "Caisson Öne", "caisson@example.com"
	}
	p, err := prepare(q.T.Context(), q.Store, req)
	if err != nil {
		q.T.Fatal(err)
	}
	return p
}

func TestPrepare(t *testing.T) {
	q := relaytest.New(t)
	q.Write("a", "1\n")
	q.Commit("one\n\nbody  with trailing spaces  \n\n\nÜ")
	q.Git("checkout", "-q", "-b", "side")
	q.Write("b", "1\n")
	q.Commit("side")
	q.Git("checkout", "-q", "work")
	q.Write("c", "1\n")
	q.Commit("main")
	q.Git("merge", "-q", "--no-ff", "-m", "merged", "side")
	tip := q.Pushed()
	p := preparedOf(q, Request{Commit: tip})
	if len(p.Commits) != 4 || p.Commits[0].Subject != "one" || p.Commit != p.Commits[3].ID || p.Commit == tip || len(p.Findings) != 0 {
		t.Fatalf("%+v", p)
	}
	first := q.Stored(p.Commits[0].ID)
	want := strings.ReplaceAll(q.Stored(q.Git("rev-list", "--reverse", "work", "^"+q.Base+"~0", "--topo-order")[:40]), "Agent <agent@example.com>", "Caisson Öne <caisson@example.com>")
	if first != want {
		t.Errorf("%q\nwant\n%q", first, want)
	}
	if strings.Contains(q.Stored(p.Commit), "agent@") || strings.Count(q.Stored(p.Commit), "parent ") != 2 {
		t.Error(q.Stored(p.Commit))
	}
	if q.Client(q.Store.Dir, "rev-parse", p.Commit+"^{tree}") != q.Client(q.Store.Dir, "rev-parse", tip+"^{tree}") {
		t.Error("another tree")
	}
	// The result is the same again, and later commits are its descendants.
	if again := preparedOf(q, Request{Commit: tip}); again.Commit != p.Commit {
		t.Errorf("%s and %s", again.Commit, p.Commit)
	}
	q.Write("d", "1\n")
	q.Commit("more")
	more := preparedOf(q, Request{Commit: q.Pushed()})
	if !strings.Contains(q.Stored(more.Commit), "parent "+p.Commit+"\n") || len(more.Commits) != 5 {
		t.Errorf("%+v", more)
	}
	// Authors are kept.
	kept := preparedOf(q, Request{Commit: tip, Authors: caisson.AuthorKeep})
	if kept.Commit != tip || len(kept.Commits) != 4 {
		t.Errorf("%+v", kept)
	}
	// No new commits.
	if none := preparedOf(q, Request{Commit: q.Base}); none.Commit != q.Base || len(none.Commits) != 0 {
		t.Errorf("%+v", none)
	}
	q.CheckIntact()
}

// TestSHA256 tests the whole path in a repository with SHA-256.
func TestSHA256(t *testing.T) {
	q := relaytest.NewOf(t, git.HexSHA256)
	q.Write("a", "1\n")
	q.Commit("one")
	tip := q.Pushed()
	q.Write(".github/workflows/x", "x\n")
	q.Commit("two")
	if said, ok := q.Push("work"); ok {
		t.Error(said)
	}
	sign := func([]byte) (string, error) { return sshsigBegin + "U1NIU0lH\n" + sshsigEnd, nil }
	p := preparedOf(q, Request{Commit: tip, Sign: sign})
	if len(p.Commit) != git.HexSHA256 || len(p.Commits) != 1 || !strings.Contains(q.Stored(p.Commit), "\ngpgsig-sha256 -----BEGIN SSH") {
		t.Errorf("%+v", p)
	}
	q.CheckIntact()
}

// TestPrepareGranted checks that commits of the remote are not delivered.
func TestPrepareGranted(t *testing.T) {
	q := relaytest.New(t)
	// Another user's branch that was granted.
	q.Git("checkout", "-q", "-b", "theirs", "main")
	q.Write("theirs", "x\n")
	q.Write(".github/workflows/x.yml", "x\n")
	theirs := q.Commit("theirs")
	q.Client(q.Work, "push", "-q", q.Store.View, "theirs")
	if err := q.Store.WriteRefs([]git.Ref{{Name: "refs/heads/main", Commit: q.Base}, {Name: "refs/heads/theirs", Commit: theirs}}); err != nil {
		t.Fatal(err)
	}
	q.Git("checkout", "-q", "work")
	q.Write("mine", "x\n")
	q.Commit("mine")
	q.Git("merge", "-q", "--no-ff", "-m", "merged", "theirs")
	p := preparedOf(q, Request{Commit: q.Pushed()})
	if len(p.Commits) != 2 || !strings.Contains(q.Stored(p.Commit), "parent "+theirs+"\n") {
		t.Errorf("%+v\n%s", p, q.Stored(p.Commit))
	}
}

// TestPrepareSignatures checks that invalidated signatures are removed and valid ones are kept.
func TestPrepareSignatures(t *testing.T) {
	q := relaytest.New(t)
	tree := q.Git("rev-parse", q.Base+"^{tree}")
	text := "tree " + tree + "\nparent " + q.Base + "\nauthor A <a@b> 5 +0000\ncommitter C <c@d> 6 -0330\n" +
		"mergetag object " + q.Base + "\n type commit\n tag x\n tagger T <t@t> 1 +0000\n \n message\n" +
		"gpgsig -----BEGIN PGP SIGNATURE-----\n \n garbage\n -----END PGP SIGNATURE-----\n\nsubject\n\n\x20body\n\n"
	signed := q.Object("commit", text)
	q.Git("reset", "-q", "--hard", signed)
	tip := q.Pushed()
	if p := preparedOf(q, Request{Commit: tip, Authors: caisson.AuthorKeep}); p.Commit != signed {
		t.Error("a commit that stays lost its signature")
	}
	p := preparedOf(q, Request{Commit: tip, Name: "N", Email: "e@f"})
	want := "tree " + tree + "\nparent " + q.Base + "\nauthor N <e@f> 5 +0000\ncommitter N <e@f> 6 -0330\n\nsubject\n\n\x20body\n\n"
	if got := q.Stored(p.Commit); got != want {
		t.Errorf("%q", got)
	}
}

// TestPrepareRefuses checks that commits that were pushed under other rules are checked again.
func TestPrepareRefuses(t *testing.T) {
	q := relaytest.New(t)
	q.Write("deploy/x", "x\n")
	q.Write("CLAUDE.md", "x\n")
	q.Commit("add")
	tip := q.Pushed()
	if p := preparedOf(q, Request{Commit: tip}); len(p.Findings) != 1 || p.Findings[0].Verdict != caisson.VerdictAsk {
		t.Errorf("%+v", p.Findings)
	}
	before, objects := q.State()
	good := Request{Base: q.Base, Commit: tip, Name: "N", Email: "e@f"}
	for name, c := range map[string]struct {
		change func(*Request)
		kind   caisson.Kind
	}{
		"rules":         {func(r *Request) { r.Rules.Deny = []string{"deploy"} }, caisson.Denied},
		"no such base":  {func(r *Request) { r.Base = strings.Repeat("1", 40) }, caisson.NotFound},
		"no such":       {func(r *Request) { r.Commit = strings.Repeat("1", 40) }, caisson.NotFound},
		"an option":     {func(r *Request) { r.Base = "--all" }, caisson.Invalid},
		"no name":       {func(r *Request) { r.Name = "" }, caisson.Invalid},
		"brackets":      {func(r *Request) { r.Email = "a> 1 +0000\nx" }, caisson.Invalid},
		"newline":       {func(r *Request) { r.Name = "a\ngpgsig x" }, caisson.Invalid},
		"authors":       {func(r *Request) { r.Authors = "other" }, caisson.Invalid},
		"bad signature": {func(r *Request) { r.Sign = func([]byte) (string, error) { return "x\n\ninjected", nil } }, caisson.Internal},
		"no signature": {func(r *Request) {
			r.Sign = func([]byte) (string, error) { return "", caisson.Errorf(caisson.Unavailable, "x") }
		}, caisson.Unavailable},
	} {
		req := good
		c.change(&req)
		if p, err := prepare(t.Context(), q.Store, req); caisson.KindOf(err) != c.kind {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
		q.UntouchedObjects(before, objects)
	}
}

// TestSSHSign verifies signatures with git and ssh-keygen.
func TestSSHSign(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		testneed.Skip(t, "ssh-keygen", "it is not installed")
	}
	q := relaytest.New(t)
	q.Write("a", "1\n")
	q.Commit("one")
	q.Write("b", "1\n")
	q.Commit("two")
	tip := q.Pushed()
	for _, kind := range [][]string{{"ed25519"}, {"rsa", "-b", "2048"}, {"ecdsa", "-b", "256"}, {"ecdsa", "-b", "384"}, {"ecdsa", "-b", "521"}, {"rsa", "-b", "2048", "-m", "PEM"}} {
		dir := t.TempDir()
		key := filepath.Join(dir, "key")
		if out, err := exec.Command(keygen, append([]string{"-q", "-N", "", "-C", "x", "-f", key, "-t"}, kind...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v", out, err)
		}
		text, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		public, err := os.ReadFile(key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		sign, err := SSHSign(text)
		if err != nil {
			t.Fatal(err)
		}
		p := preparedOf(q, Request{Commit: tip, Sign: sign})
		if again := preparedOf(q, Request{Commit: tip, Sign: sign}); again.Commit != p.Commit {
			t.Errorf("%v: signing is not deterministic", kind)
		}
		signers := filepath.Join(dir, "signers")
		if err := os.WriteFile(signers, append([]byte("caisson@example.com "), public...), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Commits {
			out, err := q.Try(q.Store.Dir, "", "-c", "gpg.ssh.allowedSignersFile="+signers, "-c", "gpg.format=ssh", "verify-commit", "--raw", c.ID)
			if err != nil || !strings.Contains(out, "Good \"git\" signature for caisson@example.com") {
				t.Errorf("%v: %s %v", kind, out, err)
			}
		}
	}
}

func TestSSHSignRefuses(t *testing.T) {
	for name, key := range map[string]string{
		"empty": "", "nonsense": "x", "public": "ssh-ed25519 AAAA", "cut off": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA",
	} {
		if _, err := SSHSign([]byte(key)); caisson.KindOf(err) != caisson.Invalid || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for s, ok := range map[string]bool{
		sshsigBegin + "U1NIU0lH\n" + sshsigEnd: true, sshsigBegin + sshsigEnd: false, "": false, sshsigBegin + "U1NIU0lH\n\nx\n" + sshsigEnd: false,
		sshsigBegin + "U1NIU0lH\n" + sshsigEnd + "\nmore": false, sshsigBegin + "AAAA\n" + sshsigEnd: false,
	} {
		if validSignature(s) != ok {
			t.Errorf("%q: %v", s, !ok)
		}
	}
}
