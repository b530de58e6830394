package httpapi

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/caisson-dev/caisson"
)

// terminalRoutes serves the terminals in sandboxes.
type terminalRoutes struct {
	core caisson.Terminals
	log  *slog.Logger
}

// TerminalRef is the reference of a terminal in a path.
type TerminalRef struct {
	RefParam
	Terminal caisson.ID `path:"terminal" maxLength:"128" doc:"Id of the terminal"`
}

func (h terminalRoutes) register(rt *router) {
	const tag = "terminals"
	registerRoute(rt, withCreated(postOp("/sandboxes/{ref}/terminals", "create-terminal", tag, "Start a program at a terminal that clients can detach from and attach to again")), h.create)
	registerListRoute(rt, getOp("/sandboxes/{ref}/terminals", "list-terminals", tag, "List the terminals of a sandbox, oldest first"),
		byRef[RefParam](h.core.ListTerminals))
	registerActionRoute(rt, deleteOp("/sandboxes/{ref}/terminals/{terminal}", "remove-terminal", tag, "Kill the program of a terminal, and remove it"), h.remove)
	o := getOp("/sandboxes/{ref}/terminals/{terminal}/stream", "attach-terminal", tag, "Attach to a terminal (WebSocket)")
	o.Description = "The first message is text: an AttachRequest. All further ones are as in exec-process. The output begins with what " +
		"is kept of the earlier output, at most 256 KiB; a slow client misses output. Channel 2 has messages about the session, one " +
		"line each. If the connection is lost, the program continues to run."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection is now a WebSocket"), h.attach)
}

func (h terminalRoutes) create(ctx context.Context, in *struct {
	RefParam
	Body caisson.TerminalRequest
},
) (*caisson.Terminal, error) {
	return h.core.CreateTerminal(ctx, in.Ref, in.Body)
}

func (h terminalRoutes) remove(ctx context.Context, in *TerminalRef) error {
	return h.core.RemoveTerminal(ctx, in.Ref, in.Terminal)
}

// attach upgrades the connection to a WebSocket and serves the session.
func (h terminalRoutes) attach(w http.ResponseWriter, r *http.Request, in *TerminalRef) error {
	return serveSession(w, r, in.Ref, h.log, func(ctx context.Context, first []byte) (caisson.Process, error) {
		var req caisson.AttachRequest
		if err := parseFirst(first, &req); err != nil {
			return nil, err
		}
		return h.core.AttachTerminal(ctx, in.Ref, in.Terminal, req)
	})
}
