package httpapi

import (
	"bufio"
	"net"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
)

// An upgraded is a connection that carries another protocol than HTTP after a request.
type upgraded struct {
	net.Conn
	r *bufio.Reader // has what the client sent too early
}

// checkUpgrade returns Invalid unless the client requests an upgrade to this protocol.
func checkUpgrade(r *http.Request, to string) error {
	if r.Header.Get("Upgrade") != to {
		return caisson.Invalidf("Upgrade", "must be %s", to)
	}
	return nil
}

// upgrade answers 101 and returns the connection, which the caller must close. The caller has called checkUpgrade. After an error,
// there is nobody to answer to.
func upgrade(w http.ResponseWriter, to string) (*upgraded, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "this connection cannot be upgraded")
	}
	conn.SetDeadline(time.Time{}) // that of the request's body
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + to + "\r\n\r\n")); err != nil {
		conn.Close()
		return nil, err
	}
	return &upgraded{conn, rw.Reader}, nil
}

// Read implements [net.Conn].
func (u *upgraded) Read(p []byte) (int, error) {
	if u.r.Buffered() > 0 {
		return u.r.Read(p)
	}
	return u.Conn.Read(p)
}

// CloseWrite ends the stream to the client: with FIN, and over TLS with close_notify.
func (u *upgraded) CloseWrite() error {
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Conn.Close()
}
