package remoteurl

import (
	"net/netip"
	"strings"
)

// String returns the address again. [ParseURL] of it returns the same URL.
func (u URL) String() string {
	switch {
	case u.Scheme == "":
		return ""
	case u.Scheme == Local:
		return u.Path
	case u.Scheme == SSH && !strings.HasPrefix(u.Path, "/"):
		return u.User + "@" + u.bracketed() + ":" + u.Path
	case u.Scheme == SSH:
		return "ssh://" + u.User + "@" + u.Authority() + u.Path
	}
	return string(u.Scheme) + "://" + u.Authority() + u.Path
}

// Authority returns host or host:port, as it is written in an address.
func (u URL) Authority() string {
	if u.Port == "" {
		return u.bracketed()
	}
	return u.bracketed() + ":" + u.Port
}

func (u URL) bracketed() string {
	if strings.Contains(u.Host, ":") {
		return "[" + u.Host + "]"
	}
	return u.Host
}

// Loopback reports whether the host is this one by its address or name. Whoever connects must still see to it that such a name leads
// to an address of the loopback network.
func (u URL) Loopback() bool { return Loopback(u.Host) }

// Loopback reports whether host, without brackets and port, is a loopback address, localhost, or a name below localhost.
func Loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && a.Unmap().IsLoopback()
}

// Confidential reports whether what is sent there can be read by the other end only, so that a credential may be: with http that is
// so on the loopback network alone.
func (u URL) Confidential() bool { return u.Scheme != HTTP || u.Loopback() }
