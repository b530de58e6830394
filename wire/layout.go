package wire

// The layout of a sandbox's network; it is the same for all sandboxes.
const (
	Interface = "eth0"

	SandboxIPv4 = "10.87.0.2"
	GatewayIPv4 = "10.87.0.1"
	bitsIPv4    = 30 // prefix length; the gateway is the only neighbour, so no packet waits for the resolution of another

	SandboxIPv6 = "fdca:1550:a87::2"
	GatewayIPv6 = "fdca:1550:a87::1"
	bitsIPv6    = 126

	// MTU is the largest IP packet, in bytes. It is close to the maximum of IP because the link is memory: a user-space stack is
	// faster with fewer packets.
	MTU = 65520
)

// queueLen is how many frames the kernel queues for the wire process before it drops further ones. Queued frames are not charged
// to a memory cgroup; at the kernel's default of 1000 one sandbox could pin 64 MB of the host's memory.
const queueLen = 128

const (
	ethernetHeader = 14
	maxFrame       = ethernetHeader + MTU
)

// The link addresses of the two ends: locally administered, unicast.
const (
	sandboxMAC = "\x02\xca\x15\x50\x00\x02"
	gatewayMAC = "\x02\xca\x15\x50\x00\x01"
)
