package gate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// checkedHost says what a test's host directory has: a path ending in a slash is a directory, "path -> target" a symlink.
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
	return caisson.Change{Path: path, Kind: caisson.ChangeAdded, Type: typeFile, OldType: typeNone, Mode: 0o644, Size: 4, Hash: "new"}
}

func modifiedAt(path string) caisson.Change {
	c := addedAt(path)
	c.Kind, c.OldType, c.OldMode = caisson.ChangeModified, typeFile, 0o644
	return c
}

func removedAt(path string) caisson.Change {
	return caisson.Change{Path: path, Kind: caisson.ChangeRemoved, Type: typeNone, OldType: typeFile, OldMode: 0o644}
}

func linkAt(path, link string) caisson.Change {
	return caisson.Change{Path: path, Kind: caisson.ChangeAdded, Type: typeSymlink, OldType: typeNone, Mode: 0o777, Link: link, Hash: "link"}
}

func but(c caisson.Change, change func(*caisson.Change)) caisson.Change {
	change(&c)
	return c
}

// contentsOf are what changes would write, by their hash.
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
	if err := Check(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), rules); err != nil {
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

		// Git's own, in all its forms.
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

		// Outside.
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

		// Hooks and what continuous integration runs.
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

		// What runs or is followed elsewhere.
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
		"clash before":           {but(addedAt("a"), func(c *caisson.Change) { c.Verdict = caisson.VerdictClash }), caisson.VerdictClash},
		"clash and denied":       {but(addedAt(".git/x"), func(c *caisson.Change) { c.Verdict = caisson.VerdictClash }), deny},
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
	if err := Check(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{Deny: []string{"["}}); caisson.KindOf(err) != caisson.Invalid || changes[0].Verdict != deny {
		t.Errorf("rules that are malformed: %v, %s", err, changes[0].Verdict)
	}
}

func TestCheckNodes(t *testing.T) {
	file := func(mode, old uint32) caisson.Change {
		return but(modifiedAt("f"), func(c *caisson.Change) { c.Kind, c.Mode, c.OldMode = caisson.ChangeMode, mode, old })
	}
	dir := func(mode, old uint32, oldType string) caisson.Change {
		return caisson.Change{Path: "d", Kind: caisson.ChangeAdded, Type: typeDir, OldType: oldType, Mode: mode, OldMode: old}
	}
	typed := func(typ string) caisson.Change { return but(addedAt("f"), func(c *caisson.Change) { c.Type = typ }) }
	for name, c := range map[string]struct {
		change         caisson.Change
		check, verdict string
	}{
		"file":                       {addedAt("f"), "", pass},
		"directory":                  {dir(0o755, 0, typeNone), "", pass},
		"fifo":                       {typed(typeFIFO), checkType, deny},
		"socket":                     {typed(typeSocket), checkType, deny},
		"device":                     {typed(typeDevice), checkType, deny},
		"nothing":                    {typed(typeNone), checkType, deny},
		"something else":             {typed("door"), checkType, deny},
		"setuid":                     {file(0o4755, 0o755), checkMode, deny},
		"setuid that was there":      {file(0o4755, 0o4755), checkMode, deny},
		"setgid":                     {file(0o2644, 0o644), checkMode, deny},
		"sticky file":                {file(0o1644, 0o644), checkMode, deny},
		"setuid directory":           {dir(0o4755, 0, typeNone), checkMode, deny},
		"setgid directory":           {dir(0o2755, 0, typeNone), checkMode, ask},
		"setgid directory as it was": {dir(0o2755, 0o2755, typeDir), "", pass},
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
	if err := Check(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{MaxTotal: 201, MaxFiles: 10}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass pass pass deny" {
		t.Error("by size:", got)
	}
	changes = []caisson.Change{addedAt("a"), removedAt("b"), addedAt("c")}
	if err := Check(context.Background(), changes, checkedHost(t), contentsOf(nil), Rules{MaxFiles: 2}); err != nil {
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

		// Through what other changes make.
		{"x", "y", []caisson.Change{linkAt("y", "/etc")}, deny},
		{"x", "y/../z", []caisson.Change{linkAt("y", "dir/sub")}, pass},
		{"x", "y/../../z", []caisson.Change{linkAt("y", "dir/sub")}, pass},
		{"x", "dir/sub/../../z", []caisson.Change{but(linkAt("dir/sub", "../dir"), func(c *caisson.Change) { c.Kind, c.OldType = caisson.ChangeType, typeDir })}, deny},
		{"x", "y", []caisson.Change{linkAt("y", "z"), linkAt("z", "x")}, deny},
		{"x", "etc/passwd", []caisson.Change{removedAt("etc")}, pass},
		{"x", "y/z", []caisson.Change{but(removedAt("up"), func(c *caisson.Change) {
			c.Kind, c.OldPath, c.Path, c.Type, c.OldType, c.Link = caisson.ChangeRenamed, "up", "y", typeSymlink, typeSymlink, ".."
		})}, deny},
	} {
		changes := append([]caisson.Change{linkAt(c.path, c.link)}, c.more...)
		if err := Check(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := changes[0]; got.Verdict != c.verdict || c.verdict == deny && !hasFinding(got, checkLink, deny) {
			t.Errorf("%s to %.60q: %s %v, want %s", c.path, c.link, got.Verdict, got.Finding, c.verdict)
		}
	}
	// Below what is no directory any more.
	changes := []caisson.Change{linkAt("d", "dir"), addedAt("d/f"), removedAt("dir/sub"), addedAt("dir/sub/g")}
	if err := Check(context.Background(), changes, checkedHost(t, host...), contentsOf(nil), Rules{}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass deny pass deny" {
		t.Error("below what is no directory:", got, changes)
	}
}

func TestCheckCollisions(t *testing.T) {
	renamed := func(from, to string) caisson.Change {
		return but(addedAt(to), func(c *caisson.Change) { c.Kind, c.OldPath, c.OldType = caisson.ChangeRenamed, from, typeFile })
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
		"directories":             {[]string{"Dir/x"}, []caisson.Change{{Path: "dir", Kind: caisson.ChangeAdded, Type: typeDir, OldType: typeNone, Mode: 0o755}, addedAt("dir/y")}, "deny pass"},
	} {
		if err := Check(context.Background(), c.changes, checkedHost(t, c.host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := verdictsOf(c.changes); got != c.want {
			t.Errorf("%s: %s, want %s: %v", name, got, c.want, c.changes)
		}
	}
}

// TestCheckRepositories is about directories that git takes for repositories although they are not named so.
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
		if err := Check(context.Background(), c.changes, checkedHost(t, c.host...), contentsOf(nil), Rules{}); err != nil {
			t.Fatal(err)
		}
		if got := verdictsOf(c.changes); got != c.want {
			t.Errorf("%s: %s, want %s: %v", name, got, c.want, c.changes)
		}
	}
}

func TestCheckSecrets(t *testing.T) {
	token := githubToken()
	texts := map[string]string{"clean": "x\n", "secret": "a\nt = " + token + "\n", "allowed": "t = " + token + " # gitleaks:allow\n"}
	host := checkedHost(t, "old")
	if err := os.WriteFile(filepath.Join(host.Name(), "has"), []byte("x = "+token), 0o644); err != nil {
		t.Fatal(err)
	}
	file := func(c caisson.Change, hash string) caisson.Change {
		return but(c, func(c *caisson.Change) { c.Hash, c.Size = hash, int64(len(texts[hash])) })
	}
	changes := []caisson.Change{
		file(addedAt("a"), "clean"), file(addedAt("b"), "secret"), file(addedAt("c"), "allowed"), file(modifiedAt("old"), "secret"),
		file(modifiedAt("has"), "secret"), file(addedAt("missing"), "nothing"), but(file(modifiedAt("m"), "secret"), func(c *caisson.Change) { c.Kind = caisson.ChangeMode }),
		file(addedAt(".gitleaks.toml"), "clean"), file(addedAt(".gitleaksignore"), "clean"), but(addedAt("lie"), func(c *caisson.Change) { c.Hash, c.Size = "long", 1 }),
		file(addedAt("d.p12"), "clean"), file(modifiedAt("host-has-it-not"), "secret"),
	}
	texts[".gitleaksignore"] = "b:github-pat:2\n"
	texts["long"] = strings.Repeat("x", 5<<20)
	if err := Check(context.Background(), changes, host, contentsOf(texts), Rules{}); err != nil {
		t.Fatal(err)
	}
	if got, want := verdictsOf(changes), "pass ask ask ask pass deny pass pass pass deny ask ask"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, c := range changes {
		for _, f := range c.Finding {
			if strings.Contains(f.Message, token[5:]) {
				t.Errorf("the message has the secret: %s", f.Message)
			}
		}
	}
	if !slices.ContainsFunc(changes[1].Finding, func(f caisson.Finding) bool { return f.Line == 2 }) {
		t.Errorf("no line: %v", changes[1].Finding)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestCheckFailsClosed breaks what checks need.
func TestCheckFailsClosed(t *testing.T) {
	host := checkedHost(t, "a")
	fresh := func() []caisson.Change { return []caisson.Change{addedAt("x"), removedAt("a")} }

	changes := fresh()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Check(ctx, changes, host, contentsOf(nil), Rules{}); err == nil || verdictsOf(changes) != "deny deny" {
		t.Errorf("canceled: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	broken := func(string) (io.ReadCloser, error) { return io.NopCloser(failing{}), nil }
	if err := Check(context.Background(), changes, host, broken, Rules{}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("contents that cannot be read: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	panics := func(string) (io.ReadCloser, error) { panic("broken") }
	if err := Check(context.Background(), changes, host, panics, Rules{}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("a search that breaks down: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	if err := Check(context.Background(), changes, host, contentsOf(nil), Rules{ScanTime: 1}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("no time: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	gone := checkedHost(t)
	gone.Close()
	if err := Check(context.Background(), changes, gone, contentsOf(nil), Rules{}); err == nil && changes[0].Verdict != deny {
		t.Errorf("a host that cannot be read: %s", verdictsOf(changes))
	}
}

func TestReadChecked(t *testing.T) {
	good := `{"Verdict":"ask","Findings":[{"check":"secret","verdict":"ask","message":"x","line":3}]}` + "\n"
	if got, err := readChecked(strings.NewReader(good+good), 2); err != nil || len(got) != 2 || got[1].Findings[0].Line != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for name, text := range map[string]string{
		"too few":         good,
		"too many":        good + good + good,
		"no verdict":      good + `{"Verdict":"","Findings":null}`,
		"unknown verdict": good + `{"Verdict":"fine"}`,
		"unknown check":   good + strings.Replace(good, "secret", "luck", 1),
		"unknown field":   good + `{"Verdict":"pass","Path":"x"}`,
		"escapes":         good + strings.Replace(good, `"x"`, `"\u001b[2J"`, 1),
		"long":            good + strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 1000)+`"`, 1),
		"endless":         good + strings.Repeat("x", 1<<20),
		"nonsense":        good + "\x00",
	} {
		if got, err := readChecked(strings.NewReader(text), 2); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
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
		if strings.ToLower(name) == ".git" && !gitName(name) {
			t.Fatalf("%q is git's", name)
		}
		var b bytes.Buffer
		checkName(name, func(verdict, format string, args ...any) { b.WriteString(verdict) })
		if strings.ContainsAny(name, "\n\x1b\u202e") && !strings.Contains(b.String(), deny) {
			t.Fatalf("%q is let through", name)
		}
	})
}

// BenchmarkCheck checks 1,000 files of source text in 100 directories.
func BenchmarkCheck(b *testing.B) {
	var text strings.Builder
	for _, name := range []string{"check.go", "check_tree.go", "secret.go"} {
		src, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		text.Write(src)
	}
	var host []string
	var changes []caisson.Change
	for i := range 1000 {
		dir := "src/d" + strconv.Itoa(i%100)
		host = append(host, dir+"/f"+strconv.Itoa(i))
		changes = append(changes, but(addedAt(dir+"/g"+strconv.Itoa(i)), func(c *caisson.Change) { c.Hash, c.Size = "text", int64(text.Len()) }))
	}
	root := checkedHost(b, host...)
	read := contentsOf(map[string]string{"text": text.String()})
	b.SetBytes(int64(len(changes) * text.Len()))
	for b.Loop() {
		all := slices.Clone(changes)
		if err := Check(context.Background(), all, root, read, Rules{}); err != nil {
			b.Fatal(err)
		}
		for _, c := range all {
			if c.Verdict != pass {
				b.Fatal(c.Verdict, c.Finding)
			}
		}
	}
}
