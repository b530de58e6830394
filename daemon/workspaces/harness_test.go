package workspaces_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/worker"
)

// hostUID is the owner of the host directories of these tests.
const hostUID = 4321

// world is a core on a real store, with real worker jobs.
type world struct {
	t     *testing.T
	data  string
	store caisson.Store
	jobs  worker.Starter
	core  *workspaces.Core
	gate  *workspaces.Service
	base  int // the account's first uid
	every time.Duration
	// search is the delay before files are searched for secrets: by default longer than a test.
	search time.Duration

	checks []workspaces.Command
	boxes  *boxes

	mu      sync.Mutex
	running map[caisson.ID]bool
	writers func(sandbox caisson.ID) (*caisson.Writers, error) // nil: not recorded; guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, data: t.TempDir(), running: map[caisson.ID]bool{}, search: time.Hour}
	w.jobs = workertest.Runner(t)
	w.store = sqlitetest.New(t)
	account, err := w.store.Accounts().Ensure(t.Context(), "local")
	w.must(err)
	w.base = int(account.UIDBase)
	w.open()
	return w
}

// starter is a worker.Starter that is a function.
type starter func(ctx context.Context, req worker.Request, reply any) error

func (s starter) Run(ctx context.Context, req worker.Request, reply any) error {
	return s(ctx, req, reply)
}

// open constructs a core, as a daemon does when it starts.
func (w *world) open() {
	w.t.Helper()
	core, err := workspaces.New(workspaces.Config{
		Dir: w.data, Store: w.store, Jobs: w.jobs,
		Events:     events.New(w.store.Events(), nil),
		UsesLayers: func(_ context.Context, id caisson.ID) (bool, error) { return w.running[id], nil },
		Settings:   workspaces.Settings{Commands: w.checks}, ApplyInterval: w.every, SearchAfter: w.search,
	})
	w.must(err)
	core.SetSandboxes(workspaces.Sandboxes{Lifecycle: attached{w.boxes, w}, Exec: w.boxes.Exec})
	w.core, w.gate = core, core.Workspaces()
	w.t.Cleanup(func() { core.Close() })
}

// attached are the sandboxes of a world.
type attached struct {
	*boxes
	w *world
}

func (a attached) Writers(_ context.Context, id caisson.ID) (*caisson.Writers, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.w.writers == nil {
		return nil, nil
	}
	return a.w.writers(id)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wants fails the test unless err is of that kind, and contains the text.
func (w *world) wants(err error, kind caisson.Kind, text string) {
	w.t.Helper()
	if err == nil {
		w.t.Fatalf("no error, want %s", kind)
	}
	if _, ok := errors.AsType[*caisson.Error](err); !ok || caisson.KindOf(err) != kind || !strings.Contains(caisson.MessageOf(err), text) {
		w.t.Fatalf("%s error %v, want %s with %q", caisson.KindOf(err), err, kind, text)
	}
}

// ctx returns the context of a request over the unix socket.
func (w *world) ctx() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: "local", Local: true})
}

// token returns the context of a request over TCP.
func (w *world) token() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: "local", Token: "tk-1"})
}

// tree creates a host directory with these files; names that end in a slash are directories, and content that begins
// with -> is the target of a symlink.
func (w *world) tree(files map[string]string) string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "project")
	w.must(os.Mkdir(dir, 0o755))
	put(w.t, dir, files)
	w.own(dir, hostUID)
	return dir
}

func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		link, isLink := strings.CutPrefix(content, "->")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o755)
		case isLink:
			err = os.Symlink(link, p)
		default:
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) own(dir string, uid int) {
	w.t.Helper()
	w.must(filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		if err := os.Lchown(p, uid, uid); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return err
		}
		return unix.Chmod(p, st.Mode&0o7777)
	}))
}

// have returns the contents of a directory, in the format of tree, including empty directories and files of Caisson.
func have(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			if list, err := os.ReadDir(p); err == nil && len(list) == 0 {
				got[name+"/"] = ""
			}
		case d.Type() == fs.ModeSymlink:
			link, _ := os.Readlink(p)
			got[name] = "->" + link
		case d.Type().IsRegular():
			data, _ := os.ReadFile(p)
			got[name] = string(data)
		default:
			got[name] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func handle(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// lay creates a sandbox with a workspace of dir.
func (w *world) lay(dir string, change ...func(*caisson.WorkspaceRequest)) *caisson.Workspace {
	w.t.Helper()
	sb := w.sandbox()
	req := caisson.WorkspaceRequest{Source: dir, Directory: handle(w.t, dir)}
	for _, c := range change {
		c(&req)
	}
	ws, err := w.core.Layers().Create(w.ctx(), sb, req)
	w.must(err)
	return ws
}

func (w *world) sandbox() *caisson.Sandbox {
	w.t.Helper()
	sb := &caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: "local", State: caisson.Running,
		Assigned: &caisson.Assignment{Run: caisson.NewID(caisson.RunPrefix), Agent: "shell"},
	}
	w.must(w.store.Sandboxes().Insert(w.t.Context(), sb))
	return sb
}

// inside calls do with the workspace as the sandbox sees it: on a kernel overlay of the layers, mounted as by runtimes.
// (Runtimes also map owners; here, written files are given to the guest's root afterwards.)
func (w *world) inside(ws *caisson.Workspace, do func(dir string)) {
	w.t.Helper()
	m, err := w.core.Layers().Open(w.ctx(), ws.ID)
	w.must(err)
	defer m.Source.Close()
	if m.Overlay == nil {
		do(ws.HostPath)
		return
	}
	o := m.Overlay
	defer o.Upper.Close()
	defer o.Work.Close()
	defer o.Mask.Close()
	dir := w.t.TempDir()
	options := "redirect_dir=off,metacopy=off,index=off,nfs_export=off,lowerdir=" + o.Mask.Name() + ":" + m.Source.Name() +
		",upperdir=" + o.Upper.Name() + ",workdir=" + o.Work.Name()
	w.must(unix.Mount("caisson-test", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))
	defer func() {
		// A job that is starting has the descriptors open for a moment.
		poll.Until(w.t, patience, func() bool { return unix.Unmount(dir, 0) == nil })
		w.own(o.Upper.Name(), w.base)
	}()
	do(dir)
}

// edit writes files in the workspace.
func (w *world) edit(ws *caisson.Workspace, files map[string]string) {
	w.t.Helper()
	w.inside(ws, func(dir string) { put(w.t, dir, files) })
}

// review returns a review of all changes, which is kept.
func (w *world) review(ws *caisson.Workspace) *caisson.Diff {
	w.t.Helper()
	d, err := w.gate.Diff(w.ctx(), string(ws.ID), caisson.DiffRequest{Freeze: true})
	w.must(err)
	return d
}

// changes returns the paths, kinds and verdicts in a diff.
func changes(d *caisson.Diff) []string {
	var list []string
	for _, c := range d.Changes {
		s := c.Kind + " " + c.Path
		if c.OldPath != "" {
			s = c.Kind + " " + c.OldPath + " " + c.Path
		}
		if c.Verdict != caisson.VerdictPass {
			s += " " + c.Verdict
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

func (w *world) shows(ws *caisson.Workspace, want ...string) *caisson.Diff {
	w.t.Helper()
	d := w.review(ws)
	if got := changes(d); !slices.Equal(got, want) {
		w.t.Fatalf("the diff shows %q, want %q", got, want)
	}
	return d
}

// pick returns the request that applies changes of a diff; without paths, all of them.
func pick(t *testing.T, d *caisson.Diff, paths ...string) caisson.SyncRequest {
	t.Helper()
	req := caisson.SyncRequest{Review: d.Review}
	for _, c := range d.Changes {
		if len(paths) == 0 || slices.Contains(paths, c.Path) {
			req.Apply = append(req.Apply, caisson.Selection{Path: c.Path, Hash: c.Hash})
		}
	}
	return req
}

func (w *world) sync(ws *caisson.Workspace, req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
	w.t.Helper()
	req.Directory = handle(w.t, ws.HostPath)
	return w.gate.Sync(w.ctx(), string(ws.ID), req)
}

func (w *world) get(ws *caisson.Workspace) *caisson.Workspace {
	w.t.Helper()
	got, err := w.gate.GetWorkspace(w.ctx(), string(ws.ID))
	w.must(err)
	return got
}

// saw returns the events of a type.
func (w *world) saw(kind string) (list []caisson.Event) {
	all, err := w.store.Events().After(context.Background(), caisson.AllAccounts(), "", 0, 1000)
	w.must(err)
	for _, e := range all {
		if e.Type == kind {
			list = append(list, e)
		}
	}
	return list
}

// wantFiles fails the test unless dir contains exactly these files, all of which belong to the host's user.
func (w *world) wantFiles(dir string, want map[string]string) {
	w.t.Helper()
	got := have(w.t, dir)
	for name := range got {
		if _, ok := want[name]; !ok {
			w.t.Errorf("%s is there: %q", name, got[name])
		}
	}
	for name, content := range want {
		if g, ok := got[name]; !ok || g != content {
			w.t.Errorf("%s is %q (%v), want %q", name, g, ok, content)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err == nil && st.Uid != hostUID {
			w.t.Errorf("%s belongs to %d", name, st.Uid)
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

const patience = time.Minute

// autoApply does the periodic work of every Config.ApplyInterval until done returns true. A workspace with work in progress in
// the background, such as saving the base of a new one, is skipped until the next time.
func (w *world) autoApply(done func() bool) {
	w.t.Helper()
	poll.Until(w.t, patience, func() bool {
		w.core.ApplyAll(w.t.Context())
		return done()
	})
}
