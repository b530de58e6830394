package relay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func preparedOf(q *quay, req PrepareRequest) *Prepared {
	q.t.Helper()
	if req.Base == "" {
		req.Base = q.base
	}
	if req.Name == "" {
		req.Name, req.Email = "Caisson Öne", "caisson@example.com"
	}
	p, err := prepare(q.t.Context(), q.store, req)
	if err != nil {
		q.t.Fatal(err)
	}
	return p
}

func TestPrepare(t *testing.T) {
	q := newQuay(t)
	q.write("a", "1\n")
	q.commit("one\n\nbody  with trailing spaces  \n\n\nÜ")
	q.git("checkout", "-q", "-b", "side")
	q.write("b", "1\n")
	q.commit("side")
	q.git("checkout", "-q", "work")
	q.write("c", "1\n")
	q.commit("main")
	q.git("merge", "-q", "--no-ff", "-m", "merged", "side")
	tip := q.pushed()
	p := preparedOf(q, PrepareRequest{Commit: tip})
	if len(p.Commits) != 4 || p.Commits[0].Subject != "one" || p.Commit != p.Commits[3].ID || p.Commit == tip || len(p.Findings) != 0 {
		t.Fatalf("%+v", p)
	}
	first := q.stored(p.Commits[0].ID)
	want := strings.ReplaceAll(q.stored(q.git("rev-list", "--reverse", "work", "^"+q.base+"~0", "--topo-order")[:40]), "Agent <agent@example.com>", "Caisson Öne <caisson@example.com>")
	if first != want {
		t.Errorf("%q\nwant\n%q", first, want)
	}
	if strings.Contains(q.stored(p.Commit), "agent@") || strings.Count(q.stored(p.Commit), "parent ") != 2 {
		t.Error(q.stored(p.Commit))
	}
	if q.client(q.store.dir, "rev-parse", p.Commit+"^{tree}") != q.client(q.store.dir, "rev-parse", tip+"^{tree}") {
		t.Error("another tree")
	}
	// The same again, and what comes later follows it.
	if again := preparedOf(q, PrepareRequest{Commit: tip}); again.Commit != p.Commit {
		t.Errorf("%s and %s", again.Commit, p.Commit)
	}
	q.write("d", "1\n")
	q.commit("more")
	more := preparedOf(q, PrepareRequest{Commit: q.pushed()})
	if !strings.Contains(q.stored(more.Commit), "parent "+p.Commit+"\n") || len(more.Commits) != 5 {
		t.Errorf("%+v", more)
	}
	// As they are.
	kept := preparedOf(q, PrepareRequest{Commit: tip, Authors: caisson.AuthorKeep})
	if kept.Commit != tip || len(kept.Commits) != 4 {
		t.Errorf("%+v", kept)
	}
	// Nothing new.
	if none := preparedOf(q, PrepareRequest{Commit: q.base}); none.Commit != q.base || len(none.Commits) != 0 {
		t.Errorf("%+v", none)
	}
	q.sound()
}

// TestSHA256 is all of it in a repository with longer names.
func TestSHA256(t *testing.T) {
	q := newQuayOf(t, hexSHA256)
	q.write("a", "1\n")
	q.commit("one")
	tip := q.pushed()
	q.write(".github/workflows/x", "x\n")
	q.commit("two")
	if said, ok := q.push("work"); ok {
		t.Error(said)
	}
	sign := func([]byte) (string, error) { return sshsigBegin + "U1NIU0lH\n" + sshsigEnd, nil }
	p := preparedOf(q, PrepareRequest{Commit: tip, Sign: sign})
	if len(p.Commit) != hexSHA256 || len(p.Commits) != 1 || !strings.Contains(q.stored(p.Commit), "\ngpgsig-sha256 -----BEGIN SSH") {
		t.Errorf("%+v", p)
	}
	q.sound()
}

// TestPrepareGranted sends no commits that the remote has made.
func TestPrepareGranted(t *testing.T) {
	q := newQuay(t)
	// Somebody else's branch, which was granted.
	q.git("checkout", "-q", "-b", "theirs", "main")
	q.write("theirs", "x\n")
	q.write(".github/workflows/x.yml", "x\n")
	theirs := q.commit("theirs")
	q.client(q.work, "push", "-q", q.store.view, "theirs")
	if err := q.store.writeRefs([]Ref{{"refs/heads/main", q.base}, {"refs/heads/theirs", theirs}}); err != nil {
		t.Fatal(err)
	}
	q.git("checkout", "-q", "work")
	q.write("mine", "x\n")
	q.commit("mine")
	q.git("merge", "-q", "--no-ff", "-m", "merged", "theirs")
	p := preparedOf(q, PrepareRequest{Commit: q.pushed()})
	if len(p.Commits) != 2 || !strings.Contains(q.stored(p.Commit), "parent "+theirs+"\n") {
		t.Errorf("%+v\n%s", p, q.stored(p.Commit))
	}
}

// TestPrepareSignatures drops those that do not hold any more, and keeps those that do.
func TestPrepareSignatures(t *testing.T) {
	q := newQuay(t)
	tree := q.git("rev-parse", q.base+"^{tree}")
	text := "tree " + tree + "\nparent " + q.base + "\nauthor A <a@b> 5 +0000\ncommitter C <c@d> 6 -0330\n" +
		"mergetag object " + q.base + "\n type commit\n tag x\n tagger T <t@t> 1 +0000\n \n message\n" +
		"gpgsig -----BEGIN PGP SIGNATURE-----\n \n garbage\n -----END PGP SIGNATURE-----\n\nsubject\n\n\x20body\n\n"
	signed := q.object("commit", text)
	q.git("reset", "-q", "--hard", signed)
	tip := q.pushed()
	if p := preparedOf(q, PrepareRequest{Commit: tip, Authors: caisson.AuthorKeep}); p.Commit != signed {
		t.Error("a commit that stays lost its signature")
	}
	p := preparedOf(q, PrepareRequest{Commit: tip, Name: "N", Email: "e@f"})
	want := "tree " + tree + "\nparent " + q.base + "\nauthor N <e@f> 5 +0000\ncommitter N <e@f> 6 -0330\n\nsubject\n\n\x20body\n\n"
	if got := q.stored(p.Commit); got != want {
		t.Errorf("%q", got)
	}
}

// TestPrepareRefuses checks again what was pushed under other rules.
func TestPrepareRefuses(t *testing.T) {
	q := newQuay(t)
	q.write("deploy/x", "x\n")
	q.write("CLAUDE.md", "x\n")
	q.commit("add")
	tip := q.pushed()
	if p := preparedOf(q, PrepareRequest{Commit: tip}); len(p.Findings) != 1 || p.Findings[0].Verdict != caisson.VerdictAsk {
		t.Errorf("%+v", p.Findings)
	}
	before, objects := q.state()
	good := PrepareRequest{Base: q.base, Commit: tip, Name: "N", Email: "e@f"}
	for name, c := range map[string]struct {
		change func(*PrepareRequest)
		kind   caisson.Kind
	}{
		"rules":         {func(r *PrepareRequest) { r.Rules.Deny = []string{"deploy"} }, caisson.Denied},
		"no such base":  {func(r *PrepareRequest) { r.Base = strings.Repeat("1", 40) }, caisson.NotFound},
		"no such":       {func(r *PrepareRequest) { r.Commit = strings.Repeat("1", 40) }, caisson.NotFound},
		"an option":     {func(r *PrepareRequest) { r.Base = "--all" }, caisson.Invalid},
		"no name":       {func(r *PrepareRequest) { r.Name = "" }, caisson.Invalid},
		"brackets":      {func(r *PrepareRequest) { r.Email = "a> 1 +0000\nx" }, caisson.Invalid},
		"newline":       {func(r *PrepareRequest) { r.Name = "a\ngpgsig x" }, caisson.Invalid},
		"authors":       {func(r *PrepareRequest) { r.Authors = "other" }, caisson.Invalid},
		"bad signature": {func(r *PrepareRequest) { r.Sign = func([]byte) (string, error) { return "x\n\ninjected", nil } }, caisson.Internal},
		"no signature": {func(r *PrepareRequest) {
			r.Sign = func([]byte) (string, error) { return "", caisson.Errorf(caisson.Unavailable, "x") }
		}, caisson.Unavailable},
	} {
		req := good
		c.change(&req)
		if p, err := prepare(t.Context(), q.store, req); caisson.KindOf(err) != c.kind {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
		q.untouchedObjects(before, objects)
	}
}

// TestSSHSign has git and ssh-keygen verify what was signed.
func TestSSHSign(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		testneed.Skip(t, "ssh-keygen", "it is not installed")
	}
	q := newQuay(t)
	q.write("a", "1\n")
	q.commit("one")
	q.write("b", "1\n")
	q.commit("two")
	tip := q.pushed()
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
		p := preparedOf(q, PrepareRequest{Commit: tip, Sign: sign})
		if again := preparedOf(q, PrepareRequest{Commit: tip, Sign: sign}); again.Commit != p.Commit {
			t.Errorf("%v: signing is not deterministic", kind)
		}
		signers := filepath.Join(dir, "signers")
		if err := os.WriteFile(signers, append([]byte("caisson@example.com "), public...), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Commits {
			out, err := q.try(q.store.dir, "", "-c", "gpg.ssh.allowedSignersFile="+signers, "-c", "gpg.format=ssh", "verify-commit", "--raw", c.ID)
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
