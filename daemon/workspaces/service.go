package workspaces

import (
	"context"
	"errors"
	"os"

	"github.com/caisson-dev/caisson"
)

// Service implements [caisson.Workspaces].
type Service struct{ c *Core }

var _ caisson.Workspaces = (*Service)(nil)

// errUnchanged is returned by update functions that find nothing to change, and cancels the update.
var errUnchanged = errors.New("unchanged")

// GetWorkspace implements [caisson.Workspaces]. It returns a workspace of the caller's account.
func (g *Service) GetWorkspace(ctx context.Context, ref string) (*caisson.Workspace, error) {
	w, err := g.get(ctx, ref)
	if err != nil {
		return nil, err
	}
	return w, g.c.secretSearch.addTo(w)
}

// get returns a workspace of the caller's account from the store.
func (g *Service) get(ctx context.Context, ref string) (*caisson.Workspace, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return g.c.cfg.Store.Workspaces().Get(ctx, in, ref)
}

// ListWorkspaces implements [caisson.Workspaces]. It returns a page of the account's workspaces, and whether more follow.
func (g *Service) ListWorkspaces(ctx context.Context, f caisson.WorkspaceFilter) ([]*caisson.Workspace, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return g.c.cfg.Store.Workspaces().List(ctx, in, f)
}

// hold finds a workspace of the caller's account, and locks it until release is called. Returns Conflict if the workspace is of
// kind direct: its sandbox writes to the host directory itself, so that there is no layer with changes.
func (g *Service) hold(ctx context.Context, ref string) (w *caisson.Workspace, release func(), err error) {
	if w, err = g.get(ctx, ref); err != nil {
		return nil, nil, err
	}
	if release, err = g.c.layerFiles.lock(ctx, w.ID); err != nil {
		return nil, nil, err
	}
	// The workspace may have been changed or removed while hold waited for the lock.
	if w, err = g.get(ctx, string(w.ID)); err == nil && w.Kind == caisson.WorkspaceDirect {
		err = caisson.Errorf(caisson.Conflict, "the sandbox of workspace %s writes to the directory itself, so there is nothing to review or apply", w.ID)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return w, release, nil
}

// Reset implements [caisson.Workspaces]. It discards all changes of a workspace whose sandbox is not running.
func (g *Service) Reset(ctx context.Context, ref string) (*caisson.Workspace, error) {
	w, release, err := g.hold(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer release()
	wake, err := g.c.holdStopped(ctx, w, "drop its changes")
	if err != nil {
		return nil, err
	}
	defer wake()
	upper, err := os.OpenRoot(g.c.dir(w.ID, upperDir))
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	if err := emptyIn(upper, g.c.dir(w.ID, droppedDir)); err != nil {
		return nil, err
	}
	if err := g.c.layerFiles.clearApplied(w); err != nil {
		return nil, err
	}
	if err := g.c.reviews.removeReviews(w.ID); err != nil {
		return nil, err
	}
	w, err = g.c.cfg.Store.Workspaces().Update(ctx, caisson.AllAccounts(), w.ID, func(w *caisson.Workspace) error {
		w.Changes = 0
		if w.State == caisson.WorkspaceDetached {
			w.State = caisson.WorkspaceSettled
		}
		return nil
	})
	if err == nil {
		publish(ctx, g.c.cfg.Events, w, "workspace.reset", nil)
	}
	return w, err
}

// holdStopped prevents the start of the sandbox of w until the returned function is called. Returns Conflict if the sandbox may
// be using its layers; what completes the message of that error.
func (c *Core) holdStopped(ctx context.Context, w *caisson.Workspace, what string) (unlock func(), err error) {
	unlock, err = c.layerLocks.Acquire(ctx, string(w.ID))
	if err != nil || w.State != caisson.WorkspaceLive {
		return unlock, err
	}
	running, err := c.cfg.UsesLayers(ctx, w.Sandbox)
	switch {
	case err != nil && caisson.KindOf(err) == caisson.NotFound:
		return unlock, nil
	case err == nil && running:
		err = caisson.Errorf(caisson.Conflict, "sandbox %s is running or paused; stop it to %s", w.Sandbox, what)
	case err == nil:
		return unlock, nil
	}
	unlock()
	return nil, err
}

// RemoveWorkspace implements [caisson.Workspaces].
func (g *Service) RemoveWorkspace(ctx context.Context, ref string) error {
	w, err := g.get(ctx, ref)
	if err != nil {
		return err
	}
	return g.c.remove(ctx, w.ID)
}

// remove deletes a workspace whose sandbox was removed. An incomplete sync is completed or rolled back first, because
// the only copies of the files that it has replaced are in the workspace.
func (c *Core) remove(ctx context.Context, id caisson.ID) error {
	release, err := c.layerFiles.lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	w, err := c.cfg.Store.Workspaces().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return err
	}
	if w.State == caisson.WorkspaceLive {
		return caisson.Errorf(caisson.Conflict, "sandbox %s has the workspace; remove the sandbox first", w.Sandbox)
	}
	if err := c.syncs.recoverAt(ctx, w); err != nil {
		return err
	}
	if err := c.cfg.Store.Workspaces().Delete(ctx, caisson.AllAccounts(), id); err != nil {
		return err
	}
	publish(ctx, c.cfg.Events, w, "workspace.removed", nil)
	return removeTree(c.dir(id))
}

// ListReceipts implements [caisson.Workspaces].
func (g *Service) ListReceipts(ctx context.Context, f caisson.WorkspaceFilter) ([]*caisson.SyncReceipt, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return g.c.cfg.Store.Workspaces().ListReceipts(ctx, in, f)
}

// GetReceipt implements [caisson.Workspaces].
func (g *Service) GetReceipt(ctx context.Context, id caisson.ID) (*caisson.SyncReceipt, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return g.c.cfg.Store.Workspaces().GetReceipt(ctx, in, id)
}
