package dns

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/caisson-dev/caisson"
)

// Config configures a [Resolver].
type Config struct {
	Sandbox string // id of the wire's sandbox, for commands suggested to operators; required

	Gateway4, Gateway6 netip.Addr // addresses of the wire's gateway, the answer for names of virtual hosts; required

	// Hosts reports whether a virtual host below caisson.internal, such as "llm.caisson.internal", is granted on this wire; nil:
	// none is. It must be safe for concurrent use, as all functions of Config must.
	Hosts func(name string) bool
	// Decider returns the current policy; required.
	Decider func() caisson.Decider
	// Usable reports whether this host has a route to an address; answers omit other addresses. nil: all addresses are usable.
	Usable func(netip.Addr) bool
	// Upstream looks up the allowed names; required. All wires share one.
	Upstream *Upstream
	// Report receives every decision and must not block; required.
	Report func(caisson.Decision)

	Limits
	Now func() time.Time // nil: time.Now
}

// Limits are the limits of one wire. Zero values select the defaults.
type Limits struct {
	QueriesPerSecond int // queries answered per second on average; default 200
	QueryBurst       int // queries answered at once; default 400
	Lookups          int // concurrent upstream lookups; default 32
	BusyLookups      int // concurrent upstream lookups while [Upstream.Busy] returns true; default 8
	Conns            int // concurrent TCP connections; default 16

	// The part of a name that a rule leaves to the guest, "x.y" for x.y.example.com under *.example.com, has at most GuestLength
	// characters (default 100) and GuestBits bits (default 360), by the Shannon entropy of its characters times their number.
	// Generated names of providers are within the limits: a label of 32 hexadecimal digits has up to 128 bits, a SHA-256 in base
	// 32 or in hexadecimal about 240, a load balancer with two hashes and a region about 300. Two SHA-256 exceed the limits.
	GuestLength int
	GuestBits   int // limit of the data in the part of a name that a guest chooses, in bits; see GuestLength
	// NewNames limits new names under one wildcard, at once and on average per minute; default 60. A name is new if it is not
	// among the recently requested ones.
	NewNames int
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.QueriesPerSecond, 200)
	set(&l.QueryBurst, 400)
	set(&l.Lookups, 32)
	set(&l.BusyLookups, 8)
	set(&l.Conns, 16)
	set(&l.GuestLength, 100)
	set(&l.GuestBits, 360)
	set(&l.NewNames, 60)
	return l
}

// A Resolver answers the DNS queries of one wire. It is safe for concurrent use, and starts no goroutines.
type Resolver struct {
	c         Config
	names     *nameCache    // names for which the guest received addresses
	wildcards *wildcards    // limits the data that a guest can send in names
	lookups   chan struct{} // has an element for each lookup in progress, up to the limit
	conns     chan struct{} // has an element for each TCP connection, up to the limit

	queries    *rate.Limiter // limits the rate of queries that are answered
	errorLimit *rate.Limiter // limits the rate of errors that are sent for queries beyond the limit
}

// New returns a resolver for one wire.
func New(c Config) (*Resolver, error) {
	switch {
	case c.Sandbox == "" || len(c.Sandbox) > maxSandbox:
		return nil, caisson.Invalidf("sandbox", "%.80q is not the id of a sandbox", c.Sandbox)
	case !c.Gateway4.Is4():
		return nil, caisson.Invalidf("gateway4", "%v is not an IPv4 address", c.Gateway4)
	case !c.Gateway6.Is6() || c.Gateway6.Is4In6():
		return nil, caisson.Invalidf("gateway6", "%v is not an IPv6 address", c.Gateway6)
	case c.Decider == nil || c.Upstream == nil || c.Report == nil:
		return nil, caisson.Errorf(caisson.Internal, "a resolver needs a decider, an upstream and a report function")
	}
	if c.Hosts == nil {
		c.Hosts = func(string) bool { return false }
	}
	if c.Usable == nil {
		c.Usable = func(netip.Addr) bool { return true }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Limits = c.Limits.withDefaults()
	return &Resolver{
		c:          c,
		names:      newNameCache(c.Now),
		wildcards:  newWildcards(c.Limits, c.Now),
		lookups:    make(chan struct{}, c.Lookups),
		conns:      make(chan struct{}, c.Conns),
		queries:    rate.NewLimiter(rate.Limit(c.QueriesPerSecond), c.QueryBurst),
		errorLimit: rate.NewLimiter(rate.Limit(c.QueriesPerSecond), c.QueriesPerSecond),
	}, nil
}

// Names returns the names that were answered with addr in the last 10 minutes, or within the time to live of their records up to
// an hour: at most 16, the latest first. IPv4-mapped addresses are treated as IPv4.
func (r *Resolver) Names(addr netip.Addr) []string { return r.names.names(addr) }

// admit returns whether the rate of queries allows an answer to a query and, if not, whether an error is sent instead. If neither
// is true, the query is dropped.
func (r *Resolver) admit() (answer, tell bool) {
	now := r.c.Now()
	if r.queries.AllowN(now, 1) {
		return true, false
	}
	return false, r.errorLimit.AllowN(now, 1)
}

// report reports a decision about a name, or about one of its addresses.
func (r *Resolver) report(name string, addr netip.Addr, v caisson.Verdict) {
	d := caisson.Decision{
		At: r.c.Now(), Kind: "name", Allowed: v.Allowed, Rule: v.Rule, Reason: v.Reason, Name: name, Count: 1,
	}
	if addr.IsValid() {
		d.Address = addr.String()
	}
	r.c.Report(d)
}

// refusal returns a verdict that denies without a rule, for the formatted reason.
func refusal(format string, args ...any) caisson.Verdict {
	return caisson.Verdict{Rule: -1, Reason: fmt.Sprintf(format, args...)}
}
