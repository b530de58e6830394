package ledger

import (
	"cmp"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson"
)

// segment is the state that a meter has for a journal segment: the journal, and the budgets with what was leased for the segment.
type segment struct {
	journal journal
	lessor  caisson.Lessor
	done    func() // called after the last use of the journal and the lessor; may be nil
	now     func() time.Time

	refs    atomic.Int64 // number of calls in progress and of functions that use the segment
	retired atomic.Bool  // whether no further calls begin in the segment
	endOnce sync.Once    // ensures that end has an effect only once

	mu      sync.Mutex
	clock   time.Time                   // latest time that was read; it goes back only if the clock is corrected; guarded by mu
	budgets map[budgetKey]*leasedBudget // the map and the budgets in it are guarded by mu
}

// newSegment returns the state for a segment that has no calls yet.
func newSegment(p Segment, now func() time.Time) *segment {
	return &segment{journal: journal{w: p.Journal}, lessor: p.Lessor, done: p.Done, now: now, budgets: map[budgetKey]*leasedBudget{}}
}

// monotonicNow returns the current time, but never an earlier time than before: a call must not be charged to a period that has
// ended. If the clock goes back by more than maxClockSkew, monotonicNow assumes that the clock was corrected: it accepts the new
// time and invalidates all budgets. The caller must hold mu.
func (p *segment) monotonicNow() time.Time {
	t := p.now().UTC().Round(0)
	if t.Before(p.clock.Add(-maxClockSkew)) {
		for _, b := range p.budgets {
			b.terms.invalidate()
			b.terms.checked, b.usedAt = time.Time{}, t
		}
		p.clock = t
	}
	if t.After(p.clock) {
		p.clock = t
	}
	return p.clock
}

// release drops a reference to p. If it was the last reference to a retired segment, release ends the segment.
func (p *segment) release() {
	if p.refs.Add(-1) == 0 && p.retired.Load() {
		go p.end() // in the background, because it calls the lessor and may run at the end of a call
	}
}

// retire returns the leases of p, and ends p when its last call has been settled.
func (p *segment) retire() {
	p.refs.Add(1)
	p.retired.Store(true)
	p.invalidate(nil)
	p.release()
}

// end returns the rest of the leases of p, and reports with done that the journal is complete.
func (p *segment) end() {
	p.endOnce.Do(func() {
		p.invalidate(nil)
		if p.done != nil {
			p.done()
		}
	})
}

// reserve reserves the maximum usage of a call in all of its budgets, and records in the journal that the call has begun.
func (p *segment) reserve(ctx context.Context, call caisson.Call, d caisson.Demand) (*reservation, error) {
	if p.journal.failed() {
		return nil, errJournalFailed
	}
	clampCall(&call)
	r := &reservation{segment: p, call: call}
	keys := call.Budgets()
	for {
		p.mu.Lock()
		r.call.At = p.monotonicNow()
		short, output := p.fit(call.Account, keys, d, r.call.At)
		if short == nil {
			r.output, r.maximum = output, d.MaxUsage(output)
			p.deduct(r, keys, d)
			p.mu.Unlock()
			break
		}
		// waitForLease releases p.mu.
		if err := p.waitForLease(ctx, short, d); err != nil {
			return nil, err
		}
	}
	row := r.call
	row.Status, row.Error, row.Estimated = 0, "", true
	row.Tokens = caisson.TokenCount{Input: d.Fixed.Tokens, Output: r.output}
	row.Cost = r.maximum.USD
	p.refs.Add(1)
	if err := p.journal.write(kindBegin, &row); err != nil {
		// The reserved amounts stay deducted, because the journal may contain the record after all.
		p.refs.Add(-1) // The caller holds a reference too, so this is not the last one.
		return nil, err
	}
	return r, nil
}

// deduct deducts the maximum usage of the call of r from its budgets. The caller must hold mu.
func (p *segment) deduct(r *reservation, keys []string, d caisson.Demand) {
	for i, key := range keys {
		b := p.budgets[budgetKey{r.call.Account, key}]
		if !b.terms.unlimited {
			b.available = b.available.Minus(r.maximum)
			b.inFlight++
			r.shares[i] = budgetShare{b, b.epoch}
			p.prefetch(b, d)
		}
		b.usedAt = r.call.At
	}
}

// refund adds the reserved amount that a call has not used to its budgets. took is the actual usage of the call.
func (p *segment) refund(r *reservation, took caisson.Amount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range r.shares {
		if s.budget != nil && s.budget.epoch == s.epoch {
			// A usage above the maximum leaves a negative available amount, a debt, which the next lease covers.
			s.budget.available = s.budget.available.Plus(r.maximum.Minus(took))
			s.budget.inFlight--
		}
	}
}

// budgetShare records that the maximum usage of a call was deducted from the available amount of one budget.
type budgetShare struct {
	budget *leasedBudget // nil for an unused element of reservation.shares
	epoch  int           // number of resets of that amount before; after a further reset the unused part is not added back
}

// reservation implements [caisson.Reservation].
type reservation struct {
	meter   *Meter                              // meter that made the reservation
	segment *segment                            // segment whose journal has the record of the call
	call    caisson.Call                        // the call as it was reserved
	output  int64                               // maximum number of output tokens
	maximum caisson.Amount                      // maximum usage of the call, which was reserved
	shares  [4 + caisson.MaxLineage]budgetShare // one element for each budget of the guest
	settled atomic.Bool                         // whether Settle was called
}

// Output implements [caisson.Reservation]. It returns the maximum number of tokens of the answer.
func (r *reservation) Output() int64 { return r.output }

// Settle implements [caisson.Reservation]. The guest, the ID and the time of the row are those of the reservation. Names of the
// provider and the model that are empty in call are taken from the reservation.
func (r *reservation) Settle(call caisson.Call) error {
	if !r.settled.CompareAndSwap(false, true) {
		return caisson.Errorf(caisson.Internal, "call %s was settled twice", r.call.ID)
	}
	defer r.segment.release()
	call.ID, call.At, call.Guest = r.call.ID, r.call.At, r.call.Guest
	call.Provider, call.Model = cmp.Or(call.Provider, r.call.Provider), cmp.Or(call.Model, r.call.Model)
	call.Upstream, call.API = cmp.Or(call.Upstream, r.call.Upstream), cmp.Or(call.API, r.call.API)
	clampCall(&call)
	if err := r.segment.journal.write(kindSettle, &call); err != nil {
		r.meter.wakeRun()
		return err // The reserved amounts stay deducted: the call is charged in full.
	}
	r.segment.refund(r, call.Amount())
	return nil
}

// clampCall limits the values of c that come from a provider to the ranges that a record allows.
func clampCall(c *caisson.Call) {
	clamp := func(n, most int64) int64 { return min(max(n, 0), most) }
	for _, n := range []*int64{&c.Tokens.Input, &c.Tokens.Output, &c.Tokens.CacheRead, &c.Tokens.CacheWrite} {
		*n = clamp(*n, maxTokens)
	}
	c.Cost = max(c.Cost, 0)
	boundCost(c)
	if m := c.AtMost; m != nil {
		c.AtMost = &caisson.Amount{USD: caisson.USD(clamp(int64(m.USD), maxCost)), Tokens: clamp(m.Tokens, maxTokens), Calls: 1}
	}
	c.Status = int(clamp(int64(c.Status), 999))
	c.Attempt = max(c.Attempt, 0)
	c.FirstByte, c.Duration = max(c.FirstByte, 0), max(c.Duration, 0)
}

// journal appends records to the journal of a segment. It is safe for concurrent use.
type journal struct {
	mu     sync.Mutex
	w      io.Writer    // the journal file
	buf    []byte       // record that is being written; guarded by mu
	broken atomic.Bool  // whether a write has failed
	bytes  atomic.Int64 // number of bytes written
}

// errJournalFailed refuses calls after a write to the journal has failed.
var errJournalFailed = caisson.Errorf(caisson.Unavailable, "the ledger cannot be written, so no call is made; the daemon's log has the details")

// write appends a record of the call c. After an error it is not known how the journal ends, so all further writes fail.
func (j *journal) write(kind byte, c *caisson.Call) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken.Load() {
		return errJournalFailed
	}
	j.buf = appendCall(j.buf[:0], kind, c)
	n, err := j.w.Write(j.buf)
	j.bytes.Add(int64(n))
	if err == nil && n != len(j.buf) {
		err = io.ErrShortWrite
	}
	if err != nil {
		j.broken.Store(true)
		return caisson.Wrap(err, caisson.Unavailable, "the ledger cannot be written, so no call is made; the daemon's log has the details")
	}
	return nil
}

// failed reports whether a write has failed, so that the segment must be replaced.
func (j *journal) failed() bool { return j.broken.Load() }

// size returns the number of bytes that were written to the journal.
func (j *journal) size() int64 { return j.bytes.Load() }
