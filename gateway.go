package caisson

import "net/netip"

// A GatewayConfig is the configuration of the wire process, apart from the specs of single wires. The engine sends it
// to that process over a private socket, and nowhere else: it is the only place where the values of credentials are not
// in a [Secret].
type GatewayConfig struct {
	Providers []Provider `json:"providers"`
	Models    []Model    `json:"models"` // with imported prices filled in
	// Keys are the values of providers' credentials, by the provider's name.
	Keys map[string]string `json:"keys"`
	// Scripts are the contents of scripted providers' scripts, by the provider's name.
	Scripts map[string]string `json:"scripts,omitempty"`
	// Nameservers are those of the host, which resolve names for sandboxes.
	Nameservers []netip.AddrPort `json:"nameservers"`
	// Forbidden contains addresses that no policy can allow: those of the daemon.
	Forbidden []netip.AddrPort `json:"forbidden,omitempty"`
	// PublicAddresses lead to this machine although no interface has them.
	PublicAddresses []netip.Prefix `json:"publicAddresses,omitempty"`
	// Roots is a PEM bundle of CAs to trust for providers, in addition to the host's.
	Roots string `json:"roots,omitempty"`
	// Remote configures the gateways of other machines; the zero value means none.
	Remote RemoteConfig `json:"remote,omitzero"`
}

// A RemoteConfig configures the wire process to serve the sandboxes of other machines, or to use the gateway of another
// machine.
type RemoteConfig struct {
	// RunKeys are the keys of run tokens: one, or two during a rotation. The first one signs. Without keys, no other
	// machine is served.
	RunKeys []string `json:"runKeys,omitempty"`
	// Certificate and CertificateKey are the TLS certificate for clients over TCP, in PEM. Without them only loopback
	// is served.
	Certificate    string `json:"certificate,omitempty"`
	CertificateKey string `json:"certificateKey,omitempty"`
	// URL is the gateway that serves the local sandboxes; empty: the one in this process.
	URL string `json:"url,omitempty"`
	// Roots is a PEM bundle of CAs to trust for URL; empty: the host's and those for providers.
	Roots string `json:"roots,omitempty"`
}
