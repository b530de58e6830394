package client

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// idempotencyContextKey is the type of the key under which [WithIdempotencyKey] stores its value in a context.
type idempotencyContextKey struct{}

// WithIdempotencyKey returns a context with which a request that creates an object may be repeated, for example after a lost
// connection. If the first one was successful, the daemon sends the same response again, and creates no second object.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyContextKey{}, key)
}

// createHeader returns the headers of a request that creates an object: the idempotency key, if ctx has one.
func createHeader(ctx context.Context) http.Header {
	h := http.Header{}
	if key, ok := ctx.Value(idempotencyContextKey{}).(string); ok {
		h.Set(protocol.IdempotencyHeader, key)
	}
	return h
}

// sandboxes implements [caisson.Sandboxes] by requests to a daemon.
type sandboxes struct{ c *requester }

// Create implements [caisson.Sandboxes]. It opens the sources of mounts and the directory of the workspace with the rights of
// this process, unless the request contains them already opened, and passes them to the daemon, which is possible only over the
// unix socket.
func (s sandboxes) Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	dirs := req.Directories
	if len(dirs) == 0 {
		var err error
		if dirs, err = s.c.openMounts(req.Mounts); err != nil {
			if req.Workspace != nil && req.Workspace.Directory != nil {
				req.Workspace.Directory.Close()
			}
			return nil, err
		}
	}
	if req.Workspace != nil {
		dir, err := s.c.openWorkspace(req.Workspace)
		if err != nil {
			closeHandles(dirs)
			return nil, err
		}
		if dir != nil {
			dirs = append(slices.Clip(dirs), dir)
		}
	}
	header := createHeader(ctx)
	if err := s.c.passHandles(ctx, dirs, header); err != nil {
		return nil, err
	}
	return call[*caisson.Sandbox](ctx, s.c, post(req, "sandboxes").withHeader(header))
}

// Get implements [caisson.Sandboxes].
func (s sandboxes) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return call[*caisson.Sandbox](ctx, s.c, get("sandboxes", ref))
}

// List implements [caisson.Sandboxes].
func (s sandboxes) List(ctx context.Context, f caisson.Filter) (page []*caisson.Sandbox, more bool, err error) {
	return callFiltered[*caisson.Sandbox](ctx, s.c, "sandboxes", f)
}

// callFiltered requests the page that f selects of the listing with the path what. more reports whether further pages follow.
func callFiltered[T any](ctx context.Context, c *requester, what string, f caisson.Filter) (page []T, more bool, err error) {
	req := withStates(get(what), f.States).withParam("name", f.Name).withParam("after", string(f.After))
	for k, v := range f.Labels {
		req.addParam("label", k+"="+v)
	}
	return callPage[T](ctx, c, req, f.Limit)
}

// changeState sends a request that changes the state or the time limits of a sandbox. verb is the last segment of its path; in is
// encoded as its JSON body.
func (s sandboxes) changeState(ctx context.Context, ref, verb string, in any) (*caisson.Sandbox, error) {
	return call[*caisson.Sandbox](ctx, s.c, post(in, "sandboxes", ref, verb))
}

// Start implements [caisson.Sandboxes].
func (s sandboxes) Start(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "start", nil)
}

// Stop implements [caisson.Sandboxes].
func (s sandboxes) Stop(ctx context.Context, ref string, grace time.Duration) (*caisson.Sandbox, error) {
	d := caisson.Duration(grace)
	return s.changeState(ctx, ref, "stop", protocol.StopRequest{Grace: &d})
}

// Pause implements [caisson.Sandboxes].
func (s sandboxes) Pause(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "pause", nil)
}

// Resume implements [caisson.Sandboxes].
func (s sandboxes) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "resume", nil)
}

// Suspend implements [caisson.Sandboxes].
func (s sandboxes) Suspend(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "suspend", nil)
}

// Wake implements [caisson.Sandboxes].
func (s sandboxes) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "wake", nil)
}

// Extend implements [caisson.Sandboxes].
func (s sandboxes) Extend(ctx context.Context, ref string, req caisson.ExtendRequest) (*caisson.Sandbox, error) {
	return s.changeState(ctx, ref, "extend", req)
}

// Remove implements [caisson.Sandboxes].
func (s sandboxes) Remove(ctx context.Context, ref string) error {
	return s.c.do(ctx, remove("sandboxes", ref))
}

// snapshots implements [caisson.Snapshots] by requests to a daemon.
type snapshots struct{ c *requester }

// Snapshot implements [caisson.Snapshots].
func (s snapshots) Snapshot(ctx context.Context, ref string, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	return call[*caisson.Snapshot](ctx, s.c, post(req, "sandboxes", ref, "snapshot").withHeader(createHeader(ctx)))
}

// Fork implements [caisson.Snapshots].
func (s snapshots) Fork(ctx context.Context, ref string, req caisson.ForkRequest) ([]*caisson.Sandbox, error) {
	return callList[*caisson.Sandbox](ctx, s.c, post(req, "sandboxes", ref, "fork").withHeader(createHeader(ctx)))
}

// GetSnapshot implements [caisson.Snapshots].
func (s snapshots) GetSnapshot(ctx context.Context, ref string) (*caisson.Snapshot, error) {
	return call[*caisson.Snapshot](ctx, s.c, get("snapshots", ref))
}

// ListSnapshots implements [caisson.Snapshots].
func (s snapshots) ListSnapshots(ctx context.Context, f caisson.Filter) (page []*caisson.Snapshot, more bool, err error) {
	if len(f.States) > 0 {
		return nil, false, caisson.Invalidf("state", "snapshots have no states")
	}
	return callFiltered[*caisson.Snapshot](ctx, s.c, "snapshots", f)
}

// RemoveSnapshot implements [caisson.Snapshots].
func (s snapshots) RemoveSnapshot(ctx context.Context, ref string) error {
	return s.c.do(ctx, remove("snapshots", ref))
}
