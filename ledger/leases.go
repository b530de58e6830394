package ledger

import (
	"context"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
)

// A lease costs two fsyncs, so it covers the current call and a prefetch, an amount for further calls like it. A prefetch covers
// twice as many calls as the one before it if the last lease is less than prefetchTarget old. It is only a small part of the rest
// of the budget, so that meters that share a budget do not starve each other.
const (
	minPrefetch    = 16      // minimum number of calls that a prefetch covers
	maxPrefetch    = 1 << 14 // maximum number of calls that a prefetch covers
	prefetchTarget = time.Second
	prefetchShare  = 8 // a prefetch is at most one part in prefetchShare of the rest of the budget
)

// maxLease bounds one lease. It is several times the maximum usage of one call.
var maxLease = caisson.Amount{USD: 64 * caisson.USD(maxCost), Tokens: 64 * maxTokens, Calls: 1 << 20}

// leasedBudget is the state of one budget in a journal segment. It is guarded by the segment's mu.
type leasedBudget struct {
	account   string         // account of the calls that are charged to the budget
	key       string         // key of the budget
	terms     terms          // what the last responses of the lessor say about the budget
	prefetch  prefetcher     // determines when more than the current calls need is leased, and how much
	available caisson.Amount // unspent part of the leases; negative if calls cost more than was reserved for them
	inFlight  int            // number of calls in progress whose maximum usage was deducted from available
	usedAt    time.Time      // time of the last call
	// epoch counts the resets of available: an amount that was deducted before a reset is not added again after it.
	epoch   int
	leasing chan struct{} // not nil while a request to the lessor is in progress; closed at its end
}

// terms are what the last responses of the lessor say about a budget. They are guarded by the segment's mu.
type terms struct {
	valid     bool            // false: a request to the lessor must precede the next call
	unlimited bool            // the budget does not exist, so that calls need no lease
	lease     caisson.Lease   // last lease; its fields other than Granted describe the budget
	refused   *caisson.Amount // minimum amount of the last request, if the lease does not cover it
	err       error           // error of the last request; nil if it succeeded
	checked   time.Time       // time of the last response, which may be an error
	// version counts the calls of invalidate. The response to a request from an earlier version is discarded.
	version int
}

// prefetcher determines when a budget needs a prefetch and how large it is. It is guarded by the segment's mu.
type prefetcher struct {
	calls       int64          // number of calls that the next prefetch covers
	queued      caisson.Amount // sum of the maximum usage of the calls that wait for the request in progress
	refillBelow caisson.Amount // a prefetch starts when less than this amount is available
	scarce      bool           // the last lease was smaller than requested
}

// budgetKey identifies a leasedBudget in a segment. The key of the budget does not suffice, because calls of several accounts may
// name the same session or run; the budget belongs to at most one of these accounts.
type budgetKey struct{ account, budget string }

// id returns the key of b in segment.budgets.
func (b *leasedBudget) id() budgetKey { return budgetKey{b.account, b.key} }

// usable reports whether what the lessor last said about b is still valid, so that calls can be charged to b without another
// request. It resets b if the budget's period has ended.
func (b *leasedBudget) usable(now time.Time) bool {
	t := &b.terms
	if until := t.lease.Until; !t.unlimited && !until.IsZero() && !now.Before(until) {
		b.reset()
		t.valid, t.lease = false, caisson.Lease{}
	}
	return t.valid && !(t.unlimited && now.Sub(t.checked) > unlimitedTTL)
}

// reset sets the available amount to zero. The amount is not returned to the lessor, for which the leases of b are void already.
func (b *leasedBudget) reset() {
	b.available, b.inFlight = caisson.Amount{}, 0
	b.epoch++
}

// accept stores a lease that was requested with the minimum amount need. void reports whether earlier leases are void, because
// this one is for another period or for another budget with the same key, or because there is no such budget.
func (t *terms) accept(lease caisson.Lease, need caisson.Amount) (void bool) {
	void = lease.Unlimited || t.unlimited || !t.lease.Until.Equal(lease.Until) || t.lease.Title != lease.Title
	t.valid, t.unlimited, t.lease, t.err, t.refused = true, lease.Unlimited, lease, nil, nil
	if !lease.Unlimited && !lease.Granted.Covers(need) {
		t.refused = &need
	}
	return void
}

// invalidate marks what the lessor last said about the budget as not valid, so that a request to the lessor precedes the next
// call. The response to a request in progress is discarded.
func (t *terms) invalidate() {
	t.version++
	t.valid, t.err, t.refused = false, nil, nil
}

// fresh reports whether t is valid and the lessor's last response so recent (refusedTTL) that the request is not repeated yet.
func (t *terms) fresh(now time.Time) bool { return t.valid && now.Sub(t.checked) < refusedTTL }

// exhausted reports whether nothing is left to lease of a limited quantity (dollars, tokens or calls) of which a call needs more
// than is available. available is the unspent part of the leases, and needed is the maximum usage of the call.
func (t *terms) exhausted(available, needed caisson.Amount) bool {
	limits, left := t.lease.Limits, t.lease.Left
	return limits.USD != nil && left.USD == 0 && available.USD < needed.USD ||
		limits.Tokens != nil && left.Tokens == 0 && available.Tokens < needed.Tokens ||
		limits.Calls != nil && left.Calls == 0 && available.Calls < needed.Calls
}

// fit returns the number of output tokens for which all budgets of a call have enough available, at most d.MaxOutput. If the
// lease of a budget must be renewed first, it returns that budget as short instead. The caller must hold mu.
func (p *segment) fit(account string, keys []string, d caisson.Demand, now time.Time) (short *leasedBudget, output int64) {
	output = d.MaxOutput
	for _, key := range keys {
		k := budgetKey{account, key}
		b := p.budgets[k]
		if b == nil {
			b = &leasedBudget{account: account, key: key, usedAt: now}
			p.budgets[k] = b
		}
		switch {
		case !b.usable(now):
			return b, 0
		case b.terms.unlimited || b.available.Covers(d.MaxUsage(d.MaxOutput)):
			continue
		}
		n := affordable(b.available, d)
		if n < d.MinOutput || !(b.terms.fresh(now) && b.terms.exhausted(b.available, d.MaxUsage(d.MaxOutput))) {
			return b, 0
		}
		output = min(output, n)
	}
	return nil, output
}

// affordable returns the greatest number of output tokens for which free covers the call: at most d.MaxOutput, -1 if none does.
func affordable(free caisson.Amount, d caisson.Demand) int64 {
	if !free.Covers(d.Fixed) {
		return -1
	}
	rest := free.Minus(d.Fixed)
	n := min(rest.Tokens, d.MaxOutput)
	if d.OutputPrice > 0 {
		if hi, lo := bits.Mul64(uint64(rest.USD), 1e6); hi < uint64(d.OutputPrice) {
			q, _ := bits.Div64(hi, lo, uint64(d.OutputPrice))
			n = min(n, int64(min(q, math.MaxInt64)))
		}
	}
	return n
}

// waitForLease requests a lease for b, or waits for the request in progress. The caller must hold mu; waitForLease releases it.
// If it returns an error, the call is refused for that reason.
func (p *segment) waitForLease(ctx context.Context, b *leasedBudget, d caisson.Demand) error {
	now := p.clock
	need, want := missing(b, d.MaxUsage(d.MinOutput)), missing(b, d.MaxUsage(d.MaxOutput))
	switch {
	case b.terms.err != nil && now.Sub(b.terms.checked) < refusedTTL:
		err := b.terms.err
		p.mu.Unlock()
		return caisson.Wrap(err, caisson.Unavailable, "the budget is not available at present; try again in a moment")
	case b.terms.refused != nil && b.terms.fresh(now) && need.Covers(*b.terms.refused):
		err := b.overBudget(d.MaxUsage(d.MinOutput))
		p.mu.Unlock()
		return err
	case b.leasing == nil:
		b.leasing = make(chan struct{})
		want = want.Plus(b.prefetch.amount(&b.terms, d, now))
		b.prefetch.queued = caisson.Amount{}
		// The request does not use the context of the call: other calls wait for the request too, and a granted lease must not be
		// lost.
		go p.renewLease(b, need, want)
	default:
		b.prefetch.queued = b.prefetch.queued.Plus(d.MaxUsage(d.MaxOutput))
	}
	busy := b.leasing
	p.mu.Unlock()
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// prefetch requests a lease for b in the background if little is available, so that frequent calls do not wait for a lease. The
// caller must hold mu.
func (p *segment) prefetch(b *leasedBudget, d caisson.Demand) {
	if b.leasing == nil && b.prefetch.due(b.available) {
		b.leasing = make(chan struct{})
		go p.renewLease(b, caisson.Amount{}, b.prefetch.amount(&b.terms, d, p.clock))
	}
}

// missing returns the part of the amount a that exceeds what b has available.
func missing(b *leasedBudget, a caisson.Amount) caisson.Amount {
	have := b.available
	if !b.terms.valid {
		// The available amount is returned to the lessor before the lease is requested. A negative amount, a debt, remains.
		have = have.Min(caisson.Amount{})
	}
	return a.Minus(have).NonNegative()
}

// due reports whether a prefetch is to start when the given amount is available.
func (f *prefetcher) due(available caisson.Amount) bool {
	return !f.scarce && f.calls > minPrefetch && !available.Covers(f.refillBelow)
}

// amount returns the size of the next prefetch, in addition to the amount that calls need at once. d is the demand of the current
// call.
func (f *prefetcher) amount(t *terms, d caisson.Demand, now time.Time) caisson.Amount {
	if !t.valid {
		f.calls = minPrefetch
		return caisson.Amount{} // no response of the lessor is valid, so the rest of the budget is not known
	}
	one, n := d.MaxUsage(d.MaxOutput), f.calls
	if now.Sub(t.checked) < prefetchTarget {
		f.calls = min(2*n, maxPrefetch)
	} else {
		f.calls = max(n/2, minPrefetch)
	}
	// The products do not overflow, because checkCall has refused calls that may use more than maxTokens or maxCost.
	a := caisson.Amount{USD: min(one.USD, maxLease.USD/maxPrefetch) * caisson.USD(n), Tokens: n * one.Tokens, Calls: n}
	f.refillBelow = caisson.Amount{USD: a.USD / 4, Tokens: a.Tokens / 4, Calls: a.Calls / 4}
	a = a.Plus(f.queued).Min(caisson.Amount{USD: maxLease.USD / 2, Tokens: maxLease.Tokens / 2, Calls: maxLease.Calls / 2})
	l, left := t.lease.Limits, t.lease.Left
	if l.USD != nil {
		a.USD = min(a.USD, left.USD/prefetchShare)
	}
	if l.Tokens != nil {
		a.Tokens = min(a.Tokens, left.Tokens/prefetchShare)
	}
	if l.Calls != nil {
		a.Calls = min(a.Calls, left.Calls/prefetchShare)
	}
	return a
}

// renewLease requests a lease of at least need and at most want for b. The caller has set b.leasing; renewLease closes that
// channel when it has stored the response.
func (p *segment) renewLease(b *leasedBudget, need, want caisson.Amount) {
	p.mu.Lock()
	version := b.terms.version
	p.returnLease(b, !b.terms.valid)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	lease, err := p.lessor.Lease(ctx, b.account, b.key, need, want)
	if err == nil && !lease.Unlimited && (!lease.Granted.Covers(caisson.Amount{}) || !want.Covers(lease.Granted)) {
		err = caisson.Errorf(caisson.Internal, "the lessor granted a lease of an invalid amount")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.terms.checked = p.monotonicNow()
	if err != nil {
		b.terms.err = err
	} else if b.terms.accept(lease, need) {
		b.reset()
	}
	if err == nil && !lease.Unlimited {
		b.available = b.available.Plus(lease.Granted)
		b.prefetch.scarce = !lease.Granted.Covers(want)
	}
	if b.terms.version != version {
		b.terms.invalidate()
		p.returnLease(b, true)
	}
	close(b.leasing)
	b.leasing = nil
}

// returnLease returns the available amount of b to the lessor if should is true. The caller must hold mu and must have set
// b.leasing. mu is not held during the request to the lessor.
func (p *segment) returnLease(b *leasedBudget, should bool) {
	a := b.available.NonNegative()
	if !should || b.terms.unlimited || a.IsZero() {
		return
	}
	b.available = b.available.Minus(a)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	// If the request fails, the lessor counts the amount as leased until the journal is closed.
	_ = p.lessor.Return(ctx, b.key, a)
	cancel()
	p.mu.Lock()
}

// invalidate returns the available amounts of the budgets with the given keys, or of all budgets if keys is nil, to the lessor,
// and arranges that a request to the lessor precedes the next call that is charged to one of them.
func (p *segment) invalidate(keys []string) {
	p.mu.Lock()
	var list []*leasedBudget
	for k, b := range p.budgets {
		if keys == nil || slices.Contains(keys, k.budget) {
			b.terms.invalidate()
			list = append(list, b)
		}
	}
	p.mu.Unlock()
	for _, b := range list {
		p.returnWhenIdle(b)
	}
}

// returnWhenIdle waits for the request for b in progress, and then returns the available amount of b to the lessor, unless a
// valid response has been received, so that calls are charged to b again.
func (p *segment) returnWhenIdle(b *leasedBudget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b.leasing != nil {
		busy := b.leasing
		p.mu.Unlock()
		<-busy
		p.mu.Lock()
	}
	if b.terms.valid {
		return
	}
	b.leasing = make(chan struct{})
	p.returnLease(b, true)
	close(b.leasing)
	b.leasing = nil
}

// returnIdle returns the available amounts of budgets to the lessor, and deletes these budgets, if their last use was before the
// given time.
func (p *segment) returnIdle(before time.Time) {
	p.mu.Lock()
	var idle []*leasedBudget
	for _, b := range p.budgets {
		if b.inFlight == 0 && b.leasing == nil && b.usedAt.Before(before) {
			b.terms.invalidate()
			idle = append(idle, b)
		}
	}
	p.mu.Unlock()
	for _, b := range idle {
		p.returnWhenIdle(b)
		p.mu.Lock()
		// A budget with a negative amount, a debt, is kept, because the lessor keeps the debt too.
		if b.leasing == nil && b.inFlight == 0 && !b.terms.valid && b.available.IsZero() && p.budgets[b.id()] == b {
			delete(p.budgets, b.id())
		}
		p.mu.Unlock()
	}
}

// overBudget returns the error for a call that is refused because b has less available than a, the minimum usage of the call.
func (b *leasedBudget) overBudget(a caisson.Amount) error {
	l, left := b.terms.lease.Limits, b.terms.lease.Left.Plus(b.available.NonNegative())
	most := b.terms.lease.Left.Plus(b.terms.lease.Held) // rest of the budget if all leases were returned unspent
	e := &caisson.OverBudget{Budget: b.terms.lease.Title, Busy: true, Retry: time.Second}
	if e.Budget == "" {
		e.Budget = b.key
	}
	say := func(what, limit, rest string) {
		if e.What == "" {
			e.What, e.Limit, e.Left = what, limit, rest
		}
	}
	lack := func(need, left, most int64) bool {
		e.Busy = e.Busy && need <= most
		return need > left
	}
	if l.USD != nil && lack(int64(a.USD), int64(left.USD), int64(most.USD)) {
		say("usd", l.USD.String()+" USD", left.USD.String()+" USD")
	}
	if l.Tokens != nil && lack(a.Tokens, left.Tokens, most.Tokens) {
		say("tokens", countText(*l.Tokens, "token"), countText(left.Tokens, "token"))
	}
	if l.Calls != nil && lack(a.Calls, left.Calls, most.Calls) {
		say("calls", countText(*l.Calls, "call"), countText(left.Calls, "call"))
	}
	if !e.Busy {
		e.Retry = 0
	}
	return e
}

// countText returns a number with its unit, such as "1 call" and "2 calls".
func countText(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return strconv.FormatInt(n, 10) + " " + unit
}
