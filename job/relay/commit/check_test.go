package commit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/packtest"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestReceiveTrees checks the trees of pushed commits.
func TestReceiveTrees(t *testing.T) {
	q := relaytest.New(t)
	before, objects := q.State()
	blob := q.Object("blob", "text\n")
	link := func(to string) string { return q.Object("blob", to) }
	sub := q.Tree("100644 f", blob)
	grantedTree, grantedBlob := q.Git("rev-parse", q.Base+":dir"), q.Git("rev-parse", q.Base+":readme")
	for name, c := range map[string]struct {
		entries []string
		verdict string
		why     string
	}{
		"a file":                   {[]string{"100644 a", blob}, relaytest.Pass, ""},
		"executable":               {[]string{"100755 a", blob}, relaytest.Pass, ""},
		"a directory":              {[]string{"40000 a", sub}, relaytest.Pass, ""},
		".git":                     {[]string{"100644 .git", blob}, relaytest.Deny, "git refuses"},
		".git directory":           {[]string{"40000 .git", sub}, relaytest.Deny, "git refuses"},
		".GIT":                     {[]string{"40000 .GIT", sub}, relaytest.Deny, "git refuses"},
		".git and space":           {[]string{"40000 .git ", sub}, relaytest.Deny, ""},
		".git and zero width":      {[]string{"40000 .g\u200cit", sub}, relaytest.Deny, "git refuses"},
		"git~1":                    {[]string{"40000 git~1", sub}, relaytest.Deny, "git refuses"},
		".git symlink":             {[]string{"120000 .git", link("dir")}, relaytest.Deny, "git refuses"},
		".gitmodules symlink":      {[]string{"120000 .gitmodules", link("dir/f")}, relaytest.Deny, "git refuses"},
		"dots":                     {[]string{"40000 ..", sub}, relaytest.Deny, "git refuses"},
		"a slash":                  {[]string{"100644 a/b", blob}, relaytest.Deny, "git refuses"},
		"no name":                  {[]string{"100644 ", blob}, relaytest.Deny, "git refuses"},
		"twice":                    {[]string{"100644 a", blob, "100644 a", blob}, relaytest.Deny, "git refuses"},
		"file and directory":       {[]string{"100644 a", blob, "40000 a", sub}, relaytest.Deny, "git refuses"},
		"not in order":             {[]string{"100644 b", blob, "100644 a", blob}, relaytest.Deny, "git refuses"},
		"leading zeros":            {[]string{"040000 a", sub}, relaytest.Deny, "git refuses"},
		"mode 100664":              {[]string{"100664 a", blob}, relaytest.Deny, ""},
		"mode 104755":              {[]string{"104755 a", blob}, relaytest.Deny, "git refuses"},
		"a fifo":                   {[]string{"10644 a", blob}, relaytest.Deny, "git refuses"},
		"a tree as a file":         {[]string{"100644 a", sub}, relaytest.Deny, ""},
		"a file as a tree":         {[]string{"40000 a", blob}, relaytest.Deny, ""},
		"a granted tree as a file": {[]string{"100644 a", grantedTree}, relaytest.Deny, "git refuses"},
		"a granted file as a tree": {[]string{"40000 a", grantedBlob}, relaytest.Deny, "git refuses"},
		"a commit as a file":       {[]string{"100644 a", q.Base}, relaytest.Deny, "git refuses"},
		"a symlink out":            {[]string{"120000 a", link("../x")}, relaytest.Deny, ": a: "},
		"an absolute symlink":      {[]string{"120000 a", link("/etc/passwd")}, relaytest.Deny, ": a: "},
		"a symlink to .git":        {[]string{"120000 a", link(".git/hooks")}, relaytest.Deny, ": a: "},
		"a symlink in":             {[]string{"120000 a", link("b"), "100644 b", blob}, relaytest.Pass, ""},
		"a long symlink":           {[]string{"120000 a", link(strings.Repeat("x/", 4000))}, relaytest.Deny, ": a: "},
		"a submodule":              {[]string{"160000 a", q.Base}, relaytest.Ask, "a submodule"},
		"a newline":                {[]string{"100644 a\nb", blob}, relaytest.Deny, `"a\nb"`},
		"an escape":                {[]string{"100644 a\x1b[2Jb", blob}, relaytest.Deny, `"a\x1b[2Jb"`},
		"right to left":            {[]string{"100644 a\u202egpj.exe", blob}, relaytest.Deny, `a\u202egpj.exe`},
		"not UTF-8":                {[]string{"100644 a\xff", blob}, relaytest.Deny, `a\xff`},
		"an option":                {[]string{"100644 --help", blob}, relaytest.Ask, "--help"},
		"case":                     {[]string{"100644 README", blob, "100644 readme", blob}, relaytest.Deny, "one name"},
		"case of directories":      {[]string{"40000 Dir", sub, "40000 dir", sub}, relaytest.Deny, "one name"},
		"Unicode forms":            {[]string{"100644 a\u0308", blob, "100644 \u00e4", blob}, relaytest.Deny, "one name"},
		"a bare repository":        {[]string{"100644 HEAD", blob, "40000 objects", sub, "40000 refs", sub}, relaytest.Deny, "HEAD"},
		"a workflow":               {[]string{"40000 .github", q.Tree("40000 workflows", sub)}, relaytest.Deny, ".github/workflows/f"},
		"attributes":               {[]string{"100644 .gitattributes", blob}, relaytest.Ask, ".gitattributes"},
		"keys":                     {[]string{"40000 .ssh", sub}, relaytest.Deny, ".ssh/f"},
	} {
		// The tree replaces the whole content; removed files do not matter here.
		tree := q.Tree(c.entries...)
		all := []string{tree, blob, sub}
		for i := 1; i < len(c.entries); i += 2 {
			if !slices.Contains([]string{q.Base, grantedTree, grantedBlob}, c.entries[i]) {
				all = append(all, c.entries[i])
			}
		}
		all = append(all, q.Tree("40000 workflows", sub))
		slices.Sort(all)
		r, answer, err := q.Send(q.CommitOf(tree), slices.Compact(all)...)
		if err != nil || relaytest.VerdictOf(r) != c.verdict || !strings.Contains(fmt.Sprint(relaytest.AllFindings(r)), c.why) || (len(r.Updates) == 1) != (c.verdict != relaytest.Deny) {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		if strings.ContainsAny(answer, "\x1b\u202e") || !utf8.ValidString(answer) {
			t.Errorf("%s: the answer %q is not plain", name, answer)
		}
		if c.verdict == relaytest.Deny {
			q.CheckUnchanged(before, objects)
			continue
		}
		if err := os.RemoveAll(filepath.Join(q.Store.Dir, "refs/heads/work")); err != nil {
			t.Fatal(err)
		}
		objects = q.Objects()
	}
}

// TestReceiveSecrets checks that secrets are found that only a commit in the middle of the history contains.
func TestReceiveSecrets(t *testing.T) {
	q := relaytest.New(t)
	before, objects := q.State()
	q.Write("conf/keys.txt", "token = "+relaytest.Token()+"\n")
	middle := q.Commit("oops")
	q.Write("conf/keys.txt", "token = none\n")
	q.Commit("remove it")
	said, ok := q.Push("work")
	if ok || len(q.Last.Updates) != 0 || !strings.Contains(said, "remote: denied: "+commit.ShortID(middle)+": conf/keys.txt: this looks like a secret") || !strings.Contains(said, "(line 1)") {
		t.Errorf("%s %+v", said, q.Last)
	}
	if strings.Contains(said, relaytest.Token()[8:]) || strings.Contains(fmt.Sprint(q.Last), relaytest.Token()[8:]) {
		t.Error("the message has the secret")
	}
	q.CheckUnchanged(before, objects)
	// A secret in a branch that is merged.
	q.Git("reset", "-q", "--hard", q.Base)
	q.Git("checkout", "-q", "-b", "side")
	q.Write("x", relaytest.Token()+"\n")
	side := q.Commit("side")
	q.Git("rm", "-q", "x")
	q.Commit("gone")
	q.Git("checkout", "-q", "work")
	q.Write("y", "y\n")
	q.Commit("y")
	q.Git("merge", "-q", "--no-ff", "-m", "merge", "side")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, commit.ShortID(side)+": x: this looks like a secret") {
		t.Error(said)
	}
	// A secret that only the merge commit contains, and one in a message.
	q.Git("reset", "-q", "--hard", q.Base)
	q.Write("y", "y\n")
	q.Commit("y " + relaytest.Token())
	if said, ok := q.Push("work"); ok || !strings.Contains(said, "in the commit's message: this looks like a secret") || strings.Contains(said, relaytest.Token()[8:]) {
		t.Error(said)
	}
	q.Git("reset", "-q", "--hard", q.Base)
	q.Git("checkout", "-q", "-B", "side")
	q.Write("z", "z\n")
	q.Commit("z")
	q.Git("checkout", "-q", "work")
	q.Write("y", "y\n")
	q.Commit("y")
	q.Git("merge", "-q", "--no-ff", "--no-commit", "side")
	q.Write("evil", relaytest.Token()+"\n")
	merge := q.Commit("merge")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, commit.ShortID(merge)+": evil: this looks like a secret") {
		t.Error(said)
	}
	q.CheckUnchanged(before, objects)
}

// TestReceiveMerges checks that a merge is not denied for changes that it takes from a granted parent.
func TestReceiveMerges(t *testing.T) {
	q := relaytest.New(t)
	q.Git("checkout", "-q", "main")
	q.Write(".github/workflows/x.yml", "theirs\n")
	theirs := q.Commit("theirs")
	q.Client(q.Work, "push", "-q", q.Store.View, "main")
	if err := q.Store.WriteRefs([]git.Ref{{Name: "refs/heads/main", Commit: theirs}}); err != nil {
		t.Fatal(err)
	}
	q.Git("checkout", "-q", "work")
	q.Write("mine", "x\n")
	q.Commit("mine")
	q.Git("merge", "-q", "--no-ff", "-m", "merged", "main")
	if said, ok := q.Push("work"); !ok || len(relaytest.AllFindings(q.Last)) != 0 {
		t.Errorf("%s %+v", said, q.Last)
	}
	// A merge is denied for its own changes.
	q.Git("checkout", "-q", "main")
	q.Write("more", "x\n")
	q.Commit("more")
	q.Git("checkout", "-q", "work")
	q.Git("merge", "-q", "--no-ff", "--no-commit", "main")
	q.Write(".github/workflows/x.yml", "mine\n")
	merge := q.Commit("evil merge")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, commit.ShortID(merge)+": .github/workflows/x.yml: ") {
		t.Errorf("%s %+v", said, q.Last)
	}
}

// TestReceiveLinks checks symlinks that lead out of the repository only in combination with another commit.
func TestReceiveLinks(t *testing.T) {
	q := relaytest.New(t)
	link := func(name, to string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(q.Work, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(q.Work, name)); err != nil {
			t.Fatal(err)
		}
	}
	q.Git("checkout", "-q", "main")
	link("theirs", "/etc/hosts")
	theirs := q.Commit("upstream does that")
	q.Client(q.Work, "push", "-q", q.Store.View, "main")
	granted := []git.Ref{{Name: "refs/heads/main", Commit: theirs}}
	if err := q.Store.WriteRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.Mu.Lock()
	q.Req.Granted, q.Base = granted, theirs
	q.Mu.Unlock()
	q.Git("reset", "-q", "--hard")
	q.Git("checkout", "-q", "-B", "work", "main")
	link("a", "d/l/../../readme")
	q.Commit("harmless")
	if said, ok := q.Push("work"); !ok {
		t.Error(said)
	}
	before, objects := q.State()
	link("d/l", "..")
	q.Commit("harmless by itself")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, ": a: with all that is pushed the symlink to d/l/../../readme leads out") || strings.Contains(said, "theirs") {
		t.Errorf("%s %+v", said, q.Last)
	}
	q.CheckUnchanged(before, objects)
	// Through a merge.
	q.Git("checkout", "-q", "-B", "side", "main")
	link("d/l", "..")
	q.Commit("side")
	if said, ok := q.Push("side"); !ok {
		t.Error(said)
	}
	q.Git("checkout", "-q", "-B", "work", "origin/work")
	q.Git("merge", "-q", "--no-ff", "-m", "merge", "side")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, "leads out") {
		t.Error(said)
	}
}

// TestReceiveModules checks the URLs of submodules.
func TestReceiveModules(t *testing.T) {
	q := relaytest.New(t)
	for text, want := range map[string]string{
		"[submodule \"a\"]\n\tpath = a\n\turl = https://example.com/a.git\n":                      relaytest.Ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n":                                       relaytest.Ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = git@example.com:a/b.git\n":                        relaytest.Ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = -u./payload\n":                                    relaytest.Deny,
		"[submodule \"a\"]\n\tpath = -a\n\turl = https://example.com/a.git\n":                     relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = ext::sh -c touch% /tmp/x\n":                       relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = file:///etc\n":                                    relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = /etc\n":                                           relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = ssh://-oProxyCommand=x/y\n":                       relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = \"https://example.com/\\na\"\n":                   relaytest.Deny,
		"[submodule \"../a\"]\n\tpath = a\n\turl = https://example.com/a.git\n":                   relaytest.Deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = https://example.com/a.git\n\tupdate = !touch x\n": relaytest.Deny,
		"[submodule \"a\"]\n\tpath = ../a\n\turl = https://example.com/a.git\n":                   relaytest.Deny,
		"[submodule \"a\"\n": relaytest.Deny,
	} {
		q.Git("reset", "-q", "--hard", q.Base)
		q.Write(".gitmodules", text)
		q.Commit("modules")
		said, ok := q.Push("+work")
		if ok == (want == relaytest.Deny) || relaytest.VerdictOf(q.Last) != want {
			t.Errorf("%q: %s %+v", text, said, q.Last)
		}
	}
}

// TestReceiveMany pushes a commit with a hundred thousand files, and trees that expand to very many files.
func TestReceiveMany(t *testing.T) {
	q := relaytest.New(t)
	var stream strings.Builder
	fmt.Fprintf(&stream, "commit refs/heads/work\ncommitter A <a@b> 1 +0000\ndata 5\nmany\n\nfrom %s\n", q.Base)
	for i := range 100_000 {
		text := fmt.Sprint(i)
		fmt.Fprintf(&stream, "M 100644 inline %d/%d\ndata %d\n%s\n", i/1000, i, len(text), text)
	}
	if out, err := q.Try(q.Work, stream.String(), "fast-import", "--quiet", "--force"); err != nil {
		t.Fatal(out)
	}
	start := time.Now()
	if said, ok := q.Push("work"); ok || !strings.Contains(said, "more than 20000 files") {
		t.Error(said)
	}
	t.Logf("refused after %v", time.Since(start))
	q.Set(check.Rules{MaxFiles: 200_000}, receive.Limits{})
	start = time.Now()
	if said, ok := q.Push("work"); !ok {
		t.Error(said)
	}
	t.Logf("taken after %v", time.Since(start))

	blob := q.Object("blob", "x")
	all := []string{blob}
	tree := q.Tree("100644 a", blob)
	for range 12 {
		all = append(all, tree)
		tree = q.Tree("40000 a", tree, "40000 b", tree, "40000 c", tree, "40000 d", tree, "40000 e", tree, "40000 f", tree, "40000 g", tree, "40000 h", tree)
	}
	deep := q.Tree("100644 a", blob)
	var line []string
	for range 300 {
		line = append(line, deep)
		deep = q.Tree("40000 a", deep)
	}
	q.Git("push", "-q", "origin", "+main:refs/heads/x")
	for name, c := range map[string]struct {
		tree    string
		objects []string
	}{"8^12 files": {tree, append(all, tree)}, "300 deep": {deep, append(line, blob, deep)}} {
		start = time.Now()
		out, err := q.Try(q.Work, strings.Join(append(c.objects, q.CommitOf(c.tree)), "\n")+"\n", "pack-objects", "--stdout", "-q")
		if err != nil {
			t.Fatal(out)
		}
		r, answer, err := q.PostRaw(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+q.CommitOf(c.tree)+" refs/heads/bomb\x00report-status"), out...))
		if err != nil || len(r.Updates) != 0 || time.Since(start) > time.Minute {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}
