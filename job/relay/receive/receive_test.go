package receive_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/packtest"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestReceive pushes with git.
func TestReceive(t *testing.T) {
	q := relaytest.New(t)
	q.Write("new/file", "text\n")
	tip := q.Commit("add a file")
	said, ok := q.Push("work")
	if !ok || q.Err != nil {
		t.Fatalf("%s, %v", said, q.Err)
	}
	if r := q.Last; len(r.Updates) != 1 || r.Updates[0].New != tip || r.Updates[0].Old != "" || r.Updates[0].Name != "refs/heads/work" || len(relaytest.AllFindings(r)) != 0 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(q.Refs(), tip+" refs/heads/work") {
		t.Error(q.Refs())
	}
	// A second commit, a push without changes, and another branch at the same commit.
	q.Write("readme", "changed\n")
	tip = q.Commit("change")
	if said, ok := q.Push("work"); !ok {
		t.Error(said)
	}
	if said, ok := q.Push("work"); !ok || !strings.Contains(said, "up-to-date") {
		t.Error(said)
	}
	if said, ok := q.Push("work:refs/heads/other/name"); !ok || len(q.Last.Updates) != 1 {
		t.Error(said)
	}
	// A rewritten history.
	q.Git("reset", "-q", "--hard", q.Base)
	q.Write("x", "x\n")
	forced := q.Commit("another way")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, "rejected") {
		t.Error("not a fast-forward:", said)
	}
	if said, ok := q.Push("--force", "work"); !ok || q.Last.Updates[0].Old != tip || q.Last.Updates[0].New != forced {
		t.Errorf("%s %+v", said, q.Last)
	}
	// Branches can be removed, except the working branch.
	if said, ok := q.Push("--delete", "other/name"); !ok || strings.Contains(q.Refs(), "other/name") || q.Last.Updates[0].New != "" {
		t.Error(said)
	}
	if said, ok := q.Push("--delete", "work"); ok || !strings.Contains(said, "is not removed") {
		t.Error(said)
	}
	q.CheckIntact()
	if out := q.Client(".", "ls-remote", q.Url); !strings.Contains(out, forced+"\trefs/heads/work") {
		t.Error(out)
	}
}

// TestReceiveClients pushes with different options of clients.
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
			q := relaytest.New(t)
			q.Write("a", strings.Repeat("line\n", 100_000))
			q.Commit("add")
			out, err := q.Try(q.Work, "", append(args, "origin", "work")...)
			if err != nil || q.Err != nil || len(q.Last.Updates) != 1 {
				t.Errorf("%s: %v %v", out, err, q.Err)
			}
		})
	}
}

// TestReceiveRefs checks which refs can be pushed to.
func TestReceiveRefs(t *testing.T) {
	q := relaytest.New(t)
	q.Write("a", "a\n")
	tip := q.Commit("add")
	q.Git("tag", "v1")
	q.Git("tag", "-a", "-m", "x", "v2")
	refs, objects := q.State()
	for _, to := range []string{
		"refs/heads/main", "refs/tags/v1", "refs/notes/commits", "refs/replace/" + q.Base, "refs/changes/1/1/1", "refs/heads/-rf",
		"refs/heads/HEAD", "refs/heads/a\u202eb", "refs/remotes/origin/main", "refs/heads/$(x)", "refs/heads/" + strings.Repeat("a", 241),
	} {
		if said, ok := q.Push("+work:" + to); ok {
			t.Errorf("%q was taken: %s", to, said)
		}
		q.CheckUnchanged(refs, objects)
	}
	// Commands that git itself does not send.
	zero := quarantine.ZeroID(20)
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
		"a tree":        {zero + " " + q.Git("rev-parse", q.Base+"^{tree}") + " refs/heads/work"},
		"delete main":   {q.Base + " " + zero + " refs/heads/main"},
		"delete none":   {zero + " " + zero + " refs/heads/none"},
		"stale":         {tip + " " + q.Base + " refs/heads/work"},
		"shallow":       {"shallow " + q.Base, zero + " " + q.Base + " refs/heads/work"},
		"certificate":   {"push-cert\x00report-status", zero + " " + q.Base + " refs/heads/work"},
		"options":       {zero + " " + q.Base + " refs/heads/work\x00report-status push-options"},
		"other format":  {zero + " " + q.Base + " refs/heads/work\x00object-format=sha256"},
		"too many":      manyRefs(65, zero+" "+q.Base),
		"file and dir":  {zero + " " + q.Base + " refs/heads/d", zero + " " + q.Base + " refs/heads/d/e"},
		"below granted": {zero + " " + q.Base + " refs/heads/main/x"},
	} {
		r, answer, err := q.PostRaw(append(packtest.CommandLines(lines...), packtest.EmptyPack()...))
		if err != nil || r == nil || len(r.Updates) > 0 || len(r.Denied) == 0 {
			t.Errorf("%s: %+v, %q, %v", name, r, answer, err)
		}
		q.CheckUnchanged(refs, objects)
	}
	// The same without the capability atomic: allowed refs are accepted.
	q.Git("branch", "-f", "main", "work")
	said, ok := q.Push("work", "main", "v1")
	if ok || len(q.Last.Updates) != 1 || len(q.Last.Denied) != 2 || !strings.Contains(said, "only to be read") {
		t.Errorf("%s %+v", said, q.Last)
	}
	q.Write("a", "b\n")
	q.Commit("more")
	if said, ok := q.Push("--atomic", "work", "v2"); ok || len(q.Last.Updates) != 0 {
		t.Errorf("%s %+v", said, q.Last)
	}
}

func manyRefs(n int, ids string) []string {
	var all []string
	for i := range n {
		all = append(all, ids+" refs/heads/b"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	return all
}

// TestReceiveAnswers checks the formats of the answer.
func TestReceiveAnswers(t *testing.T) {
	for caps, want := range map[string]string{
		"":                               "",
		"report-status":                  "000eunpack ok\n0017ok refs/heads/work\n0000",
		"report-status-v2":               "000eunpack ok\n0017ok refs/heads/work\n0000",
		"report-status side-band-64k":    "002e\x01000eunpack ok\n0017ok refs/heads/work\n00000000",
		"side-band-64k":                  "0000",
		"unknown report-status nonsense": "000eunpack ok\n0017ok refs/heads/work\n0000",
	} {
		q := relaytest.New(t)
		r, answer, err := q.PostRaw(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+q.Base+" refs/heads/work\x00"+caps), packtest.EmptyPack()...))
		if err != nil || len(r.Updates) != 1 || answer != want {
			t.Errorf("%q: %q, want %q: %+v %v", caps, answer, want, r, err)
		}
	}
	q := relaytest.New(t)
	for _, body := range []string{"0000", ""} {
		if r, answer, err := q.PostRaw([]byte(body)); err != nil || answer != "" || len(relaytest.AllFindings(r)) != 0 {
			t.Errorf("a probe: %q %+v %v", answer, r, err)
		}
	}
}

// TestReceiveAsks checks that changes that need a review are accepted.
func TestReceiveAsks(t *testing.T) {
	q := relaytest.New(t)
	q.Write("CLAUDE.md", "do\n")
	q.Commit("instructions")
	said, ok := q.Push("work")
	if !ok || len(q.Last.Updates) != 1 || !strings.Contains(said, "remote: a person has to look at this") || !strings.Contains(said, "CLAUDE.md") {
		t.Fatalf("%s %+v", said, q.Last)
	}
	if f := q.Last.Updates[0].Findings; len(f) != 1 || f[0].Verdict != caisson.VerdictAsk || !strings.HasPrefix(f[0].Message, commit.ShortID(q.Head())+": CLAUDE.md: ") {
		t.Errorf("%+v", f)
	}
	// Changes that the rules allow need no review.
	q.Set(check.Rules{Allow: []string{".github"}}, receive.Limits{})
	q.Write(".github/workflows/ci.yml", "on: push\n")
	q.Commit("workflow")
	if said, ok := q.Push("work"); !ok || len(relaytest.AllFindings(q.Last)) != 0 {
		t.Errorf("%s %+v", said, q.Last)
	}
}
