package workspaces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/worker"
)

// declinedFile contains the paths of changes that were undone. Changes of these paths are not applied automatically.
const declinedFile = "declined.json"

// syncs applies changes to host directories, and undoes applied changes.
type syncs struct {
	directory
	jobs     worker.Starter // starts worker jobs
	store    caisson.WorkspaceStore
	events   caisson.Publisher
	removals *removalCounts // numbers of existing and removed own files, which limit what automatic syncs remove
	log      *slog.Logger
}

// apply applies the chosen changes of the review r to the host directory, and returns a receipt.
func (s *syncRun) apply(ctx context.Context, r *review, chosen selection) (*caisson.SyncReceipt, error) {
	receipt := &caisson.SyncReceipt{
		Account: s.w.Account, Workspace: s.w.ID, Sandbox: s.w.Sandbox, Run: s.w.Run, By: s.by, Mode: s.w.Mode,
		State: caisson.ReceiptApplied, At: now(), Checks: slices.Concat(r.Checks, s.passedChecks), Entries: receiptEntries(chosen), Waiting: len(r.Changes) - len(chosen.chosen) + len(chosen.parts),
	}
	if receipt.Auto = s.auto; s.auto {
		receipt.Held = r.Held
	}
	plan := &gate.Plan{Steps: chosen.steps()}
	if len(plan.Steps) == 0 {
		return receipt, nil
	}
	if s.auto {
		if err := s.c.removals.countAuto(s.w, plan.Steps); err != nil {
			return nil, err
		}
	}
	receipt.ID = caisson.NewID(caisson.ReceiptPrefix)
	outcome, err := s.write(ctx, receipt, plan)
	if outcome.State != apply.Applied {
		if s.auto && !outcomeUnknown(outcome, err) {
			err = errors.Join(err, s.c.removals.uncountAuto(s.w, plan.Steps))
		}
		if err == nil {
			err = caisson.Errorf(caisson.Internal, "the changes were not applied; see the daemon's log for details")
		}
		return nil, err
	}
	if err != nil { // The changes are applied; only the cleanup failed.
		s.c.cfg.Log.WarnContext(ctx, "the temporary files of a sync could not be removed", "workspace", s.w.ID, "receipt", receipt.ID, "err", err)
	}
	ctx = context.WithoutCancel(ctx) // the sync has been applied and must be recorded
	if err := s.c.syncs.recordApplied(ctx, s.w, s.host, receipt, plan.Steps); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(s.c.dir(s.w.ID, refusedFile)); err != nil {
		return nil, err
	}
	return receipt, s.clearDeclined(plan.Steps)
}

// clearDeclined removes the paths of steps, which were applied, from the list of undone changes in declinedFile.
func (s *syncRun) clearDeclined(steps []gate.Step) error {
	list, err := s.c.syncs.declined(s.w.ID)
	if err != nil || len(list) == 0 {
		return err
	}
	for _, step := range steps {
		delete(list, step.Path)
	}
	return durable.WriteJSON(s.c.dir(s.w.ID, declinedFile), list)
}

// write applies the plan to the host directory in a worker job. Before that, it writes the receipt and the plan to disk, so
// that recover can complete the sync after a crash.
func (s *syncRun) write(ctx context.Context, receipt *caisson.SyncReceipt, plan *gate.Plan) (out apply.Outcome, err error) {
	dir := s.c.dir(s.w.ID, savedDir, string(receipt.ID))
	if err := durable.WriteJSON(dir+pendingSuffix, pendingSync{Receipt: receipt, Steps: plan.Steps}); err != nil {
		return out, err
	}
	defer func() {
		if outcomeUnknown(out, err) {
			return // recover determines the outcome later
		}
		if out.State != apply.Applied {
			err = errors.Join(err, s.c.syncs.removeSaved(s.w.ID, receipt.ID))
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return apply.Outcome{State: apply.RolledBack}, durable.DiskFull(err)
	}
	saved, err := openDir(dir, 0)
	if err == nil {
		defer saved.Close()
		err = saved.Chown(int(s.w.UID), int(s.w.GID))
	}
	if err != nil {
		return apply.Outcome{State: apply.RolledBack}, err
	}
	return apply.RunApply(ctx, s.c.cfg.Jobs, s.host, saved, s.frozen, plan)
}

// outcomeUnknown reports whether it is not known if the host directory was changed by a job that returned out and err.
func outcomeUnknown(out apply.Outcome, err error) bool {
	return out.State == apply.None && err != nil && caisson.KindOf(err) == caisson.Internal
}

// A pendingSync is a sync whose outcome is not in the store yet.
type pendingSync struct {
	Receipt *caisson.SyncReceipt
	Steps   []gate.Step
}

// recordApplied records a sync whose changes were applied: it stores the receipt, publishes events, and sets the new base for
// later changes.
func (c *syncs) recordApplied(ctx context.Context, w *caisson.Workspace, host *os.File, receipt *caisson.SyncReceipt, steps []gate.Step) error {
	err := c.store.InsertReceipt(ctx, receipt)
	if err != nil && caisson.KindOf(err) != caisson.Conflict { // Conflict means that an earlier daemon has stored the receipt
		return err
	}
	if err == nil {
		publish(ctx, c.events, w, "sync.applied", map[string]string{
			"receipt": string(receipt.ID), "by": receipt.By, "mode": string(receipt.Mode), "paths": fmt.Sprint(len(receipt.Entries)),
			"waiting": fmt.Sprint(receipt.Waiting),
		})
		if receipt.Auto {
			// countAuto has counted the removals before the sync was applied.
		} else if err := c.removals.countApproved(w, receipt, steps, false); err != nil {
			c.log.WarnContext(ctx, "how many files a sync has removed could not be recorded", "workspace", w.ID, "receipt", receipt.ID, "err", err)
		}
	}
	if err := c.rename(w.ID, receipt.ID, pendingSuffix, doneSuffix); err != nil {
		return err
	}
	merged := map[string]bool{}
	for _, e := range receipt.Entries {
		merged[e.Path] = e.Merged
	}
	var list []baseline.AppliedPath
	for _, step := range steps {
		// The sandbox does not have merged content: its next change of a merged file is still based on the original content.
		if !merged[step.Path] {
			list = append(list, baseline.AppliedPath{Path: step.Path, Node: step.After})
		}
	}
	if err := c.setBase(ctx, w, host, list); err != nil {
		c.log.WarnContext(ctx, "what was applied is not known as such; later changes of the same files may clash", "workspace", w.ID, "err", err)
	}
	_, err = c.store.Update(ctx, caisson.AllAccounts(), w.ID, func(w *caisson.Workspace) error {
		if !w.SyncedAt.Before(receipt.At) {
			return errUnchanged // an earlier call has stored SyncedAt; an incomplete undo may have changed w.Changes since
		}
		w.SyncedAt, w.Changes = receipt.At, receipt.Waiting
		if w.State == caisson.WorkspaceDetached && w.Changes == 0 {
			w.State = caisson.WorkspaceSettled
		}
		return nil
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// setBase records the states in list as the base with which later changes of their paths are compared.
func (c *syncs) setBase(ctx context.Context, w *caisson.Workspace, host *os.File, list []baseline.AppliedPath) error {
	base, err := openDir(c.dir(w.ID, baseDir), 0)
	if err != nil {
		return err
	}
	defer base.Close()
	return baseline.RunRebase(ctx, c.jobs, host, base, list)
}

// receiptEntries returns the entries of a receipt: one for each path that the chosen changes create, modify or remove.
func receiptEntries(p selection) []caisson.ReceiptEntry {
	list := []caisson.ReceiptEntry{}
	for i, x := range p.review.Changes {
		if !p.chosen[i] {
			continue
		}
		for _, step := range x.Steps {
			list = append(list, caisson.ReceiptEntry{
				Path: step.Path, Kind: x.Change.Kind, Before: nodeHash(step.Before), After: nodeHash(step.After), Merged: x.Change.Merge,
			})
		}
	}
	return list
}

// nodeHash returns the hash of the file, symlink or directory n, or "" if there is none.
func nodeHash(n gate.Node) string {
	if n.Type == "" || n.Type == "none" {
		return ""
	}
	if n.Type == "symlink" {
		return overlay.HashOf(n.Type, 0, "", string(n.Link))
	}
	return overlay.HashOf(n.Type, n.Mode, n.Hash, "")
}

// removeSaved removes the saved copies of the files that a sync has replaced, and the file that describes the sync.
func (c *syncs) removeSaved(w, receipt caisson.ID) error {
	dir := c.dir(w, savedDir, string(receipt))
	for _, suffix := range []string{"", doneSuffix, pendingSuffix} { // pendingSuffix is last: recover looks for it
		if err := removeTree(dir + suffix); err != nil {
			return err
		}
	}
	return nil
}

// Suffixes of the file in savedDir that describes a sync. The name of the file before the suffix is the id of the receipt.
const (
	pendingSuffix = ".json" // while the outcome of the sync is not in the store
	doneSuffix    = ".done" // once the outcome of the sync is in the store
)

// rename changes the suffix of the file that describes a sync.
func (c *syncs) rename(w, receipt caisson.ID, from, to string) error {
	name := c.dir(w, savedDir, string(receipt))
	if err := os.Rename(name+from, name+to); err != nil {
		return err
	}
	return durable.Sync(c.dir(w, savedDir))
}

// declined returns the paths of the changes of a workspace that were undone; they are not applied automatically.
func (c *syncs) declined(w caisson.ID) (map[string]bool, error) {
	list := map[string]bool{}
	return list, readJSON(c.dir(w, declinedFile), &list)
}
