package sandboxes_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/sandboxes"
)

// reserve is what the tests' host keeps.
const reserve = 1 << 30

// host returns a world on a host that has available memory besides its reserve.
func hostWith(t *testing.T, available func() caisson.Size) *world {
	w := plan{limits: sandboxes.Limits{MemoryReserve: reserve}}.world(t)
	must(t, w.Close())
	w.config.Available = func() (caisson.Size, error) { return reserve + available(), nil }
	w.boot()
	return w
}

// pages is the size of the memory in a checkpoint of the fake's.
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

// TestAdmissionOfRestores: forks and resumes that happen at once get no more memory together than the host has.
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

	// Every restore waits until it is clear for each fork whether it may.
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

	// They run, and what they took is no longer promised but gone. What a new sandbox needs from the start is nothing.
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

// TestAdmissionWhileFilling: a sandbox that runs and whose memory is still being read has it promised.
func TestAdmissionWhileFilling(t *testing.T) {
	t.Parallel()
	available := caisson.Size(1 << 40)
	w := hostWith(t, func() caisson.Size { return available })
	sb := w.create(caisson.CreateRequest{})
	snap := got(w.Snapshots().Snapshot(w.ctx(), string(sb.ID), caisson.SnapshotRequest{}))(t)
	available = pages(t, filepath.Join(w.dir, "snapshots", string(snap.ID)))
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
	// A restore that fails takes nothing.
	must(t, os.RemoveAll(filepath.Join(w.dir, "snapshots", string(snap.ID), "memory.json")))
	for range 3 {
		waitFor(t, func() bool { // what the fork before it was promised is given back in the background
			err := fork()
			if err == nil {
				t.Fatal("a damaged snapshot was forked")
			}
			return caisson.KindOf(err) != caisson.Exhausted
		})
	}
}
