package runs_test

import (
	"archive/tar"
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/internal/hostdir/hostdirtest"
)

// project creates a directory with files; a name that ends in "@" is a symlink.
func (w *world) project(files map[string]string) caisson.Handle {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, content := range files {
		full := filepath.Join(dir, strings.TrimSuffix(name, "@"))
		must(w.t, os.MkdirAll(filepath.Dir(full), 0o755))
		if strings.HasSuffix(name, "@") {
			must(w.t, os.Symlink(content, full))
		} else {
			must(w.t, os.WriteFile(full, []byte(content), 0o644))
		}
	}
	return got(os.Open(dir))(w.t)
}

// archive returns a tar archive of files, as tar -C DIR -c . makes it.
func archive(t *testing.T, files map[string]string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		must(t, w.WriteHeader(&tar.Header{Name: "./" + name, Mode: 0o644, Size: int64(len(files[name]))}))
		got(w.Write([]byte(files[name])))(t)
	}
	must(t, w.Close())
	return &b
}

// read returns the content of a file in the agent's sandbox, or the error.
func read(v *turn, name string) string {
	root, err := os.OpenRoot(v.Root())
	if err != nil {
		return err.Error()
	}
	defer root.Close()
	b, err := root.ReadFile(strings.TrimPrefix(name, "/"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// look adds an agent that answers with the content of the file that its prompt names.
func (w *world) look() {
	w.on("look", func(v *turn) int {
		for name := range strings.FieldsSeq(strings.TrimPrefix(v.task.Prompt, "look")) {
			v.text(name + ": " + read(v, name) + "\n")
		}
		return v.end(nil)
	})
}

func TestWorkspaceOfDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.look()
	w.put(caisson.Agent{ID: "elsewhere", Workdir: "/srv/deep"})
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	files := map[string]string{"a.txt": "A", "sub/b.txt": "B", "link@": secret}
	r := w.do(caisson.RunRequest{Prompt: "look /workspace/a.txt /workspace/sub/b.txt /workspace/link", Source: "p", Directory: w.project(files)})
	if a := r.Result.Answer; !r.HasWorkspace || !strings.Contains(a, "a.txt: A\n") || !strings.Contains(a, "b.txt: B\n") || strings.Contains(a, "SECRET") {
		t.Errorf("%s, the agent sees %q", r.State, a)
	}
	r = w.do(caisson.RunRequest{Agent: "elsewhere", Prompt: "look /srv/deep/a.txt", Source: "p", Directory: w.project(files)})
	wantAnswer(t, r, "/srv/deep/a.txt: A\n")
	w.boxes.fail("write tree", 1, caisson.Errorf(caisson.Exhausted, "the disk is full"))
	r = w.do(caisson.RunRequest{Prompt: "look x", Source: "p", Directory: w.project(files)})
	wantFailed(t, r, caisson.RunRateLimit, "disk is full")
}

func TestWorkspaceOfUpload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.look()
	b := archive(t, map[string]string{"up.txt": "UP"})
	wantAnswer(t, w.do(caisson.RunRequest{Prompt: "look /workspace/up.txt", Workspace: b}), "/workspace/up.txt: UP\n")
	_, err := w.Runs().StartRun(w.ctx(), caisson.RunRequest{
		Agent: "echo", Prompt: "look x", Workspace: strings.NewReader("this is no archive, and says so at some length"),
	})
	wantKind(t, err, caisson.Invalid)
	if n := w.dirs(); n != 1 {
		t.Errorf("there are directories of %d runs", n)
	}
}

// TestWorkspaceMaskedWithin: everything below a hidden directory is hidden, even if that directory itself is copied.
func TestWorkspaceMaskedWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.look()
	dir := filepath.Join(t.TempDir(), ".ssh")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "work"), []byte("SECRET"), 0o644))
	for _, named := range []string{dir, "p"} {
		f, err := os.Open(dir)
		must(t, err)
		r := w.do(caisson.RunRequest{Prompt: "look /workspace/work", Source: named, Directory: f, Kind: caisson.WorkspaceCopy})
		if strings.Contains(r.Result.Answer, "SECRET") || !slices.Equal(r.Hidden, []string{"work"}) {
			t.Errorf("%s: the agent sees %q, %q are hidden", named, r.Result.Answer, r.Hidden)
		}
	}
}

// TestWorkspaceMasked: neither copy of a workspace contains hidden files, whatever the client has sent, and the run
// lists them.
func TestWorkspaceMasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.look()
	files := map[string]string{"a.txt": "A", ".env": "SECRET", "sub/b.pem": "SECRET", ".ssh/one": "SECRET", ".ssh/two": "SECRET", "public.pem": "P"}
	b := archive(t, files)
	prompt := "look"
	for name := range files {
		prompt += " /workspace/" + name
	}
	hidden := []string{".env", ".ssh", "sub/b.pem"}
	for name, req := range map[string]caisson.RunRequest{
		"directory": {Source: "p", Directory: w.project(files), Kind: caisson.WorkspaceCopy},
		"archive":   {Workspace: bytes.NewReader(b.Bytes())},
		"archive of a client that hides more": {
			Workspace: bytes.NewReader(b.Bytes()), Hidden: []string{"theirs"}, HiddenCount: 7,
		},
	} {
		req.Prompt, req.Show = prompt, []string{"public.pem"}
		r := w.do(req)
		a := r.Result.Answer
		if strings.Contains(a, "SECRET") || !strings.Contains(a, "a.txt: A\n") || !strings.Contains(a, "public.pem: P\n") {
			t.Errorf("%s: the agent sees %q", name, a)
		}
		want, count := append(slices.Clone(req.Hidden), hidden...), req.HiddenCount+len(hidden)
		if !slices.Equal(r.Hidden, want) || r.HiddenCount != count {
			t.Errorf("%s: the run says that %d are hidden, %q", name, r.HiddenCount, r.Hidden)
		}
	}
	for _, req := range []caisson.RunRequest{
		{Workspace: b, Show: []string{"["}}, {Workspace: b, Hidden: []string{"\xff"}}, {Workspace: b, Hidden: make([]string, 101)}, {Workspace: b, HiddenCount: -1},
		{Show: []string{"x"}},
	} {
		req.Agent, req.Prompt = "echo", "x"
		wantKind(t, second(w.Runs().StartRun(w.ctx(), req)), caisson.Invalid)
	}
}

// TestWorkspaceWithSubRuns tests that the limit of queued and running runs counts no sub-runs, also for a run whose workspace is copied.
func TestWorkspaceWithSubRuns(t *testing.T) {
	t.Parallel()
	w := plan{limits: runs.Limits{Waiting: 2}}.world(t)
	boss, goOn := w.boss(caisson.AgentLimits{})
	defer goOn()
	got(w.Guests().StartGuestRun(w.guest(boss), caisson.RunRequest{Agent: "echo", Prompt: "wait"}))(t)
	req := func() caisson.RunRequest {
		return caisson.RunRequest{Agent: "echo", Prompt: "wait", Workspace: archive(t, map[string]string{"a": "x"})}
	}
	must(t, second(w.Runs().StartRun(w.ctx(), req())))
	wantKind(t, second(w.Runs().StartRun(w.ctx(), req())), caisson.Exhausted)
}

// TestWorkspaceRefused: a directory that is too large, or belongs to Caisson, is rejected, and nothing remains.
func TestWorkspaceRefused(t *testing.T) {
	t.Parallel()
	w := plan{limits: runs.Limits{Workspace: 8 << 10}}.world(t)
	start := func(req caisson.RunRequest) error {
		req.Agent, req.Prompt, req.Source = "echo", "x", "p"
		return second(w.Runs().StartRun(w.ctx(), req))
	}
	large := strings.Repeat("x", 10<<10)
	wantKind(t, start(caisson.RunRequest{Directory: w.project(map[string]string{"a": large})}), caisson.Exhausted)
	wantKind(t, start(caisson.RunRequest{Workspace: archive(t, map[string]string{"a": large})}), caisson.Exhausted)
	own := w.lconf.Dir
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(own, link))
	for _, dir := range []string{own, filepath.Dir(own), "/", filepath.Join(own, "runs"), filepath.Join(own, "sandboxes"), link} {
		if err := start(caisson.RunRequest{Directory: got(os.Open(dir))(t)}); caisson.KindOf(err) != caisson.Invalid || !strings.Contains(err.Error(), "own data") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if n := w.dirs(); n != 0 {
		t.Errorf("there are directories of %d runs", n)
	}
	must(t, start(caisson.RunRequest{Directory: w.project(nil)}))

	// A directory that was opened in another mount namespace can only be copied.
	w.config.Work.Workspaces = places{}
	w.restart()
	dir := t.TempDir()
	err := start(caisson.RunRequest{Directory: hostdirtest.Open(t, dir, true)})
	if wantKind(t, err, caisson.Invalid); !strings.Contains(err.Error(), "another mount namespace") || !strings.Contains(err.Error(), "--workspace-kind copy") {
		t.Errorf("a directory that was opened elsewhere: %v", err)
	}
	must(t, start(caisson.RunRequest{Directory: hostdirtest.Open(t, dir, true), Kind: caisson.WorkspaceCopy}))
}
