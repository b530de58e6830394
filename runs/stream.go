package runs

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// streams hands the events of runs to those who watch. An event is seen when it is stored, not before: whoever has seen it can
// come back and go on after it.
type streams struct {
	store caisson.RunStore
	done  <-chan struct{} // ends all that watch

	mu   sync.Mutex
	wake map[caisson.ID]chan struct{} // of runs that somebody watches; closed when there is more; guarded by mu
}

func newStreams(store caisson.RunStore, done <-chan struct{}) *streams {
	return &streams{store: store, done: done, wake: map[caisson.ID]chan struct{}{}}
}

// wait returns a channel that is closed when the run has more events than there were a moment ago.
func (s *streams) wait(run caisson.ID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.wake[run]
	if w == nil {
		w = make(chan struct{})
		s.wake[run] = w
	}
	return w
}

// tell wakes those who watch a run.
func (s *streams) tell(run caisson.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.wake[run]; w != nil {
		close(w)
		delete(s.wake, run)
	}
}

// page is how many events are read from the store at once.
const page = 256

// watch sends the run's events after seq to the channel that it returns, until done of the attempt that is the run's last.
func (s *streams) watch(ctx context.Context, in caisson.Scope, run caisson.ID, after int64) <-chan caisson.RunEvent {
	out := make(chan caisson.RunEvent)
	go func() {
		defer close(out)
		for {
			wake := s.wait(run) // before the store is read, so that no event falls between
			list, err := s.store.Events(ctx, in, run, after, page)
			if err != nil {
				return
			}
			for _, e := range list {
				select {
				case out <- e:
					after = e.Seq
				case <-ctx.Done():
					return
				case <-s.done:
					return
				}
			}
			if len(list) == page {
				continue
			}
			// Ended, and nothing came since it was seen to have ended: this was all.
			if r, err := s.store.Get(ctx, in, run); err != nil || r.State.Ended() {
				if last, lerr := s.store.LastEvent(ctx, run); err != nil || lerr != nil || last <= after && endsWithDone(ctx, s.store, in, run, last) {
					return
				}
			}
			select {
			case <-wake:
			case <-ctx.Done():
				return
			case <-s.done:
				return
			}
		}
	}()
	return out
}

// endsWithDone reports whether the event with that number is the last of an attempt, or there is none.
func endsWithDone(ctx context.Context, store caisson.RunStore, in caisson.Scope, run caisson.ID, last int64) bool {
	if last == 0 {
		return true
	}
	list, err := store.Events(ctx, in, run, last-1, 1)
	return err != nil || len(list) == 0 || list[0].Type == caisson.EventDone
}

// WatchRun implements [caisson.Runs].
func (c runs) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	if after < 0 {
		return nil, caisson.Invalidf("after", "is negative")
	}
	if _, err := c.Store.Runs().Get(ctx, in, id); err != nil {
		return nil, err
	}
	return c.streams.watch(ctx, in, id, after), nil
}

// A recorder stores the events of one attempt, in order. Events that come while the store is busy are stored together.
type recorder struct {
	streams *streams
	run     caisson.ID
	attempt int

	mu      sync.Mutex
	seq     int64              // of the last event; guarded by mu
	queue   []caisson.RunEvent // guarded by mu
	storing bool               // somebody stores; guarded by mu
	idle    chan struct{}      // closed when nobody does; guarded by mu
	err     error              // of the first failure, after which nothing is stored; guarded by mu
}

// maxQueued bounds how many events wait to be stored before those who add more have to wait.
const maxQueued = 1024

func newRecorder(ctx context.Context, s *streams, run *caisson.Run) (*recorder, error) {
	seq, err := s.store.LastEvent(ctx, run.ID)
	return &recorder{streams: s, run: run.ID, attempt: run.Attempt, seq: seq}, err
}

// add queues events. It returns before they are stored unless too many wait.
func (r *recorder) add(events ...caisson.RunEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.err == nil && len(r.queue) >= maxQueued && r.storing {
		idle := r.idle
		r.mu.Unlock()
		<-idle
		r.mu.Lock()
	}
	for _, e := range events {
		r.seq++
		e.Seq, e.At, e.Attempt = r.seq, now(), r.attempt
		r.queue = append(r.queue, e)
	}
	if !r.storing && r.err == nil && len(r.queue) > 0 {
		r.storing, r.idle = true, make(chan struct{})
		go r.store()
	}
}

// store empties the queue.
func (r *recorder) store() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.err == nil {
		batch := r.queue
		r.queue = nil
		r.mu.Unlock()
		// What was said is recorded whoever has lost interest meanwhile.
		err := r.streams.store.Append(context.Background(), r.run, batch)
		r.streams.tell(r.run)
		r.mu.Lock()
		r.err = err
	}
	r.storing = false
	close(r.idle)
}

// flush waits until all that was added is stored.
func (r *recorder) flush() error {
	r.mu.Lock()
	for r.storing {
		idle := r.idle
		r.mu.Unlock()
		<-idle
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	return r.err
}
