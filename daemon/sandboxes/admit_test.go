package sandboxes_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// reserve is the memory reserve of the tests' host.
const reserve = 1 << 30

// hostWith returns a world whose host has the given available memory in addition to the reserve.
func hostWith(t *testing.T, available func() caisson.Size) *world {
	w := plan{limits: sandboxes.Limits{MemoryReserve: reserve}}.world(t)
	must(t, w.Close())
	w.config.Host.Available = func() (caisson.Size, error) { return reserve + available(), nil }
	w.boot()
	return w
}

// pages returns the size of the memory in a checkpoint of the fake runtime.
func pages(t *testing.T, dir string) caisson.Size {
	t.Helper()
	var n int64
	for _, name := range []string{"memory.json", "depends.json"} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, name), &st))
		n += st.Blocks * 512
	}
	return caisson.Size(n)
}

// TestAdmissionOfRestores: concurrent forks and resumes together get no more memory than the host has.
func TestAdmissionOfRestores(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	available := caisson.Size(1 << 40)
	w := hostWith(t, func() caisson.Size { mu.Lock(); defer mu.Unlock(); return available })
	sb := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	need := pages(t, filepath.Join(w.dir, "snapshots", string(snap.ID)))
	const fit, all = 3, 10
	mu.Lock()
	available = fit*need + need/2
	mu.Unlock()

	// Every restore waits until the admission of each fork is decided.
	var decided sync.WaitGroup
	decided.Add(all)
	w.runtime.restore = func() { decided.Done(); decided.Wait() }
	var wg sync.WaitGroup
	var forks []caisson.ID
	for range all {
		wg.Go(func() {
			list, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{})
			if err != nil {
				wantKind(t, err, caisson.Exhausted)
				decided.Done()
				return
			}
			mu.Lock()
			defer mu.Unlock()
			forks = append(forks, list[0].ID)
		})
	}
	wg.Wait()
	if len(forks) != fit {
		t.Errorf("%d forks of %d were let in, want %d", len(forks), all, fit)
	}
	w.runtime.restore = nil
	w.holds(append(forks, sb.ID)...)

	// The forks run, and their reserved memory is in use now. A new sandbox needs no memory from the start.
	mu.Lock()
	available = need
	mu.Unlock()
	waitFor(t, func() bool {
		_, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{})
		return err == nil
	})
	got(w.Sandboxes().Pause(w.ctx(), string(forks[0])))(t)
	mu.Lock()
	available = need - 1
	mu.Unlock()
	_, err := w.Sandboxes().Resume(w.ctx(), string(forks[0]))
	wantKind(t, err, caisson.Exhausted)
	w.wantState(forks[0], caisson.Paused)
	w.create(caisson.CreateRequest{})
	mu.Lock()
	available = need
	mu.Unlock()
	waitFor(t, func() bool {
		_, err := w.Sandboxes().Resume(w.ctx(), string(forks[0]))
		return err == nil
	})
}

// TestAdmissionWhileFilling: memory stays reserved for a running sandbox while it is still being read.
func TestAdmissionWhileFilling(t *testing.T) {
	t.Parallel()
	var available atomic.Int64
	available.Store(1 << 40)
	w := hostWith(t, func() caisson.Size { return caisson.Size(available.Load()) })
	sb := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	available.Store(int64(pages(t, filepath.Join(w.dir, "snapshots", string(snap.ID)))))
	read := make(chan struct{})
	w.runtime.filled = func(ctx context.Context) {
		select {
		case <-read:
		case <-ctx.Done():
		}
	}
	fork := func() error {
		_, err := w.Snapshots().Fork(w.ctx(), string(snap.ID), caisson.ForkRequest{})
		return err
	}
	must(t, fork())
	wantKind(t, fork(), caisson.Exhausted)
	close(read)
	waitFor(t, func() bool { return fork() == nil })
	// A restore that fails reserves nothing.
	must(t, os.RemoveAll(filepath.Join(w.dir, "snapshots", string(snap.ID), "memory.json")))
	for range 3 {
		waitFor(t, func() bool { // the reservation of the previous fork ends in the background
			err := fork()
			if err == nil {
				t.Fatal("a damaged snapshot was forked")
			}
			return caisson.KindOf(err) != caisson.Exhausted
		})
	}
}
