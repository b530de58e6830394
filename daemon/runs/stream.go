package runs

import (
	"context"
	"io"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/notify"
)

// streams sends the events of runs to watchers. An event is sent only after it is stored, so that a watcher can reconnect and
// continue after the last event that it has received.
type streams struct {
	store    caisson.RunStore
	done     <-chan struct{}             // closed when the daemon stops, which ends all watchers
	notifier notify.Notifier[caisson.ID] // wakes watchers, by run
}

// pageSize is how many events are read from the store at once.
const pageSize = 256

// watch sends the run's events whose sequence numbers are greater than after to the returned channel, until the done event of
// the run's last attempt.
func (s *streams) watch(ctx context.Context, in caisson.Scope, run caisson.ID, after int64) <-chan caisson.RunEvent {
	return notify.Follow(ctx, s.done, &s.notifier, run, func() ([]caisson.RunEvent, bool, error) {
		list, err := s.store.Events(ctx, in, run, after, pageSize)
		if n := len(list); n > 0 {
			after = list[n-1].Seq
		}
		if err != nil || len(list) == pageSize {
			return list, true, err
		}
		// There are no events after the end of a run's last attempt.
		r, err := s.store.Get(ctx, in, run)
		if err != nil || !r.State.Ended() {
			return list, false, err
		}
		end, told, err := s.lastEvent(ctx, r)
		if err == nil && told && end <= after {
			err = io.EOF
		}
		return list, false, err
	})
}

// lastEvent returns the sequence number of a run's last event. told is true if the done event of the attempt r.Attempt is stored.
func (s *streams) lastEvent(ctx context.Context, r *caisson.Run) (end int64, told bool, err error) {
	end, err = s.store.LastEvent(ctx, r.ID)
	if err != nil || end == 0 {
		return end, false, err
	}
	list, err := s.store.Events(ctx, caisson.In(r.Account), r.ID, end-1, 1)
	if err != nil || len(list) == 0 {
		return end, false, err
	}
	// A later attempt begins only after the last event of the previous one is stored.
	e := list[0]
	return end, e.Attempt > r.Attempt || e.Attempt == r.Attempt && e.Type == caisson.EventDone, nil
}

// A recorder stores the events of one attempt, in order. Events that are added while the store is busy are stored together.
type recorder struct {
	streams *streams   // sends events to watchers
	run     caisson.ID // id of the run
	account string     // account of the run
	attempt int        // number of the attempt

	mu      sync.Mutex
	seq     int64              // sequence number of the last event; guarded by mu
	queue   []caisson.RunEvent // events that are not stored yet; guarded by mu
	size    int                // size of the texts in queue in bytes; guarded by mu
	storing bool               // a goroutine is storing events; guarded by mu
	idle    chan struct{}      // closed when no goroutine is storing events; guarded by mu
	err     error              // the first error, after which nothing is stored; guarded by mu
	ended   bool               // the last events have been added; guarded by mu
}

// Limits of the queue of a recorder, beyond which add blocks.
const (
	maxQueued     = 1024    // maximum number of events in the queue
	maxQueuedSize = 1 << 20 // maximum bytes of texts of the events in the queue
)

// newRecorder returns a recorder for the present attempt of a run.
func newRecorder(ctx context.Context, s *streams, run *caisson.Run) *recorder {
	seq, err := s.store.LastEvent(ctx, run.ID)
	return &recorder{streams: s, run: run.ID, account: run.Account, attempt: run.Attempt, seq: seq, err: err}
}

// add queues events. It returns before they are stored, but blocks while the queue is full. Events after the attempt's
// last event, or after one that could not be stored, are dropped.
func (r *recorder) add(events ...caisson.RunEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.storing && r.err == nil && (len(r.queue) >= maxQueued || r.size >= maxQueuedSize) {
		idle := r.idle
		r.mu.Unlock()
		<-idle
		r.mu.Lock()
	}
	if !r.ended {
		r.push(events)
	}
}

// push numbers events and appends them to the queue, and starts to store them if no goroutine does. The caller must hold r.mu.
func (r *recorder) push(events []caisson.RunEvent) {
	if r.err != nil {
		return
	}
	for _, e := range events {
		r.seq++
		e.Seq, e.At, e.Attempt = r.seq, now(), r.attempt
		r.queue = append(r.queue, e)
		r.size += len(e.Delta) + len(e.Result) + len(e.Args) + len(e.Content)
	}
	if !r.storing && len(r.queue) > 0 {
		r.storing, r.idle = true, make(chan struct{})
		go r.store()
	}
}

// store stores the queued events until the queue is empty.
func (r *recorder) store() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.err == nil {
		batch := r.queue
		r.queue, r.size = nil, 0
		r.mu.Unlock()
		// The events are stored even if the request that caused them has been cancelled.
		err := r.streams.store.Append(context.Background(), r.run, batch)
		r.streams.notifier.Notify(r.run)
		r.mu.Lock()
		r.err = err
	}
	r.queue, r.size, r.storing = nil, 0, false
	close(r.idle)
}

// flush waits until all added events are stored.
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

// end stores the attempt's last events, all or none of them, even if earlier events could not be stored, or an earlier call of
// end has failed.
func (r *recorder) end(ctx context.Context, events []caisson.RunEvent) error {
	failed := r.flush() != nil
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	if failed {
		// The events in the store count, not the error: the store may contain events for which it returned an error.
		seq, told, err := r.streams.lastEvent(ctx, &caisson.Run{ID: r.run, Account: r.account, Attempt: r.attempt})
		if err != nil || told {
			return err
		}
		r.mu.Lock()
		r.seq, r.err = seq, nil
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.push(events)
	r.mu.Unlock()
	return r.flush()
}
