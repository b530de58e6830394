package name

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

// A Type is a type of record that names are looked up for.
type Type uint16

// The types there are.
const (
	A    Type = 1
	AAAA Type = 28
)

const (
	lookupTimeout = 5 * time.Second // stubs ask again after as long
	tryTimeout    = 1500 * time.Millisecond
	cacheSize     = 4096 // answers, of a few hundred bytes each
	maxFlights    = 1024 // lookups under way, each with one socket
	reserved      = 128  // of them, for the hosts of the configuration
	maxGuests     = maxFlights - reserved

	minTTL      = 5 * time.Second // shorter ones would let a guest make us ask without end
	maxTTL      = time.Hour
	maxNegative = 5 * time.Minute
	failureTTL  = time.Second // RFC 9520: failures are remembered too
)

// UpstreamConfig configures an [Upstream].
type UpstreamConfig struct {
	Servers []netip.AddrPort // where to ask, in this order; may be set later
	Now     func() time.Time // nil: time.Now
}

// An Upstream asks name servers for addresses and remembers the answers. One serves all wires. It is safe for concurrent
// use and holds no resources between lookups.
type Upstream struct {
	now func() time.Time

	mu      sync.Mutex
	servers []netip.AddrPort             // replaced, never changed
	cache   *lru.Map[question, answered] // of these servers
	flights map[question]*flight         // to these servers
	active  int                          // flights, those to earlier servers included
}

type question struct {
	name string
	typ  Type
}

// An Answer is what is known of a name.
type Answer struct {
	Exists bool // the name has records, though perhaps none of this type
	Addrs  []netip.Addr
	TTL    time.Duration // how long the answer holds from now; at least 5 s, at most an hour
}

// answered is an entry of the cache.
type answered struct {
	answer  Answer
	err     error
	expires time.Time
}

// A flight is a lookup under way and all who wait for it.
type flight struct {
	done chan struct{} // closed when answered is set
	answered
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

// SetServers replaces the name servers. What earlier ones said is forgotten.
func (u *Upstream) SetServers(servers []netip.AddrPort) {
	servers = slices.Clone(servers)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cache != nil && slices.Equal(u.servers, servers) {
		return
	}
	u.servers = servers
	u.cache = lru.New[question, answered](cacheSize)
	u.flights = map[question]*flight{}
}

// Lookup returns the addresses of name, which is in lower case and without the final dot. Lookups of the same question
// share one exchange. It takes at most 5 seconds. Callers must not change the answer's addresses. It is for guests: some
// lookups are reserved for [Upstream.Addrs].
// Errors: Invalid for what is no host name, Unavailable if no server answers, Exhausted if too many lookups are under way.
func (u *Upstream) Lookup(ctx context.Context, name string, t Type) (Answer, error) {
	return u.lookup(ctx, name, t, maxGuests)
}

// Busy reports whether so many lookups are under way that each guest should be content with few.
func (u *Upstream) Busy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.active > maxFlights/2
}

// lookup is Lookup if no more than most are under way.
func (u *Upstream) lookup(ctx context.Context, name string, t Type, most int) (Answer, error) {
	if !validName(name) || (t != A && t != AAAA) {
		return Answer{}, caisson.Invalidf("name", "%.80q is not a host name", name)
	}
	q := question{name, t}
	u.mu.Lock()
	if a, ok := u.cache.Get(q); ok && u.now().Before(a.expires) {
		u.mu.Unlock()
		return a.left(u.now())
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
		// The flight is on its own: it has its own end, and who comes later may wait for it longer than who began it.
		go u.fly(q, f, u.servers)
	}
	u.mu.Unlock()
	select {
	case <-f.done:
		return f.left(u.now())
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// fly looks q up and lands f.
func (u *Upstream) fly(q question, f *flight, servers []netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	f.answer, f.err = ask(ctx, servers, q)
	ttl := f.answer.TTL
	if f.err != nil {
		ttl = failureTTL
	}
	u.mu.Lock()
	f.expires = u.now().Add(ttl)
	u.active--
	if u.flights[q] == f { // else the servers have changed
		delete(u.flights, q)
		u.cache.Put(q, f.answered)
	}
	u.mu.Unlock()
	close(f.done)
}

// left returns a as it is at the time now.
func (a answered) left(now time.Time) (Answer, error) {
	a.answer.TTL = max(a.expires.Sub(now), minTTL)
	return a.answer, a.err
}

// Addrs returns the addresses of host, those of IPv4 first: of a name, or the one that host itself is. "localhost" and what
// is below it are this host. It is for the hosts of the configuration: guests cannot use up its lookups.
// Errors: as for Lookup, and NotFound if the name has no address.
func (u *Upstream) Addrs(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if within(host, "localhost") {
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
