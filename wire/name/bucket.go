package name

import "time"

// A bucket lets perSecond things through on average and burst at once. The zero of its state is a full bucket. It is
// used by one goroutine at a time.
type bucket struct {
	perSecond, burst float64

	used float64 // of burst
	last time.Time
}

// take reports whether one more may pass now.
func (b *bucket) take(now time.Time) bool {
	if passed := now.Sub(b.last).Seconds(); passed > 0 {
		b.used = max(0, b.used-passed*b.perSecond)
		b.last = now
	}
	if b.used+1 > b.burst {
		return false
	}
	b.used++
	return true
}
