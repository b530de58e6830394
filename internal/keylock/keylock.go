// Package keylock provides locks by name. There may be any number of them, and a lock that is not in use takes no memory.
package keylock

import (
	"context"
	"sync"
)

// Locks are locks by name. The zero value is ready to use; a Locks is safe for concurrent use and must not be copied.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock // the locks that have holders or waiters, by name; guarded by mu
}

// lock is the lock of one name.
type lock struct {
	token chan struct{} // Contains one value while the lock is free.
	users int           // Number of holders and waiters; guarded by Locks.mu.
}

// Acquire waits for the lock of name. If ctx ends first it returns the cause of ctx.
func (l *Locks) Acquire(ctx context.Context, name string) (release func(), err error) {
	k := l.addUser(name)
	select {
	case <-k.token:
		return func() { l.release(name, k) }, nil
	case <-ctx.Done():
		l.removeUser(name, k)
		return nil, context.Cause(ctx)
	}
}

// Try acquires the lock of name if it is free.
func (l *Locks) Try(name string) (release func(), ok bool) {
	k := l.addUser(name)
	select {
	case <-k.token:
		return func() { l.release(name, k) }, true
	default:
		l.removeUser(name, k)
		return nil, false
	}
}

// release frees the lock k of name, which the caller holds.
func (l *Locks) release(name string, k *lock) {
	k.token <- struct{}{}
	l.removeUser(name, k)
}

// addUser returns the lock of name, which it creates if it does not exist, and counts one more user of it.
func (l *Locks) addUser(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[name]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		if l.held == nil {
			l.held = map[string]*lock{}
		}
		l.held[name] = k
	}
	k.users++
	return k
}

// removeUser counts one user of the lock k less, and deletes k after its last user.
func (l *Locks) removeUser(name string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, name)
	}
}
