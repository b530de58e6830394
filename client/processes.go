package client

import (
	"context"
	"io"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// processes implements [caisson.Processes] by requests to a daemon.
type processes struct{ c *requester }

// Run executes a process with one request, and returns its output and exit status. If ctx ends, the process is killed.
func (c *Client) Run(ctx context.Context, ref string, req protocol.ProcessRequest) (*protocol.ProcessResult, error) {
	return call[*protocol.ProcessResult](ctx, c.c, post(req, "sandboxes", ref, "exec"))
}

// ListProcesses implements [caisson.Processes].
func (p processes) ListProcesses(ctx context.Context, ref string) ([]caisson.ProcessInfo, error) {
	return callList[caisson.ProcessInfo](ctx, p.c, get("sandboxes", ref, "processes"))
}

// Kill implements [caisson.Processes].
func (p processes) Kill(ctx context.Context, ref string, pid, signal int) error {
	return p.c.do(ctx, post(protocol.KillRequest{PID: pid, Signal: signal}, "sandboxes", ref, "kill"))
}

// Stats implements [caisson.Processes].
func (p processes) Stats(ctx context.Context, ref string) (*caisson.Stats, error) {
	return call[*caisson.Stats](ctx, p.c, get("sandboxes", ref, "stats"))
}

// Logs implements [caisson.Processes].
func (p processes) Logs(ctx context.Context, ref string, follow bool) (io.ReadCloser, error) {
	return p.c.openStream(ctx, get("sandboxes", ref, "logs").withFlag("follow", follow))
}
