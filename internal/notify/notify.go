// Package notify wakes the goroutines that wait for a change.
package notify

import (
	"context"
	"sync"
)

// A Notifier notifies the watchers of a key that something about it has changed. The zero value is ready to use; a Notifier is
// safe for concurrent use and must not be copied.
type Notifier[K comparable] struct {
	mu      sync.Mutex
	watched map[K]*watched // the keys that have watchers; guarded by mu
}

// watched is a key that has watchers. Its fields are guarded by Notifier.mu.
type watched struct {
	changed  chan struct{} // closed, and replaced, by Notify
	watchers int           // number of watchers; the key is removed when it becomes 0
}

// Watch registers a watcher of a key until stop is called. next returns a channel that is closed at the next change.
func (n *Notifier[K]) Watch(key K) (next func() <-chan struct{}, stop func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.watched[key]
	if w == nil {
		w = &watched{changed: make(chan struct{})}
		if n.watched == nil {
			n.watched = map[K]*watched{}
		}
		n.watched[key] = w
	}
	w.watchers++
	next = func() <-chan struct{} {
		n.mu.Lock()
		defer n.mu.Unlock()
		return w.changed
	}
	return next, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if w.watchers--; w.watchers == 0 {
			delete(n.watched, key)
		}
	}
}

// Notify notifies the watchers of a key.
func (n *Notifier[K]) Notify(key K) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.watched[key]; w != nil {
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// Len returns the number of watched keys.
func (n *Notifier[K]) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.watched)
}

// Follow sends the values that read returns to the returned channel. It calls read again at once if read has reported that
// there are more values, and otherwise after the next change of key. The channel is closed when read has returned an error and
// its values were sent, when ctx ends, and when done is closed.
func Follow[K comparable, T any](
	ctx context.Context, done <-chan struct{}, n *Notifier[K], key K, read func() (list []T, more bool, err error),
) <-chan T {
	out := make(chan T)
	go func() {
		defer close(out)
		next, stop := n.Watch(key)
		defer stop()
		for {
			changed := next() // before read is called, so that no change is missed
			list, more, err := read()
			for _, v := range list {
				select {
				case out <- v:
				case <-ctx.Done():
					return
				case <-done:
					return
				}
			}
			if err != nil {
				return
			}
			if more {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-done:
				return
			}
		}
	}()
	return out
}
