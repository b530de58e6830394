package httpapi

import (
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/duplex"
)

// connectionRoutes serves connections to servers in sandboxes.
type connectionRoutes struct {
	core caisson.Connections
	rt   *router
}

func (h connectionRoutes) register(rt *router) {
	o := newOperation(http.MethodPost, "/sandboxes/{ref}/connections", "connect", "connections", "Connect to a server in a sandbox")
	o.Description = "Upgrades the connection to " + protocol.StreamUpgrade + ": from then on it is the stream to and from the server, " +
		"each direction of which can be closed alone. Without an answer 101, nobody is connected."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection is now the stream"), h.connect)
}

func (h connectionRoutes) connect(w http.ResponseWriter, r *http.Request, in *struct {
	RefParam
	Body caisson.ConnectRequest
},
) error {
	if err := checkUpgrade(r, protocol.StreamUpgrade); err != nil {
		return err
	}
	server, err := h.core.Connect(r.Context(), in.Ref, in.Body)
	if caisson.KindOf(err) == caisson.Unavailable { // nobody listens, which is no failure of the daemon, and not logged as one
		h.rt.writeError(w, protocol.ProblemOf(err))
		return nil
	}
	if err != nil {
		return err
	}
	client, err := upgrade(w, protocol.StreamUpgrade)
	if err != nil {
		server.Close()
		return nil // the client has disconnected
	}
	duplex.Copy(r.Context(), client, server)
	return nil
}
