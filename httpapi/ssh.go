package httpapi

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// sshRoutes serves SSH connections to sandboxes.
type sshRoutes struct{ core caisson.SSH }

func (h sshRoutes) register(rt *router) {
	const tag = "ssh"
	o := newOperation(http.MethodPost, "/sandboxes/{ref}/ssh", "connect-ssh", tag, "Open an SSH connection to a sandbox")
	o.Description = "Upgrades the connection to " + protocol.SSHUpgrade + ": what follows is SSH. The server accepts every user " +
		"without authentication, because the request is authenticated. When the connection ends, processes that were started over it are killed."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection now carries SSH"), h.connect)
	registerRoute(rt, newOperation(http.MethodGet, "/ssh", "get-ssh", tag, "Get the host key of the SSH server"), h.info)
}

// info returns the host key.
func (h sshRoutes) info(ctx context.Context, _ *struct{}) (*body[protocol.SSHInfo], error) {
	key, err := h.core.SSHHostKey(ctx)
	if err != nil {
		return nil, err
	}
	return &body[protocol.SSHInfo]{protocol.SSHInfo{HostKey: key}}, nil
}

// connect upgrades the connection and passes bytes on until one of its ends is closed.
func (h sshRoutes) connect(w http.ResponseWriter, r *http.Request, in *RefParam) error {
	if r.Header.Get("Upgrade") != protocol.SSHUpgrade {
		return caisson.Invalidf("Upgrade", "must be %s", protocol.SSHUpgrade)
	}
	server, err := h.core.ConnectSSH(r.Context(), in.Ref)
	if err != nil {
		return err
	}
	defer server.Close()
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "this connection cannot carry SSH")
	}
	defer conn.Close()
	defer context.AfterFunc(r.Context(), func() { conn.Close() })()
	conn.SetDeadline(time.Time{})
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + protocol.SSHUpgrade + "\r\n\r\n")); err != nil {
		return nil // the client has disconnected
	}
	early := io.LimitReader(rw.Reader, int64(rw.Reader.Buffered()))
	if _, err := io.Copy(server, early); err != nil {
		return nil
	}
	go func() {
		defer server.Close()
		defer conn.Close()
		io.Copy(server, conn)
	}()
	io.Copy(conn, server) // the end of one direction is the end of SSH
	return nil
}
