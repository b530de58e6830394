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

// page is a journal with its budgets, as a meter uses it.
type page struct {
	journal journal
	lessor  caisson.Lessor
	done    func()
	now     func() time.Time

	users   atomic.Int64 // calls under way, and whoever looks at it
	retired atomic.Bool
	ended   sync.Once

	mu    sync.Mutex
	clock time.Time         // the last time told; it never goes back. Guarded by mu
	pools map[poolKey]*pool // guarded by mu, and so are they
}

func newPage(p Page, now func() time.Time) *page {
	return &page{journal: journal{w: p.Journal}, lessor: p.Lessor, done: p.Done, now: now, pools: map[poolKey]*pool{}}
}

// tell returns the time, which for a page does not go back: a call must not fall into a period that has ended. But a clock
// that went back by more than a day was wrong before, and nothing that was known by it is believed. It needs mu.
func (p *page) tell() time.Time {
	t := p.now().UTC().Round(0)
	if t.Before(p.clock.Add(-maxSkew)) {
		for _, b := range p.pools {
			b.version++
			b.known, b.err, b.refused = false, nil, nil
			b.checked, b.usedAt = time.Time{}, t
		}
		p.clock = t
	}
	if t.After(p.clock) {
		p.clock = t
	}
	return p.clock
}

// release gives up a hold on p. The last one of a retired page ends it.
func (p *page) release() {
	if p.users.Add(-1) == 0 && p.retired.Load() {
		go p.end() // it talks to the lessor, and this may be the end of a call
	}
}

// retire lets p end when the last call on it has been settled.
func (p *page) retire() {
	p.users.Add(1)
	p.retired.Store(true)
	p.forget(nil)
	p.release()
}

func (p *page) end() {
	p.ended.Do(func() {
		p.forget(nil)
		if p.done != nil {
			p.done()
		}
	})
}

// reserve takes what a call may take out of all its budgets and writes down that it has begun.
func (p *page) reserve(ctx context.Context, call caisson.Call, d caisson.Demand) (*reservation, error) {
	if p.journal.spoilt() {
		return nil, errUnwritable
	}
	sane(&call)
	r := &reservation{page: p, call: call}
	keys := call.Budgets()
	for {
		p.mu.Lock()
		r.call.At = p.tell()
		short, output := p.fit(call.Account, keys, d, r.call.At)
		if short == nil {
			r.output, r.worst = output, d.At(output)
			p.take(r, keys, d)
			p.mu.Unlock()
			break
		}
		// Unlocks.
		if err := p.wait(ctx, short, d); err != nil {
			return nil, err
		}
	}
	row := r.call
	row.Status, row.Error, row.Estimated = 0, "", true
	row.Tokens = caisson.TokenCount{Input: d.Fixed.Tokens, Output: r.output}
	row.Cost = r.worst.USD
	p.users.Add(1)
	if err := p.journal.write(kindBegin, &row); err != nil {
		// What was set aside stays so: perhaps the record can be read after all.
		p.users.Add(-1) // the caller holds one too, so this is not the last
		return nil, err
	}
	return r, nil
}

// take takes r's worst case out of its budgets. It needs mu.
func (p *page) take(r *reservation, keys []string, d caisson.Demand) {
	for i, key := range keys {
		b := p.pools[poolKey{r.call.Account, key}]
		if !b.unlimited {
			b.free = b.free.Minus(r.worst)
			b.under++
			r.shares[i] = poolShare{b, b.epoch}
			p.ahead(b, d)
		}
		b.usedAt = r.call.At
	}
}

// free puts back what r did not take.
func (p *page) free(r *reservation, took caisson.Amount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range r.shares {
		if s.pool != nil && s.pool.epoch == s.epoch {
			// More than the worst case leaves a debt, which the next lease pays.
			s.pool.free = s.pool.free.Plus(r.worst.Minus(took))
			s.pool.under--
		}
	}
}

// poolShare is a reservation's part in a budget.
type poolShare struct {
	pool  *pool
	epoch int
}

// reservation is a [caisson.Reservation].
type reservation struct {
	meter   *Meter
	page    *page
	call    caisson.Call
	output  int64
	worst   caisson.Amount
	shares  [4 + caisson.MaxLineage]poolShare // a guest has no more budgets
	settled atomic.Bool
}

// Output implements [caisson.Reservation].
func (r *reservation) Output() int64 { return r.output }

// Settle implements [caisson.Reservation]. Who made the call, its ID and its At are those of the reservation; so is what
// was called, where call does not say it.
func (r *reservation) Settle(call caisson.Call) error {
	if !r.settled.CompareAndSwap(false, true) {
		return caisson.Errorf(caisson.Internal, "call %s was settled twice", r.call.ID)
	}
	defer r.page.release()
	call.ID, call.At, call.Guest = r.call.ID, r.call.At, r.call.Guest
	call.Provider, call.Model = cmp.Or(call.Provider, r.call.Provider), cmp.Or(call.Model, r.call.Model)
	call.Upstream, call.API = cmp.Or(call.Upstream, r.call.Upstream), cmp.Or(call.API, r.call.API)
	sane(&call)
	if err := r.page.journal.write(kindSettle, &call); err != nil {
		r.meter.nudge()
		return err // what was set aside stays so: the call will be charged in full
	}
	r.page.free(r, call.Amount())
	return nil
}

// sane puts what a provider says about a call within what a record can hold.
func sane(c *caisson.Call) {
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

// journal appends records. It is safe for concurrent use.
type journal struct {
	mu     sync.Mutex
	w      io.Writer
	buf    []byte
	broken atomic.Bool
	bytes  atomic.Int64
}

var errUnwritable = caisson.Errorf(caisson.Unavailable, "the ledger cannot be written, so no call is made; the daemon's log has the details")

// write appends a record about c. After an error nobody knows what the journal ends with, so nothing is written any more.
func (j *journal) write(kind byte, c *caisson.Call) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken.Load() {
		return errUnwritable
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

func (j *journal) spoilt() bool { return j.broken.Load() }

func (j *journal) size() int64 { return j.bytes.Load() }
