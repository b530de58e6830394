package poll_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// failer is a testing.TB that records Fatalf instead of failing the test that uses it.
type failer struct {
	testing.TB
	failed bool
}

func (f *failer) Helper() {}

func (f *failer) Fatalf(string, ...any) {
	f.failed = true
	runtime.Goexit()
}

func TestUntilCallsAgain(t *testing.T) {
	n := 0
	poll.Until(t, time.Minute, func() bool { n++; return n == 3 })
	if n != 3 {
		t.Errorf("cond called %d times, want 3", n)
	}
}

func TestUntilGivesUp(t *testing.T) {
	f := &failer{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		poll.Until(f, time.Millisecond, func() bool { return false })
	}()
	<-done
	if !f.failed {
		t.Error("a condition that never holds did not fail the test")
	}
}
