// Package report aggregates the decisions of a wire and reports them.
//
// A sandbox can cause a hundred thousand decisions per second. A [Recorder] accepts each in well under a microsecond, passes a
// new one on at once, and aggregates equal ones for ten seconds, so that the volume that reaches logs, events and the database is
// bounded and the counts include every decision. At first it distinguishes 64 decisions in ten seconds, and 16 if a sandbox
// continues to cause new ones. [WhyHandler] serves the refusals to the sandbox.
package report

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

const (
	window         = 10 * time.Second      // length of a window: the time for which equal decisions are aggregated
	batchDelay     = 50 * time.Millisecond // delay before new decisions are passed on, because they come in bursts
	maxDistinct    = 64                    // most distinct decisions in one window; fewer if the windows before it had many
	steadyDistinct = 16                    // most distinct decisions per window on average, if new ones keep coming
	maxRecent      = 64                    // maximum number of distinct refusals that Recent returns
	maxText        = 256                   // bytes of a name, address or reason that are kept; a guest may choose the name
)

// Config configures a [Recorder].
type Config struct {
	// Deliver receives decisions in the order of their time; required. It is called by one goroutine at a time, a timer's or that
	// of Close or Flush. It may block: meanwhile counts accumulate, and only Close and Flush wait. It must not call Close.
	Deliver func([]caisson.Decision)
}

// A Recorder aggregates the decisions of one wire. It is safe for concurrent use, and starts no timers while nothing is reported.
// Stop it with Close.
type Recorder struct {
	deliver    func([]caisson.Decision) // Config.Deliver, to which decisions are passed on
	delivering chan struct{}            // full while decisions are being passed on, which keeps their order

	mu          sync.Mutex                               // guards the fields below
	closed      bool                                     // Close was called; no decisions are passed on any more
	batchTimer  *time.Timer                              // passes on unreported after batchDelay; nil: unreported is empty
	windowTimer *time.Timer                              // ends the current window; nil: there is none
	sums        map[decisionKey]*sum                     // equal decisions, aggregated: one sum for each distinct decision
	active      int                                      // number of distinct decisions in the current window, without overflow
	limit       int                                      // maximum of active; further distinct decisions go to overflow
	unreported  []*sum                                   // sums of new distinct decisions, of which nothing was passed on yet
	overflow    map[overflowKey]*sum                     // sums of the decisions of the current window beyond limit
	recent      *lru.Map[decisionKey, *caisson.Decision] // the latest distinct refusals
	counters    Counters                                 // totals of all reported decisions
}

// Counters are the totals of decisions and bytes since the Recorder was created.
type Counters struct {
	Allowed  int64 `json:"allowed"`  // decisions that allowed something
	Denied   int64 `json:"denied"`   // decisions that refused something
	BytesOut int64 `json:"bytesOut"` // bytes that the sandbox sent
	BytesIn  int64 `json:"bytesIn"`  // bytes that the sandbox received
}

// A decisionKey has the fields of a [caisson.Decision] that are the same in equal decisions, which a Recorder aggregates.
type decisionKey struct {
	kind, reason, name, address, protocol string
	allowed                               bool
	rule                                  int // position of the deciding rule in the policy; -1 if no rule decided
}

// newDecisionKey returns the key of d, which it shares with all decisions that are equal to it.
func newDecisionKey(d caisson.Decision) decisionKey {
	return decisionKey{d.Kind, d.Reason, d.Name, d.Address, d.Protocol, d.Allowed, d.Rule}
}

// An overflowKey groups the decisions that exceed the limit of distinct ones, by their kind and their verdict.
type overflowKey struct {
	kind    string
	allowed bool
}

// A sum aggregates the equal decisions that were made since it was last passed on.
type sum struct {
	caisson.Decision
	changed bool // the sum has decisions that were not passed on
	active  bool // a decision was added in the current window
}

// New returns a Recorder without decisions.
func New(c Config) (*Recorder, error) {
	if c.Deliver == nil {
		return nil, caisson.Errorf(caisson.Internal, "a recorder needs a function that receives decisions")
	}
	return &Recorder{
		deliver:    c.Deliver,
		delivering: make(chan struct{}, 1),
		limit:      maxDistinct,
		sums:       map[decisionKey]*sum{},
		overflow:   map[overflowKey]*sum{},
		recent:     lru.New[decisionKey, *caisson.Decision](maxRecent),
	}, nil
}

// Report adds a decision. Decisions are equal if they differ only in time, count and bytes. A Count of 0 adds only bytes to a
// connection that was reported before; without bytes it counts as 1. It never blocks.
func (r *Recorder) Report(d caisson.Decision) {
	d.Count = max(d.Count, 0)
	if d.Count == 0 && d.BytesOut == 0 && d.BytesIn == 0 {
		d.Count = 1
	}
	if d.At.IsZero() {
		d.At = time.Now()
	}
	d.Name, d.Address, d.Reason = clip(d.Name), clip(d.Address), clip(d.Reason)
	k := newDecisionKey(d)

	r.mu.Lock()
	defer r.mu.Unlock()
	if d.Allowed {
		r.counters.Allowed += d.Count
	} else {
		r.counters.Denied += d.Count
		r.addRecent(k, d)
	}
	r.counters.BytesOut += d.BytesOut
	r.counters.BytesIn += d.BytesIn

	s := r.sums[k]
	switch {
	case s != nil && s.active:
	case r.active >= r.limit:
		s = r.overflowSum(d)
	case s == nil:
		s = r.startSum(d)
	}
	if !s.active {
		s.active = true
		r.active++
	}
	s.add(d)
	if r.windowTimer == nil {
		r.openWindow()
	}
}

// openWindow begins a window: it starts the timer that ends it. The caller must hold mu.
func (r *Recorder) openWindow() {
	if !r.closed {
		r.windowTimer = time.AfterFunc(window, func() { r.deliverFrom(r.endWindow) })
	}
}

// startSum adds a sum of decisions equal to d. If there are too many sums, it replaces one without a decision in this window.
func (r *Recorder) startSum(d caisson.Decision) *sum {
	if len(r.sums) >= maxDistinct {
		for old, s := range r.sums {
			if !s.active {
				delete(r.sums, old)
				break
			}
		}
	}
	s := &sum{Decision: withoutCounts(d)}
	r.sums[newDecisionKey(s.Decision)] = s
	r.unreported = append(r.unreported, s)
	if r.batchTimer == nil && !r.closed {
		r.batchTimer = time.AfterFunc(batchDelay, func() { r.deliverFrom(r.takeUnreported) })
	}
	return s
}

// overflowSum returns the sum of those decisions beyond the limit of distinct ones that have the kind and the verdict of d.
func (r *Recorder) overflowSum(d caisson.Decision) *sum {
	k := overflowKey{d.Kind, d.Allowed}
	s := r.overflow[k]
	if s == nil {
		s = &sum{active: true, Decision: caisson.Decision{
			Kind: d.Kind, Allowed: d.Allowed, Rule: -1, Reason: "others: too many different decisions in 10 seconds to list them",
		}}
		r.overflow[k] = s
	}
	return s
}

// addRecent counts the refusal d, with the key k, in recent. The caller must hold mu.
func (r *Recorder) addRecent(k decisionKey, d caisson.Decision) {
	known, ok := r.recent.Get(k)
	if !ok {
		first := withoutCounts(d)
		known = &first
		known.At = d.At
		r.recent.Put(newDecisionKey(first), known)
	}
	known.Count += d.Count
	known.BytesOut += d.BytesOut
	known.BytesIn += d.BytesIn
}

// add adds the count, bytes and time of d.
func (s *sum) add(d caisson.Decision) {
	if !s.changed {
		s.changed, s.At = true, d.At
	}
	s.Count += d.Count
	s.BytesOut += d.BytesOut
	s.BytesIn += d.BytesIn
}

// take returns the decisions that were added since the last call of take, as one decision, and resets the sum.
func (s *sum) take() caisson.Decision {
	d := s.Decision
	s.Count, s.BytesOut, s.BytesIn, s.changed = 0, 0, 0, false
	return d
}

// withoutCounts returns d without the fields that may differ between equal decisions. It shares no memory with d, because a short
// name may be part of a long request.
func withoutCounts(d caisson.Decision) caisson.Decision {
	d.Count, d.BytesOut, d.BytesIn, d.At = 0, 0, 0, time.Time{}
	d.Name, d.Address, d.Reason = strings.Clone(d.Name), strings.Clone(d.Address), strings.Clone(d.Reason)
	return d
}

// Recent returns the last 64 distinct refusals, the latest first. Count is how often one occurred, and At when it first did.
func (r *Recorder) Recent() []caisson.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]caisson.Decision, 0, r.recent.Len())
	for _, d := range r.recent.All {
		all = append(all, *d)
	}
	return all
}

// Counters returns the totals of all reported decisions.
func (r *Recorder) Counters() Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counters
}

// Flush passes on the decisions that were aggregated so far, so that later ones are not added to them.
func (r *Recorder) Flush() { r.deliverFrom(r.endWindow) }

// Close passes on the remaining decisions after a current call of Deliver has returned. Later decisions are counted but not
// passed on. It is idempotent.
func (r *Recorder) Close() {
	r.deliverFrom(func() []caisson.Decision {
		if r.closed {
			return nil
		}
		ds := r.endWindow()
		r.closed = true
		for _, t := range []*time.Timer{r.batchTimer, r.windowTimer} {
			if t != nil {
				t.Stop()
			}
		}
		return ds
	})
}

// deliverFrom passes on the decisions that take returns. It calls take with mu held.
func (r *Recorder) deliverFrom(take func() []caisson.Decision) {
	r.delivering <- struct{}{}
	defer func() { <-r.delivering }()
	r.mu.Lock()
	ds := take()
	r.mu.Unlock()
	if len(ds) == 0 {
		return
	}
	slices.SortStableFunc(ds, func(a, b caisson.Decision) int { return a.At.Compare(b.At) })
	r.deliver(ds)
}

// takeUnreported empties the list unreported and returns its decisions, except those that endWindow has returned already.
func (r *Recorder) takeUnreported() (ds []caisson.Decision) {
	if r.closed {
		return nil
	}
	for _, s := range r.unreported {
		if s.changed { // false if endWindow has taken the decisions already
			ds = append(ds, s.take())
		}
	}
	r.unreported, r.batchTimer = nil, nil
	return ds
}

// endWindow returns the decisions that were not passed on yet, and removes the sums of distinct decisions that did not occur in
// this window. Another window follows if any sums are left, or limit is still below maxDistinct.
func (r *Recorder) endWindow() (ds []caisson.Decision) {
	if r.closed {
		return nil
	}
	for k, s := range r.sums {
		if s.changed {
			ds = append(ds, s.take())
		}
		if !s.active {
			delete(r.sums, k)
		}
		s.active = false
	}
	for _, s := range r.overflow {
		ds = append(ds, s.take())
	}
	clear(r.overflow)
	r.limit = min(r.limit-r.active+steadyDistinct, maxDistinct)
	r.unreported, r.active, r.windowTimer = nil, 0, nil
	if len(r.sums) > 0 || r.limit < maxDistinct {
		r.openWindow()
	}
	return ds
}

// clip returns at most the first maxText bytes of s, without splitting a character.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
