package httpapi

import (
	"context"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// connectionRoutes serves connections to servers in sandboxes.
type connectionRoutes struct{ core caisson.Connections }

func (h connectionRoutes) register(rt *router) {
	o := postOp("/sandboxes/{ref}/connections", "connect", "connections", "Connect to a server in a sandbox")
	o.Description = "Upgrades the connection to " + protocol.StreamUpgrade + ": from then on it is the stream to and from the server, " +
		"each direction of which can be closed alone. With any other status than 101 there is no connection."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection is now the stream"), h.connect)
}

func (h connectionRoutes) connect(w http.ResponseWriter, r *http.Request, in *struct {
	RefParam
	Body caisson.ConnectRequest
},
) error {
	err := serveUpgraded(w, r, protocol.StreamUpgrade, func(ctx context.Context) (caisson.Conn, error) {
		return h.core.Connect(ctx, in.Ref, in.Body)
	})
	// Unavailable means that no program in the sandbox listens. It is not logged, because it is not an error of the daemon.
	if caisson.KindOf(err) == caisson.Unavailable {
		writeError(w, protocol.ProblemOf(err))
		return nil
	}
	return err
}
