// Package flow relays the connections and datagrams of one sandbox between its wire's TCP/IP stack and the network.
//
// # Decide, dial, accept
//
// For each connection the policy is evaluated first, then the destination is dialled, and only then is the sandbox's SYN
// accepted: if the policy or the destination refuses the connection, the sandbox never sees it established. The address for
// which the policy was evaluated is the address that is dialled; names only describe an address and are never resolved here.
// Denied destinations are not dialled.
//
// # Checks of names
//
// Many names share an address. If a rule allowed a connection because of a name, the name that the sandbox sends on it must be
// allowed too: the server name of a TLS ClientHello, and the host of every request of plain HTTP, which net/http parses and
// writes anew, so that both ends agree on where a request begins. On port 443 only TLS is then allowed, on port 80 only HTTP. On
// other ports data that is neither is relayed unchanged and without a check of names. This applies to unknown protocols, and to
// those that start TLS later (STARTTLS), whose server name is not checked. The content of TLS is not inspected. QUIC, whose names
// cannot be read here, is allowed on its usual ports only if a rule names the address; other datagrams that a rule allows by name
// are relayed without inspection.
//
// # The host
//
// The host's addresses are reachable only if a rule names exactly that address; the daemon's listeners never are.
//
// # Limits
//
// All input from the sandbox is hostile. The numbers of connections, datagram flows and new flows per second are limited; so are
// the buffers of each flow: only a few flows at a time have large ones. [ProcessLimits] limit the flows of all sandboxes. A
// connection counts until the sandbox's side of it is completely closed, so that lingering connections count too.
package flow
