package egress

import (
	"net/netip"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestInward(t *testing.T) {
	own := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("203.0.113.9") || a == netip.MustParseAddr("2001:db8::9")
	}
	for host, want := range map[string]bool{
		"example.com": false, "*": false, "*.corp.internal": false, "0.0.0.0/0": false, "::/0": false, "8.8.8.0/24": false, "8.8.8.8": false,
		"10.0.0.0/8": true, "127.0.0.1": true, "169.254.169.254/32": true, "::1": true, "fd00::/8": true,
		"64:ff9b::7f00:1": true, "2002:7f00:1::/48": true, "::ffff:10.1.2.3": true,
		"203.0.113.9": true, "203.0.113.9/32": true, "203.0.113.0/24": false, "203.0.113.8": false, "2001:db8::9": true,
	} {
		p := caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Deny, Host: "10.0.0.0/8"}, {Action: caisson.Allow, Host: host}}}
		if rule, ok := InternalRule(p, own); ok != want || ok && rule != 1 {
			t.Errorf("%s: rule %d, %t, want %t", host, rule, ok, want)
		}
	}
}
