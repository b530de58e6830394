package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// noWorkspaces is the gate of a daemon that has none.
type noWorkspaces struct{}

func errNoWorkspaces() error {
	return caisson.Errorf(caisson.Unavailable, "this daemon has no workspaces")
}

func (noWorkspaces) GetWorkspace(context.Context, string) (*caisson.Workspace, error) {
	return nil, errNoWorkspaces()
}

func (noWorkspaces) ListWorkspaces(context.Context, caisson.WorkspaceFilter) ([]*caisson.Workspace, bool, error) {
	return nil, false, nil
}

func (noWorkspaces) Diff(context.Context, string, caisson.DiffRequest) (*caisson.Diff, error) {
	return nil, errNoWorkspaces()
}

func (noWorkspaces) Sync(_ context.Context, _ string, req caisson.SyncRequest) (*caisson.SyncReceipt, error) {
	req.Directory.Close()
	return nil, errNoWorkspaces()
}

func (noWorkspaces) Reset(context.Context, string) (*caisson.Workspace, error) {
	return nil, errNoWorkspaces()
}

func (noWorkspaces) RemoveWorkspace(context.Context, string) error { return errNoWorkspaces() }

func (noWorkspaces) ListReceipts(context.Context, caisson.WorkspaceFilter) ([]*caisson.SyncReceipt, bool, error) {
	return nil, false, nil
}

func (noWorkspaces) GetReceipt(context.Context, caisson.ID) (*caisson.SyncReceipt, error) {
	return nil, errNoWorkspaces()
}

func (noWorkspaces) Undo(_ context.Context, _ caisson.ID, dir caisson.Handle) (*caisson.SyncReceipt, error) {
	dir.Close()
	return nil, errNoWorkspaces()
}
