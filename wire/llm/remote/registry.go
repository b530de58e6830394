package remote

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// RegistryConfig configures a Registry.
type RegistryConfig struct {
	Max int              // maximum number of gateway runs; 0 means 100,000
	Now func() time.Time // the clock; nil means [time.Now]
}

const defaultMaxRuns = 100_000 // maximum number of gateway runs if RegistryConfig.Max is 0

// A Registry stores gateway runs in memory. The owner of the Registry must register the runs again after a restart. It is safe
// for concurrent use.
type Registry struct {
	max int              // maximum number of gateway runs
	now func() time.Time // the clock

	mu      sync.RWMutex             // guards the fields below
	runs    map[string]registeredRun // by the id in run tokens: that of the run, or of the sandbox
	sweepAt int                      // number of runs at which expired ones are removed
}

// A registeredRun is a gateway run with the time at which it expires.
type registeredRun struct {
	spec  caisson.WireSpec // guest and grant of the run
	until time.Time        // when the run expires
}

var _ Runs = (*Registry)(nil)

// NewRegistry returns a registry without gateway runs.
func NewRegistry(cfg RegistryConfig) *Registry {
	r := &Registry{max: cfg.Max, now: cfg.Now, runs: map[string]registeredRun{}}
	if r.max <= 0 {
		r.max = defaultMaxRuns
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.sweepAt = min(1024, r.max)
	return r
}

// tokenRun returns the id that identifies the run of a guest in run tokens: the id of the sandbox if the guest has no run.
func tokenRun(g caisson.Guest) string {
	if g.Run != "" {
		return g.Run
	}
	return string(g.Sandbox)
}

// Put adds or replaces the gateway run of spec.Guest, which expires at until. A new attempt replaces the previous one. The policy
// in spec is ignored. Returns an Invalid error if spec has no account, run or models, and Exhausted if there are too many runs.
func (r *Registry) Put(spec caisson.WireSpec, until time.Time) error {
	id := tokenRun(spec.Guest)
	switch {
	case id == "" || spec.Guest.Account == "":
		return caisson.Invalidf("guest", "a run needs an id and an account")
	case spec.Models == nil:
		return caisson.Invalidf("models", "a run of the model gateway needs models")
	}
	grant := *spec.Models // copied, because the caller may change its own grant
	grant.Models, grant.Allow = slices.Clone(grant.Models), slices.Clone(grant.Allow)
	spec.Models = &grant
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if _, ok := r.runs[id]; !ok && len(r.runs) >= r.sweepAt {
		r.removeExpired(now)
		if len(r.runs) >= r.max {
			return caisson.Errorf(caisson.Exhausted, "the model gateway serves %d runs, which is the maximum; remove some of them", r.max)
		}
	}
	r.runs[id] = registeredRun{spec, until}
	return nil
}

// removeExpired removes expired runs, and sets sweepAt to twice the number left, from 1024 to max. The caller must hold mu.
func (r *Registry) removeExpired(now time.Time) {
	for id, run := range r.runs {
		if !now.Before(run.until) {
			delete(r.runs, id)
		}
	}
	r.sweepAt = min(max(1024, 2*len(r.runs)), r.max)
}

// Run implements [Runs]: id is that of a run or sandbox, as in a run token. It returns NotFound for an expired run.
func (r *Registry) Run(_ context.Context, id string) (caisson.WireSpec, error) {
	r.mu.RLock()
	run, ok := r.runs[id]
	r.mu.RUnlock()
	if !ok || !r.now().Before(run.until) {
		return caisson.WireSpec{}, caisson.Errorf(caisson.NotFound, "there is no run %.80q", id)
	}
	return run.spec, nil
}

// Grant returns the current grant of a guest, or nil if its run is unknown or has expired. It implements the Grant function of a
// gateway.
func (r *Registry) Grant(ctx context.Context, g caisson.Guest) *caisson.ModelGrant {
	spec, err := r.Run(ctx, tokenRun(g))
	if err != nil || spec.Guest.Account != g.Account || spec.Guest.Attempt != g.Attempt {
		return nil
	}
	return spec.Models
}

// Remove removes a run. It is idempotent.
func (r *Registry) Remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, id)
}

// Len returns the number of runs, including expired ones.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.runs)
}
