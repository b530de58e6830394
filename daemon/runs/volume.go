package runs

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// volumeField is the field of errors about the volume of a new sandbox.
const volumeField = "workspace.source"

// checkVolume validates a request for a run in a volume. Any caller who may start a run may name one, because a volume
// contains nothing of the host.
func checkVolume(req *caisson.RunRequest) error {
	switch {
	case req.Directory != nil || req.Workspace != nil:
		return caisson.Invalidf("kind", "a run works in a volume or in a directory; omit one of them")
	case req.Repo != nil:
		return caisson.Invalidf("kind", "a run works in a volume or on a repository; omit one of them")
	case req.Sync != "" || len(req.Show) > 0:
		return caisson.Invalidf("kind", "of a volume nothing gets to a directory of the host, and nothing is hidden in it; leave sync and show out")
	}
	if _, err := caisson.ParseID(caisson.VolumePrefix, req.Source); err == nil {
		return nil
	}
	return caisson.CheckVolumeName("source", req.Source)
}

// volumeRef returns the volume for a new sandbox of the attempt, as name or id: the run's or, if the run has no other
// workspace, the session's; "" for none.
func (x provisioner) volumeRef() string {
	switch req := &x.r.Request; {
	case req.Kind == caisson.WorkspaceVolume:
		return req.Source
	case x.r.HasWorkspace || req.Repo != nil:
		return ""
	}
	return string(x.volume)
}

// sameVolume returns an error if a run in a session's sandbox requests another workspace than the sandbox's volume.
func sameVolume(box *caisson.Sandbox, r *caisson.Run) error {
	has, req := box.Spec.Volume, &r.Request
	switch {
	case has == nil:
		return failf(caisson.RunInvalid, "the session has no volume; leave the volume out to go on with what it has, or begin another session")
	case req.Kind == caisson.WorkspaceVolume && req.Source != has.Name && req.Source != string(has.ID):
		return failf(caisson.RunInvalid, "the session has volume %s; leave the other one out to go on with what it has, or begin another session", has.Name)
	case r.HasWorkspace || req.Repo != nil:
		return failf(caisson.RunInvalid, "the session works in volume %s; leave directory and repository out, or begin another session", has.Name)
	}
	return nil
}

// retryWhileAttached calls f, which creates a sandbox, and calls it again if the volume is attached to a sandbox that is about
// to be removed: the end of a run is reported before its sandbox is removed.
func (x provisioner) retryWhileAttached(ctx context.Context, f func() error) error {
	err := x.retryWhileFull(ctx, f)
	if caisson.FieldOf(err) != volumeField {
		return err
	}
	switch caisson.KindOf(err) {
	case caisson.NotFound:
		return failf(caisson.RunNotFound, "volume %s does not exist any more; name another one, or begin another session", x.volumeRef())
	case caisson.Conflict:
	default:
		return err
	}
	in := caisson.In(x.r.Account)
	v, gerr := x.c.Store.Volumes().Get(ctx, in, x.volumeRef())
	if gerr != nil || v.Sandbox == "" {
		return x.retryWhileFull(ctx, f)
	}
	sb, gerr := x.c.Store.Sandboxes().Get(ctx, in, string(v.Sandbox))
	if gerr != nil || sb.State == caisson.Removing {
		return x.retryWhileBusy(ctx, f)
	}
	by := caisson.ID(sb.Labels[labelRun])
	if by == "" || by == x.r.ID {
		return err
	}
	if r, gerr := x.c.Store.Runs().Get(ctx, in, by); gerr != nil || !r.State.Ended() {
		return err
	}
	if serr := x.c.awaitCleanup(ctx, by); serr != nil {
		return serr
	}
	return x.retryWhileFull(ctx, f)
}
