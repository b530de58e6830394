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

// Slabs: a lease is for the call at hand and for some more like it, twice as many each time if it did not last a second,
// because a lease costs two syncs. But it is only for a small part of what the budget has left, so that gateways that
// share a budget do not starve each other.
const (
	minSlab   = 16 // calls
	maxSlab   = 1 << 14
	slabLasts = time.Second
	slabShare = 8 // of what is left, one part in so many
)

// maxLease bounds a lease. The greatest call that there can be fits several times.
var maxLease = caisson.Amount{USD: 64 * caisson.USD(maxCost), Tokens: 64 * maxTokens, Calls: 1 << 20}

// pool is what a page knows and has of one budget.
type pool struct {
	account   string // whose calls come out of it
	key       string
	known     bool // what follows may be believed
	unlimited bool // there is no such budget
	checked   time.Time
	lease     caisson.Lease  // the last one, for what it says about the budget
	free      caisson.Amount // below 0 if calls took more than was set aside for them
	under     int            // calls under way that took from free
	usedAt    time.Time
	// epoch counts the lives of free: what was taken in an earlier one does not come back in this.
	epoch int
	// version counts how often the limits were said to have changed; an answer from before is not believed.
	version int
	busy    chan struct{}  // not nil while the lessor is being asked; closed then
	waiting caisson.Amount // what those want who wait for an answer
	refused *caisson.Amount
	scarce  bool           // the last lease was for less than was wanted
	calls   int64          // that the next slab is for
	low     caisson.Amount // having less than that, b should ask for more
	err     error
}

// poolKey tells the pools of a page apart. Of accounts that use the same id of a session or run, one at most has the budget.
type poolKey struct{ account, budget string }

func (b *pool) id() poolKey { return poolKey{b.account, b.key} }

// usable reports whether calls may be taken from b, and voids what b has when its period has ended.
func (b *pool) usable(now time.Time) bool {
	if until := b.lease.Until; !b.unlimited && !until.IsZero() && !now.Before(until) {
		b.void()
		b.known, b.lease = false, caisson.Lease{}
	}
	return b.known && !(b.unlimited && now.Sub(b.checked) > unlimitedFor)
}

// void forgets what b has. It is not given back: the lessor does not count it any more.
func (b *pool) void() {
	b.free, b.under = caisson.Amount{}, 0
	b.epoch++
}

// fresh reports whether the last answer is so young that asking again would be a waste.
func (b *pool) fresh(now time.Time) bool { return b.known && now.Sub(b.checked) < refusedFor }

// dry reports whether there was nothing left of what b lacks of a.
func (b *pool) dry(a caisson.Amount) bool {
	limits, left := b.lease.Limits, b.lease.Left
	return limits.USD != nil && left.USD == 0 && b.free.USD < a.USD ||
		limits.Tokens != nil && left.Tokens == 0 && b.free.Tokens < a.Tokens ||
		limits.Calls != nil && left.Calls == 0 && b.free.Calls < a.Calls
}

// fit returns how many tokens of output all budgets afford, or one that must be asked for more first. It needs mu.
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

// affordable returns the greatest n, d.MaxOutput at most, with free covering d.At(n), or -1.
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

// wait waits until b has been asked for. It is called with mu and releases it. An error is the call's refusal.
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
		// Not with the context of this call: others wait too, and what was granted must not get lost with it.
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

// ahead asks for more before there is too little, so that calls that come often do not wait for it. It needs mu.
func (p *page) ahead(b *pool, d caisson.Demand) {
	if b.busy != nil || b.scarce || b.calls <= minSlab || b.free.Covers(b.low) {
		return
	}
	b.busy = make(chan struct{})
	go p.ask(b, caisson.Amount{}, b.slab(d, p.clock))
}

// missing returns what b does not have of a.
func missing(b *pool, a caisson.Amount) caisson.Amount {
	have := b.free
	if !b.known {
		// It will be given back before anything is asked for; a debt stays.
		have = least(have, caisson.Amount{})
	}
	return positive(a.Minus(have))
}

// slab returns how much more than needed at once should be asked for.
func (b *pool) slab(d caisson.Demand, now time.Time) caisson.Amount {
	if !b.known {
		b.calls = minSlab
		return caisson.Amount{} // nobody knows how much there is
	}
	one, n := d.At(d.MaxOutput), b.calls
	if now.Sub(b.checked) < slabLasts {
		b.calls = min(2*n, maxSlab)
	} else {
		b.calls = max(n/2, minSlab)
	}
	// No product overflows: what one call takes is bounded, see check.
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

// ask gets a lease for b, whose busy it holds.
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
			b.void() // another period, or another budget of that name
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

// giveBack returns what b has left, if it should. It needs mu and that the caller holds b.busy, and gives mu up meanwhile.
func (p *page) giveBack(b *pool, should bool) {
	a := positive(b.free)
	if !should || b.unlimited || a.IsZero() {
		return
	}
	b.free = b.free.Minus(a)
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	// If it fails, it stays held until the journal is closed.
	_ = p.lessor.Return(ctx, b.key, a)
	cancel()
	p.mu.Lock()
}

// forget distrusts what is known of budgets, all without keys, and gives back what is left of them.
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

// giveBackWhenFree gives back what b has, unless it was asked for anew meanwhile.
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

// sweep gives back and forgets budgets that nobody has used since then.
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
		// A debt is not forgotten: the lessor remembers it too.
		if b.busy == nil && b.under == 0 && !b.known && b.free.IsZero() && p.pools[b.id()] == b {
			delete(p.pools, b.id())
		}
		p.mu.Unlock()
	}
}

// over returns the refusal of a call that takes a at least.
func (b *pool) over(a caisson.Amount) error {
	l, left := b.lease.Limits, b.lease.Left.Plus(positive(b.free))
	most := b.lease.Left.Plus(b.lease.Held) // if nothing under way took anything
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

// positive returns a with 0 for what is negative.
func positive(a caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: max(a.USD, 0), Tokens: max(a.Tokens, 0), Calls: max(a.Calls, 0)}
}

// least returns the lesser of each pair of numbers.
func least(a, b caisson.Amount) caisson.Amount {
	return caisson.Amount{USD: min(a.USD, b.USD), Tokens: min(a.Tokens, b.Tokens), Calls: min(a.Calls, b.Calls)}
}
