package transport_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/remote"
)

func pkt(format string, args ...any) string {
	s := fmt.Sprintf(format, args...)
	return fmt.Sprintf("%04x%s", len(s)+4, s)
}

const id = "1234567890123456789012345678901234567890"

// v0 returns an advertisement of version 0.
func v0(lines ...string) string {
	out := pkt("# service=git-upload-pack\n") + "0000"
	for _, l := range lines {
		out += pkt("%s\n", l)
	}
	return out + "0000"
}

// v2 is an advertisement of version 2 with the minimum of capabilities.
var v2 = pkt("# service=git-upload-pack\n") + "0000" + pkt("version 2\n") + pkt("ls-refs\n") + pkt("fetch\n") + "0000"

// A liar is a remote that sends arbitrary answers.
type liar struct {
	kind    string // content type of the advertisement; "" for the correct one
	status  int
	header  map[string]string
	refs    string // the advertisement
	list    string // the answer to ls-refs
	pack    string // the answer to fetch
	endless string // sent repeatedly after the rest
	cut     bool   // close the connection after the rest
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, text := "application/x-git-upload-pack-advertisement", l.refs
	if r.Method == http.MethodPost {
		kind, text = "application/x-git-upload-pack-result", l.list
		if body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)); !bytes.Contains(body, []byte("command=ls-refs")) {
			text = l.pack
		}
	}
	if l.kind != "" {
		kind = l.kind
	}
	w.Header().Set("Content-Type", kind)
	for k, v := range l.header {
		w.Header().Set(k, v)
	}
	if l.status != 0 {
		w.WriteHeader(l.status)
	}
	io.WriteString(w, text)
	last := r.Method == http.MethodPost || l.list == ""
	for many := strings.Repeat(l.endless, 1000); last && l.endless != ""; {
		if _, err := io.WriteString(w, many); err != nil {
			return
		}
	}
	if last && l.cut {
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// evilPack returns a pack with one commit whose tree has a directory named .git.
func evilPack(t *testing.T) (commit, pack string) {
	t.Helper()
	dir := t.TempDir()
	gitserver.Git(t, dir, "init", "-q", "-b", "main")
	run := func(in string, args ...string) string {
		cmd := gitserver.Command(t, dir, args...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return string(out)
	}
	blob := strings.TrimSpace(run("x", "hash-object", "-w", "--stdin"))
	tree := strings.TrimSpace(run("100755 blob "+blob+"\tpost-checkout\n", "mktree"))
	var raw bytes.Buffer
	raw.WriteString("40000 .git\x00")
	for i := 0; i < len(tree); i += 2 {
		var b byte
		fmt.Sscanf(tree[i:i+2], "%02x", &b)
		raw.WriteByte(b)
	}
	top := strings.TrimSpace(run(raw.String(), "hash-object", "-t", "tree", "-w", "--literally", "--stdin"))
	commit = strings.TrimSpace(run("", "commit-tree", "-m", "evil", top))
	return commit, run(commit+"\n", "pack-objects", "--revs", "--stdout", "-q")
}

func TestHostileRemotes(t *testing.T) {
	b := newBerth(t, gitserver.Options{})
	before, err := relay.Refs(t.Context(), b.jobs, b.mirror)
	b.must(err)
	packs := func() []string {
		all, err := filepath.Glob(b.path("mirror/objects/*/*"))
		b.must(err)
		return all
	}
	kept := packs()
	evil, evilData := evilPack(t)
	ready := pkt("acknowledgments\n") + pkt("ready\n") + "0001" + pkt("packfile\n")
	sent := func(pack string) string { return ready + pkt("\x01%s", pack) + "0000" }
	whole := gitserver.Command(t, b.bare, "pack-objects", "--all", "--stdout", "-q")
	whole.Stdin = strings.NewReader("")
	packed, err := whole.Output()
	b.must(err)
	honest := string(packed)
	tests := []struct {
		name string
		liar liar
		kind caisson.Kind
		says string
	}{
		{"dumb HTTP", liar{kind: "text/plain", refs: id + "\trefs/heads/main\n"}, caisson.Denied, "not git's smart HTTP"},
		{"a page", liar{kind: "text/html; charset=utf-8", refs: "<html>"}, caisson.Denied, "not git's smart HTTP"},
		{"no packet lines", liar{refs: "hello world"}, caisson.Denied, "not git's protocol"},
		{"half a line", liar{refs: "00ff# service"}, caisson.Denied, "not git's protocol"},
		{"nothing", liar{}, caisson.Denied, "not git's protocol"},
		{"an error", liar{refs: pkt("ERR go\x1b[31m away\n")}, caisson.Denied, "go [31m away"},
		{"compressed", liar{header: map[string]string{"Content-Encoding": "gzip"}, refs: "x"}, caisson.Denied, "compresses"},
		{"elsewhere", liar{status: 302, header: map[string]string{"Location": "http://127.0.0.1:1/info/refs?service=git-upload-pack"}}, caisson.Denied, "redirects"},
		{"to another scheme", liar{status: 301, header: map[string]string{"Location": "file:///etc/passwd"}}, caisson.Denied, "redirects"},
		{"round and round", liar{status: 307, header: map[string]string{"Location": "/x/info/refs?service=git-upload-pack"}}, caisson.Denied, "redirects"},
		{"teapot", liar{status: 418, kind: "text/plain", refs: "short and stout"}, caisson.Denied, "stout"},
		{"gone", liar{status: 404}, caisson.NotFound, "no such repository"},
		{"busy", liar{status: 429}, caisson.Unavailable, "429"},
		{"no objects", liar{refs: v0("refs/heads/main refs/heads/main")}, caisson.Denied, "not git's protocol"},
		{"twice", liar{refs: v0(id+" refs/heads/x\x00caps", id+" refs/heads/x")}, caisson.Denied, "not git's protocol"},
		{"file and directory", liar{refs: v0(id+" refs/heads/x\x00caps", id+" refs/heads/x/y")}, caisson.Denied, "not git's protocol"},
		{"unknown hash", liar{refs: v0(id + " refs/heads/x\x00object-format=md5")}, caisson.Denied, "md5"},
		{"shallow", liar{refs: v0(id+" refs/heads/x\x00caps", "shallow "+id)}, caisson.Denied, "shallow"},
		{"endless refs that do not count", liar{refs: strings.TrimSuffix(v0(id+" refs/heads/x\x00caps"), "0000"), endless: pkt("%s refs/pull/1/head\n", id)}, caisson.Exhausted, "more than is allowed"},
		{"endless list", liar{refs: v2, list: pkt("%s refs/heads/x\n", id), endless: pkt("%s refs/pull/1/head\n", id)}, caisson.Exhausted, "more than is allowed"},
		{"a pack of nothing", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: sent("PACK")}, "", ""},
		{"garbage for a pack", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: sent("\x00\xff\xfeabc")}, "", ""},
		{"the wrong pack", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: sent(honest)}, caisson.Denied, ""},
		{"an evil tree", liar{refs: v2, list: pkt("%s refs/heads/x\n", evil) + "0000", pack: sent(evilData)}, caisson.Denied, "hasDotgit"},
		{"endless chatter", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: ready, endless: pkt("\x02%s", strings.Repeat("y", 60000))}, caisson.Exhausted, "more than is allowed"},
		{"endless pack", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: ready + pkt("\x01PACK\x00\x00\x00\x02\xff\xff\xff\xff"), endless: pkt("\x01%s", strings.Repeat("\x00", 60000))}, "", ""},
		{"cut", liar{refs: v2, list: pkt("%s refs/heads/x\n", id) + "0000", pack: ready, cut: true}, caisson.Unavailable, "lost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(&tt.liar)
			defer s.Close()
			defer s.CloseClientConnections()
			p := place{url: s.URL + "/r"}
			err := b.over(p, false, func(near *os.File) error {
				_, err := fetch.Run(t.Context(), b.jobs, b.mirror, near, fetch.Request{
					Transport: remote.ProtocolHTTP, Limits: fetch.Limits{Bytes: 32 << 20, Time: 2 * time.Minute},
				})
				return err
			})
			msg := caisson.MessageOf(err)
			if err == nil || tt.kind != "" && caisson.KindOf(err) != tt.kind || !strings.Contains(msg, tt.says) {
				t.Errorf("%v: %v, want %v with %q", caisson.KindOf(err), err, tt.kind, tt.says)
			}
			if strings.ContainsAny(msg, "\n\x1b") {
				t.Errorf("a message that is not plain: %q", msg)
			}
			t.Logf("%v: %s", caisson.KindOf(err), msg)
			if now := packs(); !slices.Equal(now, kept) {
				t.Errorf("what was sent is kept: %v", now)
			}
			after, err := relay.Refs(t.Context(), b.jobs, b.mirror)
			if err != nil || names(after) != names(before) || after.Head != before.Head {
				t.Errorf("the mirror is now %+v, %v", after, err)
			}
		})
	}
	if out, err := exec.Command("git", "-c", "safe.directory=*", "-C", b.path("mirror"), "fsck", "--full", "--strict").CombinedOutput(); err != nil {
		t.Errorf("the mirror is damaged: %v\n%s", err, out)
	}
	if _, err := b.fetch(b.place); err != nil {
		t.Errorf("and then: %v", err)
	}
}

// TestTrapsAmongRefs checks that refs with invalid names or outside of branches and tags are ignored, and that HEAD can only be a
// listed branch.
func TestTrapsAmongRefs(t *testing.T) {
	b := newBerth(t, gitserver.Options{})
	head := pkt("# service=git-upload-pack\n") + "0000" + pkt("version 2\n") + "0000"
	var list string
	for _, n := range []string{"HEAD symref-target:refs/heads/../../../../etc/passwd", "refs/heads/main", "refs/heads/--upload-pack=x", "refs/heads/-x",
		"refs/heads/a..b", "refs/heads/$(id)", "refs/heads/x.lock", "refs/heads/\u202egnp", "refs/heads/\xff", "refs/replace/" + b.first,
		"refs/heads/.x", "refs/heads/", "refs/../config", "config", "objects/info/alternates", "refs/remotes/origin/main"} {
		list += pkt("%s %s\n", b.first, n)
	}
	s := httptest.NewServer(&liar{refs: head, list: list + "0000"})
	defer s.Close()
	remote, err := b.fetch(place{url: s.URL + "/r"})
	if err != nil || names(remote) != "heads/main" || remote.Head != "refs/heads/main" {
		t.Errorf("%+v, %v", remote, err)
	}
}

// TestMoved checks that a redirect to another path of the same server is followed, with the credential.
func TestMoved(t *testing.T) {
	b := newBerth(t, gitserver.Options{User: "ada", Password: "hunter2"})
	b.server.Set(func(o *gitserver.Options) {})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if old, ok := strings.CutPrefix(r.URL.Path, "/old/"); ok {
			http.Redirect(w, r, "/"+old+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		b.server.ServeHTTP(w, r)
	}))
	defer front.Close()
	p := place{url: front.URL + "/old/r.git", auth: secret("ada", "hunter2")}
	if _, err := b.fetch(p); err != nil {
		t.Error(err)
	}
	if _, err := b.push(p, b.store, b.view, b.next, "caisson/x", ""); err != nil || b.remoteTip() != b.next {
		t.Errorf("push: %v", err)
	}
}
