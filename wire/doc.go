// Package wire is the one network attachment of sandboxes: network namespaces, TAPs, and the process that answers them.
//
// Every sandbox gets a network namespace of its own, which is never named anywhere, with one TAP device in it. The other
// end of the TAP is held by the wire process: a child of the engine that runs as an unprivileged user without
// capabilities, without a file system and with a short list of system calls, and that gives each sandbox a user-space
// TCP/IP stack of its own. Nothing connects these stacks to each other, to the host or to the world. Today they refuse:
//
//   - ARP, neighbour discovery and ping are answered for the gateway's address, and for no other;
//   - every TCP connection is reset;
//   - every UDP datagram gets a port unreachable;
//   - all else (fragments, IP options, multicast, foreign source addresses) is dropped before a stack sees it.
//
// Which sandbox speaks is decided by the TAP a frame arrives on, never by what is in the frame, so all sandboxes have the
// same addresses.
//
// # Two ends
//
// [Manager] is the engine's end, and needs root: it makes namespaces, opens TAPs and hands them over by descriptor. [Main]
// is the wire process; a binary that is to serve as one calls it first thing in main if [IsWire]. They speak a
// protocol of three requests over a socket pair, and the engine treats all answers as hostile: a wrong or late one ends
// the process.
//
// # Lives and deaths
//
// TAPs are persistent. When the wire process dies, connections break; the Manager starts another one, enters the
// namespaces of the running sandboxes and takes their TAPs up again. The wire process does not outlive the engine; the next
// engine says [Manager.Reattach] for each sandbox that it finds running. A namespace and its TAP are gone when the last of
// these lets go: the sandbox's processes, the descriptor from [Manager.Attach], and the wire process, which does so on
// [Manager.Detach] or at its end. The kernel takes network namespaces apart in the background, one batch at a time, so that
// they disappear from its tables some tens of milliseconds later.
//
// A namespace is used once, because gVisor takes the addresses off the interface. None are made in advance: making one takes
// a millisecond.
package wire
