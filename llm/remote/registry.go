package remote

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// RegistryConfig is what a Registry needs.
type RegistryConfig struct {
	// Max is how many runs there can be at once; 0 means 100,000.
	Max int
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
}

const defaultMax = 100_000

// A Registry knows runs, in memory: whoever owns it puts them in again after a restart. It is safe for concurrent use.
type Registry struct {
	max int
	now func() time.Time

	mu    sync.RWMutex
	runs  map[string]registered // guarded by mu
	sweep int                   // number of runs at which expired ones are looked for; guarded by mu
}

type registered struct {
	spec  caisson.WireSpec
	until time.Time
}

var _ Runs = (*Registry)(nil)

// NewRegistry returns an empty registry.
func NewRegistry(cfg RegistryConfig) *Registry {
	r := &Registry{max: cfg.Max, now: cfg.Now, runs: map[string]registered{}}
	if r.max <= 0 {
		r.max = defaultMax
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.sweep = min(1024, r.max)
	return r
}

// runOf returns the name of a guest's run in tokens.
func runOf(g caisson.Guest) string {
	if g.Run != "" {
		return g.Run
	}
	return string(g.Sandbox)
}

// Put adds or replaces the run of spec.Guest, known until then; a new attempt replaces the one before it. The policy in spec
// means nothing here. Invalid if spec says neither account nor run, or no models; Exhausted if there are too many runs.
func (r *Registry) Put(spec caisson.WireSpec, until time.Time) error {
	id := runOf(spec.Guest)
	switch {
	case id == "" || spec.Guest.Account == "":
		return caisson.Invalidf("guest", "a run needs an id and an account")
	case spec.Models == nil:
		return caisson.Invalidf("models", "a run of the model gateway needs models")
	}
	grant := *spec.Models // what the caller does with its own afterwards is not seen here
	grant.Models, grant.Allow = slices.Clone(grant.Models), slices.Clone(grant.Allow)
	spec.Models = &grant
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if _, ok := r.runs[id]; !ok && len(r.runs) >= r.sweep {
		r.removeExpired(now)
		if len(r.runs) >= r.max {
			return caisson.Errorf(caisson.Exhausted, "the model gateway serves %d runs and takes no more; end some of them", r.max)
		}
	}
	r.runs[id] = registered{spec, until}
	return nil
}

// removeExpired is called with mu held. The next time is when there are twice as many as are left.
func (r *Registry) removeExpired(now time.Time) {
	for id, run := range r.runs {
		if !now.Before(run.until) {
			delete(r.runs, id)
		}
	}
	r.sweep = min(max(1024, 2*len(r.runs)), r.max)
}

// Run implements [Runs]. A run that has expired is not found.
func (r *Registry) Run(_ context.Context, id string) (caisson.WireSpec, error) {
	r.mu.RLock()
	run, ok := r.runs[id]
	r.mu.RUnlock()
	if !ok || !r.now().Before(run.until) {
		return caisson.WireSpec{}, caisson.Errorf(caisson.NotFound, "there is no run %.80q", id)
	}
	return run.spec, nil
}

// Grant returns what a guest may use now, nil for a run that is not known any more. It is what a gateway asks for.
func (r *Registry) Grant(ctx context.Context, g caisson.Guest) *caisson.ModelGrant {
	spec, err := r.Run(ctx, runOf(g))
	if err != nil || spec.Guest.Account != g.Account || spec.Guest.Attempt != g.Attempt {
		return nil
	}
	return spec.Models
}

// Remove forgets a run. It is idempotent.
func (r *Registry) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, id)
}

// Len returns how many runs are held, expired ones included.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.runs)
}
