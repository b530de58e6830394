package ingress

import (
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/connlimit"
	"github.com/caisson-dev/caisson/internal/lru"
)

// maxBuckets bounds the clients whose rates are known. Of more, those that were away longest start anew.
const maxBuckets = 1 << 16

// limits bounds how many requests are under way, and how many arrive. Safe for concurrent use.
type limits struct {
	mu      sync.Mutex
	active  map[limitKey]int            // requests under way; guarded by mu
	buckets *lru.Map[limitKey, *bucket] // guarded by mu
}

// A limitKey is what is counted: a client of a route, or all of them if client is the zero value.
type limitKey struct {
	route  caisson.ID // that of the sandbox for a host of the form PORT-SANDBOX.DOMAIN
	client netip.Prefix
}

func newLimits() *limits {
	return &limits{active: map[limitKey]int{}, buckets: lru.New[limitKey, *bucket](maxBuckets)}
}

// enter counts a request, or returns an error if there are too many. leave must be called at its end.
func (l *limits) enter(c *call, now time.Time) (leave func(), err error) {
	id := c.route.id
	if id == "" {
		id = c.route.sandbox
	}
	all, one := limitKey{route: id}, limitKey{id, connlimit.SourceOf(netip.AddrPortFrom(c.client, 0).String())}
	spec := &c.route.spec.Limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active[all] >= spec.MaxRequests || l.active[one] >= spec.MaxClient {
		return nil, errBusy
	}
	if !l.take(one, spec.Client, now) || spec.Total != (caisson.RouteRate{}) && !l.take(all, spec.Total, now) {
		return nil, errBusy
	}
	l.active[all]++
	l.active[one]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range []limitKey{all, one} {
			if l.active[k]--; l.active[k] == 0 {
				delete(l.active, k)
			}
		}
	}, nil
}

// take takes a token from a bucket. The caller must hold l.mu.
func (l *limits) take(k limitKey, rate caisson.RouteRate, now time.Time) bool {
	b, ok := l.buckets.Get(k)
	if !ok {
		b = &bucket{}
		l.buckets.Put(k, b)
	}
	return b.take(now, rate)
}

// A bucket is a token bucket. The zero state is a full bucket.
type bucket struct {
	used float64 // tokens taken and not yet restored
	last time.Time
}

func (b *bucket) take(now time.Time, rate caisson.RouteRate) bool {
	if passed := now.Sub(b.last).Seconds(); passed > 0 {
		b.used = max(0, b.used-passed*rate.PerSecond)
		b.last = now
	}
	if b.used+1 > max(float64(rate.Burst), 1) {
		return false
	}
	b.used++
	return true
}
