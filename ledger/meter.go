package ledger

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// Limits of a [Meter].
const (
	rotateBytes   = 64 << 20               // size of a journal segment, in bytes, after which the meter requests the next one
	leaseTimeout  = 10 * time.Second       // timeout of one request to a lessor or for a segment
	idleAfter     = 30 * time.Second       // after this time without a call, the leases of a budget are returned
	unlimitedTTL  = time.Minute            // how long a meter remembers that a budget does not exist
	refusedTTL    = 100 * time.Millisecond // how long a meter remembers that the lessor refused a lease or failed
	sweepInterval = 5 * time.Second        // time between two searches for idle budgets
	retryAfter    = 5 * time.Second        // delay after a failed request for the next segment
	maxName       = 128                    // bytes of names of accounts, runs and sessions: keys of budgets contain them in full
)

// A Segment is a journal segment and the lessor that grants leases to the process that writes the segment.
type Segment struct {
	// Journal receives each record in one Write, which must append the whole record or fail.
	Journal io.Writer
	Lessor  caisson.Lessor // grants leases to the process that writes to Journal
	// Done is called once, after the last write to the journal and the last request to the lessor, so that the journal can be
	// closed and finished. May be nil.
	Done func()
}

// Config configures a [Meter].
type Config struct {
	Segment Segment // the first segment; its Journal and Lessor are required
	// Next returns the next segment when the journal of the current one is full or cannot be written. If Next is nil, there is
	// only one segment, and calls are refused when its journal cannot be written.
	Next func(ctx context.Context) (Segment, error)
	Now  func() time.Time // nil means time.Now
	Log  *slog.Logger     // nil discards messages
}

// A Meter implements [caisson.Meter]. It is safe for concurrent use.
type Meter struct {
	next func(ctx context.Context) (Segment, error) // returns the next segment; nil: there is only one
	now  func() time.Time
	log  *slog.Logger

	mu      sync.Mutex
	segment *segment // the current segment; guarded by mu
	closed  bool     // whether Close was called; guarded by mu

	wake    chan struct{} // makes Run check the segment at once
	retryAt time.Time     // earliest time of the next request for a segment; used by Run only
}

var _ caisson.Meter = (*Meter)(nil)

// NewMeter returns a meter. It returns the leases of idle budgets, and switches to the next segment, only while Run is running.
func NewMeter(c Config) (*Meter, error) {
	if c.Segment.Journal == nil || c.Segment.Lessor == nil {
		return nil, caisson.Errorf(caisson.Internal, "a meter needs a journal and a lessor")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Meter{
		next: c.Next, now: c.Now, log: c.Log.With("component", "ledger"), segment: newSegment(c.Segment, c.Now),
		wake: make(chan struct{}, 1),
	}, nil
}

// Reserve implements [caisson.Meter]. It generates the call's ID if it is empty, and sets At to the time of the reservation.
func (m *Meter) Reserve(ctx context.Context, call caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	if err := checkCall(&call, d); err != nil {
		return nil, err
	}
	p, err := m.current()
	if err != nil {
		return nil, err
	}
	defer p.release()
	r, err := p.reserve(ctx, call, d)
	if p.journal.failed() || p.journal.size() > rotateBytes {
		m.wakeRun()
	}
	if err != nil {
		return nil, err
	}
	r.meter = m
	return r, nil
}

// checkCall returns an error if a call cannot be recorded, and otherwise sets its ID if that is empty.
func checkCall(call *caisson.Call, d caisson.Demand) error {
	worst := d.MaxUsage(d.MaxOutput)
	switch {
	case !hasOrigin(call.Guest) || !validLineage(call.Guest) || !validTrace(call.Guest) || call.Account == "" || len(call.Account) > maxName || len(call.Run) > maxName || len(call.Session) > maxName:
		return caisson.Errorf(caisson.Internal, "the guest of a call is malformed; the call cannot be recorded")
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

// current returns the current segment with a reference to it, which the caller must drop with release.
func (m *Meter) current() (*segment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, caisson.Errorf(caisson.Unavailable, "the model gateway is shutting down; try again in a moment")
	}
	m.segment.refs.Add(1)
	return m.segment, nil
}

// wakeRun makes Run check at once whether the journal is full or cannot be written.
func (m *Meter) wakeRun() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Invalidate discards what the meter knows about budgets whose limits have changed, and returns its leases of these budgets.
// When Invalidate returns, no call begins on the old limits. Without keys it does so for all budgets.
func (m *Meter) Invalidate(budgets ...string) {
	m.mu.Lock()
	p := m.segment
	p.refs.Add(1)
	m.mu.Unlock()
	defer p.release()
	p.invalidate(budgets)
}

// Run returns the leases of idle budgets, and switches to the next segment when a journal is full, until ctx is done.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-m.wake:
		}
		m.mu.Lock()
		p := m.segment
		p.refs.Add(1)
		m.mu.Unlock()
		if p.journal.failed() || p.journal.size() > rotateBytes {
			m.rotate(ctx)
		}
		p.returnIdle(m.now().Add(-idleAfter))
		p.release()
	}
}

// rotate requests the next segment and switches to it. Calls in progress are settled in the segment in which they began.
func (m *Meter) rotate(ctx context.Context) {
	if wait := m.retryAt.Sub(m.now()); m.next == nil || wait > 0 && wait <= retryAfter { // a longer wait: the clock went back
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	fresh, err := m.next(ctx)
	if err != nil || fresh.Journal == nil || fresh.Lessor == nil {
		m.retryAt = m.now().Add(retryAfter)
		m.log.ErrorContext(ctx, "no new journal could be opened; calls are recorded in the old one as long as it can be written", "err", err)
		return
	}
	m.mu.Lock()
	p := m.segment
	if m.closed {
		p = newSegment(fresh, m.now) // the meter has been closed, so the new segment is retired unused
	} else {
		m.segment = newSegment(fresh, m.now)
	}
	m.mu.Unlock()
	p.retire()
}

// Close closes the meter: further calls are refused, and unspent leases are returned. Calls in progress can still be settled;
// Done of the segment is called after the last of them.
func (m *Meter) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	p := m.segment
	m.mu.Unlock()
	p.retire()
	return nil
}
