package tools

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

const (
	maxRequests = 32 // concurrent requests of one sandbox, including those that wait for a run
	maxAsking   = 4  // concurrent requests of one sandbox to the engine, which is also the wire's limit; further ones are queued
)

// errBusy rejects a request of a sandbox that has too many in progress.
var errBusy = caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")

// seats holds the limiters of the sandboxes that have requests in progress.
type seats struct {
	mu  sync.Mutex
	all map[caisson.ID]*seat // guarded by mu
}

// A seat limits the requests of one sandbox.
type seat struct {
	requests int           // guarded by seats.mu
	asking   chan struct{} // holds one token per request to the engine in progress
}

// take admits a request. Returns nil if the sandbox has too many requests in progress.
func (s *seats) take(id caisson.ID) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	if t == nil {
		t = &seat{asking: make(chan struct{}, maxAsking)}
		s.all[id] = t
	}
	if t.requests >= maxRequests {
		return nil
	}
	t.requests++
	return t
}

func (s *seats) leave(id caisson.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	if t.requests--; t.requests == 0 {
		delete(s.all, id)
	}
}

// ask waits until the sandbox may send another request to the engine. The caller must call asked when it is finished.
func (t *seat) ask(ctx context.Context) error {
	select {
	case t.asking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *seat) asked() { <-t.asking }
