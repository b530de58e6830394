package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson/internal/timing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// checkVolume validates a request for a volume as the workspace, and fills in its mount point. A volume contains nothing of the
// host, so every caller may use one.
func (w *workspaces) checkVolume(req *caisson.WorkspaceRequest, mounts []caisson.Mount) error {
	switch {
	case req.Directory != nil:
		return caisson.Invalidf("workspace", "a volume is the workspace itself and comes without a directory; leave the directory out")
	case req.Mode != "":
		return caisson.Invalidf("workspace.mode", "belongs to a host directory; of a volume nothing is reviewed, so leave it out")
	case len(req.Show) > 0:
		return caisson.Invalidf("workspace.show", "belongs to a host directory; in a volume nothing is hidden, so leave it out")
	}
	if _, err := caisson.ParseID(caisson.VolumePrefix, req.Source); err != nil {
		if err := caisson.CheckVolumeName("workspace.source", req.Source); err != nil {
			return err
		}
	}
	if w.volumes == nil {
		return caisson.Invalidf("workspace.kind", "this daemon has no volumes; use a directory")
	}
	return defaultTarget(req, mounts)
}

// attachVolume attaches a volume to a sandbox that is being created, and stores the volume in the sandbox's spec. It adds a
// function that detaches the volume again to back; halt ends the processes of the sandbox.
func (w *workspaces) attachVolume(ctx context.Context, sb *caisson.Sandbox, req *caisson.WorkspaceRequest, halt haltFunc, back *undo.Stack) error {
	defer func(began time.Time) { timing.RecordTime(ctx, "workspace", began) }(time.Now())
	v, err := w.volumes.Attach(ctx, sb.Account, req.Source, sb.ID)
	if e, ok := errors.AsType[*caisson.Error](err); ok && e.Kind != caisson.Internal {
		// The new error has the volume's field, because e may have another field of the request, such as a fork's snapshot.
		return &caisson.Error{Kind: e.Kind, Field: "workspace.source", Msg: e.Msg, Err: e.Err}
	}
	if err != nil {
		return err
	}
	clean := context.WithoutCancel(ctx)
	back.Push(func() error {
		// Processes that could not be killed may still write: the volume stays attached until the next daemon has killed them.
		if err := halt(clean, sb.ID); err != nil {
			return err
		}
		return w.volumes.Detach(clean, v.ID, sb.ID)
	})
	// A volume replaces a placeholder for a workspace. The volume is stored now, not with the sandbox's first state, so that
	// Reconcile finds it after a crash.
	has := func(s *caisson.Sandbox) error {
		s.Spec.Volume, s.Spec.WorkspaceAt = &caisson.VolumeMount{ID: v.ID, Name: v.Name, Target: req.Target}, ""
		return nil
	}
	_ = has(sb) // has always returns nil
	_, err = w.states.update(ctx, sb.ID, has)
	return err
}

// openVolume returns the mount of a sandbox's volume.
func (w *workspaces) openVolume(ctx context.Context, sb *caisson.Sandbox) ([]caisson.RuntimeMount, error) {
	if w.volumes == nil {
		return nil, caisson.Errorf(caisson.Unavailable, "this daemon has no volumes, so it cannot start a sandbox that has one")
	}
	m, err := w.volumes.Open(ctx, sb.Spec.Volume.ID, sb.ID)
	if err != nil {
		return nil, err
	}
	m.Target = sb.Spec.Volume.Target
	return []caisson.RuntimeMount{m}, nil
}

// prepareSnapshotSpec removes the sandbox's volume from the spec of snap, a snapshot of sb to be taken: a volume is not captured,
// because it outlives the sandbox. Returns a Conflict error if snap has memory and sb a volume: processes in memory may
// have files of the volume open, which a fork would not find.
func (w *workspaces) prepareSnapshotSpec(sb *caisson.Sandbox, snap *caisson.Snapshot) error {
	if snap.Memory && sb.Spec.Volume != nil {
		return caisson.Errorf(caisson.Conflict, "a sandbox with a volume cannot be captured with its memory, because its forks would not have the volume; take a snapshot of its files only (--files-only)")
	}
	snap.Spec.Volume = nil
	return nil
}
