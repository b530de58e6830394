// Package wire provides the only network attachment of sandboxes: network namespaces, TAP devices, and the process that serves
// them.
//
// Every sandbox has a separate, unnamed network namespace with one TAP device in it. The wire process holds the other end of the
// TAP. It is a child of the engine that runs as an unprivileged user without capabilities, without a file system and with a short
// allow list of system calls. It runs one user-space TCP/IP stack per sandbox. Through its stack a sandbox reaches:
//
//   - the gateway's address, the only one for which ARP, neighbour discovery and ping are answered;
//   - at that address a resolver (package dns) and virtual hosts over HTTP: [Domain], which reports what was refused, and
//     those of the [Gateway] that the wire's spec grants;
//   - destinations of TCP connections and datagrams that the policy in the spec allows (package flow); others are refused.
//
// All other frames (fragments, IP options, multicast, foreign source addresses) are dropped before they reach a stack.
//
// The sandbox that sent a frame is identified by the TAP on which the frame arrives, never by its content, so all sandboxes use
// the same addresses.
//
// # The two ends
//
// [Manager] is the engine's end and requires root: it creates namespaces, opens TAPs and passes their descriptors to the wire
// process. [Main] is the wire process; a binary that can run as one calls it first in main if [IsWire] returns true. The two ends
// use a protocol of requests over one socket pair (message.go), and of events and requests in the other direction over a second
// pair (feed.go). The engine treats what it receives as hostile: it kills the process on a malformed message or a missed
// deadline. The caller supplies the other functions of the wire process in [Process]: this package does not depend on policies or
// models.
//
// # Lifecycle
//
// TAPs are persistent. When the wire process dies, connections break; a guest that only waits for data detects this by its
// keepalive. The Manager starts another process, enters the namespaces of the running sandboxes and opens their TAPs again. The
// wire process does not outlive the engine; the next engine calls [Manager.Reattach] for each sandbox that still runs. A
// namespace and its TAP are removed when their last user releases them: the processes of the sandbox, the descriptor that
// [Manager.Attach] returned, and the wire process, which releases them on [Manager.Detach] or when it exits. The kernel removes
// network namespaces in the background, in batches, so they disappear from its tables some tens of milliseconds later.
//
// A namespace is used only once, because gVisor removes the addresses from the interface. No namespaces are created in advance,
// because creating one takes only a millisecond.
package wire
