package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// sshRoutes serves SSH connections to sandboxes.
type sshRoutes struct{ core caisson.SSH }

func (h sshRoutes) register(rt *router) {
	const tag = "ssh"
	o := postOp("/sandboxes/{ref}/ssh", "connect-ssh", tag, "Open an SSH connection to a sandbox")
	o.Description = "Upgrades the connection to " + protocol.SSHUpgrade + ": what follows is SSH. The server accepts every user " +
		"without authentication, because the request is authenticated. When the connection ends, processes that were started over it are killed."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection now carries SSH"), h.connect)
	registerRoute(rt, getOp("/ssh", "get-ssh", tag, "Get the host key of the SSH server"), h.info)
}

// info returns the public host key of the SSH server.
func (h sshRoutes) info(ctx context.Context, _ *struct{}) (protocol.SSHInfo, error) {
	key, err := h.core.SSHHostKey(ctx)
	return protocol.SSHInfo{HostKey: key}, err
}

// connect upgrades the connection and copies data between the client and the SSH server; see [serveUpgraded].
func (h sshRoutes) connect(w http.ResponseWriter, r *http.Request, in *RefParam) error {
	return serveUpgraded(w, r, protocol.SSHUpgrade, func(ctx context.Context) (caisson.Conn, error) { return h.core.ConnectSSH(ctx, in.Ref) })
}
