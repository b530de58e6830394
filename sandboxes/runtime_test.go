package sandboxes_test

import (
	"context"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

// testRuntime is the fake with what a host may still have of a sandbox that the fake knows nothing of.
type testRuntime struct {
	*fake.Runtime

	mu      sync.Mutex
	remains []caisson.ID                       // guarded by mu
	cpu     string                             // guarded by mu
	specs   map[caisson.ID]caisson.RuntimeSpec // of what was restored; guarded by mu
	restore func()                             // called before each restore; nil for nothing
	filled  func(context.Context)              // returns when a restored sandbox has its memory; nil: at once
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

func (r *testRuntime) Filled(ctx context.Context, id caisson.ID) error {
	if r.filled != nil {
		r.filled(ctx)
	}
	return nil
}

// restored returns what a sandbox was restored with.
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
