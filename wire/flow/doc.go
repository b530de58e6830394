// Package flow carries the connections and datagrams of one sandbox from its wire's TCP/IP stack to the world.
//
// # Decide, dial, accept
//
// A connection is first decided on, then dialled, and only then accepted: what is refused, by policy or by the destination,
// was never established for the sandbox either. The address that was decided on is the address that is dialled; names
// only explain an address, they are never resolved here. Nothing is dialled for what is denied.
//
// # What is said must be what was meant
//
// Many names share an address. Where a rule allowed a connection because of a name, what the sandbox says on it must be
// such a name too: the server name of a TLS ClientHello, and the host of every single request of plain HTTP, which is
// parsed and written anew by net/http, so that both ends agree on where a request begins. On port 443 only TLS is spoken
// then, on port 80 only HTTP; on other ports whatever looks like neither is carried as it is, and what it says is
// compared with nothing: that goes for protocols of which nothing is known here, and for those that turn to TLS after words
// of their own (STARTTLS), whose server name is not looked at. What is inside TLS is not seen. QUIC, whose names cannot be read here, goes on its
// usual ports only where a rule names the address; other datagrams that a rule allows by name are carried unread.
//
// # The host
//
// Addresses of the host itself are reached only if a rule names exactly that address, and the daemon's own listeners never.
//
// # Bounds
//
// Everything from the sandbox is hostile. Connections, datagram flows, and how many of them begin in a second are limited;
// so are the buffers of each, of which only the first flows get large ones; a Budget bounds what all sandboxes have together. A connection holds its place until the
// sandbox's side of it is gone, so that what lingers is counted too.
package flow
