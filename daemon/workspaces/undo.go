package workspaces

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// Undo implements [caisson.Workspaces].
func (g *Service) Undo(ctx context.Context, id caisson.ID, dir caisson.Handle) (*caisson.SyncReceipt, error) {
	if dir != nil {
		defer dir.Close()
	}
	receipt, err := g.GetReceipt(ctx, id)
	if err != nil {
		return nil, err
	}
	w, release, err := g.hold(ctx, string(receipt.Workspace))
	if err != nil {
		return nil, err
	}
	defer release()
	host, err := openGiven(ctx, w, dir)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if err := g.c.syncs.recover(ctx, w, host); err != nil {
		return nil, err
	}
	if receipt, err = g.GetReceipt(ctx, id); err != nil {
		return nil, err
	}
	if receipt.State == caisson.ReceiptUndone {
		return nil, caisson.Errorf(caisson.Conflict, "the receipt %s was undone already", id)
	}
	saved, err := openDir(g.c.dir(w.ID, savedDir, string(id)), 0)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Conflict, "the original files of %s are no longer stored, so it cannot be undone", id)
	}
	defer saved.Close()
	// The suffix records the intent to undo: if the daemon stops, recover reads from savedDir how far the undo has come.
	if err := g.c.syncs.rename(w.ID, id, doneSuffix, pendingSuffix); err != nil {
		return nil, err
	}
	out, err := apply.RunUndo(ctx, g.c.cfg.Jobs, host, saved)
	switch {
	case out.State == apply.Undone:
		if err != nil {
			g.c.cfg.Log.WarnContext(ctx, "the temporary files of an undo could not be removed", "workspace", w.ID, "receipt", id, "err", err)
		}
		return g.c.syncs.recordUndone(context.WithoutCancel(ctx), w, host, receipt)
	case err == nil:
		return nil, caisson.Errorf(caisson.Internal, "nothing was undone; see the daemon's log for details")
	case out.State == apply.None && caisson.KindOf(err) == caisson.Internal:
		return nil, err // the outcome is unknown; recover determines it later
	}
	return nil, errors.Join(err, g.c.syncs.rename(w.ID, id, pendingSuffix, doneSuffix))
}

// recordUndone records that a sync was undone: its changes are shown again as changes of the sandbox, and are not applied
// automatically.
func (c *syncs) recordUndone(ctx context.Context, w *caisson.Workspace, host *os.File, receipt *caisson.SyncReceipt) (*caisson.SyncReceipt, error) {
	list, err := c.declined(w.ID)
	if err != nil {
		return nil, err
	}
	for _, e := range receipt.Entries {
		list[e.Path] = true
	}
	if err := durable.WriteJSON(c.dir(w.ID, declinedFile), list); err != nil {
		return nil, err
	}
	var p pendingSync
	if err := readJSON(c.dir(w.ID, savedDir, string(receipt.ID)+pendingSuffix), &p); err != nil {
		return nil, err
	}
	back := make([]baseline.AppliedPath, len(p.Steps))
	for i, step := range p.Steps {
		step.Before.Mode &= 0o777
		back[i] = baseline.AppliedPath{Path: step.Path, Node: step.Before}
	}
	// The base is reset, because a change whose content in the sandbox is equal to the base would not be shown. If that fails,
	// recover tries again.
	if err := c.setBase(ctx, w, host, back); err != nil {
		return nil, caisson.Wrap(err, caisson.KindOf(err), "the directory is as it was before %s, but that could not be recorded; undo it again", receipt.ID)
	}
	fresh := false
	r, err := c.store.UpdateReceipt(ctx, caisson.AllAccounts(), receipt.ID, func(r *caisson.SyncReceipt) error {
		if fresh = r.State != caisson.ReceiptUndone; fresh {
			r.State, r.UndoneAt = caisson.ReceiptUndone, now()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if fresh {
		publish(ctx, c.events, w, "sync.undone", map[string]string{"receipt": string(r.ID), "paths": fmt.Sprint(len(r.Entries))})
		err := error(nil)
		if r.Auto {
			err = c.removals.uncountAuto(w, p.Steps)
		} else {
			err = c.removals.countApproved(w, r, p.Steps, true)
		}
		if err != nil {
			c.log.WarnContext(ctx, "the number of files that an undo has restored could not be recorded", "workspace", w.ID, "receipt", r.ID, "err", err)
		}
	}
	// The state of the workspace is stored before the pending sync is removed, because a settled workspace is removed after a
	// short time.
	if _, err := c.store.Update(ctx, caisson.AllAccounts(), w.ID, func(w *caisson.Workspace) error {
		if fresh {
			w.Changes += len(r.Entries)
		}
		if w.State == caisson.WorkspaceSettled {
			w.State = caisson.WorkspaceDetached
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return r, c.removeSaved(w.ID, r.ID)
}

// pendingReceipts returns the ids of the receipts of syncs and undos of a workspace whose outcome is not in the store.
func (c *syncs) pendingReceipts(w caisson.ID) ([]caisson.ID, error) {
	entries, err := os.ReadDir(c.dir(w, savedDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the workspace is of kind direct, or was not created completely
	}
	var list []caisson.ID
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), pendingSuffix); ok {
			list = append(list, caisson.ID(id))
		}
	}
	return list, err
}

// recoverAt opens the host directory of w by its path, and completes or rolls back the incomplete syncs and undos of w, if any.
func (c *syncs) recoverAt(ctx context.Context, w *caisson.Workspace) error {
	if list, err := c.pendingReceipts(w.ID); err != nil || len(list) == 0 {
		return err
	}
	host, err := openHost(w, 0)
	if err != nil {
		return err
	}
	defer host.Close()
	return c.recover(ctx, w, host)
}

// recover completes or rolls back the incomplete syncs and undos of w, and stores the outcome. The caller must hold the
// lock of w.
func (c *syncs) recover(ctx context.Context, w *caisson.Workspace, host *os.File) error {
	list, err := c.pendingReceipts(w.ID)
	if err != nil {
		return err
	}
	for _, id := range list {
		if err := c.recoverOne(ctx, w, host, id); err != nil {
			return err
		}
	}
	return nil
}

// recoverOne completes or rolls back the incomplete sync or undo of one receipt, and stores the outcome.
func (c *syncs) recoverOne(ctx context.Context, w *caisson.Workspace, host *os.File, id caisson.ID) error {
	var p pendingSync
	if err := readJSON(c.dir(w.ID, savedDir, string(id)+pendingSuffix), &p); err != nil {
		return err
	}
	if p.Receipt == nil || p.Receipt.ID != id || p.Receipt.Workspace != w.ID {
		return caisson.Errorf(caisson.Internal, "the receipt %.40q of workspace %s is damaged", string(id), w.ID)
	}
	saved, err := openDir(c.dir(w.ID, savedDir, string(id)), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c.removeSaved(w.ID, id) // the sync had not begun
	}
	if err != nil {
		return err
	}
	defer saved.Close()
	if err := saved.Chown(int(w.UID), int(w.GID)); err != nil {
		return err
	}
	out, err := apply.RunRecover(ctx, c.jobs, host, saved)
	if err != nil {
		return caisson.Wrap(err, caisson.KindOf(err), "an incomplete sync of %.100q could not be recovered: %s", w.Source, caisson.MessageOf(err))
	}
	ctx = context.WithoutCancel(ctx)
	c.log.InfoContext(ctx, "an incomplete sync was recovered", "workspace", w.ID, "receipt", id, "outcome", out.State)
	switch out.State {
	case apply.Applied:
		return c.recordApplied(ctx, w, host, p.Receipt, p.Steps)
	case apply.Undone:
		_, err = c.recordUndone(ctx, w, host, p.Receipt)
		return err
	}
	return c.removeSaved(w.ID, id)
}
