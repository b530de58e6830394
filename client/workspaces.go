package client

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// workspaces implements [caisson.Workspaces] by requests to a daemon.
type workspaces struct{ c *requester }

// GetWorkspace implements [caisson.Workspaces].
func (w workspaces) GetWorkspace(ctx context.Context, ref string) (*caisson.Workspace, error) {
	return call[*caisson.Workspace](ctx, w.c, request{method: http.MethodGet, path: []string{"workspaces", ref}})
}

// ListWorkspaces implements [caisson.Workspaces].
func (w workspaces) ListWorkspaces(ctx context.Context, f caisson.WorkspaceFilter) (page []*caisson.Workspace, more bool, err error) {
	return workspaceList[*caisson.Workspace](ctx, w.c, "workspaces", f)
}

// workspaceList requests one page of the listing /what, which is workspaces or receipts. more reports whether further pages
// follow.
func workspaceList[T any](ctx context.Context, c *requester, what string, f caisson.WorkspaceFilter) (page []T, more bool, err error) {
	q := url.Values{}
	for _, s := range f.States {
		q.Add("state", string(s))
	}
	for name, id := range map[string]caisson.ID{"run": f.Run, "sandbox": f.Sandbox, "workspace": f.Workspace, "after": f.Before} {
		if id != "" {
			q.Set(name, string(id))
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	p, err := call[protocol.Page[T]](ctx, c, request{method: http.MethodGet, path: []string{what}, query: q})
	return p.Items, p.Next != "", err
}

// Diff implements [caisson.Workspaces].
func (w workspaces) Diff(ctx context.Context, ref string, req caisson.DiffRequest) (*caisson.Diff, error) {
	return call[*caisson.Diff](ctx, w.c, request{method: http.MethodPost, path: []string{"workspaces", ref, "diff"}, jsonBody: req})
}

// withDirectory passes dir to the daemon and returns the headers of the request that uses it. It closes dir, also if it fails.
// If dir is nil, the request has no descriptor and the server refuses it.
func (w workspaces) withDirectory(ctx context.Context, dir caisson.Handle) (http.Header, error) {
	header := createHeader(ctx)
	if dir == nil {
		return header, nil
	}
	return header, w.c.passHandles(ctx, []caisson.Handle{dir}, header)
}

// Sync implements [caisson.Workspaces]. It closes req.Directory. With a key of [WithIdempotencyKey] it may be repeated.
func (w workspaces) Sync(ctx context.Context, ref string, req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
	header, err := w.withDirectory(ctx, req.Directory)
	if err != nil {
		return nil, err
	}
	return call[*caisson.SyncReceipt](ctx, w.c, request{
		method: http.MethodPost, path: []string{"workspaces", ref, "sync"}, header: header, jsonBody: req,
	})
}

// Reset implements [caisson.Workspaces].
func (w workspaces) Reset(ctx context.Context, ref string) (*caisson.Workspace, error) {
	return call[*caisson.Workspace](ctx, w.c, request{method: http.MethodPost, path: []string{"workspaces", ref, "reset"}})
}

// RemoveWorkspace implements [caisson.Workspaces].
func (w workspaces) RemoveWorkspace(ctx context.Context, ref string) error {
	return w.c.do(ctx, request{method: http.MethodDelete, path: []string{"workspaces", ref}})
}

// ListReceipts implements [caisson.Workspaces].
func (w workspaces) ListReceipts(ctx context.Context, f caisson.WorkspaceFilter) (page []*caisson.SyncReceipt, more bool, err error) {
	if len(f.States) > 0 {
		return nil, false, caisson.Invalidf("state", "receipts cannot be selected by the states of workspaces")
	}
	return workspaceList[*caisson.SyncReceipt](ctx, w.c, "receipts", f)
}

// GetReceipt implements [caisson.Workspaces].
func (w workspaces) GetReceipt(ctx context.Context, id caisson.ID) (*caisson.SyncReceipt, error) {
	return call[*caisson.SyncReceipt](ctx, w.c, request{method: http.MethodGet, path: []string{"receipts", string(id)}})
}

// Undo implements [caisson.Workspaces]. It closes dir.
func (w workspaces) Undo(ctx context.Context, id caisson.ID, dir caisson.Handle) (*caisson.SyncReceipt, error) {
	header, err := w.withDirectory(ctx, dir)
	if err != nil {
		return nil, err
	}
	return call[*caisson.SyncReceipt](ctx, w.c, request{method: http.MethodPost, path: []string{"receipts", string(id), "undo"}, header: header})
}

// openWorkspace opens the directory of a workspace with the rights of this process, unless the request already contains it. It
// returns nil for a volume.
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
