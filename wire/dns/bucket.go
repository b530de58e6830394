package dns

import "time"

// A bucket is a token bucket with the given rate and burst. The zero state is a full bucket. Not safe for concurrent use.
type bucket struct {
	perSecond, burst float64

	used float64 // tokens taken and not yet restored, at most burst
	last time.Time
}

// take takes a token and reports whether one was available.
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
