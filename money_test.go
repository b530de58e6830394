package caisson

import (
	"math"
	"testing"
)

// TestCostSaturates: a cost that is too large to be represented is never small.
func TestCostSaturates(t *testing.T) {
	p := Prices{Input: math.MaxInt64, Output: math.MaxInt64, CacheRead: math.MaxInt64, CacheWrite: math.MaxInt64}
	for _, n := range []int64{1e6, 1 << 40, math.MaxInt64} {
		c := TokenCount{Input: n, Output: n, CacheRead: n, CacheWrite: n}
		if got := p.Cost(c); got != math.MaxInt64 {
			t.Errorf("%d tokens each cost %s", n, got)
		}
	}
	c := TokenCount{Input: math.MaxInt64, Output: 1, CacheRead: 1, CacheWrite: math.MaxInt64}
	if got := c.Total(); got != math.MaxInt64 {
		t.Errorf("%d tokens in all", got)
	}
	if got := (Prices{Input: Dollar, Output: 2 * Dollar}).Cost(TokenCount{Input: 1e6, Output: 5e5, CacheRead: 1e6, CacheWrite: 1}); got != 3*Dollar+1000 {
		t.Errorf("a plain call costs %s", got)
	}
}
