package main

import (
	"context"
	"os"
	"sync"
	"syscall"
)

// interrupts handles signals from the user: the first one cancels the command, unless the command handles signals itself; a
// second one that the command does not handle exits the program at once.
type interrupts struct {
	cancel      context.CancelFunc
	mu          sync.Mutex
	handler     func(os.Signal) // handler of signals; nil if the command handles none; guarded by mu
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

// setHandler makes f the handler of signals, called for one at a time, until release is called.
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

// setCancelledBy records that s ended the command, like a signal that has no handler. The next signal exits the program.
func (i *interrupts) setCancelledBy(s os.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cancelledBy = s
}

// code returns the exit code for the signal that cancelled the command, as in a shell, or 0 if there was none.
func (i *interrupts) code() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return signalCode(i.cancelledBy)
}

func signalCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 0
}
