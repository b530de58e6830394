package leaktest

import (
	"testing"
	"time"
)

// SetPatience sets the time that goroutines may take to end, for one test.
func SetPatience(t *testing.T, d time.Duration) {
	was := patience
	patience = d
	t.Cleanup(func() { patience = was })
}
