package workspaces

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/caisson-dev/caisson"
)

// Capture implements [caisson.WorkspaceLayers]. It writes the layer to dir in the format of a frozen copy.
// Returns Exhausted if the layer cannot be captured completely.
func (l *Layers) Capture(ctx context.Context, id caisson.ID, dir string) (err error) {
	w, err := l.c.cfg.Store.Workspaces().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		return errors.Join(err, caisson.Errorf(caisson.Internal, "the directory for a capture of workspace %s is not empty", id))
	}
	defer func() {
		if err != nil {
			_ = removeTree(dir) // the original error is more informative
		}
	}()
	if w.Kind == caisson.WorkspaceDirect {
		return nil // the workspace has no layer
	}
	release, err := l.c.layerFiles.lock(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	_, cut, err := l.c.reviews.copyLayer(ctx, w, dir)
	if err == nil && cut {
		err = caisson.Errorf(caisson.Exhausted, "the sandbox has written more files in its workspace than can be captured; apply or remove some")
	}
	return err
}

// Detach implements [caisson.WorkspaceLayers]. In mode yolo, it first applies the changes that may be applied automatically. If
// commands must check the changes, which takes long, it does not wait until the changes are applied.
func (l *Layers) Detach(ctx context.Context, id caisson.ID) error {
	// The processes that changed files are saved before the store reports that the sandbox was removed.
	if err := l.c.reviews.writers.save(ctx, id); err != nil && caisson.KindOf(err) != caisson.NotFound {
		l.c.cfg.Log.WarnContext(ctx, "it is not known which processes were the last to change a workspace", "workspace", id, "err", err)
	}
	w, err := l.c.cfg.Store.Workspaces().Update(ctx, caisson.AllAccounts(), id, func(w *caisson.Workspace) error {
		if w.State != caisson.WorkspaceLive {
			return errUnchanged
		}
		w.State, w.EndedAt = caisson.WorkspaceDetached, now()
		if w.Kind == caisson.WorkspaceDirect {
			w.State = caisson.WorkspaceSettled
		}
		return nil
	})
	switch {
	case errors.Is(err, errUnchanged) || caisson.KindOf(err) == caisson.NotFound:
		return nil
	case err != nil:
		return err
	}
	publish(ctx, l.c.cfg.Events, w, "workspace."+string(w.State), nil)
	switch {
	case w.Kind == caisson.WorkspaceDirect:
	case w.Mode == caisson.SyncYolo && len(l.c.cfg.Settings.Commands) == 0:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachTimeout)
		defer cancel()
		l.c.finish(ctx, w)
	default:
		l.c.layerFiles.background.Start(func(ctx context.Context) { l.c.finish(ctx, w) })
	}
	return nil
}

// finish completes a workspace whose sandbox was removed: it applies changes automatically, or counts the changes that wait to
// be applied. Errors are only logged; after an error the changes keep waiting.
func (c *Core) finish(ctx context.Context, w *caisson.Workspace) {
	release, err := c.layerFiles.lock(ctx, w.ID)
	if err != nil {
		return
	}
	defer release()
	if w.Mode == caisson.SyncYolo {
		err = c.applyAuto(ctx, w)
	} else {
		err = c.reviews.countChanges(ctx, w)
	}
	if err != nil && ctx.Err() == nil {
		c.cfg.Log.WarnContext(ctx, "the waiting changes of a workspace could not be applied or counted", "workspace", w.ID, "err", err)
	}
}

// countChanges determines the number of changes in w and stores the number.
func (c *reviews) countChanges(ctx context.Context, w *caisson.Workspace) error {
	host, err := openHost(w, 0)
	if err != nil {
		return err
	}
	defer host.Close()
	r, err := c.examine(ctx, w, host, false)
	if err != nil {
		return err
	}
	return c.removeReview(w.ID, r.ID)
}
