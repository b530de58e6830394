package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// checkVolume validates a request for a volume as the workspace. Nothing of the host's is shown, so that anybody may have one.
func (w workspaces) checkVolume(req *caisson.WorkspaceRequest, mounts []caisson.Mount) error {
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
	if w.c.Volumes == nil {
		return caisson.Invalidf("workspace.kind", "this daemon has no volumes; use a directory")
	}
	return settleTarget(req, mounts)
}

// hold takes a volume for a sandbox that is being made, and stores that it has it. What takes it back is on back.
func (w workspaces) hold(ctx context.Context, sb *caisson.Sandbox, req *caisson.WorkspaceRequest, back *undo.Stack) error {
	defer func(began time.Time) { caisson.Spent(ctx, "workspace", began) }(time.Now())
	v, err := w.c.Volumes.Hold(ctx, sb.Account, req.Source, sb.ID)
	if e, ok := errors.AsType[*caisson.Error](err); ok && e.Kind != caisson.Internal {
		// Whatever else was asked for is not to blame, such as the snapshot of a fork.
		return &caisson.Error{Kind: e.Kind, Field: "workspace.source", Msg: e.Msg, Err: e.Err}
	}
	if err != nil {
		return err
	}
	clean := context.WithoutCancel(ctx)
	back.Push(func() error {
		// What could not be ended may still write: nobody else gets the volume before the next daemon has ended it.
		if err := w.c.host.halt(clean, sb.ID); err != nil {
			return err
		}
		return w.c.Volumes.Leave(clean, v.ID, sb.ID)
	})
	// A volume takes the place of a placeholder. Stored now, not with the sandbox's first state: whoever finds it after a crash is
	// to know of it.
	has := func(s *caisson.Sandbox) error {
		s.Spec.Volume, s.Spec.WorkspaceAt = &caisson.VolumeMount{ID: v.ID, Name: v.Name, Target: req.Target}, ""
		return nil
	}
	_ = has(sb) // it cannot fail
	_, err = w.c.Store.Sandboxes().Update(ctx, caisson.In(sb.Account), string(sb.ID), has)
	return err
}

// openVolume returns the mount of a sandbox's volume.
func (w workspaces) openVolume(ctx context.Context, sb *caisson.Sandbox) ([]caisson.RuntimeMount, error) {
	if w.c.Volumes == nil {
		return nil, caisson.Errorf(caisson.Unavailable, "this daemon has no volumes, so it cannot start a sandbox that has one")
	}
	m, err := w.c.Volumes.Open(ctx, sb.Spec.Volume.ID, sb.ID)
	if err != nil {
		return nil, err
	}
	m.Target = sb.Spec.Volume.Target
	return []caisson.RuntimeMount{m}, nil
}

// capturable says whether snap, a capture of a sandbox, can be taken, and makes it one without the sandbox's volume: what is in
// that outlives the sandbox anyway. Memory remembers the volume's files, which no fork would find.
func (w workspaces) capturable(sb *caisson.Sandbox, snap *caisson.Snapshot) error {
	if snap.Memory && sb.Spec.Volume != nil {
		return caisson.Errorf(caisson.Conflict, "a sandbox with a volume cannot be captured with its memory, which its forks could not go on with; take a snapshot of its files only (--files-only)")
	}
	snap.Spec.Volume = nil
	return nil
}
