package transport_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/git"
)

func names(r *git.Remote) string {
	var all []string
	for _, ref := range r.Refs {
		all = append(all, strings.TrimPrefix(ref.Name, "refs/"))
	}
	return strings.Join(all, " ")
}

// TestFetchFollows changes the refs of a remote in every way and fetches them, over each transport.
func TestFetchFollows(t *testing.T) {
	for _, kind := range []string{"http", "local", "local with a work tree", "sha256"} {
		t.Run(kind, func(t *testing.T) {
			y := newYard(t)
			s := gitserver.New(t, gitserver.Options{})
			bare, p := s.Create("r"), place{url: s.RepoURL("r")}
			format := "--object-format=sha1"
			if kind == "sha256" {
				format = "--object-format=sha256"
				gitserver.Git(t, s.Dir, "init", "-q", "--bare", "-b", "main", format, s.Dir+"/256")
				bare, p.url = s.Dir+"/256", s.RepoURL("256")
			}
			work := t.TempDir()
			gitserver.Git(t, work, "init", "-q", "-b", "main", format)
			switch kind {
			case "local":
				p.url = bare
			case "local with a work tree":
				p.url, bare = work, work+"/.git"
			}
			step := func(change []string, want, head string) {
				t.Helper()
				for _, c := range change {
					gitserver.Git(t, bare, strings.Fields(c)...)
				}
				remote, err := y.fetch(p)
				y.must(err)
				if names(remote) != want || remote.Head != head {
					t.Fatalf("fetched %q with HEAD %q, want %q with %q", names(remote), remote.Head, want, head)
				}
				has, err := relay.Refs(t.Context(), y.jobs, y.mirror)
				y.must(err)
				if !slices.Equal(has.Refs, remote.Refs) || has.Head != head {
					t.Fatalf("the mirror has %+v, want %+v", has, remote)
				}
			}
			step(nil, "", "")
			first := gitserver.Commit(t, work, "first", map[string]string{"a": "a\n"})
			second := gitserver.Commit(t, work, "second", map[string]string{"a": "b\n"})
			if !strings.HasPrefix(bare, work) {
				gitserver.Git(t, work, "push", "-q", bare, "main")
			}
			step(nil, "heads/main", "refs/heads/main")
			step([]string{"update-ref refs/heads/x " + first, "tag v1", "update-ref refs/pull/1/head " + second, "update-ref refs/notes/x " + first},
				"heads/main heads/x tags/v1", "refs/heads/main")
			// A lock and a partial pack of a killed process.
			y.must(os.WriteFile(y.path("mirror/packed-refs.lock"), nil, 0o600))
			y.must(os.WriteFile(y.path("mirror/objects/pack/tmp_pack_x"), nil, 0o400))
			step([]string{"update-ref -d refs/heads/x", "update-ref refs/heads/x/y " + second, "symbolic-ref HEAD refs/heads/x/y"},
				"heads/main heads/x/y tags/v1", "refs/heads/x/y")
			if left, _ := filepath.Glob(y.path("mirror/objects/pack/tmp*")); len(left) > 0 {
				t.Errorf("%v is still there", left)
			}
			step([]string{"update-ref -d refs/heads/x/y", "update-ref refs/heads/x " + first, "update-ref refs/heads/main " + first, "symbolic-ref HEAD refs/heads/main", "tag -d v1"},
				"heads/main heads/x", "refs/heads/main")

			granted := []git.Ref{{Name: "refs/heads/main", Commit: first}}
			store, view := y.sandbox("s", granted, "refs/heads/work")
			gitserver.Git(t, t.TempDir(), "clone", "-q", "-b", "main", y.serve(store, view, "work", granted), "c")
		})
	}
}

// TestLocalHooks checks that hooks and configured programs of a repository on the host are not run.
func TestLocalHooks(t *testing.T) {
	b := &berth{yard: newYard(t), bare: t.TempDir() + "/r.git"}
	gitserver.Git(t, t.TempDir(), "init", "-q", "--bare", "-b", "main", b.bare)
	b.place = place{url: b.bare}
	b.prepare()
	trap := "#!/bin/sh\ntouch /work/trapped\necho no >&2\nexit 1\n"
	for _, hook := range []string{"pre-receive", "update", "post-receive", "reference-transaction", "post-update", "proc-receive"} {
		b.must(os.WriteFile(filepath.Join(b.bare, "hooks", hook), []byte(trap), 0o755))
	}
	for _, c := range []string{"core.fsmonitor /work/hooks/update", "uploadpack.packObjectsHook /work/hooks/update", "core.hooksPath /work/hooks",
		"core.alternateRefsCommand /work/hooks/update", "gc.recentObjectsHook /work/hooks/update", "core.sshCommand /work/hooks/update",
		"core.gitProxy /work/hooks/update", "core.askPass /work/hooks/update", "core.pager /work/hooks/update", "core.editor /work/hooks/update",
		"credential.helper /work/hooks/update", "diff.external /work/hooks/update", "filter.x.process /work/hooks/update",
		"filter.x.clean /work/hooks/update", "filter.x.smudge /work/hooks/update", "filter.x.required true", "merge.x.driver /work/hooks/update"} {
		gitserver.Git(t, b.bare, append([]string{"config"}, strings.Fields(c)...)...)
	}
	b.must(os.MkdirAll(filepath.Join(b.bare, "info"), 0o755))
	b.must(os.WriteFile(filepath.Join(b.bare, "info/attributes"), []byte("* filter=x diff=x merge=x\n"), 0o644))
	if _, err := b.push(b.place, b.store, b.view, b.next, "caisson/x", ""); err != nil || b.remoteTip() != b.next {
		t.Errorf("push: %v", err)
	}
	if _, err := b.fetch(b.place); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.bare + "/trapped"); err == nil {
		t.Error("a program of the repository ran")
	}
	for _, dir := range []string{t.TempDir(), "/proc/self/fd"} {
		if _, err := b.fetch(place{url: dir}); err == nil {
			t.Errorf("fetched from %s", dir)
		} else if k := caisson.KindOf(err); dir != "/proc/self/fd" && k != caisson.NotFound {
			t.Errorf("%s: %v: %v", dir, k, err)
		}
	}
}

// TestViewOfNothing checks that refs that the mirror does not have cannot be granted.
func TestViewOfNothing(t *testing.T) {
	b := newBerth(t, gitserver.Options{})
	for i, refs := range [][]git.Ref{
		{{Name: "refs/heads/main", Commit: strings.Repeat("1", 40)}},
		{{Name: "refs/heads/main", Commit: strings.Repeat("1", 64)}},
		{{Name: "refs/heads/main", Commit: "--all"}},
		{{Name: "refs/heads/../../config", Commit: b.first}},
		{{Name: "refs/notes/x", Commit: b.first}},
		{{Name: "refs/heads/main", Commit: b.first}, {Name: "refs/heads/main", Commit: b.first}},
	} {
		err := relay.View(t.Context(), b.jobs, b.mirror, b.dir("v"+string(rune('0'+i))), refs)
		if k := caisson.KindOf(err); k != caisson.Invalid && k != caisson.Conflict {
			t.Errorf("%v: %v", refs, err)
		}
	}
	b.must(relay.View(t.Context(), b.jobs, b.mirror, b.dir("empty"), nil))
	if err := relay.Init(t.Context(), b.jobs, b.mirror); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("made twice: %v", err)
	}
	out, err := exec.Command("find", b.top+"/mirror", b.top+"/empty", "!", "-uid", strconv.Itoa(owner), "-o", "-perm", "/022", "-o", "-type", "l").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("files that are not the account's, or that others may write: %v\n%s", err, out)
	}
}
