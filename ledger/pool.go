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

// A lease costs two syncs, so it covers the current call and a prefetch for further calls like it. The prefetch doubles if the
// last lease was used up within slabLasts. It is only a small part of what the budget has left, so that gateways that share a
// budget do not starve each other.
const (
	minSlab   = 16 // calls
	maxSlab   = 1 << 14
	slabLasts = time.Second
	slabShare = 8 // at most one part in slabShare of what is left
)

// maxLease bounds one lease. The most expensive possible call fits several times.
var maxLease = caisson.Amount{USD: 64 * caisson.USD(maxCost), Tokens: 64 * maxTokens, Calls: 1 << 20}

// pool is the state of one budget in a journal segment.
type pool struct {
	account   string // account whose calls are charged to it
	key       string
	known     bool // false: the fields below must be read from the lessor again
	unlimited bool // the budget does not exist
	checked   time.Time
	lease     caisson.Lease  // the last lease, for its description of the budget
	free      caisson.Amount // available amount; negative if calls cost more than was reserved for them
	under     int            // calls in progress that are charged to free
	usedAt    time.Time
	// epoch counts the resets of free: an amount taken in an earlier epoch is not put back.
	epoch int
	// version counts invalidations of the limits. A response to a request from an earlier version is discarded.
	version int
	busy    chan struct{}  // not nil during a request to the lessor; closed at its end
	waiting caisson.Amount // the sum of what the calls that wait for the request need
	refused *caisson.Amount
	scarce  bool           // the last lease was smaller than requested
	calls   int64          // number of calls that the next prefetch covers
	low     caisson.Amount // below this amount a prefetch starts
	err     error
}

// poolKey identifies a pool in a segment. Several accounts may use the same id of a session or run; at most one of them has the
// budget.
type poolKey struct{ account, budget string }

func (b *pool) id() poolKey { return poolKey{b.account, b.key} }

// usable reports whether calls can be charged to b. It resets b if the budget's period has ended.
func (b *pool) usable(now time.Time) bool {
	if until := b.lease.Until; !b.unlimited && !until.IsZero() && !now.Before(until) {
		b.void()
		b.known, b.lease = false, caisson.Lease{}
	}
	return b.known && !(b.unlimited && now.Sub(b.checked) > unlimitedFor)
}

// void resets the available amount. It is not returned to the lessor, which no longer counts it.
func (b *pool) void() {
	b.free, b.under = caisson.Amount{}, 0
	b.epoch++
}

// fresh reports whether the last response is too recent to repeat the request.
func (b *pool) fresh(now time.Time) bool { return b.known && now.Sub(b.checked) < refusedFor }

// dry reports whether the budget has nothing left of the resources that b lacks for a.
func (b *pool) dry(a caisson.Amount) bool {
	limits, left := b.lease.Limits, b.lease.Left
	return limits.USD != nil && left.USD == 0 && b.free.USD < a.USD ||
		limits.Tokens != nil && left.Tokens == 0 && b.free.Tokens < a.Tokens ||
		limits.Calls != nil && left.Calls == 0 && b.free.Calls < a.Calls
}

// fit returns the number of output tokens that all budgets afford, or a budget whose lease must be renewed first. The caller must
// hold mu.
func (p *page) fit(account string, keys []string, d caisson.Demand, now time.Time) (short *pool, output int64) {
	output = d.MaxOutput
	for _, key := range keys {
		k := poolKey{account, key}
		b := p.pools[k]
		if b == nil {
			b = &pool{account: account, key: key, usedAt: now}
			p.pools[k] = b
		}
		switch {
		case !b.usable(now):
			return b, 0
		case b.unlimited || b.free.Covers(d.At(d.MaxOutput)):
			continue
		}
		n := affordable(b.free, d)
		if n < d.MinOutput || !(b.fresh(now) && b.dry(d.At(d.MaxOutput))) {
			return b, 0
		}
		output = min(output, n)
	}
	return nil, output
}

// affordable returns the greatest n <= d.MaxOutput for which free covers d.At(n), or -1 if there is none.
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

// wait requests a lease for b, or waits for the request in progress. The caller must hold mu; wait releases it. An error is the
// reason to refuse the call.
func (p *page) wait(ctx context.Context, b *pool, d caisson.Demand) error {
	now := p.clock
	need, want := missing(b, d.At(d.MinOutput)), missing(b, d.At(d.MaxOutput))
	switch {
	case b.err != nil && now.Sub(b.checked) < refusedFor:
		err := b.err
		p.mu.Unlock()
		return caisson.Wrap(err, caisson.Unavailable, "the budget cannot be asked for at present; try again in a moment")
	case b.refused != nil && b.fresh(now) && need.Covers(*b.refused):
		err := b.over(d.At(d.MinOutput))
		p.mu.Unlock()
		return err
	case b.busy == nil:
		b.busy = make(chan struct{})
		want = want.Plus(b.slab(d, now))
		b.waiting = caisson.Amount{}
		// The request does not use the context of this call: other calls wait for it too, and a granted lease must not be lost.
		go p.ask(b, need, want)
	default:
		b.waiting = b.waiting.Plus(d.At(d.MaxOutput))
	}
	busy := b.busy
	p.mu.Unlock()
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ahead requests a lease in the background if b runs low, so that frequent calls do not wait for it. The caller must hold mu.
func (p *page) ahead(b *pool, d caisson.Demand) {
	if b.busy != nil || b.scarce || b.calls <= minSlab || b.free.Covers(b.low) {
		return
	}
	b.busy = make(chan struct{})
	go p.ask(b, caisson.Amount{}, b.slab(d, p.clock))
}

// missing returns the part of a that b does not have available.
func missing(b *pool, a caisson.Amount) caisson.Amount {
	have := b.free
	if !b.known {
		// The available amount is returned before the lease is requested; a debt remains.
		have = least(have, caisson.Amount{})
	}
	return positive(a.Minus(have))
}

// slab returns the size of the prefetch, beyond the amount that is needed at once.
func (b *pool) slab(d caisson.Demand, now time.Time) caisson.Amount {
	if !b.known {
		b.calls = minSlab
		return caisson.Amount{} // the rest of the budget is unknown
	}
	one, n := d.At(d.MaxOutput), b.calls
	if now.Sub(b.checked) < slabLasts {
		b.calls = min(2*n, maxSlab)
	} else {
		b.calls = max(n/2, minSlab)
	}
	// The products do not overflow, because the cost of one call is bounded; see check.
	a := caisson.Amount{USD: min(one.USD, maxLease.USD/maxSlab) * caisson.USD(n), Tokens: n * one.Tokens, Calls: n}
	b.low = caisson.Amount{USD: a.USD / 4, Tokens: a.Tokens / 4, Calls: a.Calls / 4}
	a = least(a.Plus(b.waiting), caisson.Amount{USD: maxLease.USD / 2, Tokens: maxLease.Tokens / 2, Calls: maxLease.Calls / 2})
	l, left := b.lease.Limits, b.lease.Left
	if l.USD != nil {
		a.USD = min(a.USD, left.USD/slabShare)
	}
	if l.Tokens != nil {
		a.Tokens = min(a.Tokens, left.Tokens/slabShare)
	}
	if l.Calls != nil {
		a.Calls = min(a.Calls, left.Calls/slabShare)
	}
	return a
}

// ask requests a lease for b. The caller has set b.busy; ask closes it.
func (p *page) ask(b *pool, need, want caisson.Amount) {
	p.mu.Lock()
	version := b.version
	p.giveBack(b, !b.known)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	lease, err := p.lessor.Lease(ctx, b.account, b.key, need, want)
	if err == nil && !lease.Unlimited && (!lease.Granted.Covers(caisson.Amount{}) || !want.Covers(lease.Granted)) {
		err = caisson.Errorf(caisson.Internal, "the lessor granted what was not asked for")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.checked = p.tell()
	switch {
	case err != nil:
		b.err = err
	case lease.Unlimited:
		b.void()
		b.known, b.unlimited, b.lease, b.err, b.refused = true, true, lease, nil, nil
	default:
		if b.unlimited || !b.lease.Until.Equal(lease.Until) || b.lease.Title != lease.Title {
			b.void() // another period, or another budget with the same key
		}
		b.known, b.unlimited, b.lease, b.err, b.refused = true, false, lease, nil, nil
		b.free = b.free.Plus(lease.Granted)
		b.scarce = !lease.Granted.Covers(want)
		if !lease.Granted.Covers(need) {
			b.refused = &need
		}
	}
	if b.version != version {
		b.known, b.err, b.refused = false, nil, nil
		p.giveBack(b, true)
	}
	close(b.busy)
	b.busy = nil
}

// giveBack returns the available amount of b to the lessor if should is set. The caller must hold mu and must have set b.busy. mu
// is released during the request.
func (p *page) giveBack(b *pool, should bool) {
	a := positive(b.free)
	if !should || b.unlimited || a.IsZero() {
		return
	}
	b.free = b.free.Minus(a)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	// If the request fails, the amount stays held until the journal is closed.
	_ = p.lessor.Return(ctx, b.key, a)
	cancel()
	p.mu.Lock()
}

// forget invalidates the budgets with the given keys, or all budgets if keys is nil, and returns their available amounts.
func (p *page) forget(keys []string) {
	p.mu.Lock()
	var list []*pool
	for k, b := range p.pools {
		if keys == nil || slices.Contains(keys, k.budget) {
			b.version++
			b.known, b.err, b.refused = false, nil, nil
			list = append(list, b)
		}
	}
	p.mu.Unlock()
	for _, b := range list {
		p.giveBackWhenFree(b)
	}
}

// giveBackWhenFree returns the available amount of b after the request in progress, unless that request has renewed b.
func (p *page) giveBackWhenFree(b *pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b.busy != nil {
		busy := b.busy
		p.mu.Unlock()
		<-busy
		p.mu.Lock()
	}
	if b.known {
		return
	}
	b.busy = make(chan struct{})
	p.giveBack(b, true)
	close(b.busy)
	b.busy = nil
}

// sweep returns and deletes budgets whose last use was before the given time.
func (p *page) sweep(before time.Time) {
	p.mu.Lock()
	var idle []*pool
	for _, b := range p.pools {
		if b.under == 0 && b.busy == nil && b.usedAt.Before(before) {
			b.version++
			b.known = false
			idle = append(idle, b)
		}
	}
	p.mu.Unlock()
	for _, b := range idle {
		p.giveBackWhenFree(b)
		p.mu.Lock()
		// A budget with a debt is kept, because the lessor keeps the debt too.
		if b.busy == nil && b.under == 0 && !b.known && b.free.IsZero() && p.pools[b.id()] == b {
			delete(p.pools, b.id())
		}
		p.mu.Unlock()
	}
}

// over returns the error that refuses a call that costs at least a.
func (b *pool) over(a caisson.Amount) error {
	l, left := b.lease.Limits, b.lease.Left.Plus(positive(b.free))
	most := b.lease.Left.Plus(b.lease.Held) // if the calls in progress cost nothing
	e := &caisson.OverBudget{Budget: b.lease.Title, Busy: true, Retry: time.Second}
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
		say("tokens", count(*l.Tokens, "token"), count(left.Tokens, "token"))
	}
	if l.Calls != nil && lack(a.Calls, left.Calls, most.Calls) {
		say("calls", count(*l.Calls, "call"), count(left.Calls, "call"))
	}
	if !e.Busy {
		e.Retry = 0
	}
	return e
}

func count(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return strconv.FormatInt(n, 10) + " " + unit
}

// positive returns a with negative values replaced by 0.
func positive(a caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: max(a.USD, 0), Tokens: max(a.Tokens, 0), Calls: max(a.Calls, 0)}
}

// least returns the smaller value of each field.
func least(a, b caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: min(a.USD, b.USD), Tokens: min(a.Tokens, b.Tokens), Calls: min(a.Calls, b.Calls)}
}
