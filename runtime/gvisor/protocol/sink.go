package protocol

// WritersSink is the name of the sink that returns which process was the last to change each file of a workspace. gVisor's
// control protocol cannot be extended by methods, but by sinks for its trace sessions, to which it passes a descriptor. A session
// with this sink and without trace points has no cost. In the sink's configuration, "target" is the mount point of the workspace.
// The sink writes an encoded table of package lastwrite to the descriptor.
const WritersSink = "caisson.writers"

// SharingSink is the name of the sink that writes to its descriptor which restored programs may generate the same random secrets
// as in another fork of the same checkpoint, one program per line.
const SharingSink = "caisson.sharing"

// MaxSharing is the maximum number of programs that [SharingSink] lists; one more line contains the number of further programs.
// MaxSharingName is the maximum length of a program's name in bytes.
const (
	MaxSharing     = 16
	MaxSharingName = 80
)

// ConnectionsSink is the name of the sink that connects to servers in the sandbox. The descriptor that is passed to it is one end
// of a pair of stream sockets in non-blocking mode. In its configuration, "network" is "tcp" or "unix", "address" a port or path.
// The sink returns at once; then a goroutine connects, writes one byte, which is one of the Dial constants, to the descriptor,
// and copies in both directions. With "end" in its configuration, the sink ends all connections instead, and returns when they
// have ended.
const ConnectionsSink = "caisson.connections"

// The values of the first byte that the sink [ConnectionsSink] writes to a connection. All further bytes are the data of the
// server.
const (
	DialConnected = 'c' // the sink has connected to the server
	DialRefused   = 'r' // no program listens at the address
	DialTooMany   = 'm' // the sandbox has MaxConnections connections already
	DialFailed    = 'f' // connecting failed for another reason
)

// MaxConnections is the maximum number of connections into a sandbox, including those that are being made.
const MaxConnections = 1024
