package httpapi

import (
	"context"
	"io"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// processRoutes serves processes that are not interactive; execRoutes serves those that are.
type processRoutes struct {
	core  caisson.Processes
	execs *atomic.Int64 // number of processes that clients have started and wait for
}

func (h processRoutes) register(rt *router) {
	const tag = "processes"
	registerRoute(rt, postOp("/sandboxes/{ref}/exec", "run-process", tag, "Run a process to its end and return its output"), h.run)
	registerListRoute(rt, getOp("/sandboxes/{ref}/processes", "list-processes", tag, "List the processes of a sandbox"),
		byRef[RefParam](h.core.ListProcesses))
	registerActionRoute(rt, postOp("/sandboxes/{ref}/kill", "kill-process", tag, "Send a signal to one process, or to all"), h.kill)
	registerRoute(rt, getOp("/sandboxes/{ref}/stats", "measure-sandbox", tag, "Measure a running sandbox"), byRef[RefParam](h.core.Stats))
	registerDownloadRoute(rt, getOp("/sandboxes/{ref}/logs", "get-logs", tag, "Get the output of the sandbox's command"),
		protocol.BinaryType, "Standard output and error, interleaved", h.logs)
}

func (h processRoutes) run(ctx context.Context, in *struct {
	RefParam
	Body protocol.ProcessRequest
},
) (*protocol.ProcessResult, error) {
	req := in.Body
	if req.TTY || req.Stdin {
		return nil, caisson.Invalidf("tty", "a terminal or an open standard input requires exec/stream; use input instead")
	}
	if req.Detach && len(req.Input) > 0 {
		return nil, caisson.Invalidf("input", "a detached process has no input")
	}
	limit := req.MaxOutput
	if limit == 0 {
		limit = protocol.DefaultOutput
	}
	req.Stdin = len(req.Input) > 0
	h.execs.Add(1)
	defer h.execs.Add(-1)
	p, err := h.core.Exec(ctx, in.Ref, req.ExecRequest)
	if err != nil {
		return nil, err
	}
	if req.Detach {
		return &protocol.ProcessResult{PID: p.PID()}, p.Close()
	}
	return collectOutput(ctx, p, req.Input, limit)
}

func (h processRoutes) kill(ctx context.Context, in *struct {
	RefParam
	Body protocol.KillRequest
},
) error {
	if in.Body.PID == 0 {
		return caisson.Invalidf("pid", "must be a process, or -1 for all")
	}
	return h.core.Kill(ctx, in.Ref, in.Body.PID, in.Body.Signal)
}

// logs responds with the output of the sandbox's command.
func (h processRoutes) logs(ctx context.Context, in *struct {
	RefParam
	Follow bool `query:"follow" doc:"Follow the log until the sandbox stops"`
},
) (io.ReadCloser, error) {
	return h.core.Logs(ctx, in.Ref, in.Follow)
}
