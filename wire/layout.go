package wire

// The layout of a sandbox's network; it is the same for all sandboxes.
const (
	Interface = "eth0" // name of the TAP in the network namespace of the sandbox

	SandboxIPv4 = "10.87.0.2"
	GatewayIPv4 = "10.87.0.1" // address of the wire's gateway
	bitsIPv4    = 30          // prefix length; the wire's gateway is the only neighbour: packets never wait to find another one

	SandboxIPv6 = "fdca:1550:a87::2"
	GatewayIPv6 = "fdca:1550:a87::1" // address of the wire's gateway
	bitsIPv6    = 126                // prefix length

	// MTU is the largest IP packet, in bytes. It is close to the maximum of IP because the link is memory: a user-space stack is
	// faster with fewer packets.
	MTU = 65520
)

// queueLen is how many frames the kernel queues for the wire process before it drops further ones. Queued frames are not charged
// to a memory cgroup; at the kernel's default of 1000 one sandbox could pin 64 MB of the host's memory.
const queueLen = 128

const (
	ethernetHeader = 14                   // bytes of the header of a frame
	maxFrame       = ethernetHeader + MTU // bytes of the largest frame
)

// The link addresses of the sandbox and of its wire's gateway: locally administered, unicast.
const (
	sandboxMAC = "\x02\xca\x15\x50\x00\x02"
	gatewayMAC = "\x02\xca\x15\x50\x00\x01"
)
