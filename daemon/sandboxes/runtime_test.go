package sandboxes_test

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// testRuntime is the fake runtime, extended by leftovers of sandboxes on the host that the fake does not have.
type testRuntime struct {
	*fake.Runtime

	mu      sync.Mutex
	remains []caisson.ID                       // guarded by mu
	cpu     string                             // guarded by mu
	specs   map[caisson.ID]caisson.RuntimeSpec // specs of restored sandboxes; guarded by mu
	restore func()                             // called before each restore; may be nil
	filled  func(context.Context)              // returns when a restored sandbox has its memory; nil: at once
	shared  []string                           // reported by every restored sandbox
	writers func() (*caisson.Writers, error)   // of any running sandbox; nil: not recorded; guarded by mu
}

// Writers makes the fake a [caisson.WriterRecorder].
func (r *testRuntime) Writers(ctx context.Context, id caisson.ID, target string) (*caisson.Writers, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.Done(id):
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has ended", id)
	default:
	}
	if r.writers == nil || target != "/workspace" {
		return nil, caisson.Errorf(caisson.NotFound, "there is no workspace at %s", target)
	}
	return r.writers()
}

// SharedRandomness makes the fake a [caisson.RandomnessReporter].
func (r *testRuntime) SharedRandomness(_ context.Context, id caisson.ID) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.Done(id):
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has ended", id)
	default:
	}
	return r.shared, nil
}

// wrote sets these processes of sandboxes as the last writers of these paths, for sandboxes that run from now on.
func (r *testRuntime) wrote(err error, by map[string]int) {
	all := &caisson.Writers{Dropped: 1}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all.List = append(all.List, caisson.Writer{Path: name, PID: by[name], Command: "x"})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writers = func() (*caisson.Writers, error) { return all, err }
}

func (r *testRuntime) Restore(ctx context.Context, id caisson.ID, spec caisson.RuntimeSpec, dir string) error {
	if r.restore != nil {
		r.restore()
	}
	r.mu.Lock()
	if r.specs == nil {
		r.specs = map[caisson.ID]caisson.RuntimeSpec{}
	}
	r.specs[id] = spec
	r.mu.Unlock()
	return r.Runtime.Restore(ctx, id, spec, dir)
}

func (r *testRuntime) WaitForMemory(ctx context.Context, id caisson.ID) error {
	if r.filled != nil {
		r.filled(ctx)
	}
	return nil
}

// restored returns the spec that a sandbox was restored with.
func (r *testRuntime) restored(id caisson.ID) caisson.RuntimeSpec {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.specs[id]
}

func (r *testRuntime) Remains() ([]caisson.ID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.remains), nil
}

func (r *testRuntime) Destroy(ctx context.Context, id caisson.ID) error {
	r.mu.Lock()
	r.remains = slices.DeleteFunc(r.remains, func(x caisson.ID) bool { return x == id })
	r.mu.Unlock()
	return r.Runtime.Destroy(ctx, id)
}

func (r *testRuntime) Capabilities() caisson.Capabilities {
	r.mu.Lock()
	defer r.mu.Unlock()
	caps := r.Runtime.Capabilities()
	caps.CPU += r.cpu
	return caps
}
