package caisson

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// A Policy defines to which destinations a sandbox may connect. Its rules are evaluated in order and the first match decides;
// destinations that match no rule are denied. The zero Policy denies everything.
type Policy struct {
	Rules []Rule `json:"rules" yaml:"rules"`
}

// An Action determines whether a rule allows or denies the destinations that it matches.
type Action string

// The actions of rules.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// A Rule matches destinations by name or address, port and protocol. It has either a Host or a Preset.
//
// A rule without ports matches all ports. An allow rule without a protocol matches tcp only, a deny rule both.
//
// Private, loopback, link-local, multicast and metadata service addresses, and any other address that is not public, in
// whatever form they are written (IPv4-mapped, 6to4, NAT64), are matched by no allow rule except one whose Host is an
// address or CIDR within such a range: "0.0.0.0/0" and "*" do not include them.
type Rule struct {
	Action   Action      `json:"action" yaml:"action" enum:"allow,deny"`
	Host     string      `json:"host,omitempty" yaml:"host" doc:"A name, *.name for everything below it, * for every name, an address, or a CIDR"`
	Preset   string      `json:"preset,omitempty" yaml:"preset" doc:"Instead of host: the name of a list of destinations that Caisson maintains, as npm or pypi"`
	Ports    []PortRange `json:"ports,omitempty" yaml:"ports" doc:"443 or 8000-8010; empty means all"`
	Protocol string      `json:"protocol,omitempty" yaml:"protocol" enum:"tcp,udp,"`
	Note     string      `json:"note,omitempty" yaml:"note" doc:"Why the rule is there; shown where it decides"`
}

// A PortRange is one port or a range of ports, both ends included: "443", "8000-8010".
type PortRange struct{ First, Last uint16 }

// ParsePortRange parses the format of [PortRange.String]. Returns Invalid for port 0.
func ParsePortRange(s string) (PortRange, error) {
	first, last, ranged := strings.Cut(strings.TrimSpace(s), "-")
	if !ranged {
		last = first
	}
	a, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err1 != nil || err2 != nil || a == 0 || b < a {
		return PortRange{}, Invalidf("ports", "%.40q is not a port or a range of ports; write for example 443 or 8000-8010", s)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// Contains reports whether port is in p.
func (p PortRange) Contains(port uint16) bool { return p.First <= port && port <= p.Last }

// String returns "443" or "8000-8010".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// MarshalText returns the same text as [PortRange.String], for JSON and YAML.
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText accepts the same text as [ParsePortRange].
func (p *PortRange) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePortRange(string(b))
	return err
}

// UnmarshalJSON accepts a number, for one port, or a string in the format of [PortRange.String].
func (p *PortRange) UnmarshalJSON(b []byte) error {
	var s string
	if len(b) > 0 && b[0] != '"' {
		s = string(b)
	} else if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	return p.UnmarshalText([]byte(s))
}

// A Flow is a connection that a sandbox opens, or the first datagram to a destination.
type Flow struct {
	Protocol string // "tcp" or "udp"
	Dst      netip.AddrPort
	// Names are the names that the sandbox has resolved to Dst's address with the wire's resolver, in lower case and without
	// the final dot. It is empty if there are none.
	Names []string
}

// A Verdict is the result of one decision of a [Decider], with the reason.
type Verdict struct {
	Allowed bool `json:"allowed"`
	// Rule is the position of the deciding rule among Policy.Rules; -1 if no rule decided.
	Rule int `json:"rule"`
	// Name is the one of Flow.Names that the deciding rule matched; "" if it matched the address. If it is a name,
	// the name that the connection then contains (TLS server name, HTTP host) must be allowed, too.
	Name string `json:"name,omitempty"`
	// Exact means that the deciding rule allows only the destination's address: the rule's Host is that address, or a CIDR that
	// contains no other address. Only such a rule makes the host's own addresses reachable.
	Exact bool `json:"exact,omitempty"`
	// Reason is a sentence for people and agents, without the destination: "rule 2 denies *.example.com".
	Reason string `json:"reason"`
}

// A Decider is a compiled Policy. Its results depend only on the policy and the arguments. It is safe for concurrent use.
type Decider interface {
	// DecideName returns whether a name (lower case, no final dot) may be resolved: whether some connection to it could be allowed.
	// If a wildcard matched, wildcard is the rule's part of the name: "example.com" for "*.example.com"; otherwise "".
	DecideName(name string) (v Verdict, wildcard string)
	// DecideAddress returns whether some flow to addr with name among its Names could be allowed, with any port and
	// protocol. The resolver calls it for each address that it is about to return for name, so that a public name that
	// resolves to a private address cannot be used.
	DecideAddress(name string, addr netip.Addr) Verdict
	// DecideFlow returns whether a flow is allowed. It is called for each address before anything is sent to it.
	DecideFlow(f Flow) Verdict
}

// A Decision is one or more equal decisions that a wire made.
type Decision struct {
	At       time.Time `json:"at" doc:"When the first of them was made"`
	Kind     string    `json:"kind" enum:"name,flow,request" doc:"A DNS query, a connection or datagram, an HTTP request"`
	Allowed  bool      `json:"allowed"`
	Rule     int       `json:"rule" doc:"Position of the deciding rule, from 0; -1 if no rule decided"`
	Reason   string    `json:"reason"`
	Name     string    `json:"name,omitempty"` // name in the query or request; of a flow: the one that the rule matched, if any
	Address  string    `json:"address,omitempty" doc:"Address and port"`
	Protocol string    `json:"protocol,omitempty"`
	Count    int64     `json:"count" doc:"How many equal ones this stands for, since it was last reported"`
	BytesOut int64     `json:"bytesOut,omitempty"` // bytes from the sandbox over allowed connections
	BytesIn  int64     `json:"bytesIn,omitempty"`  // bytes to the sandbox over allowed connections
}

// An Explanation describes how a policy decides about a destination.
type Explanation struct {
	Target  string     `json:"target" doc:"What was checked, as HOST:PORT or HOST"`
	Verdict Verdict    `json:"verdict"`
	Steps   []string   `json:"steps,omitempty" doc:"Result of each rule, in order, up to the deciding one"`
	Suggest *Rule      `json:"suggest,omitempty" doc:"The narrowest rule that would allow it, to be inserted before the deciding one"`
	At      int        `json:"at,omitempty" doc:"Position at which to insert the suggested rule"`
	Recent  []Decision `json:"recent,omitempty" doc:"Recent denials by the wire"`
}

// Policies is the service that manages the policies of sandboxes. ref is a sandbox's ID or name; NotFound if it is unknown.
type Policies interface {
	GetPolicy(ctx context.Context, ref string) (*Policy, error)
	// SetPolicy replaces the policy of a sandbox, in any state. When SetPolicy returns, the new policy is in force,
	// also for existing connections.
	SetPolicy(ctx context.Context, ref string, p Policy) (*Policy, error)
	// ExplainPolicy returns how the sandbox's policy decides about target, and recent denials. target is HOST, HOST:PORT or
	// ADDRESS:PORT, with the suffix /udp for udp; a HOST without port means port 443. With target "", it returns only the denials.
	ExplainPolicy(ctx context.Context, ref, target string) (*Explanation, error)
	// TestPolicy returns how a policy would decide about targets, without a sandbox.
	TestPolicy(ctx context.Context, p Policy, targets []string) ([]Explanation, error)
	// Presets returns the lists of destinations that rules may use, sorted by name.
	Presets(ctx context.Context) ([]Preset, error)
}

// A Preset is a list of destinations that Caisson maintains.
type Preset struct {
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Hosts       []string    `json:"hosts"` // in the form of Rule.Host
	Ports       []PortRange `json:"ports"` // ports of these hosts
}
