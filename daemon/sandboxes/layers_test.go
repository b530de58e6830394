package sandboxes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// layers is a complete implementation of workspaces, without the security measures.
type layers struct {
	t   *testing.T
	dir string
	w   *world

	mu     sync.Mutex
	spaces map[caisson.ID]*space // guarded by mu
	fail   map[string]error      // by name of the method; for one call; guarded by mu
	// leaving is called when a sandbox is removed; may be nil.
	leaving func(sandbox caisson.ID)
}

// space is the observable state of a workspace.
type space struct {
	sandbox                caisson.ID
	req                    caisson.WorkspaceRequest
	host                   string
	opened, left, captured int
}

var _ caisson.WorkspaceLayers = (*layers)(nil)

// withLayers returns a world that has workspaces.
func withLayers(t *testing.T) (*world, *layers) {
	t.Helper()
	w := plan{wires: true}.world(t)
	l := &layers{t: t, dir: t.TempDir(), w: w, spaces: map[caisson.ID]*space{}, fail: map[string]error{}}
	must(t, w.Close())
	w.config.Workspaces = l
	w.boot()
	return w, l
}

// failNext makes the next call of a method fail.
func (l *layers) failNext(method string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail[method] = errInjected
}

// fault returns the error that a call must return. The caller must hold l.mu.
func (l *layers) fault(method string) error {
	err := l.fail[method]
	delete(l.fail, method)
	return err
}

// get returns the current state of a workspace.
func (l *layers) get(id caisson.ID) space {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.spaces[id]
	if s == nil {
		l.t.Fatalf("there is no workspace %q", id)
	}
	return *s
}

// settled fails the test unless every workspace has been left exactly once.
func (l *layers) settled() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, s := range l.spaces {
		if s.left != 1 {
			l.t.Errorf("workspace %s was left %d times", id, s.left)
		}
	}
}

func (l *layers) path(id caisson.ID, name string) string {
	return filepath.Join(l.dir, string(id), name)
}

func (l *layers) Create(ctx context.Context, sb *caisson.Sandbox, req caisson.WorkspaceRequest) (*caisson.Workspace, error) {
	defer req.Directory.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault("lay"); err != nil {
		return nil, err
	}
	if !slices.Contains(l.w.dirs(), "sandboxes/"+string(sb.ID)) || slices.Contains(l.w.running(), sb.ID) {
		return nil, fmt.Errorf("%s is not a sandbox that is about to start", sb.ID)
	}
	host, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", req.Directory.Fd()))
	if err != nil {
		return nil, err
	}
	id := caisson.NewID(caisson.WorkspacePrefix)
	for _, name := range []string{"upper", "work"} {
		if err := os.MkdirAll(l.path(id, name), 0o755); err != nil {
			return nil, err
		}
	}
	l.spaces[id] = &space{sandbox: sb.ID, req: req, host: host}
	return &caisson.Workspace{ID: id, Sandbox: sb.ID, Target: req.Target}, nil
}

func (l *layers) Open(ctx context.Context, id caisson.ID) (m caisson.RuntimeMount, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault("open"); err != nil {
		return m, err
	}
	s := l.spaces[id]
	s.opened++
	m = caisson.RuntimeMount{Target: s.req.Target, Overlay: &caisson.RuntimeOverlay{Root: true}}
	for path, f := range map[string]**os.File{s.host: &m.Source, l.path(id, "upper"): &m.Overlay.Upper, l.path(id, "work"): &m.Overlay.Work} {
		if *f, err = os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (l *layers) OpenUpper(id caisson.ID) (*os.File, error) { return os.Open(l.path(id, "upper")) }

// Capture requires the sandbox to be frozen.
func (l *layers) Capture(ctx context.Context, id caisson.ID, dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault("capture"); err != nil {
		return err
	}
	s := l.spaces[id]
	s.captured++
	if slices.Contains(l.w.running(), s.sandbox) {
		if err := l.w.runtime.Freeze(ctx, s.sandbox); caisson.KindOf(err) != caisson.Conflict {
			return fmt.Errorf("the sandbox does not stand still: %v", err)
		}
	}
	return os.CopyFS(filepath.Join(dir, "upper"), os.DirFS(l.path(id, "upper")))
}

func (l *layers) Detach(ctx context.Context, id caisson.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault("leave"); err != nil {
		return err
	}
	if slices.Contains(l.w.running(), l.spaces[id].sandbox) {
		return fmt.Errorf("%s still runs", l.spaces[id].sandbox)
	}
	if l.leaving != nil {
		l.leaving(l.spaces[id].sandbox)
	}
	l.spaces[id].left++
	return nil
}

// project creates a host directory with files of these names.
func project(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name+" of the host"), 0o644))
	}
	return dir
}

// asking returns a request for a workspace, and its descriptor.
func asking(t *testing.T, dir string) (*caisson.WorkspaceRequest, *handle) {
	t.Helper()
	h := &handle{File: got(os.Open(dir))(t)}
	return &caisson.WorkspaceRequest{Source: "project", Directory: h}, h
}
