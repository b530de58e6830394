package egress

import (
	"net/netip"
	"strings"

	"github.com/caisson-dev/caisson"
)

// ownDomain is the parent domain of the virtual hosts that Caisson serves on a wire.
const ownDomain = "caisson.internal"

// host is the subject of a rule: every name, the names below one, one name, or addresses.
type host struct {
	any      bool         // every name
	wildcard bool         // all names below name, without name itself
	name     string       // "" for any and for addresses
	prefix   netip.Prefix // addresses; the zero Prefix for names
}

// String returns h in normal form.
func (h host) String() string {
	switch {
	case h.prefix.IsValid() && h.prefix.IsSingleIP():
		return h.prefix.Addr().String()
	case h.prefix.IsValid():
		return h.prefix.String()
	case h.any:
		return "*"
	case h.wildcard:
		return "*." + h.name
	}
	return h.name
}

// parseHost parses the host of a rule.
func parseHost(s, field string) (host, error) {
	if s == "*" {
		return host{any: true}, nil
	}
	if prefix, err := parsePrefix(s, field); prefix.IsValid() || err != nil {
		return host{prefix: prefix}, err
	}
	name, below := strings.CutPrefix(s, "*.")
	if strings.Contains(name, "*") {
		return host{}, caisson.Invalidf(field, "%.80q has a * that is not in a *. prefix", s)
	}
	name, err := parseName(name, field)
	if err != nil {
		return host{}, err
	}
	if isOwnName(name) {
		return host{}, caisson.Invalidf(field, "names at and below %s are Caisson's own; no rule is needed for them", ownDomain)
	}
	return host{wildcard: below, name: name}, nil
}

// parsePrefix parses an address or a CIDR. It returns the zero prefix and no error if s has the form of a name.
func parsePrefix(s, field string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return netip.Prefix{}, caisson.Invalidf(field, "%.80q names an interface; remove the %% and the text after it", s)
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if !strings.ContainsAny(s, "/:[]%") {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, caisson.Invalidf(field, "%.80q is neither a name, an address nor a CIDR; ports go into ports", s)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, caisson.Invalidf(field, "%.80q mixes IPv4 and IPv6; write the IPv4 range", s)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, caisson.Invalidf(field, "%.80q has bits set beyond its length; write %s or %s", s, masked, prefix.Addr())
	}
	return prefix, nil
}

// parseName converts a name to its normal form, lower case without the final dot, and validates it.
func parseName(s, field string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	for i := range len(name) {
		if name[i] >= 0x80 {
			return "", caisson.Invalidf(field, "%.80q is not ASCII; write the name in its xn-- form", s)
		}
	}
	name = strings.ToLower(name)
	switch {
	case validName(name):
		return name, nil
	case numeric(name):
		return "", caisson.Invalidf(field, "%.80q is no name and not how an address is written; write for example 192.0.2.1", s)
	}
	return "", caisson.Invalidf(field, "%.80q is not a host name", s)
}

// validName reports whether a name in normal form may be looked up. Underscores are valid because they are in use. Names that
// programs interpret as addresses ("127.1", "0x7f000001") are not valid.
func validName(name string) bool {
	if name == "" || len(name) > 253 || numeric(name) {
		return false
	}
	length := 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '.':
			if length == 0 || name[i-1] == '-' {
				return false
			}
			length = 0
			continue
		case c == '-' && length == 0:
			return false
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
		if length++; length > 63 {
			return false
		}
	}
	return length > 0 && name[len(name)-1] != '-'
}

// numeric reports whether the last label is a number, decimal or hexadecimal, which inet_aton(3) and browsers take as an address.
func numeric(name string) bool {
	label := lastLabel(name)
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, "0123456789abcdef"
	} else if label == "" {
		return false
	}
	return strings.Trim(label, digits) == ""
}

func lastLabel(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// isOwnName reports whether name is ownDomain or below it.
func isOwnName(name string) bool {
	rest, ok := strings.CutSuffix(name, ownDomain)
	return ok && (rest == "" || rest[len(rest)-1] == '.')
}

// localName reports whether a name is not on the public internet, so that "*" does not allow it: a bare host name, or one below a
// label that is reserved for local use, or commonly used for it and not delegated. All of arpa is included because of home.arpa,
// and because reverse lookups of private addresses would disclose the host's network.
func localName(name string) bool {
	last := lastLabel(name)
	if len(last) == len(name) {
		return true
	}
	switch last {
	case "localhost", "invalid", // RFC 6761
		"local", "arpa", // RFC 6762, RFC 8375
		"onion", "alt", // RFC 7686, RFC 9476: never in the DNS
		"internal",             // reserved by ICANN
		"home", "corp", "mail", // never to be delegated, because they are widely used locally
		"lan", "localdomain", "domain", "intranet", "private", "consul":
		return true
	}
	return false
}
