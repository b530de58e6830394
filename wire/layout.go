package wire

// What a sandbox finds on its wire; the same for all sandboxes.
const (
	Interface = "eth0"

	SandboxIPv4 = "10.87.0.2"
	GatewayIPv4 = "10.87.0.1"
	bitsIPv4    = 30 // no neighbours but the gateway, so that nothing waits for an address that nobody has

	SandboxIPv6 = "fdca:1550:a87::2"
	GatewayIPv6 = "fdca:1550:a87::1"
	bitsIPv6    = 126

	// MTU is the largest IP packet. It is close to the largest that IP can express because nothing but memory is below:
	// fewer packets are what makes a user-space stack fast.
	MTU = 65520
)

// queueLen is how many frames wait for the wire process before the kernel drops them. They are charged to nobody, and at
// the default of 1000 one sandbox could pin 64 MB of the host's memory.
const queueLen = 128

const (
	ethernetHeader = 14
	maxFrame       = ethernetHeader + MTU
)

// The two ends' link addresses: locally administered, unicast.
const (
	sandboxMAC = "\x02\xca\x15\x50\x00\x02"
	gatewayMAC = "\x02\xca\x15\x50\x00\x01"
)
