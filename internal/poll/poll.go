// Package poll waits in tests for what announces itself through no channel. It is the only place where a test sleeps.
package poll

import (
	"testing"
	"time"
)

// interval is short against anything worth waiting for and long against a system call.
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
