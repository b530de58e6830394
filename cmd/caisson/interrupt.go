package main

import (
	"context"
	"os"
	"sync"
	"syscall"
)

// interrupts handles signals from the user: the first signal cancels the command, unless the command handles signals itself; a
// second signal that the command does not handle exits the program at once.
type interrupts struct {
	cancel      context.CancelFunc // cancels the command
	mu          sync.Mutex
	handler     func(os.Signal) // called for each signal; nil if the command does not handle signals; guarded by mu
	cancelledBy os.Signal       // the signal that cancelled the command, or nil; guarded by mu
}

func newInterrupts(cancel context.CancelFunc) *interrupts { return &interrupts{cancel: cancel} }

// run handles signals until the channel is closed. A signal after the one that cancelled the command exits the program.
func (i *interrupts) run(ctx context.Context, signals <-chan os.Signal) {
	if signals == nil {
		return
	}
	for s := range signals {
		i.mu.Lock()
		taker, again := i.handler, i.cancelledBy != nil
		if taker == nil && !again {
			i.cancelledBy = s
		}
		i.mu.Unlock()
		switch {
		case again:
			os.Exit(signalCode(s))
		case taker != nil:
			taker(s)
		default:
			i.cancel()
		}
	}
}

// setHandler makes f the handler of signals until release is called. f is called for one signal at a time: further signals wait
// until f returns.
func (i *interrupts) setHandler(f func(os.Signal)) (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handler = f
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.handler = nil
	}
}

// setCancelledBy records that the signal s cancelled the command. The next signal exits the program. Handlers of signals call
// setCancelledBy.
func (i *interrupts) setCancelledBy(s os.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cancelledBy = s
}

// exitCode returns the exit code for the signal that cancelled the command, as in a shell, or 0 if there was none.
func (i *interrupts) exitCode() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return signalCode(i.cancelledBy)
}

// await calls f in a goroutine and returns its result, or the cause of the end of ctx if that ends first. f may outlive the call:
// await is for operations that cannot be interrupted, such as reading a terminal, in a program that exits soon after a signal.
func await[T any](ctx context.Context, f func() (T, error)) (v T, err error) {
	done := make(chan struct{})
	var result T
	var resultErr error
	go func() {
		defer close(done)
		result, resultErr = f()
	}()
	select {
	case <-ctx.Done():
		return v, context.Cause(ctx)
	case <-done:
		return result, resultErr
	}
}

// signalCode returns the exit code for a signal, 128 and its number, or 0 if s is nil.
func signalCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 0
}
