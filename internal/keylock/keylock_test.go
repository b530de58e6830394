package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestLocks(t *testing.T) {
	var l Locks
	release, ok := l.Try("a")
	if !ok {
		t.Fatal("a free lock is not given")
	}
	if _, ok := l.Try("a"); ok {
		t.Error("a lock is given twice")
	}
	other, ok := l.Try("b")
	if !ok {
		t.Fatal("two names share a lock")
	}
	other()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := l.Acquire(ctx, "a"); !errors.Is(err, cause) {
		t.Errorf("waiting ends with %v", err)
	}
	release()
	if len(l.held) != 0 {
		t.Errorf("locks that nobody wants are kept: %v", l.held)
	}
}

func TestLocksExclude(t *testing.T) {
	var l Locks
	var wg sync.WaitGroup
	n := 0 // Checked by the race detector.
	for range 100 {
		wg.Go(func() {
			release, err := l.Acquire(t.Context(), "n")
			if err != nil {
				t.Error(err)
				return
			}
			n++
			release()
		})
	}
	wg.Wait()
	if n != 100 || len(l.held) != 0 {
		t.Errorf("n is %d, locks %v", n, l.held)
	}
}
