package runs

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// usageReader reads the usage of attempts from the ledger. underWay returns the number and the maximum cost of the calls of a
// run that are not in the ledger yet.
type usageReader struct {
	calls    listCalls                                                                                 // lists calls of models
	underWay func(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error) // may be nil

	done <-chan struct{} // closed when the daemon stops
}

// update updates the usage of the attempt and of the run from the ledger until all calls of the run are in the ledger, wait has
// passed, or the daemon stops. Calls for which the agent did not wait end with its sandbox, or shortly afterwards.
func (b *usageReader) update(ctx context.Context, x *attempt, wait time.Duration) {
	end := time.Now().Add(wait)
	for {
		bill := b.read(ctx, x)
		if bill.attempt != x.result.Usage || bill.run != x.r.Usage {
			x.result.Usage = bill.attempt
			if _, err := x.update(ctx, func(r *caisson.Run) {
				if r.Result != nil && r.Attempt == x.result.Attempt {
					r.Result.Usage, r.Usage = bill.attempt, bill.run
				}
			}); err != nil && caisson.KindOf(err) != caisson.NotFound {
				x.log.ErrorContext(ctx, "the usage of a run could not be stored", "err", err)
			}
		}
		if bill.run.MaxCost == 0 || time.Now().After(end) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.done:
			return
		}
	}
}

// A ledgerUsage is the usage of a run according to the ledger.
type ledgerUsage struct {
	attempt   caisson.RunUsage // usage of this attempt
	run       caisson.RunUsage // usage of all attempts of the run
	modelTime time.Duration    // total duration of the calls of this attempt
	problem   providerProblem  // problems of model providers in this attempt
}

// providerProblem summarizes the problems with model providers that the calls of an attempt had.
type providerProblem struct {
	last  string // description of the last problem; "" if there was none
	final bool   // no call of the attempt succeeded after the last problem
}

// addCall updates the summary with a call. Calls must be added in the order in which they ended. An aborted call does not
// count, because it does not indicate a problem of its provider.
func (t *providerProblem) addCall(call *caisson.Call) {
	switch {
	case call.Detail != "":
		t.last, t.final = safetext.Line(call.Detail), true
	case call.Error == "" && call.Status/100 == 2:
		t.final = false
	}
}

// read reads the usage of the run from the ledger.
func (b *usageReader) read(ctx context.Context, x *attempt) (u ledgerUsage) {
	var under int64
	var most caisson.USD
	var err error
	// Calls in progress are read before the ledger, so that a call that ends in the meantime is not missed. The upper bound of
	// the cost may then include the call twice.
	if b.underWay != nil {
		if under, most, err = b.underWay(ctx, x.r.Account, string(x.r.ID)); err != nil {
			x.log.ErrorContext(ctx, "the calls of a run that are under way could not be read", "err", err)
			u.attempt.Estimated, u.run.Estimated = true, true
		}
	}
	var after caisson.ID
	for more := true; more; {
		var list []caisson.Call
		if list, more, err = b.calls(ctx, caisson.UsageQuery{Run: string(x.r.ID)}, after, 1000); err != nil {
			x.log.ErrorContext(ctx, "the calls of a run could not be read", "err", err)
			u.attempt.Estimated, u.run.Estimated = true, true
			break
		}
		for i := range list {
			call := &list[i]
			after = call.ID
			count(&u.run, call)
			if call.Attempt == x.r.Attempt {
				count(&u.attempt, call)
				u.modelTime += time.Duration(call.Duration)
				u.problem.addCall(call)
			}
		}
	}
	if under > 0 {
		u.attempt.MaxCost, u.run.MaxCost = u.attempt.Cost+most, u.run.Cost+most
	}
	return u
}

// count adds a call to the usage u.
func count(u *caisson.RunUsage, call *caisson.Call) {
	u.Calls++
	if call.Status < 200 || call.Status > 299 {
		u.Failed++
	}
	u.Tokens.Input += call.Tokens.Input
	u.Tokens.Output += call.Tokens.Output
	u.Tokens.CacheRead += call.Tokens.CacheRead
	u.Tokens.CacheWrite += call.Tokens.CacheWrite
	u.Cost += call.Cost
	u.Estimated = u.Estimated || call.Estimated
}
