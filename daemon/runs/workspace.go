package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/hostdir"
	"github.com/caisson-dev/caisson/internal/namemask"
)

// Workspaces is the interface of the gate that the run core requires.
type Workspaces interface {
	GetWorkspace(ctx context.Context, ref string) (*caisson.Workspace, error)
	Diff(ctx context.Context, ref string, req caisson.DiffRequest) (*caisson.Diff, error)
}

// Masker hides files whose names indicate credentials from agents that work on copies.
type Masker interface {
	// Mask returns a mask that hides such files, except those that match one of these patterns. Returns Invalid if a
	// pattern is malformed.
	Mask(show []string) (*namemask.Mask, error)
	// MaskArchive copies a client's archive to out, at most most bytes, without the files that [Masker.Mask] hides, and
	// lists those files. Returns Invalid if it is not an archive of files, directories and symlinks; errors of in are
	// returned unchanged.
	MaskArchive(ctx context.Context, show []string, in io.Reader, out *os.File, most int64) (hidden []string, count int, err error)
}

// directoryFile records the directory that a run was given, if it is not copied, because attempts may begin when the
// request has ended.
const directoryFile = "directory.json"

// planWorkspace determines how the directory of a request becomes the workspace, unless the request names a volume.
func (c admission) planWorkspace(req *caisson.RunRequest, a *caisson.Agent) error {
	if req.Kind == caisson.WorkspaceVolume {
		return checkVolume(req)
	}
	if req.Workspace == nil {
		req.Hidden, req.HiddenCount = nil, 0
	} else if err := checkHidden(req); err != nil {
		return err
	}
	if req.Source == "" {
		if req.Kind != "" || req.Sync != "" || len(req.Show) > 0 && req.Workspace == nil {
			return caisson.Invalidf("kind", "says how a directory becomes the workspace, and none is given; give one with -C")
		}
		return nil
	}
	// The files in a mounted workspace belong to the guest's root, and only root can change them.
	mountable := c.Workspaces != nil && (a.User == "" || a.User == "root" || a.User == "0" || a.User == "0:0")
	if req.Sync == caisson.SyncUnsafe {
		req.Kind = cmp.Or(req.Kind, caisson.WorkspaceDirect)
	}
	switch {
	case req.Kind == "" && mountable:
		req.Kind = caisson.WorkspaceOverlay
	case req.Kind == "":
		req.Kind = caisson.WorkspaceCopy
	case req.Kind != caisson.WorkspaceCopy && !mountable:
		return caisson.Invalidf("kind", "agent %s works as user %q, who cannot write in a mounted directory; use kind copy", a.ID, a.User)
	}
	switch {
	case req.Kind == caisson.WorkspaceDirect:
		req.Sync = cmp.Or(req.Sync, caisson.SyncUnsafe)
		if req.Sync != caisson.SyncUnsafe {
			return caisson.Invalidf("sync", "a direct workspace is the directory itself, in which nothing is reviewed; leave sync out, or use kind overlay")
		}
	case req.Sync == caisson.SyncUnsafe:
		return caisson.Invalidf("sync", "yolo-unsafe is valid only with kind direct")
	case req.Kind == caisson.WorkspaceCopy && req.Sync != "":
		return caisson.Invalidf("kind", "changes in a copy are not applied to the directory; omit sync")
	case req.Kind == caisson.WorkspaceOverlay:
		req.Sync = cmp.Or(req.Sync, caisson.SyncSecure)
	}
	return nil
}

// checkHidden validates the list of paths that a client has left out of its archive.
func checkHidden(req *caisson.RunRequest) error {
	if len(req.Hidden) > namemask.MaxListed {
		return caisson.Invalidf("hidden", "has more than %d paths; list the first ones, and say in hiddenCount how many there are", namemask.MaxListed)
	}
	if req.HiddenCount < 0 || req.HiddenCount > maxHidden {
		return caisson.Invalidf("hiddenCount", "must be from 0 to %d", maxHidden)
	}
	for _, p := range req.Hidden {
		if p == "" || len(p) > unix.PathMax || !utf8.ValidString(p) {
			return caisson.Invalidf("hidden", "%.40q is not a path", p)
		}
	}
	return nil
}

// maxHidden is the maximum number of files that a client can report as left out.
const maxHidden = 5_000_000

// keepWorkspace stores the contents or the location of the run's workspace.
func (c admission) keepWorkspace(ctx context.Context, r *caisson.Run) error {
	if r.Request.Directory == nil || r.Request.Kind == caisson.WorkspaceCopy {
		return c.storeContents(ctx, r)
	}
	dir, err := hostdir.Of(r.Request.Directory.Fd())
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be used", r.Request.Source)
	}
	if err := c.checkOutsideData(r.Request.Directory); err != nil {
		return err
	}
	if err := dir.CheckReachable(r.Request.Directory.Fd()); errors.Is(err, hostdir.ErrOtherNamespace) {
		return caisson.Wrap(err, caisson.Invalid, "the daemon cannot reach %.100q: %s; a copy can be worked on, with --workspace-kind copy", r.Request.Source, err)
	}
	data, err := json.Marshal(dir)
	if err != nil {
		return err
	}
	if err := c.Dir.MkdirAll(runDir(r.ID), 0o700); err != nil {
		return err
	}
	return c.Dir.WriteFile(path.Join(runDir(r.ID), directoryFile), data, 0o600)
}

// mounted reports whether the run's directory itself, or a layer over it, is mounted in the attempt's sandbox.
func (x provisioner) mounted() bool {
	return x.r.Request.Kind == caisson.WorkspaceOverlay || x.r.Request.Kind == caisson.WorkspaceDirect
}

// workspace returns the workspace of the attempt's sandbox, with its directory newly opened; nil if it is copied, or
// there is none.
func (x provisioner) workspace() (*caisson.WorkspaceRequest, error) {
	if ref := x.volumeRef(); ref != "" {
		return &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: ref, Target: x.agent.Workdir}, nil
	}
	if !x.r.HasWorkspace || !x.mounted() {
		return nil, nil
	}
	data, err := x.c.Dir.ReadFile(path.Join(runDir(x.r.ID), directoryFile))
	if err != nil {
		return nil, err
	}
	var dir hostdir.Dir
	if err := json.Unmarshal(data, &dir); err != nil {
		return nil, err
	}
	f, err := dir.Open(unix.O_RDONLY)
	if err != nil {
		return nil, &failure{code: caisson.RunInvalid, msg: "the directory " + x.r.Request.Source + " is not there any more; start another run", err: err}
	}
	return &caisson.WorkspaceRequest{
		Kind: x.r.Request.Kind, Mode: x.r.Request.Sync, Source: x.r.Request.Source, Target: x.agent.Workdir, Show: x.r.Request.Show, Directory: f,
	}, nil
}

// sameWorkspace returns an error if a run in a session's sandbox requests another directory or volume than the sandbox
// has.
func (x provisioner) sameWorkspace(ctx context.Context) error {
	if x.sandbox.Spec.Volume != nil || x.r.Request.Kind == caisson.WorkspaceVolume {
		return sameVolume(x.sandbox, x.r)
	}
	asked, err := x.workspace()
	if err != nil || asked == nil {
		return err
	}
	defer asked.Directory.Close()
	other := failf(caisson.RunInvalid, "the session has another directory, or none; leave -C out to go on with what it has, or begin another session")
	if x.sandbox.Spec.Workspace == "" {
		return other
	}
	has, err := x.c.Workspaces.GetWorkspace(ctx, string(x.sandbox.Spec.Workspace))
	if err != nil {
		return err
	}
	if same, err := (hostdir.Dir{Device: has.Device, Inode: has.Inode}).SameAs(asked.Directory.Fd()); err != nil || !same || has.Kind != asked.Kind {
		return other
	}
	return nil
}

// diffTimeout is how long the result of a run waits for the list of changes.
const diffTimeout = 30 * time.Second

// changes adds the changes in the workspace, as the host determines them, to the result.
func (x finisher) changes(ctx context.Context) {
	if x.sandbox == nil || x.sandbox.Spec.Workspace == "" || x.c.Workspaces == nil || x.starting {
		return
	}
	ctx, cancel := context.WithTimeout(caisson.WithCaller(ctx, caisson.DaemonCaller(x.r.Account, "read the changes of a run")), diffTimeout)
	defer cancel()
	diff, err := x.c.Workspaces.Diff(ctx, string(x.sandbox.Spec.Workspace), caisson.DiffRequest{Patch: true})
	if err != nil {
		x.warn(ctx, "what has changed in the workspace cannot be told; caisson diff tries again", err)
		return
	}
	x.result.Changes, x.result.Patch = nil, ""
	var patch []byte
	for _, ch := range diff.Changes {
		if len(x.result.Changes) == task.MaxChanges {
			break
		}
		x.result.Changes = append(x.result.Changes, caisson.FileChange{Path: ch.Path, Kind: runKind(ch.Kind), Added: ch.Added, Removed: ch.Removed})
		if len(patch)+len(ch.Patch) <= task.MaxPatch {
			patch = append(patch, ch.Patch...)
		}
	}
	x.result.Patch = string(patch)
}

// runKind converts the kind of a change to the kind that results use.
func runKind(kind string) string {
	switch kind {
	case caisson.ChangeAdded, caisson.ChangeRemoved:
		return kind
	}
	return caisson.ChangeModified
}
