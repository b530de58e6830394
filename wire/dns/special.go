package dns

import (
	"net/netip"
	"strings"

	"github.com/caisson-dev/caisson"
)

// internalZone is the zone of virtual hosts.
const internalZone = "caisson.internal"

// A localAnswer is the answer for a name that is answered without an upstream lookup, regardless of the policy.
type localAnswer struct {
	exists  bool // false: the answer is NXDOMAIN
	addrs   []netip.Addr
	verdict caisson.Verdict // reported as a decision unless quiet is true
	quiet   bool            // the verdict is not reported
}

// specialAnswer returns the answer for names that are never looked up: virtual hosts, and those outside the global DNS (RFC 6761,
// and the RFCs that the cases name).
func (r *Resolver) specialAnswer(name string) (l localAnswer, ok bool) {
	gone := func(format string, args ...any) (localAnswer, bool) {
		return localAnswer{verdict: refusal(format, args...)}, true
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case isWithin(name, internalZone):
		if name != internalZone && !r.c.Hosts(name) {
			return gone("%s is not granted to this sandbox", name)
		}
		v := caisson.Verdict{Allowed: true, Rule: -1, Reason: "a virtual host of this wire"}
		return localAnswer{exists: true, addrs: []netip.Addr{r.c.Gateway4, r.c.Gateway6}, verdict: v}, true
	case last == "localhost":
		loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
		return localAnswer{exists: true, addrs: loopback, quiet: true}, true
	case last == name:
		return gone("names of one label lead nowhere here; ask for the full name")
	case last == "arpa": // includes in-addr.arpa, ip6.arpa, and resolver.arpa, which is for the discovery of resolvers
		return gone("there are no reverse lookups")
	case last == "local", last == "onion", last == "alt", last == "invalid": // RFC 6762, RFC 7686, RFC 9476, RFC 6761
		return gone(".%s is not in the public DNS", last)
	case strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"):
		return gone("an address is not a name") // programs interpret names whose last label is a number as addresses
	case isWithin(name, "use-application-dns.net"): // canary domain that disables DNS over HTTPS in browsers
		return gone("there is no way around this resolver")
	}
	return localAnswer{}, false
}
