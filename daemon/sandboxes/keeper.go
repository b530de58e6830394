package sandboxes

import (
	"context"
	"errors"
	"maps"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// keeper takes snapshots of sandboxes and stores them.
type keeper struct {
	snapshots  caisson.Table[caisson.Snapshot]
	events     caisson.Publisher
	dirs       dirs        // paths and files in the data directory
	unstored   *idSet      // ids of sandboxes and captures in use that are not in the store
	captures   *captures   // writes captures of sandboxes
	workspaces *workspaces // workspaces and volumes of sandboxes

	start    time.Time     // time at which the daemon started
	retryFor time.Duration // how long a final snapshot is retried: finalRetry, or less in tests
}

// finalRetry is how long after the end of its hard TTL a sandbox is kept if its final snapshot cannot be taken.
const finalRetry = time.Hour

// labelFinal is the key of the label that final snapshots have.
const labelFinal = "caisson/final"

// take takes a snapshot of a sandbox. The snapshot contains the sandbox's memory if the sandbox has any and the request does not
// exclude it. The caller must hold the sandbox's lock.
func (k *keeper) take(ctx context.Context, sb *caisson.Sandbox, req caisson.SnapshotRequest) (*caisson.Snapshot, error) {
	snap := &caisson.Snapshot{
		ID: caisson.NewID(caisson.SnapshotPrefix), Account: sb.Account, Name: req.Name, Sandbox: sb.ID, Template: sb.Template,
		Memory: !req.FilesOnly && sb.State != caisson.Stopped, Spec: sb.Spec, Labels: req.Labels, Rootfs: sb.Rootfs, CreatedAt: now(),
	}
	if err := k.workspaces.prepareSnapshotSpec(sb, snap); err != nil {
		return nil, err
	}
	defer k.unstored.hold(snap.ID)() // so that garbage collection keeps its files until it is in the store
	dir := k.dirs.snapshotDir(snap.ID)
	if err := k.captures.captureAll(ctx, sb, dir, snap.Memory); err != nil {
		return nil, err
	}
	var back undo.Stack
	back.Push(func() error { return os.RemoveAll(dir) })
	var err error
	if snap.Depends, err = readDepends(dir); err != nil {
		return nil, errors.Join(err, back.Run())
	}
	snap.Size = diskUse(dir)
	if err := k.snapshots.Insert(ctx, snap); err != nil {
		return nil, errors.Join(err, back.Run())
	}
	k.events.Publish(ctx, snap.Account, "snapshot.created", string(snap.ID), map[string]string{"sandbox": string(sb.ID)})
	return snap, nil
}

// takesFinal reports whether a final snapshot of a sandbox is taken before the sandbox is removed at the end of its hard TTL. A
// sandbox gets none if it never ran, has failed, is already being removed, or FinalSnapshot in its spec is false.
func (k *keeper) takesFinal(sb *caisson.Sandbox) bool {
	switch sb.State {
	case caisson.Creating, caisson.Created, caisson.Failed, caisson.Removing:
		return false
	}
	return sb.Spec.FinalSnapshot
}

// retriesEnded reports whether a sandbox is to be removed even if its final snapshot cannot be taken, because k.retryFor has
// passed since the end of its hard TTL.
func (k *keeper) retriesEnded(sb *caisson.Sandbox) bool {
	end := *sb.RemoveAt
	if end.Before(k.start) { // No daemon ran when the TTL ended, so retryFor is counted from the start of this one.
		end = k.start
	}
	return now().After(end.Add(k.retryFor))
}

// takeFinal takes the final snapshot of a sandbox, unless an earlier attempt to remove the sandbox has already taken it. The
// caller must hold the sandbox's lock.
func (k *keeper) takeFinal(ctx context.Context, sb *caisson.Sandbox) error {
	name := string(sb.ID) + "-final"
	had, err := k.snapshots.Get(ctx, caisson.In(sb.Account), name)
	if err == nil && had.Sandbox == sb.ID && had.Labels[labelFinal] != "" {
		return nil
	}
	labels := maps.Clone(sb.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelFinal] = "true"
	snap, err := k.take(ctx, sb, caisson.SnapshotRequest{Name: name, Labels: labels, FilesOnly: sb.Spec.Volume != nil})
	if err != nil {
		return caisson.Wrap(err, caisson.KindOf(err), "the final snapshot could not be taken: %s", caisson.MessageOf(err))
	}
	k.events.Publish(ctx, sb.Account, "sandbox.kept", string(sb.ID), map[string]string{"snapshot": string(snap.ID), "name": name})
	return nil
}
