package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// defaultGrace is the time between SIGTERM and SIGKILL for stop requests that do not specify it.
const defaultGrace = 10 * time.Second

// sandboxRoutes serves the lifecycle of sandboxes.
type sandboxRoutes struct {
	core    caisson.Sandboxes
	once    idempotency
	handles *handleTable
}

// sandboxBody is a response with a sandbox.
type sandboxBody = body[*caisson.Sandbox]

func (h sandboxRoutes) register(rt *router) {
	const tag = "sandboxes"
	registerRoute(rt, withCreated(newOperation(http.MethodPost, "/sandboxes", "create-sandbox", tag, "Create a sandbox")), h.create)
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes", "list-sandboxes", tag, "List sandboxes, oldest first"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/sandboxes/{ref}", "get-sandbox", tag, "Get a sandbox"), h.get)
	registerRoute(rt, newOperation(http.MethodDelete, "/sandboxes/{ref}", "remove-sandbox", tag, "End a sandbox and delete everything it had"), h.remove)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/start", "start-sandbox", tag, "Start a created or stopped sandbox"), h.start)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/stop", "stop-sandbox", tag, "Stop every process; files are kept"), h.stop)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/pause", "pause-sandbox", tag, "Move memory and files to disk"), h.pause)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/resume", "resume-sandbox", tag, "Continue a paused sandbox"), h.resume)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/suspend", "suspend-sandbox", tag, "Freeze the processes of a sandbox, in memory"), h.suspend)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/wake", "wake-sandbox", tag, "Continue a suspended sandbox"), h.wake)
	registerRoute(rt, newOperation(http.MethodPost, "/sandboxes/{ref}/extend", "extend-sandbox", tag, "Set new time limits, counted from now"), h.extend)
}

// createInput is a request to create a sandbox.
type createInput struct {
	KeyParam
	HandleParam
	Body caisson.CreateRequest
}

func (h sandboxRoutes) create(ctx context.Context, in *createInput) (*sandboxBody, error) {
	req := in.Body
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	defer h.handles.closeUntaken(caller.Account, in.Handles) // a repeated request does not need them
	if err := checkLabels(req.Labels); err != nil {
		return nil, err
	}
	wanted := len(req.Mounts)
	shown := req.Workspace != nil && req.Workspace.Kind != caisson.WorkspaceVolume // a volume is not a host directory
	if shown {
		wanted++
	} else if req.Workspace != nil {
		if err := checkVolumeSource("workspace.source", req.Workspace.Source, len(in.Handles)-wanted); err != nil {
			return nil, err
		}
	}
	switch {
	case !caller.Local && wanted > 0:
		return nil, errHostPath()
	case len(in.Handles) == wanted:
	case shown && len(in.Handles) == len(req.Mounts):
		return nil, caisson.Invalidf("workspace", "needs the descriptor of its directory, after those of mounts")
	default:
		return nil, caisson.Invalidf("mounts", "%d mounts need as many descriptors of directories, not %d", len(req.Mounts), len(in.Handles))
	}
	sb, err := once(ctx, h.once, in.Key, "create", req, func() (*caisson.Sandbox, error) {
		dirs, err := h.handles.take(caller.Account, in.Handles)
		if err != nil {
			return nil, err
		}
		req.Directories = dirs[:len(req.Mounts):len(req.Mounts)]
		if shown {
			w := *req.Workspace
			w.Directory, req.Workspace = dirs[len(req.Mounts)], &w
		}
		sb, err := h.core.Create(ctx, req)
		if err != nil {
			return nil, err
		}
		return sandboxAnswer(sb), nil
	})
	if err != nil {
		return nil, err
	}
	return &sandboxBody{sb}, nil
}

func (h sandboxRoutes) list(ctx context.Context, in *FilterParams) (*body[protocol.Page[*caisson.Sandbox]], error) {
	f, err := in.filter(caisson.SandboxPrefix)
	if err != nil {
		return nil, err
	}
	f.States = in.State
	page, more, err := h.core.List(ctx, f)
	if err != nil {
		return nil, err
	}
	return pageOf(page, more, sandboxAnswer, func(s *caisson.Sandbox) caisson.ID { return s.ID }), nil
}

// answerSandbox returns the response for the result of a core, or its error.
func answerSandbox(sb *caisson.Sandbox, err error) (*sandboxBody, error) {
	if err != nil {
		return nil, err
	}
	return &sandboxBody{sandboxAnswer(sb)}, nil
}

func (h sandboxRoutes) get(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Get(ctx, in.Ref))
}

func (h sandboxRoutes) remove(ctx context.Context, in *RefParam) (*noContent, error) {
	return nil, h.core.Remove(ctx, in.Ref)
}

func (h sandboxRoutes) start(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Start(ctx, in.Ref))
}

func (h sandboxRoutes) stop(ctx context.Context, in *struct {
	RefParam
	Body *protocol.StopRequest
},
) (*sandboxBody, error) {
	grace := defaultGrace
	if in.Body != nil && in.Body.Grace != nil {
		grace = time.Duration(*in.Body.Grace)
	}
	return answerSandbox(h.core.Stop(ctx, in.Ref, grace))
}

func (h sandboxRoutes) pause(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Pause(ctx, in.Ref))
}

func (h sandboxRoutes) resume(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Resume(ctx, in.Ref))
}

func (h sandboxRoutes) suspend(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Suspend(ctx, in.Ref))
}

func (h sandboxRoutes) wake(ctx context.Context, in *RefParam) (*sandboxBody, error) {
	return answerSandbox(h.core.Wake(ctx, in.Ref))
}

func (h sandboxRoutes) extend(ctx context.Context, in *struct {
	RefParam
	Body caisson.ExtendRequest
},
) (*sandboxBody, error) {
	return answerSandbox(h.core.Extend(ctx, in.Ref, in.Body))
}
