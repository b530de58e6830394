package runs_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runs"
)

// project makes a directory with files; a name that ends in "@" is a symlink.
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

// read returns what a file in the agent's sandbox has, or the error.
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

// look is an agent that answers with the content of what its prompt names.
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
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	must(t, tw.WriteHeader(&tar.Header{Name: "up.txt", Mode: 0o644, Size: 2}))
	got(tw.Write([]byte("UP")))(t)
	must(t, tw.Close())
	wantAnswer(t, w.do(caisson.RunRequest{Prompt: "look /workspace/up.txt", Workspace: &b}), "/workspace/up.txt: UP\n")
	r := w.do(caisson.RunRequest{Prompt: "look x", Workspace: strings.NewReader("this is no archive, and says so at some length")})
	if r.State != caisson.RunFailed || r.Result.Error.Code == caisson.RunInternal {
		t.Errorf("what is no archive: %s, %v", r.State, r.Result.Error)
	}
}

// TestWorkspaceRefused: what is too large, or Caisson's own, does not come in, and leaves nothing.
func TestWorkspaceRefused(t *testing.T) {
	t.Parallel()
	w := plan{limits: runs.Limits{Workspace: 8 << 10}}.world(t)
	start := func(req caisson.RunRequest) error {
		req.Agent, req.Prompt, req.Source = "echo", "x", "p"
		return second(w.Runs().StartRun(w.ctx(), req))
	}
	large := strings.Repeat("x", 10<<10)
	wantKind(t, start(caisson.RunRequest{Directory: w.project(map[string]string{"a": large})}), caisson.Exhausted)
	wantKind(t, start(caisson.RunRequest{Workspace: strings.NewReader(large)}), caisson.Exhausted)
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
}
