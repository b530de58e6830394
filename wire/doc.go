// Package wire is the one network attachment of sandboxes: network namespaces, TAPs, and the process that answers them.
//
// Every sandbox gets a network namespace of its own, which is never named anywhere, with one TAP device in it. The other
// end of the TAP is held by the wire process: a child of the engine that runs as an unprivileged user without
// capabilities, without a file system and with a short list of system calls, and that gives each sandbox a user-space
// TCP/IP stack of its own. What a sandbox reaches through its stack:
//
//   - ARP, neighbour discovery and ping are answered for the gateway's address, and for no other;
//   - at that address a resolver (package name), and virtual hosts over HTTP: [Domain], which says what was refused, and
//     those of the [Gateway] that the wire's spec grants;
//   - TCP connections and datagrams that the policy in its spec allows are carried (package flow), all others are refused;
//   - all else (fragments, IP options, multicast, foreign source addresses) is dropped before a stack sees it.
//
// Which sandbox speaks is decided by the TAP a frame arrives on, never by what is in the frame, so all sandboxes have the
// same addresses.
//
// # Two ends
//
// [Manager] is the engine's end, and needs root: it makes namespaces, opens TAPs and hands them over by descriptor. [Main]
// is the wire process; a binary that is to serve as one calls it first thing in main if [IsWire]. They speak a
// protocol of requests over one socket pair (message.go) and of news and questions the other way over another (feed.go), and the
// engine treats what it hears as hostile: what is wrong or late ends the process. What the wire process does besides
// wires, [Process], its caller brings along: this package knows neither policies nor models.
//
// # Lives and deaths
//
// TAPs are persistent. When the wire process dies, connections break, which a guest that only waits learns from its own keepalive; the Manager starts another one, enters the
// namespaces of the running sandboxes and takes their TAPs up again. The wire process does not outlive the engine; the next
// engine says [Manager.Reattach] for each sandbox that it finds running. A namespace and its TAP are gone when the last of
// these lets go: the sandbox's processes, the descriptor from [Manager.Attach], and the wire process, which does so on
// [Manager.Detach] or at its end. The kernel takes network namespaces apart in the background, one batch at a time, so that
// they disappear from its tables some tens of milliseconds later.
//
// A namespace is used once, because gVisor takes the addresses off the interface. None are made in advance: making one takes
// a millisecond.
package wire
