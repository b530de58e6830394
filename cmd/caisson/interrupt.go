package main

import (
	"context"
	"os"
	"sync"
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
			os.Exit(exitInterrupted)
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

// interrupted reports whether a signal cancelled the command.
func (i *interrupts) interrupted() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen != nil
}
