package egress

import (
	"net/netip"

	"github.com/caisson-dev/caisson"
)

// Inward returns the first rule that lets a sandbox reach something that is not the public internet, or an address that own says is
// the host's; ok is false if there is none. Whoever may write such a rule acts with the host's place in
// its network. p must be valid.
func Inward(p caisson.Policy, own func(netip.Addr) bool) (rule int, ok bool) {
	for i, r := range p.Rules {
		if r.Action != caisson.Allow || r.Host == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(r.Host)
		if err != nil {
			addr, err := netip.ParseAddr(r.Host)
			if err != nil {
				continue // a name: its addresses are matched by no rule but those that name them
			}
			prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
		if b, ok := special(prefix.Addr()); ok && b.within(prefix) {
			return i, true // a wider one means none of the special ranges in it
		}
		if prefix.IsSingleIP() && own(prefix.Addr()) { // the host's own address has to be named by itself
			return i, true
		}
	}
	return 0, false
}
