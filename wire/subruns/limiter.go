package subruns

import (
	"sync"

	"github.com/caisson-dev/caisson"
)

const (
	maxRequests       = 32 // concurrent requests of one sandbox, including those that wait for a run
	maxEngineRequests = 4  // concurrent requests of one sandbox to the engine, as many as package wire allows; others wait
)

// errBusy rejects a request of a sandbox that has too many in progress.
var errBusy = caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")

// limiters holds the limiters of the sandboxes that have requests in progress.
type limiters struct {
	mu  sync.Mutex
	all map[caisson.ID]*limiter // by sandbox; guarded by mu
}

// A limiter limits the requests of one sandbox.
type limiter struct {
	requests    int           // requests in progress; guarded by limiters.mu
	engineSlots chan struct{} // has an element for each request to the engine in progress
}

// acquire admits a request. Returns nil if the sandbox has too many requests in progress.
func (s *limiters) acquire(id caisson.ID) *limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	if t == nil {
		t = &limiter{engineSlots: make(chan struct{}, maxEngineRequests)}
		s.all[id] = t
	}
	if t.requests >= maxRequests {
		return nil
	}
	t.requests++
	return t
}

// release ends a request that acquire has admitted.
func (s *limiters) release(id caisson.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	if t.requests--; t.requests == 0 {
		delete(s.all, id)
	}
}
