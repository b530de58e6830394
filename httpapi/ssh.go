package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/duplex"
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
	if err := checkUpgrade(r, protocol.SSHUpgrade); err != nil {
		return err
	}
	server, err := h.core.ConnectSSH(r.Context(), in.Ref)
	if err != nil {
		return err
	}
	client, err := upgrade(w, protocol.SSHUpgrade)
	if err != nil {
		server.Close()
		return nil // the client has disconnected
	}
	duplex.Copy(r.Context(), client, server)
	return nil
}
