// Package name is the resolver that a sandbox sees at its gateway's address, and the lookups behind it.
//
// A [Resolver] serves one wire. What it may ask the world is decided before anything is sent: only names that the policy
// could allow a connection to, only their addresses (A and AAAA), and never with a byte of the guest's own query. For all
// other names, and for all other types of record, it answers at once and alone; the reason is in the answer, as an extended
// DNS error (RFC 8914), where the query can take one. TXT, NULL, MX and the like are never answered with data, because
// records of free form are how tunnels bring back what they fetched.
//
// Answers are made anew: the addresses at the end of the upstream's chain of aliases, under the name that was asked for,
// each of them allowed by the policy (a public name that leads to a private address leads nowhere), with a time to live
// between 5 s and 5 minutes. Which names an address was given out for is remembered ([Resolver.Names]), so that a
// connection to it can be judged by name.
//
// # What a guest can still say through names
//
// A wildcard lets the guest choose what is below it, and that choice travels to the zone's name servers. It is bounded for
// each name ([Limits]) and by how many new ones there may be in a minute: with the default limits, 60 names of at most 360
// bits, about 45 bytes a second. A rule for every name ("*") has no such bound, because who may connect anywhere
// needs no tunnel. All wires share an [Upstream] and so its cache: whether a name has been asked for by another sandbox can be
// told from how quickly it is answered, among sandboxes that may both resolve it.
//
// Package github.com/miekg/dns reads and writes messages. It is used nowhere else.
package name
