package caisson

import "net/netip"

// A GatewayConfig is everything that the process at the far end of wires has to know besides each wire's own spec. It
// crosses from the engine to that process over a private socket, never anything else: it is the one place where the values
// of credentials are not in a [Secret].
type GatewayConfig struct {
	Providers []Provider `json:"providers"`
	Models    []Model    `json:"models"` // with imported prices filled in
	// Keys are the values of providers' credentials, by the provider's name.
	Keys map[string]string `json:"keys"`
	// Scripts are the contents of scripted providers' scripts, by the provider's name.
	Scripts map[string]string `json:"scripts,omitempty"`
	// Nameservers are the host's; names are asked for there.
	Nameservers []netip.AddrPort `json:"nameservers"`
	// Forbidden are addresses that no policy can allow: the daemon's own.
	Forbidden []netip.AddrPort `json:"forbidden,omitempty"`
	// PublicAddresses lead to this machine although no interface has them.
	PublicAddresses []netip.Prefix `json:"publicAddresses,omitempty"`
	// Roots is a PEM bundle of authorities to trust for providers besides the host's.
	Roots string `json:"roots,omitempty"`
	// Remote is about gateways on other machines; zero: nothing is.
	Remote RemoteConfig `json:"remote,omitzero"`
}

// A RemoteConfig is what the process at the far end of wires has to know to serve the sandboxes of other machines, or to have
// its own served by another machine.
type RemoteConfig struct {
	// RunKeys are the keys of run tokens: one, or two while they are exchanged. The first signs. Without any, nobody is served.
	RunKeys []string `json:"runKeys,omitempty"`
	// Certificate and CertificateKey are shown to those who come over TCP, in PEM. Without them only loopback is served.
	Certificate    string `json:"certificate,omitempty"`
	CertificateKey string `json:"certificateKey,omitempty"`
	// URL is the gateway that serves the sandboxes here; empty: the one in this process.
	URL string `json:"url,omitempty"`
	// Roots is a PEM bundle of the authorities to trust for URL; empty: the host's and those for providers.
	Roots string `json:"roots,omitempty"`
}
