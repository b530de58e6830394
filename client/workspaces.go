package client

import (
	"context"
	"net/http"
	"os"
	"syscall"

	"github.com/caisson-dev/caisson"
)

// workspaces implements [caisson.Workspaces] by requests to a daemon.
type workspaces struct{ c *requester }

// GetWorkspace implements [caisson.Workspaces].
func (w workspaces) GetWorkspace(ctx context.Context, ref string) (*caisson.Workspace, error) {
	return call[*caisson.Workspace](ctx, w.c, get("workspaces", ref))
}

// ListWorkspaces implements [caisson.Workspaces].
func (w workspaces) ListWorkspaces(ctx context.Context, f caisson.WorkspaceFilter) (page []*caisson.Workspace, more bool, err error) {
	return callWorkspaces[*caisson.Workspace](ctx, w.c, "workspaces", f)
}

// callWorkspaces requests a page of the listing what, "workspaces" or "receipts". more reports whether further pages follow.
func callWorkspaces[T any](ctx context.Context, c *requester, what string, f caisson.WorkspaceFilter) (page []T, more bool, err error) {
	req := withStates(get(what), f.States).withParam("run", string(f.Run)).withParam("sandbox", string(f.Sandbox)).
		withParam("workspace", string(f.Workspace)).withParam("after", string(f.Before))
	return callPage[T](ctx, c, req, f.Limit)
}

// Diff implements [caisson.Workspaces].
func (w workspaces) Diff(ctx context.Context, ref string, req caisson.DiffRequest) (*caisson.Diff, error) {
	return call[*caisson.Diff](ctx, w.c, post(req, "workspaces", ref, "diff"))
}

// withDirectory passes the open directory dir to the daemon, and returns the headers of the request that uses it. It always
// closes dir. If dir is nil, the headers refer to no directory, and the daemon refuses the request.
func (w workspaces) withDirectory(ctx context.Context, dir caisson.Handle) (http.Header, error) {
	header := createHeader(ctx)
	if dir == nil {
		return header, nil
	}
	return header, w.c.passHandles(ctx, []caisson.Handle{dir}, header)
}

// Sync implements [caisson.Workspaces]. It closes req.Directory. If a call with a key of [WithIdempotencyKey] was successful, a
// repeated call with this key returns the same receipt, and applies nothing.
func (w workspaces) Sync(ctx context.Context, ref string, req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
	header, err := w.withDirectory(ctx, req.Directory)
	if err != nil {
		return nil, err
	}
	return call[*caisson.SyncReceipt](ctx, w.c, post(req, "workspaces", ref, "sync").withHeader(header))
}

// Reset implements [caisson.Workspaces].
func (w workspaces) Reset(ctx context.Context, ref string) (*caisson.Workspace, error) {
	return call[*caisson.Workspace](ctx, w.c, post(nil, "workspaces", ref, "reset"))
}

// RemoveWorkspace implements [caisson.Workspaces].
func (w workspaces) RemoveWorkspace(ctx context.Context, ref string) error {
	return w.c.do(ctx, remove("workspaces", ref))
}

// ListReceipts implements [caisson.Workspaces].
func (w workspaces) ListReceipts(ctx context.Context, f caisson.WorkspaceFilter) (page []*caisson.SyncReceipt, more bool, err error) {
	if len(f.States) > 0 {
		return nil, false, caisson.Invalidf("state", "receipts cannot be selected by the states of workspaces")
	}
	return callWorkspaces[*caisson.SyncReceipt](ctx, w.c, "receipts", f)
}

// GetReceipt implements [caisson.Workspaces].
func (w workspaces) GetReceipt(ctx context.Context, id caisson.ID) (*caisson.SyncReceipt, error) {
	return call[*caisson.SyncReceipt](ctx, w.c, get("receipts", string(id)))
}

// Undo implements [caisson.Workspaces]. It closes dir.
func (w workspaces) Undo(ctx context.Context, id caisson.ID, dir caisson.Handle) (*caisson.SyncReceipt, error) {
	header, err := w.withDirectory(ctx, dir)
	if err != nil {
		return nil, err
	}
	return call[*caisson.SyncReceipt](ctx, w.c, post(nil, "receipts", string(id), "undo").withHeader(header))
}

// openWorkspace returns the directory for a new workspace: the one in req, or the directory at req's path, which it opens with
// the rights of this process. It returns nil if the workspace is on a volume.
func (c *requester) openWorkspace(req *caisson.WorkspaceRequest) (caisson.Handle, error) {
	switch {
	case req.Kind == caisson.WorkspaceVolume:
		if req.Directory != nil {
			req.Directory.Close()
			return nil, caisson.Invalidf("workspace", "is either a directory or a volume")
		}
		return nil, nil
	case c.socket == "":
		if req.Directory != nil {
			req.Directory.Close()
		}
		return nil, errHostPath()
	case req.Directory != nil:
		return req.Directory, nil
	}
	f, err := os.OpenFile(req.Source, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "workspace: cannot open the directory %s", req.Source)
	}
	return f, nil
}
