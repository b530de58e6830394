package remoteurl

import (
	"net/netip"
	"strings"
)

// String returns the URL in the form that [ParseURL] parses to the same URL.
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

// Authority returns host or host:port as it is written in a URL.
func (u URL) Authority() string {
	if u.Port == "" {
		return u.bracketed()
	}
	return u.bracketed() + ":" + u.Port
}

// bracketed returns the host as it is written in a URL: an IPv6 address in brackets.
func (u URL) bracketed() string {
	if strings.Contains(u.Host, ":") {
		return "[" + u.Host + "]"
	}
	return u.Host
}

// Loopback reports whether the host is a loopback address or a loopback name. The caller must still verify that such a name
// resolves to an address of the loopback network.
func (u URL) Loopback() bool { return Loopback(u.Host) }

// Loopback reports whether host, without brackets and port, is a loopback address, localhost, or a name below localhost.
func Loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && a.Unmap().IsLoopback()
}

// Confidential reports whether data sent to the remote can be read only by the remote, so that a credential may be sent. With
// http that is the case only on the loopback network.
func (u URL) Confidential() bool { return u.Scheme != HTTP || u.Loopback() }
