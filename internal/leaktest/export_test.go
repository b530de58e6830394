package leaktest

import (
	"testing"
	"time"
)

// SetTimeout sets the time that goroutines may take to end, for one test.
func SetTimeout(t *testing.T, d time.Duration) {
	was := endTimeout
	endTimeout = d
	t.Cleanup(func() { endTimeout = was })
}
