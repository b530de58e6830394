// Package report counts what a wire decides and tells others of it.
//
// A sandbox can make a wire decide a hundred thousand times a second. A [Recorder] takes every decision in well under a
// microsecond, passes a new one on at once and sums up equal ones for ten seconds, so that what reaches logs, events and the
// database is bounded whatever a sandbox does, and no decision is lost from the sums. At first 64 different ones are told
// apart in ten seconds; a sandbox that goes on making new ones has 16. [WhyHandler] shows to the sandbox
// itself what was refused.
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
	window      = 10 * time.Second
	batch       = 50 * time.Millisecond // decisions come in bursts
	maxDistinct = 64                    // per window, after a rest
	sustained   = 16                    // the same on average
	maxRecent   = 64
	maxText     = 256 // bytes of a name, address or reason that are kept; names may be a guest's own invention
)

// Config configures a [Recorder].
type Config struct {
	// HandOn takes decisions on, in the order of their time; required. There is one call at a time, from a goroutine of its
	// own or from Close. It may take its time: meanwhile sums grow, and nothing waits but Close. It must not call Close.
	HandOn func([]caisson.Decision)
}

// A Recorder sums up the decisions of one wire. It is safe for concurrent use, and does nothing while nothing is reported.
// End it with Close.
type Recorder struct {
	handOn  func([]caisson.Decision)
	handing chan struct{} // holds one from taking decisions until they are handed on, so that they are in order

	mu       sync.Mutex // guards what follows
	closed   bool
	soon     *time.Timer // nil: nothing is fresh
	later    *time.Timer // ends the window; nil: none is open
	sums     map[key]*sum
	active   int    // of sums, at most room
	room     int    // how many may be active in this window
	fresh    []*sum // of sums, those that nobody has heard of
	others   map[otherKey]*sum
	recent   *lru.Map[key, *caisson.Decision] // refused
	counters Counters
}

// Counters are sums since the Recorder was made.
type Counters struct {
	Allowed  int64 `json:"allowed"`
	Denied   int64 `json:"denied"`
	BytesOut int64 `json:"bytesOut"`
	BytesIn  int64 `json:"bytesIn"`
}

// key is what equal decisions have in common.
type key struct {
	kind, reason, name, address, protocol string
	allowed                               bool
	rule                                  int
}

func keyOf(d caisson.Decision) key {
	return key{d.Kind, d.Reason, d.Name, d.Address, d.Protocol, d.Allowed, d.Rule}
}

// otherKey is what those have in common that are too many to be told apart.
type otherKey struct {
	kind    string
	allowed bool
}

// A sum is a decision and what has been added to it since it was last handed on.
type sum struct {
	caisson.Decision
	changed bool // since it was handed on
	active  bool // changed in this window
}

// New returns a Recorder.
func New(c Config) (*Recorder, error) {
	if c.HandOn == nil {
		return nil, caisson.Errorf(caisson.Internal, "a recorder needs somewhere to hand decisions on to")
	}
	return &Recorder{
		handOn:  c.HandOn,
		handing: make(chan struct{}, 1),
		room:    maxDistinct,
		sums:    map[key]*sum{},
		others:  map[otherKey]*sum{},
		recent:  lru.New[key, *caisson.Decision](maxRecent),
	}, nil
}

// Report adds a decision. Decisions are equal if they differ in nothing but time, count and bytes. A Count of zero adds
// only bytes, to a connection that was reported before; with no bytes either it means one. It never waits.
func (r *Recorder) Report(d caisson.Decision) {
	d.Count = max(d.Count, 0)
	if d.Count == 0 && d.BytesOut == 0 && d.BytesIn == 0 {
		d.Count = 1
	}
	if d.At.IsZero() {
		d.At = time.Now()
	}
	d.Name, d.Address, d.Reason = clip(d.Name), clip(d.Address), clip(d.Reason)
	k := keyOf(d)

	r.mu.Lock()
	defer r.mu.Unlock()
	if d.Allowed {
		r.counters.Allowed += d.Count
	} else {
		r.counters.Denied += d.Count
		r.remember(k, d)
	}
	r.counters.BytesOut += d.BytesOut
	r.counters.BytesIn += d.BytesIn

	s := r.sums[k]
	switch {
	case s != nil && s.active:
	case r.active >= r.room:
		s = r.other(d)
	case s == nil:
		s = r.start(d)
	}
	if !s.active {
		s.active = true
		r.active++
	}
	s.add(d)
	if r.later == nil {
		r.openWindow()
	}
}

// openWindow sets the time at which what has changed is handed on.
func (r *Recorder) openWindow() {
	if !r.closed {
		r.later = time.AfterFunc(window, func() { r.hand(r.endWindow) })
	}
}

// start makes a sum for a decision that is not known, in the place of one that was not made again if need be.
func (r *Recorder) start(d caisson.Decision) *sum {
	if len(r.sums) >= maxDistinct {
		for old, s := range r.sums {
			if !s.active {
				delete(r.sums, old)
				break
			}
		}
	}
	s := &sum{Decision: blank(d)}
	r.sums[keyOf(s.Decision)] = s
	r.fresh = append(r.fresh, s)
	if r.soon == nil && !r.closed {
		r.soon = time.AfterFunc(batch, func() { r.hand(r.takeFresh) })
	}
	return s
}

// other returns the sum of what is too much to be told apart.
func (r *Recorder) other(d caisson.Decision) *sum {
	k := otherKey{d.Kind, d.Allowed}
	s := r.others[k]
	if s == nil {
		s = &sum{active: true, Decision: caisson.Decision{
			Kind: d.Kind, Allowed: d.Allowed, Rule: -1, Reason: "others: too many different ones in 10 seconds to list them",
		}}
		r.others[k] = s
	}
	return s
}

func (r *Recorder) remember(k key, d caisson.Decision) {
	known, ok := r.recent.Get(k)
	if !ok {
		first := blank(d)
		known = &first
		known.At = d.At
		r.recent.Put(keyOf(first), known)
	}
	known.Count += d.Count
	known.BytesOut += d.BytesOut
	known.BytesIn += d.BytesIn
}

// add adds what may differ between equal decisions.
func (s *sum) add(d caisson.Decision) {
	if !s.changed {
		s.changed, s.At = true, d.At
	}
	s.Count += d.Count
	s.BytesOut += d.BytesOut
	s.BytesIn += d.BytesIn
}

// take returns what has been added since the last take.
func (s *sum) take() caisson.Decision {
	d := s.Decision
	s.Count, s.BytesOut, s.BytesIn, s.changed = 0, 0, 0, false
	return d
}

// blank returns d without what may differ between equal ones. It shares no memory with d: a short name may be part of a
// long request.
func blank(d caisson.Decision) caisson.Decision {
	d.Count, d.BytesOut, d.BytesIn, d.At = 0, 0, 0, time.Time{}
	d.Name, d.Address, d.Reason = strings.Clone(d.Name), strings.Clone(d.Address), strings.Clone(d.Reason)
	return d
}

// Recent returns the last 64 different refusals, the last one first, with their counts since each was first made, which is
// its At.
func (r *Recorder) Recent() []caisson.Decision {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]caisson.Decision, 0, r.recent.Len())
	for _, d := range r.recent.All {
		all = append(all, *d)
	}
	return all
}

// Counters returns the sums of everything that was reported.
func (r *Recorder) Counters() Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counters
}

// Flush hands on what there is, so that what is reported afterwards is told apart from it.
func (r *Recorder) Flush() { r.hand(r.endWindow) }

// Close hands on what is left, when a call of HandOn that is under way has returned. What is reported afterwards is counted
// but not handed on. It is idempotent.
func (r *Recorder) Close() {
	r.hand(func() []caisson.Decision {
		if r.closed {
			return nil
		}
		ds := r.endWindow()
		r.closed = true
		for _, t := range []*time.Timer{r.soon, r.later} {
			if t != nil {
				t.Stop()
			}
		}
		return ds
	})
}

// hand hands on what take, which is called with mu held, returns.
func (r *Recorder) hand(take func() []caisson.Decision) {
	r.handing <- struct{}{}
	defer func() { <-r.handing }()
	r.mu.Lock()
	ds := take()
	r.mu.Unlock()
	if len(ds) == 0 {
		return
	}
	slices.SortStableFunc(ds, func(a, b caisson.Decision) int { return a.At.Compare(b.At) })
	r.handOn(ds)
}

func (r *Recorder) takeFresh() (ds []caisson.Decision) {
	if r.closed {
		return nil
	}
	for _, s := range r.fresh {
		if s.changed { // else the end of a window was quicker
			ds = append(ds, s.take())
		}
	}
	r.fresh, r.soon = nil, nil
	return ds
}

// endWindow returns everything that has changed, and forgets what has not. Another window follows if anything is left, or not
// all of the room is back.
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
	for _, s := range r.others {
		ds = append(ds, s.take())
	}
	clear(r.others)
	r.room = min(r.room-r.active+sustained, maxDistinct)
	r.fresh, r.active, r.later = nil, 0, nil
	if len(r.sums) > 0 || r.room < maxDistinct {
		r.openWindow()
	}
	return ds
}

// clip returns at most the first maxText bytes of s, in whole characters.
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
