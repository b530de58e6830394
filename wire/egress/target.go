package egress

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// defaultPort is the port of a target without one.
const defaultPort = 443

// target is the destination that Explain is called for: a name or an address, with port and protocol.
type target struct {
	name     string     // "" for an address
	addr     netip.Addr // the zero Addr for a name
	port     uint16
	protocol int // tcp or udp
}

// String returns HOST:PORT, with /udp for udp.
func (t target) String() string {
	s := net.JoinHostPort(t.host(), strconv.Itoa(int(t.port)))
	if t.protocol == udp {
		s += "/udp"
	}
	return s
}

// host returns the name or the address of t as text.
func (t target) host() string {
	if t.name != "" {
		return t.name
	}
	return t.addr.String()
}

// parseTarget parses HOST, HOST:PORT, ADDRESS:PORT or [ADDRESS]:PORT, with an optional suffix /udp or /tcp.
func parseTarget(s string) (target, error) {
	const field = "target"
	if strings.Contains(s, "://") {
		return target{}, caisson.Invalidf(field, "%.80q is a URL; write HOST:PORT", s)
	}
	hostPart, ports, protocol, err := splitTarget(s, field)
	if err != nil {
		return target{}, err
	}
	t := target{port: defaultPort}
	if protocol == "udp" {
		t.protocol = udp
	}
	if ports != "" {
		r, err := caisson.ParsePortRange(ports)
		if err != nil || r.First != r.Last {
			return target{}, caisson.Invalidf(field, "%.40q is not a port", ports)
		}
		t.port = r.First
	}
	prefix, err := parsePrefix(hostPart, field)
	switch {
	case err != nil:
		return target{}, err
	case prefix.IsValid() && (!prefix.IsSingleIP() || strings.Contains(hostPart, "/")):
		return target{}, caisson.Invalidf(field, "%.80q is a range; give a single address", hostPart)
	case prefix.IsValid():
		t.addr = prefix.Addr()
		return t, nil
	}
	t.name, err = parseName(hostPart, field)
	return t, err
}

// ParseRule parses the short form of a rule, TARGET[:PORTS][/udp]: "npm", "example.com:443", "*.example.com:80,443",
// "10.0.0.0/8", "[fd00::/8]:53/udp". The name of a preset selects the preset. Errors are Invalid and name the action as the
// field.
func ParseRule(action caisson.Action, spec string) (caisson.Rule, error) {
	field := string(action)
	if strings.Contains(spec, "://") {
		return caisson.Rule{}, caisson.Invalidf(field, "%.80q is a URL; write the host and its port, such as example.com:443", spec)
	}
	hostPart, ports, protocol, err := splitTarget(spec, field)
	if err != nil {
		return caisson.Rule{}, err
	}
	r := caisson.Rule{Action: action, Host: hostPart, Protocol: protocol}
	if _, ok := findPreset(hostPart); ok {
		r.Host, r.Preset = "", hostPart
	} else if name := similarPreset(hostPart); name != "" && ports == "" {
		return caisson.Rule{}, caisson.Invalidf(field, "%q is not a preset; did you mean %s? For a host called %[1]s, name its port: %[1]s:443", hostPart, name)
	}
	if ports != "" {
		for part := range strings.SplitSeq(ports, ",") {
			p, err := caisson.ParsePortRange(part)
			if err != nil {
				return caisson.Rule{}, caisson.Invalidf(field, "%s", messageWithoutField(err))
			}
			r.Ports = append(r.Ports, p)
		}
	}
	p, err := Compile(caisson.Policy{Rules: []caisson.Rule{r}})
	if err != nil {
		return caisson.Rule{}, caisson.Invalidf(field, "%s", messageWithoutField(err))
	}
	return p.source.Rules[0], nil
}

// similarPreset returns the preset for which s is probably misspelt, "" if there is none: one whose name differs from s by one
// inserted, missing or replaced letter, or by the order of letters; or one with a host whose last label but one is s, such as
// registry.npmjs.org if s is npmjs.
func similarPreset(s string) string {
	letters := func(s string) string { return string(slices.Sorted(slices.Values([]byte(s)))) }
	oneMore := func(long, short string) bool { // reports whether long is short with one letter inserted
		for i := range long {
			if long[:i]+long[i+1:] == short {
				return true
			}
		}
		return false
	}
	for _, name := range presetNames() {
		if len(name) < 3 {
			continue // a name of one or two letters may be meant as a host
		}
		differ := 0
		for i := range min(len(s), len(name)) {
			if s[i] != name[i] {
				differ++
			}
		}
		if len(s) == len(name) && (differ == 1 || letters(s) == letters(name)) || oneMore(s, name) || oneMore(name, s) {
			return name
		}
	}
	for _, p := range presets {
		for _, host := range p.Hosts {
			if labels := strings.Split(host, "."); len(labels) > 1 && labels[len(labels)-2] == s {
				return p.Name
			}
		}
	}
	return ""
}

// messageWithoutField returns the message of err without the name of its field.
func messageWithoutField(err error) string {
	return strings.TrimPrefix(caisson.MessageOf(err), caisson.FieldOf(err)+": ")
}

// splitTarget parses HOST[:PORTS][/PROTOCOL]. An IPv6 host with ports needs brackets; without ports they are optional.
func splitTarget(s, field string) (hostPart, ports, protocol string, err error) {
	if len(s) > 512 {
		return "", "", "", caisson.Invalidf(field, "%.40q… is too long", s)
	}
	rest := s
	for _, p := range []string{"udp", "tcp"} {
		if before, ok := strings.CutSuffix(rest, "/"+p); ok {
			rest, protocol = before, p
			break
		}
	}
	colon := false
	switch {
	case strings.HasPrefix(rest, "["):
		var after string
		var closed bool
		hostPart, after, closed = strings.Cut(rest[1:], "]")
		ports, colon = strings.CutPrefix(after, ":")
		if !closed || !strings.Contains(hostPart, ":") || (after != "" && !colon) {
			return "", "", "", caisson.Invalidf(field, "%.80q is not of the form [ADDRESS]:PORT", s)
		}
	case strings.Count(rest, ":") > 1:
		hostPart = rest // an IPv6 address without a port
	default:
		hostPart, ports, colon = strings.Cut(rest, ":")
	}
	if hostPart == "" || colon && ports == "" {
		return "", "", "", caisson.Invalidf(field, "%.80q is not of the form HOST:PORT", s)
	}
	return hostPart, ports, protocol, nil
}
