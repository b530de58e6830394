package runs

import (
	"github.com/caisson-dev/caisson"
)

// volumeField is the name of the field in errors about the volume of a new sandbox.
const volumeField = "workspace.source"

// checkVolume validates a request for a run in a volume. Any caller who may start a run may name a volume of the account,
// because a volume contains nothing of the host.
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

// requireVolume returns an error if a run in a session's sandbox requests another workspace than the sandbox's volume.
func requireVolume(box *caisson.Sandbox, r *caisson.Run) error {
	has, req := box.Spec.Volume, &r.Request
	switch {
	case has == nil:
		return failf(caisson.RunInvalid, "the session has no volume; leave the volume out to continue with what it has, or begin another session")
	case req.Kind == caisson.WorkspaceVolume && req.Source != has.Name && req.Source != string(has.ID):
		return failf(caisson.RunInvalid, "the session has volume %s; leave the other one out to continue with what it has, or begin another session", has.Name)
	case r.HasWorkspace || req.Repo != nil:
		return failf(caisson.RunInvalid, "the session works in volume %s; leave directory and repository out, or begin another session", has.Name)
	}
	return nil
}
