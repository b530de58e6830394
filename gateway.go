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
	// Roots is a PEM bundle of authorities to trust for providers besides the host's.
	Roots string `json:"roots,omitempty"`
}
