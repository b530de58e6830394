package check

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// checkedHost lists the entries of a test's host directory: a path ending in a slash is a directory, "path -> target" a
// symlink.
func checkedHost(t testing.TB, paths ...string) *os.File {
	t.Helper()
	dir := t.TempDir()
	for _, p := range paths {
		name, link, isLink := strings.Cut(p, " -> ")
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case isLink:
			err = os.Symlink(link, full)
		case strings.HasSuffix(p, "/"):
			err = os.MkdirAll(full, 0o755)
		default:
			err = os.WriteFile(full, []byte("old\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func addedAt(path string) caisson.Change {
	return caisson.Change{Path: path, Kind: caisson.ChangeAdded, Type: fsat.TypeFile, OldType: fsat.TypeNone, Mode: 0o644, Size: 4, Hash: "new"}
}

func modifiedAt(path string) caisson.Change {
	c := addedAt(path)
	c.Kind, c.OldType, c.OldMode = caisson.ChangeModified, fsat.TypeFile, 0o644
	return c
}

func removedAt(path string) caisson.Change {
	return caisson.Change{Path: path, Kind: caisson.ChangeRemoved, Type: fsat.TypeNone, OldType: fsat.TypeFile, OldMode: 0o644}
}

func linkAt(path, link string) caisson.Change {
	return caisson.Change{Path: path, Kind: caisson.ChangeAdded, Type: fsat.TypeSymlink, OldType: fsat.TypeNone, Mode: 0o777, Link: link, Hash: "link"}
}

func but(c caisson.Change, change func(*caisson.Change)) caisson.Change {
	change(&c)
	return c
}

// contentsOf returns the new contents of changes by their hash.
func contentsOf(texts map[string]string) func(string) (io.ReadCloser, error) {
	return func(hash string) (io.ReadCloser, error) {
		text, ok := texts[hash]
		if !ok && hash != "new" {
			return nil, caisson.Errorf(caisson.NotFound, "no such content")
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

func hasFinding(c caisson.Change, check, verdict string) bool {
	return slices.ContainsFunc(c.Finding, func(f caisson.Finding) bool { return f.Check == check && f.Verdict == verdict })
}

// checkOne checks a single change in a directory.
func checkOne(t *testing.T, c caisson.Change, rules Rules, host ...string) caisson.Change {
	t.Helper()
	changes := []caisson.Change{c}
	if err := Changes(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), rules); err != nil {
		t.Fatal(err)
	}
	return changes[0]
}

const (
	pass = caisson.VerdictPass
	ask  = caisson.VerdictAsk
	deny = caisson.VerdictDeny
)

func TestCheckPaths(t *testing.T) {
	for _, c := range []struct{ path, check, verdict string }{
		{"a.go", "", pass},
		{"src/deep/er/a.go", "", pass},
		{"日本語/ä.txt", "", pass},
		{".gitignore", "", pass},
		{"gitx/git", "", pass},
		{"-x..git", "", ask},

		// Files of git, in all spellings.
		{".git/config", checkPath, deny},
		{".git", checkPath, deny},
		{"a/b/.git/hooks/post-checkout", checkPath, deny},
		{".GIT/hooks/x", checkPath, deny},
		{".gIt", checkPath, deny},
		{".git\u200c/config", checkPath, deny},
		{".g\u00adit/config", checkPath, deny},
		{".git\ufe0f/config", checkPath, deny},
		{"．git/config", checkPath, deny},
		{".ｇｉｔ/config", checkPath, deny},
		{".gı̇t/x", "", pass},
		{".gİt/config", checkPath, deny},
		{"git~1/config", checkPath, deny},
		{"GIT~1", checkPath, deny},
		{"git~27/x", checkPath, deny},
		{".git /config", checkPath, deny},
		{".git./config", checkPath, deny},
		{".git. . ./config", checkPath, deny},
		{".git::$INDEX_ALLOCATION/config", checkPath, deny},
		{".git:x", checkPath, deny},
		{`a\.git\config`, checkPath, deny},
		{`.git\config`, checkPath, deny},

		// Paths outside the directory.
		{"../a", checkPath, deny},
		{"a/../../b", checkPath, deny},
		{"/etc/passwd", checkPath, deny},
		{"a//b", checkPath, deny},
		{"./a", checkPath, deny},
		{"a/", checkPath, deny},
		{"", checkPath, deny},
		{"a\x00b", checkPath, deny},
		{strings.Repeat("a/", 3000) + "a", checkPath, deny},
		{strings.Repeat("a", 300), checkPath, deny},

		// Hooks and definitions of continuous integration.
		{".husky/pre-commit", checkPath, deny},
		{"x/.githooks/pre-push", checkPath, deny},
		{"lefthook.yml", checkPath, deny},
		{".pre-commit-config.yaml", checkPath, deny},
		{".github/workflows/ci.yml", checkPath, deny},
		{".GitHub/Workflows/ci.yml", checkPath, deny},
		{"sub/.github/workflows/ci.yml", checkPath, deny},
		{".github/ISSUE_TEMPLATE.md", "", pass},
		{".gitlab-ci.yml", checkPath, deny},
		{"Jenkinsfile", checkPath, deny},
		{"Jenkinsfile.release", checkPath, deny},
		{".circleci/config.yml", checkPath, deny},
		{".ssh/authorized_keys", checkPath, deny},
		{"home/.ssh/config", checkPath, deny},

		// Files that other tools execute or follow.
		{".vscode/tasks.json", checkPath, ask},
		{".idea/workspace.xml", checkPath, ask},
		{"x.code-workspace", checkPath, ask},
		{".envrc", checkPath, ask},
		{"CLAUDE.md", checkPath, ask},
		{"sub/AGENTS.md", checkPath, ask},
		{".claude/settings.json", checkPath, ask},
		{".mcp.json", checkPath, ask},
		{".gitmodules", checkPath, ask},
		{".gitattributes", checkPath, ask},
		{".bashrc", checkPath, ask},
		{".cargo/config.toml", checkPath, ask},
		{".local/share/applications/x", checkPath, ask},
		{"sub/.npmrc", checkPath, ask},

		// Names.
		{"-rf", checkNames, ask},
		{"a/--help", checkNames, ask},
		{"~root", checkNames, ask},
		{"a\nb", checkNames, deny},
		{"a\x1b[2Jb", checkNames, deny},
		{"a\rb", checkNames, deny},
		{"a\u0085b", checkNames, deny},
		{"a\u2028b", checkNames, deny},
		{"a\x7f", checkNames, deny},
		{"a\u202egpj.exe", checkNames, deny},
		{"a\u2066b", checkNames, deny},
		{"a\u200fb", checkNames, deny},
		{"a\u061cb", checkNames, deny},
		{"a\xffb", checkNames, deny},
		{"a\u200bb", checkNames, ask},
		{"a\ufeffb", checkNames, ask},
		{"a\u00a0b", checkNames, ask},
		{"a\U000e0041b", checkNames, ask},
		{"a\ue000b", checkNames, ask},
		{"a ", checkNames, ask},
		{" a", checkNames, ask},
		{"a.", checkNames, ask},
		{"...", checkNames, ask},
		{`a\b`, checkNames, ask},
	} {
		got := checkOne(t, addedAt(c.path), Rules{})
		if got.Verdict != c.verdict || c.check != "" && !hasFinding(got, c.check, c.verdict) {
			t.Errorf("%.60q: %s %v, want %s by %s", c.path, got.Verdict, got.Finding, c.verdict, c.check)
		}
		for _, f := range got.Finding {
			if strings.ContainsAny(f.Message, "\x00\n\r\x1b\u202e\u200b") || len(f.Message) > maxMessage+3 {
				t.Errorf("%.60q: the message %q is not to be shown", c.path, f.Message)
			}
		}
	}
}

func TestCheckPathsOfOtherChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change  caisson.Change
		verdict string
	}{
		"workflow removed":       {removedAt(".github/workflows/ci.yml"), deny},
		"hook renamed away":      {but(addedAt("x"), func(c *caisson.Change) { c.Kind, c.OldPath = caisson.ChangeRenamed, ".husky/pre-push" }), deny},
		"renamed to a hook":      {but(addedAt(".husky/x"), func(c *caisson.Change) { c.Kind, c.OldPath = caisson.ChangeRenamed, "x" }), deny},
		"odd name removed":       {removedAt("a\x1bb"), pass},
		"mode of git's":          {but(modifiedAt(".git/config"), func(c *caisson.Change) { c.Kind = caisson.ChangeMode }), deny},
		"plain removal":          {removedAt("a"), pass},
		"denied before":          {but(addedAt("a"), func(c *caisson.Change) { c.Verdict = deny }), deny},
		"clash before":           {but(addedAt("a"), func(c *caisson.Change) { c.Verdict = caisson.VerdictConflict }), caisson.VerdictConflict},
		"clash and denied":       {but(addedAt(".git/x"), func(c *caisson.Change) { c.Verdict = caisson.VerdictConflict }), deny},
		"a verdict nobody knows": {but(addedAt("a"), func(c *caisson.Change) { c.Verdict = "fine" }), deny},
	} {
		if got := checkOne(t, c.change, Rules{}); got.Verdict != c.verdict {
			t.Errorf("%s: %s %v, want %s", name, got.Verdict, got.Finding, c.verdict)
		}
	}
}

func TestCheckRules(t *testing.T) {
	for _, c := range []struct {
		path    string
		rules   Rules
		verdict string
	}{
		{"src/a", Rules{Only: []string{"/src"}}, pass},
		{"doc/a", Rules{Only: []string{"/src"}}, deny},
		{"a.pem", Rules{Deny: []string{"*.pem"}}, deny},
		{"A.PEM", Rules{Deny: []string{"*.pem"}}, deny},
		{"a.pem", Rules{Deny: []string{"*.PEM"}}, deny},
		{".github/workflows/lint.yml", Rules{Allow: []string{".github/workflows/lint.yml"}}, pass},
		{".github/workflows/ci.yml", Rules{Allow: []string{".github/workflows/lint.yml"}}, deny},
		{".husky/x", Rules{Allow: []string{"**"}}, pass},
		{"CLAUDE.md", Rules{Allow: []string{"CLAUDE.md"}}, pass},
		{".git/config", Rules{Allow: []string{"**"}}, deny},
		{".ssh/id", Rules{Allow: []string{"**"}}, deny},
		{"a\x1b", Rules{Allow: []string{"**"}}, deny},
		{".envrc", Rules{Allow: []string{"**"}, Deny: []string{".envrc"}}, deny},
	} {
		if got := checkOne(t, addedAt(c.path), c.rules); got.Verdict != c.verdict {
			t.Errorf("%q with %+v: %s %v, want %s", c.path, c.rules, got.Verdict, got.Finding, c.verdict)
		}
	}
	changes := []caisson.Change{addedAt("a")}
	if err := Changes(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{Deny: []string{"["}}); caisson.KindOf(err) != caisson.Invalid || changes[0].Verdict != deny {
		t.Errorf("rules that are malformed: %v, %s", err, changes[0].Verdict)
	}
}

func TestCheckNodes(t *testing.T) {
	file := func(mode, old uint32) caisson.Change {
		return but(modifiedAt("f"), func(c *caisson.Change) { c.Kind, c.Mode, c.OldMode = caisson.ChangeMode, mode, old })
	}
	dir := func(mode, old uint32, oldType string) caisson.Change {
		return caisson.Change{Path: "d", Kind: caisson.ChangeAdded, Type: fsat.TypeDir, OldType: oldType, Mode: mode, OldMode: old}
	}
	typed := func(typ string) caisson.Change { return but(addedAt("f"), func(c *caisson.Change) { c.Type = typ }) }
	for name, c := range map[string]struct {
		change         caisson.Change
		check, verdict string
	}{
		"file":                       {addedAt("f"), "", pass},
		"directory":                  {dir(0o755, 0, fsat.TypeNone), "", pass},
		"fifo":                       {typed(fsat.TypeFIFO), checkType, deny},
		"socket":                     {typed(fsat.TypeSocket), checkType, deny},
		"device":                     {typed(fsat.TypeDevice), checkType, deny},
		"nothing":                    {typed(fsat.TypeNone), checkType, deny},
		"something else":             {typed("door"), checkType, deny},
		"setuid":                     {file(0o4755, 0o755), checkMode, deny},
		"setuid that was there":      {file(0o4755, 0o4755), checkMode, deny},
		"setgid":                     {file(0o2644, 0o644), checkMode, deny},
		"sticky file":                {file(0o1644, 0o644), checkMode, deny},
		"setuid directory":           {dir(0o4755, 0, fsat.TypeNone), checkMode, deny},
		"setgid directory":           {dir(0o2755, 0, fsat.TypeNone), checkMode, ask},
		"setgid directory as it was": {dir(0o2755, 0o2755, fsat.TypeDir), "", pass},
		"no mode":                    {file(0o100644, 0o644), checkMode, deny},
		"executable":                 {file(0o755, 0o644), checkMode, ask},
		"executable as before":       {file(0o755, 0o744), "", pass},
		"new executable":             {but(addedAt("f"), func(c *caisson.Change) { c.Mode = 0o755 }), checkMode, ask},
		"no longer executable":       {file(0o644, 0o755), "", pass},
		"writable for all":           {file(0o646, 0o644), checkMode, ask},
		"large":                      {but(addedAt("f"), func(c *caisson.Change) { c.Size = 65 << 20 }), checkSize, deny},
		"50 GB, sparse":              {but(addedAt("f"), func(c *caisson.Change) { c.Size = 50e9 }), checkSize, deny},
		"of negative size":           {but(addedAt("f"), func(c *caisson.Change) { c.Size = -1 }), checkSize, deny},
		"too large to scan":          {but(addedAt("f"), func(c *caisson.Change) { c.Size = 5 << 20 }), checkSecret, ask},
	} {
		got := checkOne(t, c.change, Rules{})
		if got.Verdict != c.verdict || c.check != "" && !hasFinding(got, c.check, c.verdict) {
			t.Errorf("%s: %s %v, want %s by %s", name, got.Verdict, got.Finding, c.verdict, c.check)
		}
	}
}

func TestCheckLimits(t *testing.T) {
	sized := func(path string, size int64) caisson.Change {
		return but(addedAt(path), func(c *caisson.Change) { c.Size = size })
	}
	changes := []caisson.Change{sized("a", 100), sized("b", 100), sized("c", 1), sized("d", 1)}
	if err := Changes(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{MaxTotal: 201, MaxFiles: 10}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass pass pass deny" {
		t.Error("by size:", got)
	}
	changes = []caisson.Change{addedAt("a"), removedAt("b"), addedAt("c")}
	if err := Changes(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{MaxFiles: 2}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass pass deny" {
		t.Error("by number:", got)
	}
}

func verdictsOf(changes []caisson.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Verdict)
	}
	return strings.Join(all, " ")
}

func FuzzNameKey(f *testing.F) {
	for _, s := range []string{".git", ".GİT", "straße", "a\u0308", "\ufeff.git. .", "ﬀ", "\u1fb3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key := nameKey(name)
		if again := nameKey(key); again != key {
			t.Fatalf("the key of %q is %q, and its key %q", name, key, again)
		}
		if strings.ToLower(name) == ".git" && !GitName(name) {
			t.Fatalf("%q is git's", name)
		}
		var b bytes.Buffer
		checkName(name, func(verdict, format string, args ...any) { b.WriteString(verdict) })
		if strings.ContainsAny(name, "\n\x1b\u202e") && !strings.Contains(b.String(), deny) {
			t.Fatalf("%q is let through", name)
		}
	})
}
