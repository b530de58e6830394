package relay

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/check"
)

// TestReceive pushes with a real git.
func TestReceive(t *testing.T) {
	q := newQuay(t)
	q.write("new/file", "text\n")
	tip := q.commit("add a file")
	said, ok := q.push("work")
	if !ok || q.err != nil {
		t.Fatalf("%s, %v", said, q.err)
	}
	if r := q.last; len(r.Updates) != 1 || r.Updates[0].New != tip || r.Updates[0].Old != "" || r.Updates[0].Name != "refs/heads/work" || len(allFindings(r)) != 0 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(q.refs(), tip+" refs/heads/work") {
		t.Error(q.refs())
	}
	// More of it, nothing new, and another branch of the same commit.
	q.write("readme", "changed\n")
	tip = q.commit("change")
	if said, ok := q.push("work"); !ok {
		t.Error(said)
	}
	if said, ok := q.push("work"); !ok || !strings.Contains(said, "up-to-date") {
		t.Error(said)
	}
	if said, ok := q.push("work:refs/heads/other/name"); !ok || len(q.last.Updates) != 1 {
		t.Error(said)
	}
	// History is rewritten.
	q.git("reset", "-q", "--hard", q.base)
	q.write("x", "x\n")
	forced := q.commit("another way")
	if said, ok := q.push("work"); ok || !strings.Contains(said, "rejected") {
		t.Error("not a fast-forward:", said)
	}
	if said, ok := q.push("--force", "work"); !ok || q.last.Updates[0].Old != tip || q.last.Updates[0].New != forced {
		t.Errorf("%s %+v", said, q.last)
	}
	// And a branch is removed, but not the one that is worked on.
	if said, ok := q.push("--delete", "other/name"); !ok || strings.Contains(q.refs(), "other/name") || q.last.Updates[0].New != "" {
		t.Error(said)
	}
	if said, ok := q.push("--delete", "work"); ok || !strings.Contains(said, "is not removed") {
		t.Error(said)
	}
	q.sound()
	if out := q.client(".", "ls-remote", q.url); !strings.Contains(out, forced+"\trefs/heads/work") {
		t.Error(out)
	}
}

// TestReceiveClients pushes in the ways that clients know.
func TestReceiveClients(t *testing.T) {
	for name, args := range map[string][]string{
		"version 0": {"-c", "protocol.version=0", "push"},
		"version 1": {"-c", "protocol.version=1", "push"},
		"version 2": {"-c", "protocol.version=2", "push"},
		"atomic":    {"push", "--atomic"},
		"quiet":     {"push", "--quiet"},
		"chunked":   {"-c", "http.postBuffer=1", "push", "--no-thin"},
		"porcelain": {"push", "--porcelain", "--no-progress"},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuay(t)
			q.write("a", strings.Repeat("line\n", 100_000))
			q.commit("add")
			out, err := q.try(q.work, "", append(args, "origin", "work")...)
			if err != nil || q.err != nil || len(q.last.Updates) != 1 {
				t.Errorf("%s: %v %v", out, err, q.err)
			}
		})
	}
}

// TestReceiveRefs is about what may be pushed to.
func TestReceiveRefs(t *testing.T) {
	q := newQuay(t)
	q.write("a", "a\n")
	tip := q.commit("add")
	q.git("tag", "v1")
	q.git("tag", "-a", "-m", "x", "v2")
	refs, objects := q.state()
	for _, to := range []string{
		"refs/heads/main", "refs/tags/v1", "refs/notes/commits", "refs/replace/" + q.base, "refs/changes/1/1/1", "refs/heads/-rf",
		"refs/heads/HEAD", "refs/heads/a\u202eb", "refs/remotes/origin/main", "refs/heads/$(x)", "refs/heads/" + strings.Repeat("a", 241),
	} {
		if said, ok := q.push("+work:" + to); ok {
			t.Errorf("%q was taken: %s", to, said)
		}
		q.untouched(refs, objects)
	}
	// What git itself does not send.
	zero := zeroID(20)
	for name, lines := range map[string][]string{
		"an option":     {zero + " " + tip + " --upload-pack=x"},
		"HEAD":          {zero + " " + tip + " HEAD"},
		"dots":          {zero + " " + tip + " refs/heads/../../x"},
		"reflog":        {zero + " " + tip + " refs/heads/x@{1}"},
		"control":       {zero + " " + tip + " refs/heads/x\x1b[2J"},
		"newline":       {zero + " " + tip + " refs/heads/x\ndelete refs/heads/main"},
		"NUL":           {zero + " " + tip + " refs/heads/x\x00report-status", zero + " " + tip + " refs/heads/y\x00x"},
		"lock":          {zero + " " + tip + " refs/heads/x.lock"},
		"absolute":      {zero + " " + tip + " /etc/passwd"},
		"empty":         {zero + " " + tip + " "},
		"slash":         {zero + " " + tip + " refs/heads//x"},
		"twice":         {zero + " " + tip + " refs/heads/work", zero + " " + tip + " refs/heads/work"},
		"short":         {zero + " " + tip[:39] + " refs/heads/work"},
		"upper case":    {zero + " " + strings.ToUpper(tip) + " refs/heads/work"},
		"unknown":       {zero + " " + strings.Repeat("1", 40) + " refs/heads/work"},
		"a tree":        {zero + " " + q.git("rev-parse", q.base+"^{tree}") + " refs/heads/work"},
		"delete main":   {q.base + " " + zero + " refs/heads/main"},
		"delete none":   {zero + " " + zero + " refs/heads/none"},
		"stale":         {tip + " " + q.base + " refs/heads/work"},
		"shallow":       {"shallow " + q.base, zero + " " + q.base + " refs/heads/work"},
		"certificate":   {"push-cert\x00report-status", zero + " " + q.base + " refs/heads/work"},
		"options":       {zero + " " + q.base + " refs/heads/work\x00report-status push-options"},
		"other format":  {zero + " " + q.base + " refs/heads/work\x00object-format=sha256"},
		"too many":      manyRefs(65, zero+" "+q.base),
		"file and dir":  {zero + " " + q.base + " refs/heads/d", zero + " " + q.base + " refs/heads/d/e"},
		"below granted": {zero + " " + q.base + " refs/heads/main/x"},
	} {
		r, answer, err := q.raw(append(commandLines(lines...), emptyPack()...))
		if err != nil || r == nil || len(r.Updates) > 0 || len(r.Denied) == 0 {
			t.Errorf("%s: %+v, %q, %v", name, r, answer, err)
		}
		q.untouched(refs, objects)
	}
	// The same without atomicity: what may be taken is.
	q.git("branch", "-f", "main", "work")
	said, ok := q.push("work", "main", "v1")
	if ok || len(q.last.Updates) != 1 || len(q.last.Denied) != 2 || !strings.Contains(said, "only to be read") {
		t.Errorf("%s %+v", said, q.last)
	}
	q.write("a", "b\n")
	q.commit("more")
	if said, ok := q.push("--atomic", "work", "v2"); ok || len(q.last.Updates) != 0 {
		t.Errorf("%s %+v", said, q.last)
	}
}

func manyRefs(n int, ids string) []string {
	var all []string
	for i := range n {
		all = append(all, ids+" refs/heads/b"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	return all
}

// TestReceiveAnswers is about the forms of the answer.
func TestReceiveAnswers(t *testing.T) {
	for caps, want := range map[string]string{
		"":                               "",
		"report-status":                  "000eunpack ok\n0017ok refs/heads/work\n0000",
		"report-status-v2":               "000eunpack ok\n0017ok refs/heads/work\n0000",
		"report-status side-band-64k":    "002e\x01000eunpack ok\n0017ok refs/heads/work\n00000000",
		"side-band-64k":                  "0000",
		"unknown report-status nonsense": "000eunpack ok\n0017ok refs/heads/work\n0000",
	} {
		q := newQuay(t)
		r, answer, err := q.raw(append(commandLines(zeroID(20)+" "+q.base+" refs/heads/work\x00"+caps), emptyPack()...))
		if err != nil || len(r.Updates) != 1 || answer != want {
			t.Errorf("%q: %q, want %q: %+v %v", caps, answer, want, r, err)
		}
	}
	q := newQuay(t)
	for _, body := range []string{"0000", ""} {
		if r, answer, err := q.raw([]byte(body)); err != nil || answer != "" || len(allFindings(r)) != 0 {
			t.Errorf("a probe: %q %+v %v", answer, r, err)
		}
	}
}

// TestReceiveAsks takes what a person has to look at.
func TestReceiveAsks(t *testing.T) {
	q := newQuay(t)
	q.write("CLAUDE.md", "do\n")
	q.commit("instructions")
	said, ok := q.push("work")
	if !ok || len(q.last.Updates) != 1 || !strings.Contains(said, "remote: a person has to look at this") || !strings.Contains(said, "CLAUDE.md") {
		t.Fatalf("%s %+v", said, q.last)
	}
	if f := q.last.Updates[0].Findings; len(f) != 1 || f[0].Verdict != caisson.VerdictAsk || !strings.HasPrefix(f[0].Message, shortID(q.head())+": CLAUDE.md: ") {
		t.Errorf("%+v", f)
	}
	// What rules allow is not asked.
	q.set(check.Rules{Allow: []string{".github"}}, PushLimits{})
	q.write(".github/workflows/ci.yml", "on: push\n")
	q.commit("workflow")
	if said, ok := q.push("work"); !ok || len(allFindings(q.last)) != 0 {
		t.Errorf("%s %+v", said, q.last)
	}
}
