package httpapi

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// processRoutes serves processes that are not interactive; execRoutes serves those that are.
type processRoutes struct {
	core  caisson.Processes
	execs *atomic.Int64 // see [API]
}

func (h processRoutes) register(rt *router) {
	const tag = "processes"
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/exec", "run-process", tag, "Run a process to its end and return its output"), h.run)
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}/processes", "list-processes", tag, "List the processes of a sandbox"), h.list)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/kill", "kill-process", tag, "Send a signal to one process, or to all"), h.kill)
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}/stats", "measure-sandbox", tag, "Measure a running sandbox"), h.stats)
	registerStreamRoute(rt, withResponse(newOperation(http.MethodGet, "/sandboxes/{ref}/logs", "get-logs", tag, "Get the output of the sandbox's command"),
		http.StatusOK, protocol.BinaryType, "Standard output and error, interleaved"), h.logs)
}

func (h processRoutes) run(ctx context.Context, in *struct {
	RefParam
	Body protocol.ProcessRequest
},
) (*body[*protocol.ProcessResult], error) {
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
		return &body[*protocol.ProcessResult]{&protocol.ProcessResult{PID: p.PID()}}, p.Close()
	}
	result, err := collectOutput(ctx, p, req.Input, limit)
	if err != nil {
		return nil, err
	}
	return &body[*protocol.ProcessResult]{result}, nil
}

func (h processRoutes) list(ctx context.Context, in *RefParam) (*body[protocol.Page[caisson.ProcessInfo]], error) {
	list, err := h.core.ListProcesses(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return wholeList(list), nil
}

func (h processRoutes) kill(ctx context.Context, in *struct {
	RefParam
	Body protocol.KillRequest
},
) (*noContent, error) {
	if in.Body.PID == 0 {
		return nil, caisson.Invalidf("pid", "must be a process, or -1 for all")
	}
	return nil, h.core.Kill(ctx, in.Ref, in.Body.PID, in.Body.Signal)
}

func (h processRoutes) stats(ctx context.Context, in *RefParam) (*body[*caisson.Stats], error) {
	stats, err := h.core.Stats(ctx, in.Ref)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.Stats]{stats}, nil
}

func (h processRoutes) logs(w http.ResponseWriter, r *http.Request, in *struct {
	RefParam
	Follow bool `query:"follow" doc:"Follow the log until the sandbox stops"`
},
) error {
	log, err := h.core.Logs(r.Context(), in.Ref, in.Follow)
	if err != nil {
		return err
	}
	return streamBody(w, log, protocol.BinaryType)
}

// streamBody writes the data of rc as the response, as it arrives, and closes rc.
func streamBody(w http.ResponseWriter, rc io.ReadCloser, contentType string) error {
	defer rc.Close()
	w.Header().Set("Content-Type", contentType)
	// The content is untrusted: browsers must not display it.
	w.Header().Set("Content-Disposition", "attachment")
	w.WriteHeader(http.StatusOK)
	ctl := http.NewResponseController(w)
	if err := ctl.Flush(); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := rc.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := ctl.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
