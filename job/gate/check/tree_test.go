package check

import (
	"context"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

func TestCheckLinks(t *testing.T) {
	host := []string{"dir/sub/f", "etc -> /etc", "up -> ..", "in -> dir/sub", "loop -> loop", "gone -> nowhere", "file"}
	for _, c := range []struct {
		path, link string
		more       []caisson.Change
		verdict    string
	}{
		{"x", "file", nil, pass},
		{"x", "dir/sub/f", nil, pass},
		{"dir/x", "../file", nil, pass},
		{"dir/x", "sub/../../file", nil, pass},
		{"x", "in/f", nil, pass},
		{"x", "not/there", nil, pass},
		{"x", "gone/x", nil, pass},
		{"x", ".", nil, pass},
		{"dir/x", "..", nil, pass},

		{"x", "/etc/passwd", nil, deny},
		{"x", "/", nil, deny},
		{"x", "..", nil, deny},
		{"x", "../x", nil, deny},
		{"dir/x", "../../x", nil, deny},
		{"x", "dir/../../x", nil, deny},
		{"x", "not/there/../../../x", nil, deny},
		{"x", "etc/passwd", nil, deny},
		{"x", "up/x", nil, deny},
		{"dir/x", "../in/../../..", nil, deny},
		{"x", "loop", nil, deny},
		{"x", "x", nil, deny},
		{"x", ".git/hooks", nil, deny},
		{"dir/x", "../.GIT/config", nil, deny},
		{"x", "", nil, deny},
		{"x", strings.Repeat("a/", 4000), nil, deny},
		{"x", "a\x1b[2J", nil, deny},
		{"x", "a\u202eb", nil, deny},

		// Through symlinks and directories that other changes create.
		{"x", "y", []caisson.Change{linkAt("y", "/etc")}, deny},
		{"x", "y/../z", []caisson.Change{linkAt("y", "dir/sub")}, pass},
		{"x", "y/../../z", []caisson.Change{linkAt("y", "dir/sub")}, pass},
		{"x", "dir/sub/../../z", []caisson.Change{but(linkAt("dir/sub", "../dir"), func(c *caisson.Change) { c.Kind, c.OldType = caisson.ChangeType, fsat.TypeDir })}, deny},
		{"x", "y", []caisson.Change{linkAt("y", "z"), linkAt("z", "x")}, deny},
		{"x", "etc/passwd", []caisson.Change{removedAt("etc")}, pass},
		{"x", "y/z", []caisson.Change{but(removedAt("up"), func(c *caisson.Change) {
			c.Kind, c.OldPath, c.Path, c.Type, c.OldType, c.Link = caisson.ChangeRenamed, "up", "y", fsat.TypeSymlink, fsat.TypeSymlink, ".."
		})}, deny},
	} {
		changes := append([]caisson.Change{linkAt(c.path, c.link)}, c.more...)
		if err := Changes(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := changes[0]; got.Verdict != c.verdict || c.verdict == deny && !hasFinding(got, checkLink, deny) {
			t.Errorf("%s to %.60q: %s %v, want %s", c.path, c.link, got.Verdict, got.Finding, c.verdict)
		}
	}
	// Below a path that is no longer a directory.
	changes := []caisson.Change{linkAt("d", "dir"), addedAt("d/f"), removedAt("dir/sub"), addedAt("dir/sub/g")}
	if err := Changes(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), Rules{}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass deny pass deny" {
		t.Error("below what is no directory:", got, changes)
	}
}

func TestCheckCollisions(t *testing.T) {
	renamed := func(from, to string) caisson.Change {
		return but(addedAt(to), func(c *caisson.Change) { c.Kind, c.OldPath, c.OldType = caisson.ChangeRenamed, from, fsat.TypeFile })
	}
	for name, c := range map[string]struct {
		host    []string
		changes []caisson.Change
		want    string
	}{
		"none":                    {[]string{"a", "b"}, []caisson.Change{addedAt("c")}, "pass"},
		"case, with the host":     {[]string{"readme"}, []caisson.Change{addedAt("README")}, "deny"},
		"case, in a directory":    {[]string{"d/readme"}, []caisson.Change{addedAt("d/README")}, "deny"},
		"case, two new":           {nil, []caisson.Change{addedAt("a"), addedAt("A")}, "deny deny"},
		"elsewhere":               {[]string{"x/a"}, []caisson.Change{addedAt("y/A")}, "pass"},
		"Unicode forms":           {[]string{"\u00e4"}, []caisson.Change{addedAt("a\u0308")}, "deny"},
		"sharp s":                 {[]string{"strasse"}, []caisson.Change{addedAt("straße")}, "deny"},
		"Kelvin":                  {[]string{"k"}, []caisson.Change{addedAt("\u212a")}, "deny"},
		"not seen":                {[]string{"a"}, []caisson.Change{addedAt("a\u200b")}, "deny"},
		"dot at the end":          {[]string{"a"}, []caisson.Change{addedAt("a.")}, "deny"},
		"full width":              {[]string{"a"}, []caisson.Change{addedAt("\uff41")}, "deny"},
		"the other is removed":    {[]string{"a"}, []caisson.Change{removedAt("a"), addedAt("A")}, "pass pass"},
		"renamed to other case":   {[]string{"a"}, []caisson.Change{renamed("a", "A")}, "pass"},
		"renamed onto":            {[]string{"a", "b"}, []caisson.Change{renamed("b", "A")}, "deny"},
		"host's own":              {[]string{"a", "A"}, []caisson.Change{modifiedAt("a")}, "pass"},
		"host's own, and another": {[]string{"a", "A"}, []caisson.Change{addedAt("b")}, "pass"},
		"directories":             {[]string{"Dir/x"}, []caisson.Change{{Path: "dir", Kind: caisson.ChangeAdded, Type: fsat.TypeDir, OldType: fsat.TypeNone, Mode: 0o755}, addedAt("dir/y")}, "deny pass"},
	} {
		if err := Changes(context.Background(), c.changes, checkedHost(t, c.host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := verdictsOf(c.changes); got != c.want {
			t.Errorf("%s: %s, want %s: %v", name, got, c.want, c.changes)
		}
	}
}

// TestCheckRepositories checks directories that git interprets as repositories although they are not named .git.
func TestCheckRepositories(t *testing.T) {
	for name, c := range map[string]struct {
		host    []string
		changes []caisson.Change
		want    string
	}{
		"all new":      {nil, []caisson.Change{addedAt("x/HEAD"), addedAt("x/config"), addedAt("x/objects"), addedAt("x/refs")}, "deny deny deny deny"},
		"completed":    {[]string{"x/objects/", "x/refs/heads/"}, []caisson.Change{addedAt("x/HEAD")}, "deny"},
		"its content":  {[]string{"x/objects/", "x/refs/heads/", "x/HEAD"}, []caisson.Change{modifiedAt("x/config")}, "deny"},
		"its hooks":    {[]string{"x/objects/", "x/refs/heads/", "x/HEAD"}, []caisson.Change{addedAt("x/hooks/post-update")}, "deny"},
		"at the root":  {[]string{"objects/", "refs/"}, []caisson.Change{addedAt("head")}, "deny"},
		"only similar": {[]string{"x/objects/"}, []caisson.Change{addedAt("x/HEAD"), addedAt("config")}, "pass pass"},
	} {
		if err := Changes(context.Background(), c.changes, checkedHost(t, c.host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := verdictsOf(c.changes); got != c.want {
			t.Errorf("%s: %s, want %s: %v", name, got, c.want, c.changes)
		}
	}
}
