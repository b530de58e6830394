package ingress

import (
	"net/netip"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
	"github.com/caisson-dev/caisson/internal/reach"
)

// maxBuckets bounds the number of token buckets in limits. Beyond it, the buckets that were not used for the longest time are
// dropped, and start full again.
const maxBuckets = 1 << 16

// limits bounds the number of requests in progress, and the rate at which requests arrive. Safe for concurrent use.
type limits struct {
	mu      sync.Mutex
	active  map[limitKey]int            // requests in progress; guarded by mu
	buckets *lru.Map[limitKey, *bucket] // token buckets of the rates of requests; guarded by mu
}

// A limitKey identifies the requests that are counted together: those of one client to one route, or those of all clients if
// client is the zero value.
type limitKey struct {
	// route is the id of the route, or of the sandbox for a host of the form PORT-SANDBOX.DOMAIN; "": all requests, with or
	// without a route.
	route  caisson.ID
	client netip.Prefix // address or IPv6 network of the client
}

func newLimits() *limits {
	return &limits{active: map[limitKey]int{}, buckets: lru.New[limitKey, *bucket](maxBuckets)}
}

// arrive counts a request before its route is known. It returns false if there are too many. leave must be called when the
// request ends.
func (l *limits) arrive(client netip.AddrPort) (leave func(), ok bool) {
	all, one := limitKey{}, limitKey{client: reach.Source(client.String())}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active[all] >= maxAllRequests || l.active[one] >= maxClientRequests {
		return nil, false
	}
	return l.count(all, one), true
}

// enter counts a request to a route, or returns an error if there are too many. leave must be called when the request ends.
func (l *limits) enter(c *call, now time.Time) (leave func(), err error) {
	all, one := c.limitKeys()
	spec := &c.route.spec.Limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active[all] >= spec.MaxRequests || l.active[one] >= spec.MaxClient || !l.take(one, spec.Client, now) {
		return nil, errBusy
	}
	return l.count(all, one), nil
}

// count counts a request under each of keys until leave is called. The caller must hold l.mu.
func (l *limits) count(keys ...limitKey) (leave func()) {
	for _, k := range keys {
		l.active[k]++
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range keys {
			if l.active[k]--; l.active[k] == 0 {
				delete(l.active, k)
			}
		}
	}
}

// proceed counts a request against the rate limit of its route, or returns an error. It must be called after authentication, so
// that unauthenticated clients do not use up the rate.
func (l *limits) proceed(c *call, now time.Time) error {
	all, _ := c.limitKeys()
	l.mu.Lock()
	defer l.mu.Unlock()
	if rate := c.route.spec.Limits.Total; rate != (caisson.RouteRate{}) && !l.take(all, rate, now) {
		return errBusy
	}
	return nil
}

// limitKeys returns the keys under which a request is counted: all is that of its route, one that of its client on that route.
func (c *call) limitKeys() (all, one limitKey) {
	id := c.route.id
	if id == "" {
		id = c.route.sandbox
	}
	return limitKey{route: id}, limitKey{id, reach.Source(netip.AddrPortFrom(c.client, 0).String())}
}

// take takes a token from the bucket of k. It returns false if the bucket is empty. The caller must hold l.mu.
func (l *limits) take(k limitKey, rate caisson.RouteRate, now time.Time) bool {
	b, ok := l.buckets.Get(k)
	if !ok {
		b = &bucket{}
		l.buckets.Put(k, b)
	}
	return b.take(now, rate)
}

// A bucket is a token bucket. The zero bucket is full.
type bucket struct {
	used float64   // tokens taken and not yet restored
	last time.Time // time of the last call of take
}

// take takes a token from b, which refills at the given rate. It returns false if b is empty.
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
