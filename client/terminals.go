package client

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// terminals implements [caisson.Terminals] by requests to a daemon.
type terminals struct{ c *requester }

// CreateTerminal implements [caisson.Terminals].
func (t terminals) CreateTerminal(ctx context.Context, ref string, req caisson.TerminalRequest) (*caisson.Terminal, error) {
	return call[*caisson.Terminal](ctx, t.c, post(req, "sandboxes", ref, "terminals"))
}

// ListTerminals implements [caisson.Terminals].
func (t terminals) ListTerminals(ctx context.Context, ref string) ([]caisson.Terminal, error) {
	return callList[caisson.Terminal](ctx, t.c, get("sandboxes", ref, "terminals"))
}

// AttachTerminal implements [caisson.Terminals]. ctx applies only to attaching.
func (t terminals) AttachTerminal(ctx context.Context, ref string, id caisson.ID, req caisson.AttachRequest) (caisson.Process, error) {
	s := newExecSession(!req.ReadOnly, !req.ReadOnly)
	s.lostMessage = "the connection to the daemon was lost; the terminal runs on"
	return t.c.openSession(ctx, []string{"sandboxes", ref, "terminals", string(id), "stream"}, s, req)
}

// RemoveTerminal implements [caisson.Terminals].
func (t terminals) RemoveTerminal(ctx context.Context, ref string, id caisson.ID) error {
	return t.c.do(ctx, remove("sandboxes", ref, "terminals", string(id)))
}
