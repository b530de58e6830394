package ledger

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// A SpendLog is what a provider recorded about one call.
type SpendLog struct {
	ID      string // the provider's id of the call
	Account string // whom the gateway named as its end user
	Cost    caisson.USD
	At      time.Time
}

const (
	// settleTime is how long LiteLLM may take to write a call down; younger ones are not missed.
	settleTime = 2 * time.Minute
	// sameCost is a difference that comes from adding up fractions.
	sameCost  = caisson.Dollar / 1e6
	reconcile = 1000 // calls read at once
)

// Reconcile implements [caisson.Ledger], for the calls of the caller's account. It reads up to a million entries with the
// operator's key, so it is for local callers, one at a time.
func (s *Service) Reconcile(ctx context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "only over the unix socket can calls be compared with a provider's spend logs")
	}
	if !s.reconciling.TryLock() {
		return nil, caisson.Errorf(caisson.Conflict, "calls are being compared with spend logs already; try again when that has ended")
	}
	defer s.reconciling.Unlock()
	if s.spendLogs == nil {
		return nil, caisson.Errorf(caisson.NotFound, "no provider of kind litellm is configured")
	}
	logs, err := s.spendLogs(ctx, provider, caller.Account, since)
	if err != nil {
		return nil, err
	}
	upstream := make(map[string]SpendLog, len(logs))
	for _, l := range logs {
		if l.Account == caller.Account && !l.At.Before(since) {
			upstream[l.ID] = l
		}
	}
	var out []caisson.Discrepancy
	old := s.book.now().Add(-settleTime)
	for after, more := caisson.ID(""), true; more; {
		var page []caisson.Call
		if page, more, err = s.Calls(ctx, caisson.UsageQuery{Since: since}, after, reconcile); err != nil {
			return nil, err
		}
		for i := range page {
			c := &page[i]
			after = c.ID
			if c.Provider != provider {
				continue
			}
			l, ok := upstream[c.UpstreamID]
			delete(upstream, c.UpstreamID)
			if d := compare(c, l, ok, old); d != nil {
				out = append(out, *d)
			}
		}
	}
	for _, l := range logs { // in the provider's order
		if _, left := upstream[l.ID]; left {
			delete(upstream, l.ID)
			out = append(out, caisson.Discrepancy{UpstreamID: l.ID, Problem: "missing here", Upstream: l.Cost})
		}
	}
	return out, nil
}

// compare returns how a call differs from what the provider says about it, nil if it does not.
func compare(c *caisson.Call, l SpendLog, there bool, old time.Time) *caisson.Discrepancy {
	d := &caisson.Discrepancy{Call: c.ID, UpstreamID: c.UpstreamID, Here: c.Cost, Upstream: l.Cost}
	diff := c.Cost - l.Cost
	switch {
	case there && diff < sameCost && diff > -sameCost:
		return nil
	case there:
		d.Problem = "cost differs"
	case c.Status < 200 || c.Status > 299 || c.At.After(old):
		return nil // a call that failed need not have reached the model
	default:
		d.Problem = "missing upstream"
	}
	return d
}
