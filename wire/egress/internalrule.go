package egress

import (
	"net/netip"

	"github.com/caisson-dev/caisson"
)

// InternalRule returns the first rule that allows a sandbox to reach addresses outside the public internet, or one of the host's
// own addresses, for which own must return true; ok is false if there is none. An account with such a rule has the same access
// to the network as the host. p must be valid.
func InternalRule(p caisson.Policy, own func(netip.Addr) bool) (rule int, ok bool) {
	for i, r := range p.Rules {
		if r.Action != caisson.Allow || r.Host == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(r.Host)
		if err != nil {
			addr, err := netip.ParseAddr(r.Host)
			if err != nil {
				continue // a rule for a name does not allow private addresses
			}
			prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
		// A rule whose prefix is wider than a block of special addresses does not allow the addresses of the block.
		if b, ok := specialBlock(prefix.Addr()); ok && b.covers(prefix) {
			return i, true
		}
		if prefix.IsSingleIP() && own(prefix.Addr()) { // only a rule for exactly this address of the host allows it
			return i, true
		}
	}
	return 0, false
}
