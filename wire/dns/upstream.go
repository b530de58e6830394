package dns

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/lru"
)

// A Type is a record type of a lookup.
type Type uint16

// The supported record types.
const (
	A    Type = 1
	AAAA Type = 28
)

const (
	lookupTimeout   = 5 * time.Second              // time limit of a lookup, because stub resolvers retry after this time
	tryTimeout      = 1500 * time.Millisecond      // time limit of one exchange with one server
	cacheSize       = 4096                         // answers in the cache, of a few hundred bytes each
	maxFlights      = 1024                         // concurrent lookups that query name servers, each with one socket
	reservedFlights = 128                          // part of maxFlights kept for hosts of the configuration, such as a provider's
	maxGuestFlights = maxFlights - reservedFlights // concurrent lookups of names for all sandboxes together

	minTTL      = 5 * time.Second // shortest time in the cache; shorter ones would cause unlimited upstream queries
	maxTTL      = time.Hour       // longest time for which an answer is cached
	maxNegative = 5 * time.Minute // longest time to live of the answer that a name or its records do not exist
	failureTTL  = time.Second     // time for which a failure is cached, as RFC 9520 requires
)

// UpstreamConfig configures an [Upstream].
type UpstreamConfig struct {
	Servers []netip.AddrPort // name servers in the order of use; may be set later, with SetServers
	Now     func() time.Time // nil: time.Now
}

// An Upstream queries name servers for addresses and caches the answers. One serves all wires. It is safe for concurrent use and
// holds no resources between lookups.
type Upstream struct {
	now func() time.Time

	// mu guards the fields below.
	mu      sync.Mutex
	servers []netip.AddrPort                 // name servers; the slice is replaced, never modified
	cache   *lru.Map[question, cachedAnswer] // answers of servers
	flights map[question]*flight             // lookups in progress that query servers
	active  int                              // number of lookups in progress, including those that query replaced servers
}

// A question is a name, in lower case and without the final dot, and the type of the requested records.
type question struct {
	name string
	typ  Type
}

// An Answer is the result of a lookup.
type Answer struct {
	Exists bool // the name exists, though perhaps without records of this type
	Addrs  []netip.Addr
	TTL    time.Duration // validity from now; at least 5 s, at most an hour
}

// A cachedAnswer is an entry of the cache.
type cachedAnswer struct {
	answer  Answer
	err     error     // why the lookup failed; nil if it did not
	expires time.Time // when the entry is no longer used
}

// A flight is a lookup in progress, which concurrent callers share.
type flight struct {
	done chan struct{} // closed when cachedAnswer is set
	cachedAnswer
}

// NewUpstream returns an Upstream.
func NewUpstream(c UpstreamConfig) (*Upstream, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	u := &Upstream{now: c.Now}
	u.SetServers(c.Servers)
	return u, nil
}

// SetServers replaces the name servers and, if they differ, clears the cache.
func (u *Upstream) SetServers(servers []netip.AddrPort) {
	servers = slices.Clone(servers)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cache != nil && slices.Equal(u.servers, servers) {
		return
	}
	u.servers = servers
	u.cache = lru.New[question, cachedAnswer](cacheSize)
	u.flights = map[question]*flight{}
}

// Lookup returns the addresses of name, which must be in lower case and without the final dot. Concurrent lookups of the same
// question are performed as one. It takes at most 5 seconds. Callers must not modify the answer's addresses. It is for guests:
// some lookups are reserved for [Upstream.Addrs]. Returns Invalid if name is not a host name, Unavailable if no server answers,
// and Exhausted if too many lookups are in progress.
func (u *Upstream) Lookup(ctx context.Context, name string, t Type) (Answer, error) {
	return u.lookup(ctx, name, t, maxGuestFlights)
}

// Busy reports whether more than half of the possible lookups are in progress, so that the limit of each guest is reduced.
func (u *Upstream) Busy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.active > maxFlights/2
}

// lookup returns the addresses of name. It returns Exhausted if it must query servers and most or more lookups are in progress.
func (u *Upstream) lookup(ctx context.Context, name string, t Type, most int) (Answer, error) {
	if !validName(name) || (t != A && t != AAAA) {
		return Answer{}, caisson.Invalidf("name", "%.80q is not a host name", name)
	}
	q := question{name, t}
	u.mu.Lock()
	if a, ok := u.cache.Get(q); ok && u.now().Before(a.expires) {
		u.mu.Unlock()
		return a.remaining(u.now())
	}
	f := u.flights[q]
	if f == nil {
		if u.active >= most {
			u.mu.Unlock()
			return Answer{}, caisson.Errorf(caisson.Exhausted, "%d names are being looked up; try again", most)
		}
		f = &flight{done: make(chan struct{})}
		u.flights[q] = f
		u.active++
		// The flight does not depend on ctx: it has a timeout, and later callers may wait for it longer than the first.
		go u.runLookup(q, f, u.servers)
	}
	u.mu.Unlock()
	select {
	case <-f.done:
		return f.remaining(u.now())
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// runLookup looks q up and completes the flight f with the result.
func (u *Upstream) runLookup(q question, f *flight, servers []netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	f.answer, f.err = queryServers(ctx, servers, q)
	ttl := f.answer.TTL
	if f.err != nil {
		ttl = failureTTL
	}
	u.mu.Lock()
	f.expires = u.now().Add(ttl)
	u.active--
	if u.flights[q] == f { // the name servers were not replaced during the lookup
		delete(u.flights, q)
		u.cache.Put(q, f.cachedAnswer)
	}
	u.mu.Unlock()
	close(f.done)
}

// remaining returns the answer and the error of a; the answer has the time to live that remains at now, at least 5 seconds.
func (a cachedAnswer) remaining(now time.Time) (Answer, error) {
	a.answer.TTL = max(a.expires.Sub(now), minTTL)
	return a.answer, a.err
}

// Addrs returns the addresses of host, IPv4 first. host is a name or an address. "localhost" and names below it are this host.
// Addrs is for the hosts that the configuration names, such as those of providers; some lookups are reserved for it, so that
// guests cannot use up all. Errors are those of Lookup, and NotFound if the name has no address.
func (u *Upstream) Addrs(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if isWithin(host, "localhost") {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	var six Answer
	var err6 error
	done := make(chan struct{})
	go func() {
		defer close(done)
		six, err6 = u.lookup(ctx, host, AAAA, maxFlights)
	}()
	four, err4 := u.lookup(ctx, host, A, maxFlights)
	<-done
	addrs := slices.Concat(four.Addrs, six.Addrs)
	switch {
	case len(addrs) > 0:
		return addrs, nil
	case err4 != nil:
		return nil, err4
	case err6 != nil:
		return nil, err6
	}
	return nil, caisson.Errorf(caisson.NotFound, "%s has no address", host)
}
