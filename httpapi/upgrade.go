package httpapi

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/duplex"
)

// An upgradedConn is a connection that carries another protocol than HTTP after a request.
type upgradedConn struct {
	net.Conn
	r *bufio.Reader // reads from Conn; its buffer may contain data that the client has sent before the response
}

// checkUpgrade returns Invalid unless the client requests an upgrade to the protocol to.
func checkUpgrade(r *http.Request, to string) error {
	if r.Header.Get("Upgrade") != to {
		return caisson.Invalidf("Upgrade", "must be %s", to)
	}
	return nil
}

// upgradeTimeout is the timeout for sending the response to a request for an upgrade.
const upgradeTimeout = 10 * time.Second

// upgrade responds with status 101 and returns the connection, which the caller must close. The caller must have called
// checkUpgrade. If upgrade returns neither a connection nor an error, the client has disconnected, and no response can be sent.
func upgrade(w http.ResponseWriter, to string) (*upgradedConn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "this connection cannot be upgraded")
	}
	conn.SetDeadline(time.Now().Add(upgradeTimeout)) // replaces the deadline for the request's body
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + to + "\r\n\r\n")); err != nil {
		conn.Close() // the client has disconnected
		return nil, nil
	}
	conn.SetDeadline(time.Time{})
	return &upgradedConn{conn, rw.Reader}, nil
}

// serveUpgraded calls open, upgrades the client's connection, and copies data between it and the connection that open has
// returned, until one of the two is closed. If open fails, serveUpgraded returns the error without upgrading.
func serveUpgraded(w http.ResponseWriter, r *http.Request, to string, open func(context.Context) (caisson.Conn, error)) error {
	if err := checkUpgrade(r, to); err != nil {
		return err
	}
	server, err := open(r.Context())
	if err != nil {
		return err
	}
	client, err := upgrade(w, to)
	if client == nil {
		server.Close()
		return err
	}
	duplex.Copy(r.Context(), client, server)
	return nil
}

// Read returns what the client has sent before the response to its upgrade, and then reads from the connection.
func (u *upgradedConn) Read(p []byte) (int, error) {
	if u.r.Buffered() > 0 {
		return u.r.Read(p)
	}
	return u.Conn.Read(p)
}

// CloseWrite ends the stream to the client: with FIN, and over TLS with close_notify.
func (u *upgradedConn) CloseWrite() error {
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Conn.Close()
}
