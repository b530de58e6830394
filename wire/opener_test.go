package wire

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// TestStreamsWait checks that a request waits until a stream ends, until its timeout, or until its context ends.
func TestStreamsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStreams()
		a, b := caisson.ID("sb-a"), caisson.ID("sb-b")
		for range maxStreams {
			if err := s.acquire(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		if err := s.acquire(t.Context(), b); err != nil || time.Since(start) != 0 {
			t.Errorf("another sandbox: %v after %v", err, time.Since(start))
		}
		if err := s.acquire(t.Context(), a); caisson.KindOf(err) != caisson.Exhausted || time.Since(start) != streamWait {
			t.Errorf("one more: %v after %v", err, time.Since(start))
		}
		for range 3 {
			go func() {
				time.Sleep(time.Second)
				s.release(b) // does not help: another sandbox's stream
				s.limiter.acquire(b)
				time.Sleep(time.Second)
				s.release(a)
			}()
			start = time.Now()
			if err := s.acquire(t.Context(), a); err != nil || time.Since(start) != 2*time.Second {
				t.Errorf("one that waits: %v after %v", err, time.Since(start))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.acquire(ctx, a); caisson.KindOf(err) != caisson.Unavailable {
			t.Errorf("one that nobody needs: %v", err)
		}
	})
}

// TestAllStreamsAreBounded checks the limit of all sandboxes together.
func TestAllStreamsAreBounded(t *testing.T) {
	t.Parallel()
	u := newStreamLimiter()
	n := 0
	for i := range 2 * maxAllStreams / maxStreams {
		for range maxStreams + 1 {
			if u.acquire(caisson.ID(rune('a' + i))) {
				n++
			}
		}
	}
	if n != maxAllStreams {
		t.Errorf("%d, want %d", n, maxAllStreams)
	}
	for i := range maxAllStreams / maxStreams {
		for range maxStreams {
			u.release(caisson.ID(rune('a' + i)))
		}
	}
	if u.total != 0 || len(u.bySandbox) != 0 {
		t.Errorf("%d are left of %d sandboxes", u.total, len(u.bySandbox))
	}
}
