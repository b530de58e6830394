package httpapi

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// defaultGrace is the time between SIGTERM and SIGKILL for stop requests that do not specify it.
const defaultGrace = 10 * time.Second

// sandboxRoutes serves the lifecycle of sandboxes.
type sandboxRoutes struct {
	core        caisson.Sandboxes
	idempotency idempotency
	handles     *handleTable
}

func (h sandboxRoutes) register(rt *router) {
	const tag = "sandboxes"
	registerRoute(rt, withCreated(postOp("/sandboxes", "create-sandbox", tag, "Create a sandbox")), h.create)
	registerRoute(rt, getOp("/sandboxes", "list-sandboxes", tag, "List sandboxes, oldest first"),
		listPages[FilterParams](caisson.SandboxPrefix, h.core.List, sandboxAnswer, func(s *caisson.Sandbox) caisson.ID { return s.ID }))
	registerRoute(rt, getOp("/sandboxes/{ref}", "get-sandbox", tag, "Get a sandbox"), sandboxByRef(h.core.Get))
	registerActionRoute(rt, deleteOp("/sandboxes/{ref}", "remove-sandbox", tag, "End a sandbox and delete everything that belongs to it"),
		removeByRef[RefParam](h.core.Remove))
	registerRoute(rt, postOp("/sandboxes/{ref}/start", "start-sandbox", tag, "Start a created or stopped sandbox"), sandboxByRef(h.core.Start))
	registerRoute(rt, postOp("/sandboxes/{ref}/stop", "stop-sandbox", tag, "Stop every process; files are kept"), withAnswer(h.stop, sandboxAnswer))
	registerRoute(rt, postOp("/sandboxes/{ref}/pause", "pause-sandbox", tag, "Move memory and files to disk"), sandboxByRef(h.core.Pause))
	registerRoute(rt, postOp("/sandboxes/{ref}/resume", "resume-sandbox", tag, "Continue a paused sandbox"), sandboxByRef(h.core.Resume))
	registerRoute(rt, postOp("/sandboxes/{ref}/suspend", "suspend-sandbox", tag, "Freeze the processes of a sandbox, in memory"),
		sandboxByRef(h.core.Suspend))
	registerRoute(rt, postOp("/sandboxes/{ref}/wake", "wake-sandbox", tag, "Continue a suspended sandbox"), sandboxByRef(h.core.Wake))
	registerRoute(rt, postOp("/sandboxes/{ref}/extend", "extend-sandbox", tag, "Set new time limits, counted from now"),
		withAnswer(h.extend, sandboxAnswer))
}

// sandboxByRef returns a handler that calls do with the reference in the path, and applies [sandboxAnswer] to the result.
func sandboxByRef(do func(context.Context, string) (*caisson.Sandbox, error)) func(context.Context, *RefParam) (*caisson.Sandbox, error) {
	return withAnswer(byRef[RefParam](do), sandboxAnswer)
}

func (h sandboxRoutes) create(ctx context.Context, in *struct {
	KeyParam
	HandleParam
	Body caisson.CreateRequest
},
) (*caisson.Sandbox, error) {
	req := in.Body
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	defer h.handles.closeUntaken(caller.Account, in.Handles) // a repeated request gets the stored answer, and takes no descriptor
	if err := checkLabels(req.Labels); err != nil {
		return nil, err
	}
	wanted := len(req.Mounts)
	fromHost := req.Workspace != nil && req.Workspace.Kind != caisson.WorkspaceVolume // all other kinds are of a host directory
	if fromHost {
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
	case fromHost && len(in.Handles) == len(req.Mounts):
		return nil, caisson.Invalidf("workspace", "needs the descriptor of its directory, after those of mounts")
	default:
		return nil, caisson.Invalidf("mounts", "%d mounts need as many descriptors of directories, not %d", len(req.Mounts), len(in.Handles))
	}
	return once(ctx, h.idempotency, in.Key, "create", req, func() (*caisson.Sandbox, error) {
		dirs, err := h.handles.take(caller.Account, in.Handles)
		if err != nil {
			return nil, err
		}
		req.Directories = dirs[:len(req.Mounts):len(req.Mounts)]
		if fromHost {
			w := *req.Workspace
			w.Directory, req.Workspace = dirs[len(req.Mounts)], &w
		}
		sb, err := h.core.Create(ctx, req)
		if err != nil {
			return nil, err
		}
		return sandboxAnswer(sb), nil
	})
}

func (h sandboxRoutes) stop(ctx context.Context, in *struct {
	RefParam
	Body *protocol.StopRequest
},
) (*caisson.Sandbox, error) {
	grace := defaultGrace
	if in.Body != nil && in.Body.Grace != nil {
		grace = time.Duration(*in.Body.Grace)
	}
	return h.core.Stop(ctx, in.Ref, grace)
}

// extend sets new times at which the sandbox is paused, removed and woken, and its AutoPause.
func (h sandboxRoutes) extend(ctx context.Context, in *struct {
	RefParam
	Body caisson.ExtendRequest
},
) (*caisson.Sandbox, error) {
	return h.core.Extend(ctx, in.Ref, in.Body)
}
