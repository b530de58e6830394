package ledger

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// Bounds of a [Meter].
const (
	rotateAt     = 64 << 20         // bytes of a journal after which the next page is asked for
	leaseTimeout = 10 * time.Second // for one question to a lessor
	idleAfter    = 30 * time.Second // then a budget that nobody uses is given back
	unlimitedFor = time.Minute      // that there is no such budget is believed for so long
	refusedFor   = 100 * time.Millisecond
	sweepEvery   = 5 * time.Second
	retryAfter   = 5 * time.Second // when there was no next page
	maxName      = 128             // bytes of an account, run or session: they are parts of keys and must not be cut
)

// A Page is a journal and the budgets that go with it. What its lessor hands out is held on behalf of that journal.
type Page struct {
	// Journal gets each record in one Write, which must append it as a whole or fail.
	Journal io.Writer
	Lessor  caisson.Lessor
	// Done is called once when nothing more will be written to the journal or asked of the lessor, so that the journal can
	// be closed and finished. nil: nobody cares.
	Done func()
}

// Config is what a [Meter] is made of.
type Config struct {
	Page Page // the first page; its Journal and Lessor are required
	// Next returns the page to go on with when a journal is full or cannot be written. nil: there is only one page, and when
	// it cannot be written calls are refused.
	Next func(ctx context.Context) (Page, error)
	Now  func() time.Time // nil means time.Now
	Log  *slog.Logger     // nil means nobody is told
}

// A Meter is a [caisson.Meter]. It is safe for concurrent use.
type Meter struct {
	next func(ctx context.Context) (Page, error)
	now  func() time.Time
	log  *slog.Logger

	mu     sync.Mutex
	page   *page // the one that calls begin on; guarded by mu
	closed bool  // guarded by mu

	wake  chan struct{} // makes Run look at the page
	retry time.Time     // not before that another page is asked for; Run's own
}

var _ caisson.Meter = (*Meter)(nil)

// NewMeter returns a meter. Its Run must be running for idle budgets to be given back and journals to be rotated.
func NewMeter(c Config) (*Meter, error) {
	if c.Page.Journal == nil || c.Page.Lessor == nil {
		return nil, caisson.Errorf(caisson.Internal, "a meter needs a journal and a lessor")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Meter{
		next: c.Next, now: c.Now, log: c.Log.With("component", "ledger"), page: newPage(c.Page, c.Now),
		wake: make(chan struct{}, 1),
	}, nil
}

// Reserve implements [caisson.Meter]. The call's ID is made if it has none, and its At is the moment of the reservation.
func (m *Meter) Reserve(ctx context.Context, call caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	if err := check(&call, d); err != nil {
		return nil, err
	}
	p, err := m.current()
	if err != nil {
		return nil, err
	}
	defer p.release()
	r, err := p.reserve(ctx, call, d)
	if p.journal.spoilt() || p.journal.size() > rotateAt {
		m.nudge()
	}
	if err != nil {
		return nil, err
	}
	r.meter = m
	return r, nil
}

// check refuses what could not be recorded.
func check(call *caisson.Call, d caisson.Demand) error {
	worst := d.At(d.MaxOutput)
	switch {
	case !placed(call.Guest) || !related(call.Guest) || !traced(call.Guest) || call.Account == "" || len(call.Account) > maxName || len(call.Run) > maxName || len(call.Session) > maxName:
		return caisson.Errorf(caisson.Internal, "a call without a proper guest cannot be recorded")
	case d.MinOutput < 0 || d.MaxOutput < d.MinOutput || !d.Fixed.Covers(caisson.Amount{}) || d.Fixed.Calls != 1 || d.OutputPrice < 0:
		return caisson.Errorf(caisson.Internal, "the demand of a call is malformed")
	case worst.Tokens > maxTokens || worst.USD > caisson.USD(maxCost):
		return caisson.Errorf(caisson.Invalid, "what the call may cost has no sensible bound; ask for fewer tokens of output")
	}
	if call.ID == "" {
		call.ID = caisson.NewID(caisson.CallPrefix)
		return nil
	}
	if _, err := caisson.ParseID(caisson.CallPrefix, string(call.ID)); err != nil {
		return caisson.Errorf(caisson.Internal, "%.40q is not the id of a call", call.ID)
	}
	return nil
}

// current returns the page that calls begin on, with a hold on it that release gives up.
func (m *Meter) current() (*page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, caisson.Errorf(caisson.Unavailable, "the model gateway is ending; try again in a moment")
	}
	m.page.users.Add(1)
	return m.page, nil
}

// nudge makes Run look at the page.
func (m *Meter) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Forget makes the meter ask again about budgets whose limits have changed: what it has left of them is given back. When
// it returns, no call will begin on what was known before. Without keys it forgets all.
func (m *Meter) Forget(budgets ...string) {
	m.mu.Lock()
	p := m.page
	p.users.Add(1)
	m.mu.Unlock()
	defer p.release()
	p.forget(budgets)
}

// Run gives back what is idle and turns the page when it is full, until ctx ends.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-m.wake:
		}
		m.mu.Lock()
		p := m.page
		p.users.Add(1)
		m.mu.Unlock()
		if p.journal.spoilt() || p.journal.size() > rotateAt {
			m.rotate(ctx)
		}
		p.sweep(m.now().Add(-idleAfter))
		p.release()
	}
}

// rotate goes on with the next page. Calls under way stay on theirs.
func (m *Meter) rotate(ctx context.Context) {
	if wait := m.retry.Sub(m.now()); m.next == nil || wait > 0 && wait <= retryAfter { // more: the clock went back
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	fresh, err := m.next(ctx)
	if err != nil || fresh.Journal == nil || fresh.Lessor == nil {
		m.retry = m.now().Add(retryAfter)
		m.log.ErrorContext(ctx, "no new journal; calls go on in the old one while it can be written", "err", err)
		return
	}
	m.mu.Lock()
	p := m.page
	if m.closed {
		p = newPage(fresh, m.now) // nobody will use it
	} else {
		m.page = newPage(fresh, m.now)
	}
	m.mu.Unlock()
	p.retire()
}

// Close ends the meter: further calls are refused, and what is left of budgets is given back. Calls under way can still be
// settled; the journal's Done is called after the last of them.
func (m *Meter) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	p := m.page
	m.mu.Unlock()
	p.retire()
	return nil
}
