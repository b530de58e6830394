package refname_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/refname"
)

func TestValid(t *testing.T) {
	for _, name := range []string{
		"a", "main", "fix/login", "fix/ü-日本", "v1.0", "a@b", "a+b=c,d#e", "dependabot/npm/x-1.2", "heads/x", "fix(it)", "R&D", "#12", "x/HEAD", "x/@", "head", strings.Repeat("x", refname.MaxLength),
	} {
		if !refname.Valid(name) || !refname.ValidFull(refname.Heads+name) || !refname.ValidFull(refname.Tags+name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{
		"", "-x", "HEAD", "@", "refs/heads/x", "refs/x", "a..b", "a@{1}", "a.", "a/", "/a", "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b",
		"a\"b", "a'b", "a`b", "$(a)", "a|b", "a;b", "a<b", "a>b", "a\x00", "a\n", "a\x7f", "a\xff", "a\u202eb", "a\u200bb", "a\u2028", "a\ufffdb", strings.Repeat("x", refname.MaxLength+1),
	} {
		if refname.Valid(name) || refname.ValidFull(refname.Heads+name) {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"main", "refs/notes/x", "refs/heads", "refs/heads/", "Refs/heads/x", "refs/remotes/origin/x"} {
		if refname.ValidFull(name) {
			t.Errorf("%q is taken for a full name", name)
		}
	}
}

// FuzzValid tests that git accepts every valid name.
func FuzzValid(f *testing.F) {
	for _, s := range []string{"main", "a/b", "a.lock", "..", "@{", "ä", "a\u200bb"} {
		f.Add(s)
	}
	git, err := exec.LookPath("git")
	f.Fuzz(func(t *testing.T, short string) {
		if !refname.Valid(short) || err != nil {
			return
		}
		if exec.Command(git, "check-ref-format", refname.Heads+short).Run() != nil {
			t.Errorf("git does not accept %q", short)
		}
	})
}
