package tools

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

const (
	maxRequests = 32 // of one sandbox at once, those that wait for a run among them
	maxAsking   = 4  // questions of one sandbox that the engine answers at once, as the wire has it; others wait here
)

// errBusy refuses a request of a sandbox that has too many under way.
var errBusy = caisson.Errorf(caisson.Exhausted, "too many requests at once; wait for one to be answered")

// seats are what is remembered of sandboxes while they have requests under way.
type seats struct {
	mu  sync.Mutex
	all map[caisson.ID]*seat // guarded by mu
}

// A seat bounds one sandbox.
type seat struct {
	requests int           // guarded by the mu of seats
	asking   chan struct{} // holds a token for each question under way
}

// take begins a request; nil if the sandbox has too many.
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

// ask waits for the sandbox's turn to ask the engine.
func (t *seat) ask(ctx context.Context) error {
	select {
	case t.asking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *seat) asked() { <-t.asking }
