package main

import (
	"context"
	"os"
	"sync"
	"syscall"
)

// interrupts decides what a signal from the user does: the first one cancels the command, unless the command has taken
// signals over; a second one that nobody took ends the program at once.
type interrupts struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	taker  func(os.Signal) // guarded by mu; nil unless taken
	seen   os.Signal       // guarded by mu; the signal that cancelled the command, or nil
}

func newInterrupts(cancel context.CancelFunc) *interrupts { return &interrupts{cancel: cancel} }

// run delivers signals until ctx ends, and after that ends the program at the next one.
func (i *interrupts) run(ctx context.Context, signals <-chan os.Signal) {
	if signals == nil {
		return
	}
	for s := range signals {
		i.mu.Lock()
		taker, again := i.taker, i.seen != nil
		if taker == nil && !again {
			i.seen = s
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

// take gives signals to f, one at a time, until release is called.
func (i *interrupts) take(f func(os.Signal)) (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taker = f
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.taker = nil
	}
}

// abandon says that s ended what the command was doing, as a signal that nobody takes does. The next one ends the program.
func (i *interrupts) abandon(s os.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen = s
}

// code returns the exit code of a command that a signal ended, as a shell has it, or 0.
func (i *interrupts) code() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return signalCode(i.seen)
}

func signalCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 0
}
