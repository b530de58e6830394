// Package dns is the resolver that a sandbox uses at the address of its wire's gateway. It queries the host's name servers.
//
// A [Resolver] serves one wire. It decides about a query before it sends anything upstream: only names to which the policy could
// allow a connection, only their addresses (A and AAAA), and no byte of the guest's query. It answers queries for other names and
// types at once; the answer has the reason as an extended DNS error (RFC 8914) if the query accepts one. TXT, NULL, MX and
// similar types are never answered with data, because tunnels use records of free form to return data.
//
// Answers are constructed anew: the addresses at the end of the upstream's chain of aliases, under the requested name, each of
// them allowed by the policy (a public name with a private address has no addresses), with a time to live between 5 s and 5
// minutes. The resolver records for which names it returned an address ([Resolver.Names]), so that a connection to the address
// can be decided by name.
//
// # Data that a guest can send through names
//
// If a rule has a wildcard, the guest chooses a part of the name, which is sent to the zone's name servers. [Limits] bound its
// size and the number of new names per minute: by default to 60 names of at most 360 bits, about 45 bytes per second. A rule
// for every name ("*") has no such bound, because a guest that may connect to any host needs no tunnel. All wires share an
// [Upstream] and so its cache: a sandbox can infer from the speed of an answer whether another sandbox has looked up a name
// that both may resolve.
//
// Package github.com/miekg/dns encodes and decodes messages. It is used nowhere else.
package dns
