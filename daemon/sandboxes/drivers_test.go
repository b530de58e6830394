package sandboxes_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

// wires records which sandboxes are attached.
type wires struct {
	netns      string // the file that represents network namespaces
	mu         sync.Mutex
	attached   map[caisson.ID]caisson.WireSpec // guarded by mu
	reattached []caisson.ID                    // guarded by mu
	configured int                             // number of calls; guarded by mu
	fail       error                           // of the next attach, reattach or configure; guarded by mu
}

var _ caisson.Wires = (*wires)(nil)

func (w *wires) failNext(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = err
}

// take returns and clears the fault. The caller must hold mu.
func (w *wires) take() error {
	err := w.fail
	w.fail = nil
	return err
}

func (w *wires) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(ctx.Err(), w.take()); err != nil {
		return nil, err
	}
	w.attached[id] = spec
	return os.Open(w.netns)
}

func (w *wires) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.take(); err != nil {
		return err
	}
	w.reattached = append(w.reattached, id)
	w.attached[id] = spec
	return nil
}

func (w *wires) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.attached[id]; !ok {
		return caisson.Errorf(caisson.NotFound, "%s has no wire", id)
	}
	w.configured++
	if err := w.take(); err != nil {
		return err
	}
	w.attached[id] = spec
	return nil
}

// configurations returns how often existing wires were configured.
func (w *wires) configurations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.configured
}

// spec returns the current spec of a sandbox's wire.
func (w *wires) spec(id caisson.ID) caisson.WireSpec {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attached[id]
}

func (w *wires) Detach(ctx context.Context, id caisson.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attached, id)
	return nil
}

// forget drops all wires, as the end of a daemon does.
func (w *wires) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.attached)
}

func (w *wires) list() (ids []caisson.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.attached {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// faultyStore is a store whose next write can fail.
type faultyStore struct {
	caisson.Store

	mu    sync.Mutex
	fault func(op string) error // guarded by mu
}

// call makes the next write with the name op (insert, inserted, update, delete) call f before it; inserted is called
// after an insert.
func (s *faultyStore) call(op string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(did string) error {
		if did == op && f != nil {
			f()
			f = nil
		}
		return nil
	}
}

// failOn makes the nth next write of sandboxes and snapshots with the name op (insert, update, delete) fail.
func (s *faultyStore) failOn(op string, nth int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = func(did string) error {
		if did == op {
			nth--
		}
		if nth == 0 && did == op {
			nth--
			return errInjected
		}
		return nil
	}
}

func (s *faultyStore) check(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return nil
	}
	return s.fault(op)
}

func (s *faultyStore) Sandboxes() caisson.Table[caisson.Sandbox] {
	return faultyTable[caisson.Sandbox]{s.Store.Sandboxes(), s}
}

func (s *faultyStore) Snapshots() caisson.Table[caisson.Snapshot] {
	return faultyTable[caisson.Snapshot]{s.Store.Snapshots(), s}
}

type faultyTable[T any] struct {
	caisson.Table[T]
	s *faultyStore
}

func (f faultyTable[T]) Insert(ctx context.Context, obj *T) error {
	if err := f.s.check("insert"); err != nil {
		return err
	}
	if err := f.Table.Insert(ctx, obj); err != nil {
		return err
	}
	return f.s.check("inserted")
}

func (f faultyTable[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	if err := f.s.check("update"); err != nil {
		return nil, err
	}
	return f.Table.Update(ctx, in, ref, change)
}

func (f faultyTable[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	if err := f.s.check("delete"); err != nil {
		return err
	}
	return f.Table.Delete(ctx, in, ref)
}
