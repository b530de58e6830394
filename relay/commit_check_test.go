package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/gate/check"
)

// TestReceiveTrees is about what is in a commit's tree.
func TestReceiveTrees(t *testing.T) {
	q := newQuay(t)
	before, objects := q.state()
	blob := q.object("blob", "text\n")
	link := func(to string) string { return q.object("blob", to) }
	sub := q.tree("100644 f", blob)
	grantedTree, grantedBlob := q.git("rev-parse", q.base+":dir"), q.git("rev-parse", q.base+":readme")
	for name, c := range map[string]struct {
		entries []string
		verdict string
		why     string
	}{
		"a file":                   {[]string{"100644 a", blob}, pass, ""},
		"executable":               {[]string{"100755 a", blob}, pass, ""},
		"a directory":              {[]string{"40000 a", sub}, pass, ""},
		".git":                     {[]string{"100644 .git", blob}, deny, "git refuses"},
		".git directory":           {[]string{"40000 .git", sub}, deny, "git refuses"},
		".GIT":                     {[]string{"40000 .GIT", sub}, deny, "git refuses"},
		".git and space":           {[]string{"40000 .git ", sub}, deny, ""},
		".git and zero width":      {[]string{"40000 .g\u200cit", sub}, deny, "git refuses"},
		"git~1":                    {[]string{"40000 git~1", sub}, deny, "git refuses"},
		".git symlink":             {[]string{"120000 .git", link("dir")}, deny, "git refuses"},
		".gitmodules symlink":      {[]string{"120000 .gitmodules", link("dir/f")}, deny, "git refuses"},
		"dots":                     {[]string{"40000 ..", sub}, deny, "git refuses"},
		"a slash":                  {[]string{"100644 a/b", blob}, deny, "git refuses"},
		"no name":                  {[]string{"100644 ", blob}, deny, "git refuses"},
		"twice":                    {[]string{"100644 a", blob, "100644 a", blob}, deny, "git refuses"},
		"file and directory":       {[]string{"100644 a", blob, "40000 a", sub}, deny, "git refuses"},
		"not in order":             {[]string{"100644 b", blob, "100644 a", blob}, deny, "git refuses"},
		"leading zeros":            {[]string{"040000 a", sub}, deny, "git refuses"},
		"mode 100664":              {[]string{"100664 a", blob}, deny, ""},
		"mode 104755":              {[]string{"104755 a", blob}, deny, "git refuses"},
		"a fifo":                   {[]string{"10644 a", blob}, deny, "git refuses"},
		"a tree as a file":         {[]string{"100644 a", sub}, deny, ""},
		"a file as a tree":         {[]string{"40000 a", blob}, deny, ""},
		"a granted tree as a file": {[]string{"100644 a", grantedTree}, deny, "git refuses"},
		"a granted file as a tree": {[]string{"40000 a", grantedBlob}, deny, "git refuses"},
		"a commit as a file":       {[]string{"100644 a", q.base}, deny, "git refuses"},
		"a symlink out":            {[]string{"120000 a", link("../x")}, deny, ": a: "},
		"an absolute symlink":      {[]string{"120000 a", link("/etc/passwd")}, deny, ": a: "},
		"a symlink to .git":        {[]string{"120000 a", link(".git/hooks")}, deny, ": a: "},
		"a symlink in":             {[]string{"120000 a", link("b"), "100644 b", blob}, pass, ""},
		"a long symlink":           {[]string{"120000 a", link(strings.Repeat("x/", 4000))}, deny, ": a: "},
		"a submodule":              {[]string{"160000 a", q.base}, ask, "a submodule"},
		"a newline":                {[]string{"100644 a\nb", blob}, deny, `"a\nb"`},
		"an escape":                {[]string{"100644 a\x1b[2Jb", blob}, deny, `"a\x1b[2Jb"`},
		"right to left":            {[]string{"100644 a\u202egpj.exe", blob}, deny, `a\u202egpj.exe`},
		"not UTF-8":                {[]string{"100644 a\xff", blob}, deny, `a\xff`},
		"an option":                {[]string{"100644 --help", blob}, ask, "--help"},
		"case":                     {[]string{"100644 README", blob, "100644 readme", blob}, deny, "one name"},
		"case of directories":      {[]string{"40000 Dir", sub, "40000 dir", sub}, deny, "one name"},
		"Unicode forms":            {[]string{"100644 a\u0308", blob, "100644 \u00e4", blob}, deny, "one name"},
		"a bare repository":        {[]string{"100644 HEAD", blob, "40000 objects", sub, "40000 refs", sub}, deny, "HEAD"},
		"a workflow":               {[]string{"40000 .github", q.tree("40000 workflows", sub)}, deny, ".github/workflows/f"},
		"attributes":               {[]string{"100644 .gitattributes", blob}, ask, ".gitattributes"},
		"keys":                     {[]string{"40000 .ssh", sub}, deny, ".ssh/f"},
	} {
		// It replaces all that is there: what is removed is no matter.
		tree := q.tree(c.entries...)
		all := []string{tree, blob, sub}
		for i := 1; i < len(c.entries); i += 2 {
			if !slices.Contains([]string{q.base, grantedTree, grantedBlob}, c.entries[i]) {
				all = append(all, c.entries[i])
			}
		}
		all = append(all, q.tree("40000 workflows", sub))
		slices.Sort(all)
		r, answer, err := q.send(q.commitOf(tree), slices.Compact(all)...)
		if err != nil || verdictOf(r) != c.verdict || !strings.Contains(fmt.Sprint(allFindings(r)), c.why) || (len(r.Updates) == 1) != (c.verdict != deny) {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		if strings.ContainsAny(answer, "\x1b\u202e") || !utf8.ValidString(answer) {
			t.Errorf("%s: the answer %q is not plain", name, answer)
		}
		if c.verdict == deny {
			q.untouched(before, objects)
			continue
		}
		if err := os.RemoveAll(filepath.Join(q.store.dir, "refs/heads/work")); err != nil {
			t.Fatal(err)
		}
		objects = q.objects()
	}
}

// TestReceiveSecrets finds what only the middle of the history has.
func TestReceiveSecrets(t *testing.T) {
	q := newQuay(t)
	before, objects := q.state()
	q.write("conf/keys.txt", "token = "+token()+"\n")
	middle := q.commit("oops")
	q.write("conf/keys.txt", "token = none\n")
	q.commit("remove it")
	said, ok := q.push("work")
	if ok || len(q.last.Updates) != 0 || !strings.Contains(said, "remote: denied: "+shortID(middle)+": conf/keys.txt: this looks like a secret") || !strings.Contains(said, "(line 1)") {
		t.Errorf("%s %+v", said, q.last)
	}
	if strings.Contains(said, token()[8:]) || strings.Contains(fmt.Sprint(q.last), token()[8:]) {
		t.Error("the message has the secret")
	}
	q.untouched(before, objects)
	// One that is in a branch that is merged.
	q.git("reset", "-q", "--hard", q.base)
	q.git("checkout", "-q", "-b", "side")
	q.write("x", token()+"\n")
	side := q.commit("side")
	q.git("rm", "-q", "x")
	q.commit("gone")
	q.git("checkout", "-q", "work")
	q.write("y", "y\n")
	q.commit("y")
	q.git("merge", "-q", "--no-ff", "-m", "merge", "side")
	if said, ok := q.push("work"); ok || !strings.Contains(said, shortID(side)+": x: this looks like a secret") {
		t.Error(said)
	}
	// And one that only the merge itself has, and one in a message.
	q.git("reset", "-q", "--hard", q.base)
	q.write("y", "y\n")
	q.commit("y " + token())
	if said, ok := q.push("work"); ok || !strings.Contains(said, "in the commit's message: this looks like a secret") || strings.Contains(said, token()[8:]) {
		t.Error(said)
	}
	q.git("reset", "-q", "--hard", q.base)
	q.git("checkout", "-q", "-B", "side")
	q.write("z", "z\n")
	q.commit("z")
	q.git("checkout", "-q", "work")
	q.write("y", "y\n")
	q.commit("y")
	q.git("merge", "-q", "--no-ff", "--no-commit", "side")
	q.write("evil", token()+"\n")
	merge := q.commit("merge")
	if said, ok := q.push("work"); ok || !strings.Contains(said, shortID(merge)+": evil: this looks like a secret") {
		t.Error(said)
	}
	q.untouched(before, objects)
}

// TestReceiveMerges does not blame a merge for what it brings from elsewhere.
func TestReceiveMerges(t *testing.T) {
	q := newQuay(t)
	q.git("checkout", "-q", "main")
	q.write(".github/workflows/x.yml", "theirs\n")
	theirs := q.commit("theirs")
	q.client(q.work, "push", "-q", q.store.view, "main")
	if err := q.store.writeRefs([]Ref{{"refs/heads/main", theirs}}); err != nil {
		t.Fatal(err)
	}
	q.git("checkout", "-q", "work")
	q.write("mine", "x\n")
	q.commit("mine")
	q.git("merge", "-q", "--no-ff", "-m", "merged", "main")
	if said, ok := q.push("work"); !ok || len(allFindings(q.last)) != 0 {
		t.Errorf("%s %+v", said, q.last)
	}
	// But for what it does itself.
	q.git("checkout", "-q", "main")
	q.write("more", "x\n")
	q.commit("more")
	q.git("checkout", "-q", "work")
	q.git("merge", "-q", "--no-ff", "--no-commit", "main")
	q.write(".github/workflows/x.yml", "mine\n")
	merge := q.commit("evil merge")
	if said, ok := q.push("work"); ok || !strings.Contains(said, shortID(merge)+": .github/workflows/x.yml: ") {
		t.Errorf("%s %+v", said, q.last)
	}
}

// TestReceiveLinks is about symlinks that lead out only together with what another commit makes.
func TestReceiveLinks(t *testing.T) {
	q := newQuay(t)
	link := func(name, to string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(q.work, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(q.work, name)); err != nil {
			t.Fatal(err)
		}
	}
	q.git("checkout", "-q", "main")
	link("theirs", "/etc/hosts")
	theirs := q.commit("upstream does that")
	q.client(q.work, "push", "-q", q.store.view, "main")
	granted := []Ref{{"refs/heads/main", theirs}}
	if err := q.store.writeRefs(granted); err != nil {
		t.Fatal(err)
	}
	q.mu.Lock()
	q.req.Granted, q.base = granted, theirs
	q.mu.Unlock()
	q.git("reset", "-q", "--hard")
	q.git("checkout", "-q", "-B", "work", "main")
	link("a", "d/l/../../readme")
	q.commit("harmless")
	if said, ok := q.push("work"); !ok {
		t.Error(said)
	}
	before, objects := q.state()
	link("d/l", "..")
	q.commit("harmless by itself")
	if said, ok := q.push("work"); ok || !strings.Contains(said, ": a: with all that is pushed the symlink to d/l/../../readme leads out") || strings.Contains(said, "theirs") {
		t.Errorf("%s %+v", said, q.last)
	}
	q.untouched(before, objects)
	// By a merge.
	q.git("checkout", "-q", "-B", "side", "main")
	link("d/l", "..")
	q.commit("side")
	if said, ok := q.push("side"); !ok {
		t.Error(said)
	}
	q.git("checkout", "-q", "-B", "work", "origin/work")
	q.git("merge", "-q", "--no-ff", "-m", "merge", "side")
	if said, ok := q.push("work"); ok || !strings.Contains(said, "leads out") {
		t.Error(said)
	}
}

// TestReceiveModules is about where submodules come from.
func TestReceiveModules(t *testing.T) {
	q := newQuay(t)
	for text, want := range map[string]string{
		"[submodule \"a\"]\n\tpath = a\n\turl = https://example.com/a.git\n":                      ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n":                                       ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = git@example.com:a/b.git\n":                        ask,
		"[submodule \"a\"]\n\tpath = a\n\turl = -u./payload\n":                                    deny,
		"[submodule \"a\"]\n\tpath = -a\n\turl = https://example.com/a.git\n":                     deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = ext::sh -c touch% /tmp/x\n":                       deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = file:///etc\n":                                    deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = /etc\n":                                           deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = ssh://-oProxyCommand=x/y\n":                       deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = \"https://example.com/\\na\"\n":                   deny,
		"[submodule \"../a\"]\n\tpath = a\n\turl = https://example.com/a.git\n":                   deny,
		"[submodule \"a\"]\n\tpath = a\n\turl = https://example.com/a.git\n\tupdate = !touch x\n": deny,
		"[submodule \"a\"]\n\tpath = ../a\n\turl = https://example.com/a.git\n":                   deny,
		"[submodule \"a\"\n": deny,
	} {
		q.git("reset", "-q", "--hard", q.base)
		q.write(".gitmodules", text)
		q.commit("modules")
		said, ok := q.push("+work")
		if ok == (want == deny) || verdictOf(q.last) != want {
			t.Errorf("%q: %s %+v", text, said, q.last)
		}
	}
}

// TestReceiveMany has a hundred thousand files in one commit, and trees that are more than they seem.
func TestReceiveMany(t *testing.T) {
	q := newQuay(t)
	var stream strings.Builder
	fmt.Fprintf(&stream, "commit refs/heads/work\ncommitter A <a@b> 1 +0000\ndata 5\nmany\n\nfrom %s\n", q.base)
	for i := range 100_000 {
		text := fmt.Sprint(i)
		fmt.Fprintf(&stream, "M 100644 inline %d/%d\ndata %d\n%s\n", i/1000, i, len(text), text)
	}
	if out, err := q.try(q.work, stream.String(), "fast-import", "--quiet", "--force"); err != nil {
		t.Fatal(out)
	}
	start := time.Now()
	if said, ok := q.push("work"); ok || !strings.Contains(said, "more than 20000 files") {
		t.Error(said)
	}
	t.Logf("refused after %v", time.Since(start))
	q.set(check.Rules{MaxFiles: 200_000}, PushLimits{})
	start = time.Now()
	if said, ok := q.push("work"); !ok {
		t.Error(said)
	}
	t.Logf("taken after %v", time.Since(start))

	blob := q.object("blob", "x")
	all := []string{blob}
	tree := q.tree("100644 a", blob)
	for range 12 {
		all = append(all, tree)
		tree = q.tree("40000 a", tree, "40000 b", tree, "40000 c", tree, "40000 d", tree, "40000 e", tree, "40000 f", tree, "40000 g", tree, "40000 h", tree)
	}
	deep := q.tree("100644 a", blob)
	var line []string
	for range 300 {
		line = append(line, deep)
		deep = q.tree("40000 a", deep)
	}
	q.git("push", "-q", "origin", "+main:refs/heads/x")
	for name, c := range map[string]struct {
		tree    string
		objects []string
	}{"8^12 files": {tree, append(all, tree)}, "300 deep": {deep, append(line, blob, deep)}} {
		start = time.Now()
		out, err := q.try(q.work, strings.Join(append(c.objects, q.commitOf(c.tree)), "\n")+"\n", "pack-objects", "--stdout", "-q")
		if err != nil {
			t.Fatal(out)
		}
		r, answer, err := q.raw(append(commandLines(zeroID(20)+" "+q.commitOf(c.tree)+" refs/heads/bomb\x00report-status"), out...))
		if err != nil || len(r.Updates) != 0 || time.Since(start) > time.Minute {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}
