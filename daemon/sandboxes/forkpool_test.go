package sandboxes_test

import (
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sandboxes"
)

// fork forks the snapshot "snap" once.
func (w *world) fork(req caisson.ForkRequest) *caisson.Sandbox {
	w.t.Helper()
	return got(w.Snapshots().Fork(w.ctx(), "snap", req))(w.t)[0]
}

func TestForkPool(t *testing.T) {
	t.Parallel()
	w := plan{wires: true, limits: sandboxes.Limits{MaxSandboxes: 100}}.world(t)
	w.create(caisson.CreateRequest{Name: "parent", Command: command("counter", "/count"), TTL: ptr(caisson.Duration(time.Hour))})
	w.write("parent", "/root/a", "parent's")
	got(w.Snapshots().Snapshot(w.ctx(), "parent", caisson.SnapshotRequest{Name: "snap"}))(t)
	wantKind(t, w.Snapshots().SetPool(w.ctx(), "snap", 65), caisson.Invalid)
	wantKind(t, w.Snapshots().SetPool(w.as("other"), "snap", 1), caisson.NotFound)
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 2))
	ready := w.filled(2)
	for _, id := range ready {
		if sb := got(w.Sandboxes().Get(w.ctx(), string(id)))(t); sb.PauseAt != nil || sb.Name != "" || len(sb.Labels) > 0 {
			t.Errorf("in the pool is %+v", sb)
		}
	}

	before := time.Now()
	sb := w.fork(caisson.ForkRequest{Name: "mine", Labels: map[string]string{"a": "b"}, Policy: &caisson.Policy{}})
	if !slices.Contains(ready, sb.ID) || sb.Pooled || sb.Name != "mine" || sb.Labels["a"] != "b" || sb.CreatedAt.Before(before) || sb.PauseAt == nil {
		t.Errorf("claimed %+v, ready were %v", sb, ready)
	}
	if s := w.read("mine", "/root/a"); s != "parent's" {
		t.Errorf("the file in it is %q", s)
	}
	w.counts(sb.ID, 1)
	if types := w.events(string(sb.ID)); !slices.Contains(types, "sandbox.claimed") {
		t.Errorf("events %v", types)
	}
	if again := w.filled(2); slices.Contains(again, sb.ID) {
		t.Error("what was claimed is in the pool")
	}

	for name, req := range map[string]caisson.ForkRequest{
		"several":    {Count: 2},
		"randomness": {KeepRandomness: true},
		"memory":     {Resources: caisson.Resources{Memory: 4 << 30}},
	} {
		ready := w.filled(2)
		if sb := w.fork(req); slices.Contains(ready, sb.ID) {
			t.Errorf("%s: came from the pool", name)
		}
	}

	ready = w.filled(2)
	w.restart()
	if now := w.filled(2); !slices.Equal(now, ready) {
		t.Errorf("after a restart the pool has %v, had %v", now, ready)
	}
	must(t, w.runtime.Kill(ready[0]))
	waitFor(t, func() bool { s := w.state(ready[0]); return s == caisson.Failed || s == "" })
	if sb := w.fork(caisson.ForkRequest{}); sb.ID == ready[0] {
		t.Error("a fork that has died was handed out")
	}
	w.filled(2)
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 1))
	w.filled(1)
	must(t, w.Snapshots().RemoveSnapshot(w.ctx(), "snap"))
	w.filled(0)
	if w.wantState(sb.ID, caisson.Running); w.read("mine", "/root/a") != "parent's" {
		t.Error("the claimed fork has lost its file")
	}
}

// TestForkPoolBurst: concurrent forks get different sandboxes, from the pool or not.
func TestForkPoolBurst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(caisson.CreateRequest{Name: "parent"})
	got(w.Snapshots().Snapshot(w.ctx(), "parent", caisson.SnapshotRequest{Name: "snap"}))(t)
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 3))
	w.filled(3)
	var mu sync.Mutex
	seen := map[caisson.ID]bool{}
	var wg sync.WaitGroup
	for range 9 {
		wg.Go(func() {
			list, err := w.Snapshots().Fork(w.ctx(), "snap", caisson.ForkRequest{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || len(list) != 1 || list[0].Pooled || seen[list[0].ID] {
				t.Errorf("forked %+v, %v", list, err)
				return
			}
			seen[list[0].ID] = true
		})
	}
	wg.Wait()
	for _, id := range w.filled(3) {
		if seen[id] {
			t.Errorf("%s is claimed and pooled", id)
		}
	}
}

// TestForkPoolLimits: a pool gets only memory that other sandboxes leave, and is evicted to make room for them.
func TestForkPoolLimits(t *testing.T) {
	t.Parallel()
	var available atomic.Int64
	available.Store(1 << 40)
	w := plan{limits: sandboxes.Limits{MemoryReserve: reserve, MaxSandboxes: 5}}.world(t)
	must(t, w.Close())
	w.config.Host.Available = func() (caisson.Size, error) { return caisson.Size(available.Load()), nil }
	w.boot()
	parent := w.create(caisson.CreateRequest{Name: "parent"})
	snap := got(w.Snapshots().Snapshot(w.ctx(), "parent", caisson.SnapshotRequest{Name: "snap"}))(t)
	need := pages(t, filepath.Join(w.dir, "snapshots", string(snap.ID)))

	// Sandboxes that are asked for take the place of those in the pool.
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 2))
	w.filled(2)
	for range 4 {
		w.create(caisson.CreateRequest{})
	}
	w.filled(0)
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{})
	wantKind(t, err, caisson.Exhausted)
	for _, id := range w.running() {
		if id != parent.ID {
			must(t, w.Sandboxes().Remove(w.ctx(), string(id)))
		}
	}

	// With less than twice the reserve, no fork is made in advance; with less than the reserve, existing ones are evicted.
	available.Store(2*reserve + int64(need) - 1)
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 1))
	sb := w.fork(caisson.ForkRequest{})
	must(t, w.Sandboxes().Remove(w.ctx(), string(sb.ID)))
	w.filled(0)
	available.Store(1 << 40)
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 1))
	w.filled(1)
	available.Store(reserve - 1)
	w.filled(0)
	available.Store(1 << 40)

	// All pools together have a share of the memory.
	must(t, w.Close())
	w.config.Limits.PoolMemory = 2*need + need/2
	w.boot()
	must(t, w.Snapshots().SetPool(w.ctx(), "snap", 3))
	w.filled(2)
}
