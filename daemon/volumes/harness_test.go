package volumes_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/daemon/volumes"
	"github.com/caisson-dev/caisson/internal/poll"
)

// patience is the time after which an operation counts as hung.
const patience = time.Minute

// world is a core with a real store.
type world struct {
	t       *testing.T
	dir     string
	store   *faulty
	core    *volumes.Core
	service *volumes.Service
	holds   *volumes.Attachments
	runs    func(context.Context, caisson.ID) (bool, error)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	s := sqlitetest.New(t)
	w.store = &faulty{Store: s}
	t.Cleanup(func() { must(t, errors.Join(w.core.Close(), s.Close())) })
	w.open()
	return w
}

// open constructs a core, as a daemon does when it starts.
func (w *world) open() {
	w.t.Helper()
	core, err := volumes.New(volumes.Config{
		Dir: w.dir, Store: w.store, HasProcesses: w.runs, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
		Events: events.New(w.store.Store.Events(), nil),
	})
	must(w.t, err)
	w.core, w.service, w.holds = core, core.Volumes(), core.Attachments()
	must(w.t, core.Reconcile(w.t.Context()))
}

// restart stops the daemon and starts another one.
func (w *world) restart() {
	w.t.Helper()
	must(w.t, w.core.Close())
	w.open()
}

// as returns the context of a request with a token of the account.
func (w *world) as(account string) context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: account, Token: "tk-aaaaaaaaaaaaaaaa"})
}

func (w *world) create(account, name string) *caisson.Volume {
	w.t.Helper()
	return got(w.service.CreateVolume(w.as(account), caisson.VolumeRequest{Name: name}))(w.t)
}

func (w *world) get(account, ref string) *caisson.Volume {
	w.t.Helper()
	return got(w.service.GetVolume(w.as(account), ref))(w.t)
}

// data returns a path in a volume.
func (w *world) data(v *caisson.Volume, name ...string) string {
	return filepath.Join(append([]string{w.dir, "volumes", string(v.ID), "data"}, name...)...)
}

// sandbox stores a sandbox with a volume, or without one.
func (w *world) sandbox(account string, v *caisson.Volume) caisson.ID {
	w.t.Helper()
	sb := &caisson.Sandbox{ID: caisson.NewID(caisson.SandboxPrefix), Account: account, State: caisson.Stopped}
	if v != nil {
		sb.Spec.Volume = &caisson.VolumeMount{ID: v.ID, Name: v.Name, Target: "/workspace"}
	}
	must(w.t, w.store.Sandboxes().Insert(w.t.Context(), sb))
	return sb.ID
}

// dirs waits until exactly the directories of these volumes exist.
func (w *world) dirs(want ...*caisson.Volume) {
	w.t.Helper()
	var names []string
	for _, v := range want {
		names = append(names, string(v.ID))
	}
	slices.Sort(names)
	poll.Until(w.t, patience, func() bool {
		list := got(os.ReadDir(filepath.Join(w.dir, "volumes")))(w.t)
		return slices.EqualFunc(list, names, func(e os.DirEntry, name string) bool { return e.Name() == name })
	})
}

// told returns the types of the events of a volume, with the sandbox's id if there is one.
func (w *world) told(v *caisson.Volume) (types []string) {
	for _, e := range got(w.store.Store.Events().After(context.Background(), caisson.AllAccounts(), string(v.ID), 0, 1000))(w.t) {
		if e.Account != v.Account || e.Data["name"] != v.Name {
			w.t.Errorf("the event is %+v", e)
		}
		types = append(types, strings.TrimSpace(e.Type+" "+e.Data["sandbox"]))
	}
	return types
}

// faulty is a store whose operations on volumes can fail.
type faulty struct {
	caisson.Store

	mu   sync.Mutex
	fail map[string]error // by operation, used once; guarded by mu
}

func (s *faulty) failNext(op string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		s.fail = map[string]error{}
	}
	s.fail[op] = err
}

func (s *faulty) fault(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.fail[op]
	delete(s.fail, op)
	return err
}

func (s *faulty) Volumes() caisson.Table[caisson.Volume] { return faultyTable{s.Store.Volumes(), s} }

type faultyTable struct {
	caisson.Table[caisson.Volume]
	s *faulty
}

func (f faultyTable) Insert(ctx context.Context, v *caisson.Volume) error {
	if err := f.s.fault("insert"); err != nil {
		return err
	}
	return f.Table.Insert(ctx, v)
}

func (f faultyTable) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	if err := f.s.fault("delete"); err != nil {
		return err
	}
	return f.Table.Delete(ctx, in, ref)
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

// wants fails the test unless err is of that kind and contains text.
func wants(t testing.TB, err error, kind caisson.Kind, text string) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind || !strings.Contains(caisson.MessageOf(err), text) {
		t.Fatalf("%s error %v, want %s with %q", caisson.KindOf(err), err, kind, text)
	}
}
