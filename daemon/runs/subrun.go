package runs

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// subRuns cancels runs together with the runs that their agents have started.
type subRuns struct {
	runs caisson.RunStore
	live *live
}

// cancelTree cancels a run and its sub-runs, and waits until they have ended.
func (s *subRuns) cancelTree(ctx context.Context, r *caisson.Run, by string) error {
	under, err := s.unended(ctx, r)
	if err != nil {
		return err
	}
	for _, l := range s.live.cancel(errCancelled{by}, append([]caisson.ID{r.ID}, under...)...) {
		select {
		case <-l.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// unended returns the sub-runs of r, at any depth, that have not ended.
func (s *subRuns) unended(ctx context.Context, r *caisson.Run) ([]caisson.ID, error) {
	if r.Children == 0 && r.State.Ended() {
		return nil, nil
	}
	f := caisson.RunFilter{Under: r.ID, States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000}
	list, _, err := s.runs.List(ctx, caisson.In(r.Account), f)
	var ids []caisson.ID
	for _, o := range list {
		if o.ID != r.ID {
			ids = append(ids, o.ID)
		}
	}
	return ids, err
}

// errOrphaned is the cause when a run ends because its parent has ended.
var errOrphaned = errCancelled{"the run that started it has ended"}

// orphaned reports whether the parent of a run has ended. A parent that ends later cancels its live sub-runs.
func (s *subRuns) orphaned(ctx context.Context, r *caisson.Run) bool {
	if r.Parent == "" {
		return false
	}
	p, err := s.runs.Get(ctx, caisson.In(r.Account), r.Parent)
	return caisson.KindOf(err) == caisson.NotFound || err == nil && p.State.Ended()
}

// cancel cancels the sub-runs of r, and waits until they have ended.
func (s *subRuns) cancel(ctx context.Context, r *caisson.Run) error {
	stored, err := s.runs.Get(ctx, caisson.In(r.Account), r.ID)
	if err != nil || stored.Children == 0 {
		return err
	}
	under, err := s.unended(ctx, stored)
	if err != nil {
		return err
	}
	for _, l := range s.live.cancel(errOrphaned, under...) {
		<-l.done
	}
	return nil
}
