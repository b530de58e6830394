package sandboxes_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/job/image/imagetest"
	"github.com/caisson-dev/caisson/runtime/fake"
	"github.com/caisson-dev/caisson/runtime/fake/guest"
)

// removeWait is the timeout after which an operation counts as hung.
const removeWait = time.Minute

// world is a core with all its dependencies, on a directory of the test.
type world struct {
	*sandboxes.Core
	t       *testing.T
	config  sandboxes.Config
	dir     string
	store   *faultyStore
	runtime *testRuntime
	images  *imagetest.Driver
	wires   *wires
	logs    *safeBuffer
	scope   leaktest.Scope
}

// plan contains the deviations of a world from the default.
type plan struct {
	limits   sandboxes.Limits
	wires    bool
	lacks    func() error
	programs map[string]func([]string) fake.Program
}

func newWorld(t *testing.T) *world { return plan{}.world(t) }

func (p plan) world(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), logs: &safeBuffer{}, scope: leaktest.Mark()}
	store := sqlitetest.New(t)
	w.store = &faultyStore{Store: store}
	programs := guest.Programs()
	programs["/.caisson/init"] = func([]string) fake.Program { return fake.Func(func(context.Context, *fake.Proc) int { return 0 }) }
	maps.Copy(programs, p.programs)
	rt, err := fake.New(fake.Config{Dir: t.TempDir(), Programs: programs})
	must(t, err)
	w.runtime = &testRuntime{Runtime: rt}
	w.images = imagetest.New(t.TempDir())
	w.config = sandboxes.Config{
		Dir: w.dir, Store: w.store, Runtime: sandboxes.RuntimeOf(w.runtime), Images: w.images,
		Host: sandboxes.HostConfig{Node: "here", CheckHost: p.lacks}, Programs: caisson.Programs{Current: "b1"}, Limits: p.limits,
		Log: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
	if p.wires {
		w.wires = &wires{netns: filepath.Join(t.TempDir(), "netns"), attached: map[caisson.ID]caisson.WireSpec{}}
		must(t, os.WriteFile(w.wires.netns, nil, 0o600))
		w.config.Network.Wires = w.wires
	}
	w.boot()
	t.Cleanup(func() {
		must(t, w.Close())
		w.leaked()
		list, err := rt.List(context.Background())
		must(t, err)
		for _, x := range list {
			must(t, rt.Destroy(context.Background(), x.ID))
		}
		must(t, store.Close())
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", w.logs)
		}
	})
	return w
}

// boot creates a core as a daemon does at its start, and returns the garbage that its reconciliation removed.
func (w *world) boot() []caisson.Garbage {
	w.t.Helper()
	if w.config.Events == nil {
		w.config.Events = events.New(w.store.Events(), w.config.Log)
	}
	core, err := sandboxes.New(w.config)
	must(w.t, err)
	w.Core = core
	garbage, err := core.Reconcile(w.t.Context(), func(caisson.ID) (*os.File, error) { return os.Open(os.DevNull) })
	must(w.t, err)
	return garbage
}

// restart stops the daemon and starts another one, on the same store and host.
func (w *world) restart() []caisson.Garbage {
	w.t.Helper()
	must(w.t, w.Close())
	w.leaked()
	w.runtime = &testRuntime{Runtime: w.runtime.Reopen(), remains: w.runtime.remains, cpu: w.runtime.cpu}
	w.config.Runtime = sandboxes.RuntimeOf(w.runtime)
	if w.wires != nil {
		w.wires.forget()
	}
	return w.boot()
}

// leaked fails the test if a goroutine of a closed core still exists.
func (w *world) leaked() {
	w.t.Helper()
	w.scope.Check(w.t, func(stack string) bool {
		return strings.Contains(stack, "daemon/sandboxes.(") && !strings.Contains(stack, "_test.")
	})
}

// ctx returns the context of a request of a local caller for the account local.
func (w *world) ctx() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: caisson.LocalAccount, Local: true})
}

// as returns the context of a request with a token of the account.
func (w *world) as(account string) context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: account, Token: "tk-aaaaaaaaaaaaaaaa"})
}

// ownWork returns the context of the daemon's background work, and hostWork that of work that the host's administrator
// has configured.
func (w *world) ownWork() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.DaemonCaller(caisson.LocalAccount, "test"))
}

func (w *world) hostWork() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.HostCaller(caisson.LocalAccount, "test"))
}

func (w *world) create(req caisson.CreateRequest) *caisson.Sandbox {
	w.t.Helper()
	return got(w.Sandboxes().Create(w.ctx(), req))(w.t)
}

// command returns the command of a program that exists in every sandbox of the tests.
func command(args ...string) []string { return append([]string{guest.Path, "test"}, args...) }

// counting creates a sandbox with a command that counts in memory and writes the number to /count.
func (w *world) counting() *caisson.Sandbox {
	w.t.Helper()
	sb := w.create(caisson.CreateRequest{Command: command("counter", "/count")})
	w.counts(sb.ID, 1)
	return sb
}

// counts waits until the counter of a sandbox is greater than least, and returns it.
func (w *world) counts(id caisson.ID, least int) (n int) {
	w.t.Helper()
	poll.Until(w.t, removeWait, func() bool {
		n = 0
		line, whole := strings.CutSuffix(w.read(string(id), "/count"), "\n")
		if !whole {
			return false // it was read during a write
		}
		for _, c := range line {
			n = n*10 + int(c-'0')
		}
		return n >= least
	})
	return n
}

// read returns the content of a file; "" if it cannot be read.
func (w *world) read(ref, path string) string {
	r, err := w.Files().ReadFile(w.ctx(), ref, path, 0, 0)
	if err != nil {
		return ""
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return ""
	}
	return string(b)
}

func (w *world) write(ref, path, content string) {
	w.t.Helper()
	got(w.Files().WriteFile(w.ctx(), ref, path, 0, strings.NewReader(content)))(w.t)
}

// run executes a test program and returns its output and exit status.
func (w *world) run(ref string, req caisson.ExecRequest) (string, caisson.ExitStatus) {
	w.t.Helper()
	p := got(w.Processes().Exec(w.ctx(), ref, req))(w.t)
	defer p.Close()
	out := got(io.ReadAll(p.Stdout()))(w.t)
	return string(out), got(p.Wait(w.ctx()))(w.t)
}

// state returns the stored state.
func (w *world) state(id caisson.ID) caisson.State {
	sb, err := w.store.Store.Sandboxes().Get(context.Background(), caisson.AllAccounts(), string(id))
	if err != nil {
		return ""
	}
	return sb.State
}

func (w *world) wantState(id caisson.ID, want caisson.State) {
	w.t.Helper()
	if s := w.state(id); s != want {
		w.t.Errorf("sandbox is %q, want %q", s, want)
	}
}

func (w *world) waitState(id caisson.ID, want caisson.State) *caisson.Sandbox {
	w.t.Helper()
	poll.Until(w.t, removeWait, func() bool { return w.state(id) == want })
	return got(w.store.Store.Sandboxes().Get(context.Background(), caisson.AllAccounts(), string(id)))(w.t)
}

// running returns the sandboxes that run in the runtime.
func (w *world) running() (ids []caisson.ID) {
	w.t.Helper()
	for _, r := range got(w.runtime.Runtime.List(context.Background()))(w.t) {
		if !r.Running {
			w.t.Errorf("the runtime has remains of %s", r.ID)
		}
		ids = append(ids, r.ID)
	}
	return ids
}

// holds checks that exactly the sandboxes ids run on the host, and that all directories of sandboxes and snapshots
// belong to objects in the store.
func (w *world) holds(ids ...caisson.ID) {
	w.t.Helper()
	have := w.running()
	slices.Sort(ids)
	if !slices.Equal(have, ids) {
		w.t.Errorf("the runtime runs %v, want %v", have, ids)
	}
	boxes, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	snaps, _, err := w.store.Store.Snapshots().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
	must(w.t, err)
	var rows []string
	for _, b := range boxes {
		rows = append(rows, "sandboxes/"+string(b.ID))
	}
	for _, s := range snaps {
		rows = append(rows, "snapshots/"+string(s.ID))
	}
	slices.Sort(rows)
	if dirs := w.dirs(); !slices.Equal(dirs, rows) {
		w.t.Errorf("directories are %v, the store has %v", dirs, rows)
	}
	if w.wires != nil {
		if at := w.wires.list(); !slices.Equal(at, ids) {
			w.t.Errorf("wires are attached to %v, want %v", at, ids)
		}
	}
}

// settles waits until background work has ended and the host has exactly the sandboxes ids, see holds.
func (w *world) settles(ids ...caisson.ID) {
	w.t.Helper()
	waitFor(w.t, func() bool {
		list, err := w.runtime.Runtime.List(context.Background())
		if err != nil || len(list) != len(ids) {
			return false
		}
		boxes, _, err := w.store.Store.Sandboxes().List(context.Background(), caisson.AllAccounts(), caisson.Filter{Limit: 1000})
		dirs, err2 := os.ReadDir(filepath.Join(w.dir, "sandboxes"))
		return err == nil && err2 == nil && len(dirs) == len(boxes)
	})
	w.holds(ids...)
}

func (w *world) dirs() (dirs []string) {
	w.t.Helper()
	for _, kind := range []string{"sandboxes", "snapshots"} {
		for _, e := range got(os.ReadDir(filepath.Join(w.dir, kind)))(w.t) {
			dirs = append(dirs, kind+"/"+e.Name())
		}
	}
	return dirs
}

// has reports whether the sandbox's directory has the file.
func (w *world) has(id caisson.ID, name string) bool {
	_, err := os.Lstat(filepath.Join(w.dir, "sandboxes", string(id), name))
	return err == nil
}

// events returns the types of the stored events about an object.
func (w *world) events(subject string) (types []string) {
	w.t.Helper()
	for _, e := range w.record(subject) {
		types = append(types, e.Type)
	}
	return types
}

func (w *world) record(subject string) []caisson.Event {
	w.t.Helper()
	return got(w.store.Store.Events().After(context.Background(), caisson.AllAccounts(), subject, 0, 1000))(w.t)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func got[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func wantKind(t testing.TB, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Errorf("error is %v (%s), want %s", err, caisson.KindOf(err), kind)
	}
}

func ptr[T any](v T) *T { return &v }

var errInjected = errors.New("injected")

// safeBuffer is a buffer that is safe for concurrent writes.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	poll.Until(t, removeWait, cond)
}

func splitLines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
