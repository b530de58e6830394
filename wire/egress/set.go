package egress

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/caisson-dev/caisson"
)

// A set is a bit set of indexes of rules.
type set [(maxRules + 63) / 64]uint64

func (s *set) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s *set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func (s *set) union(t *set) {
	for i := range s {
		s[i] |= t[i]
	}
}

// minus returns the elements of s that are not in t.
func (s set) minus(t *set) set {
	for i := range s {
		s[i] &^= t[i]
	}
	return s
}

// next returns the first element of s that is at least i, -1 if there is none.
func (s *set) next(i int) int {
	for w := i / 64; w < len(s); w++ {
		word := s[w]
		if w == i/64 {
			word &= ^uint64(0) << (i % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// A portSet is a set of ports as sorted ranges that neither overlap nor are adjacent.
type portSet []caisson.PortRange

// allPorts is the set for rules without ports.
var allPorts = portSet{{First: 1, Last: 65535}}

// newPortSet validates ports and returns them as a set; an empty list means all ports.
func newPortSet(ports []caisson.PortRange, field string) (portSet, error) {
	if len(ports) == 0 {
		return allPorts, nil
	}
	if len(ports) > maxPorts {
		return nil, caisson.Invalidf(field, "there are %d ranges, the maximum is %d", len(ports), maxPorts)
	}
	for _, p := range ports {
		if p.First == 0 || p.Last < p.First {
			return nil, caisson.Invalidf(field, "%q is not a port or a range of ports; write for example 443 or 8000-8010", p)
		}
	}
	return portSet(nil).union(ports), nil
}

func (s portSet) contains(port uint16) bool {
	for _, r := range s {
		if r.Contains(port) {
			return true
		}
	}
	return false
}

// covers reports whether s contains all ports of t.
func (s portSet) covers(t portSet) bool {
	for _, want := range t {
		if !slices.ContainsFunc(s, func(r caisson.PortRange) bool { return r.First <= want.First && want.Last <= r.Last }) {
			return false
		}
	}
	return true
}

// union returns the union of s and t. It modifies neither.
func (s portSet) union(t portSet) portSet {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b caisson.PortRange) int { return cmp.Compare(a.First, b.First) })
	out := all[:0]
	for _, r := range all {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return out
}
