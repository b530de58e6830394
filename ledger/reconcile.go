package ledger

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
)

// A SpendLog is a provider's record of one call.
type SpendLog struct {
	ID      string      // the provider's id of the call
	Account string      // account of the call, which the model gateway sends as the end user
	Cost    caisson.USD // cost according to the provider
	At      time.Time   // time of the call
}

const (
	// settleDelay is how long LiteLLM may take to record a call. Calls that are more recent are not reported as missing.
	settleDelay = 2 * time.Minute
	// costTolerance is the tolerance for rounding errors in sums.
	costTolerance     = caisson.Dollar / 1e6
	reconcilePageSize = 1000 // calls of the ledger that are read at once
)

// Reconcile implements [caisson.Ledger], for the calls of the caller's account. Only local callers may call it, one at a time,
// because it requests up to a million records of calls from the provider, with the provider's key.
func (s *Service) Reconcile(ctx context.Context, provider string, since time.Time) ([]caisson.Discrepancy, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "calls can be compared with a provider's spend logs over the unix socket only")
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
	old := s.book.now().Add(-settleDelay)
	for after, more := caisson.ID(""), true; more; {
		var page []caisson.Call
		if page, more, err = s.Calls(ctx, caisson.UsageQuery{Since: since}, after, reconcilePageSize); err != nil {
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
	for _, l := range logs { // in the order of the provider's list
		if _, left := upstream[l.ID]; left {
			delete(upstream, l.ID)
			out = append(out, caisson.Discrepancy{UpstreamID: l.ID, Problem: "missing here", Upstream: l.Cost})
		}
	}
	return out, nil
}

// compare returns the discrepancy between the call c and l, the provider's record of it, or nil. there is false if the provider
// has no record of the call; calls after the time old are then not reported.
func compare(c *caisson.Call, l SpendLog, there bool, old time.Time) *caisson.Discrepancy {
	d := &caisson.Discrepancy{Call: c.ID, UpstreamID: c.UpstreamID, Here: c.Cost, Upstream: l.Cost}
	diff := c.Cost - l.Cost
	switch {
	case there && diff < costTolerance && diff > -costTolerance:
		return nil
	case there:
		d.Problem = "cost differs"
	case c.Status < 200 || c.Status > 299 || c.At.After(old):
		return nil // a failed call may not have reached the model
	default:
		d.Problem = "missing upstream"
	}
	return d
}
