// Package poll waits in tests for conditions that are not signalled on a channel. No other test code sleeps.
package poll

import (
	"testing"
	"time"
)

// interval is the time between two calls of a condition. It is short compared with the times that tests wait, and long compared
// with a system call.
const interval = 2 * time.Millisecond

// Until calls cond until it returns true, and fails t if that takes longer than timeout. cond is called at least once,
// and only by the calling goroutine.
func Until(t testing.TB, timeout time.Duration, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %v", timeout)
		}
		time.Sleep(interval)
	}
}
