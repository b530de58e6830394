package caisson

import (
	"context"
	"net"
	"path"
	"strconv"
	"strings"
)

// Connections connects to servers in sandboxes.
type Connections interface {
	// Connect connects to a server in the sandbox. ctx applies to connecting only. A connection ends when its sandbox stops or is
	// paused, captured or forked; suspending keeps it. Errors: Conflict unless the sandbox is running, Unavailable if no
	// program listens, Exhausted at the limit of connections.
	Connect(ctx context.Context, ref string, req ConnectRequest) (Conn, error)
}

// A ConnectRequest names a server in a sandbox: exactly one of its fields is set.
type ConnectRequest struct {
	Port int    `json:"port,omitempty" doc:"TCP port, tried on 127.0.0.1, ::1 and the address of the sandbox's wire"`
	Path string `json:"path,omitempty" doc:"Absolute path of a unix socket"`
}

// A Conn is a stream to a server in a sandbox.
type Conn interface {
	net.Conn
	// CloseWrite ends the data to the server. Data from the server can still be read.
	CloseWrite() error
}

// Address returns the arguments network and address for [Dialer.Dial].
func (r ConnectRequest) Address() (network, address string, err error) {
	switch {
	case r.Path != "" && r.Port != 0:
		return "", "", Invalidf("path", "is given with a port; give one of them")
	case r.Path != "":
		network, address = "unix", r.Path
	default:
		network, address = "tcp", strconv.Itoa(r.Port)
	}
	return network, address, CheckDialAddress(network, address)
}

// maxSocketPath is the maximum length of a path of a unix socket on Linux.
const maxSocketPath = 107

// CheckDialAddress returns Invalid unless network and address are valid arguments of [Dialer.Dial].
func CheckDialAddress(network, address string) error {
	switch network {
	case "tcp":
		if n, err := strconv.ParseUint(address, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != address {
			return Invalidf("port", "%.20q is not a port; use 1 to 65535", address)
		}
		return nil
	case "unix":
		if !path.IsAbs(address) || len(address) > maxSocketPath || strings.ContainsRune(address, 0) {
			return Invalidf("path", "%.120q is not the path of a socket; use an absolute path of at most %d bytes", address, maxSocketPath)
		}
		return nil
	}
	return Invalidf("network", "%.20q is unknown; use tcp or unix", network)
}
