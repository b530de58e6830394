package sandboxes

import (
	"cmp"
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/internal/timing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// workspaceTarget is the default mount point of a workspace.
const workspaceTarget = "/workspace"

// workspaces manages the workspaces and volumes of sandboxes.
type workspaces struct {
	layers   caisson.WorkspaceLayers   // creates workspaces; nil: no sandbox can have a workspace
	volumes  caisson.VolumeAttachments // attaches volumes; nil: no sandbox can have a volume
	accounts caisson.AccountStore      // accounts with their host uids
	states   states                    // stored records of sandboxes
	dirs     dirs                      // paths and files in the data directory
}

// check validates a request for a workspace and fills in its defaults; nil means no workspace. mounts are the sandbox's
// other mounts.
func (w *workspaces) check(ctx context.Context, req *caisson.WorkspaceRequest, mounts []caisson.Mount) error {
	if req == nil {
		return nil
	}
	caller, err := caisson.CallerOf(ctx)
	switch {
	case err != nil:
		return err
	case req.Kind == caisson.WorkspaceVolume:
		return w.checkVolume(req, mounts)
	case !caller.MayUseHost():
		return caisson.Errorf(caisson.Denied, "a host directory can be a workspace only over the unix socket")
	case req.Directory == nil:
		return caisson.Invalidf("workspace", "the file descriptor of the directory is missing")
	}
	if err := defaultTarget(req, mounts); err != nil {
		return err
	}
	if err := req.DefaultKind(); err != nil || req.Kind == caisson.WorkspaceDirect {
		return err
	}
	if w.layers == nil {
		return caisson.Invalidf("workspace", "this daemon has no workspaces; mount the directory, or copy it")
	}
	return nil
}

// defaultTarget fills in the mount point of the workspace and checks that no other mount uses it.
func defaultTarget(req *caisson.WorkspaceRequest, mounts []caisson.Mount) error {
	req.Target = path.Clean(cmp.Or(req.Target, workspaceTarget))
	return validateMounts("workspace.target", append(slices.Clone(mounts), caisson.Mount{Target: req.Target}))
}

// addDirectMount adds a workspace of kind direct, whose changes are not reviewed, to mounts, and its directory to handles.
func addDirectMount(req *caisson.WorkspaceRequest, mounts []caisson.Mount, handles []caisson.Handle) ([]caisson.Mount, []caisson.Handle) {
	if req == nil || req.Kind != caisson.WorkspaceDirect {
		return mounts, handles
	}
	m := caisson.Mount{Source: req.Source, Target: req.Target, Writable: true}
	return append(slices.Clone(mounts), m), append(slices.Clone(handles), req.Directory)
}

// create creates the workspace, or the placeholder for one, of a sandbox that is being created, and stores that the sandbox has
// it. It adds a function that removes the workspace again to back; halt ends the processes of the sandbox.
func (w *workspaces) create(ctx context.Context, sb *caisson.Sandbox, req *caisson.WorkspaceRequest, halt haltFunc, back *undo.Stack) error {
	if req == nil && sb.Spec.WorkspaceAt != "" {
		return w.makePlaceholder(ctx, sb)
	}
	if req == nil || req.Kind == caisson.WorkspaceDirect {
		return nil
	}
	if req.Kind == caisson.WorkspaceVolume {
		return w.attachVolume(ctx, sb, req, halt, back)
	}
	if _, err := w.dirs.resolveHostDir(req.Directory, req.Source, "workspace"); err != nil {
		return err
	}
	began := time.Now()
	ws, err := w.layers.Create(ctx, sb, *req)
	timing.RecordTime(ctx, "workspace", began)
	if err != nil {
		return err
	}
	clean := context.WithoutCancel(ctx)
	back.Push(func() error { return w.layers.Detach(clean, ws.ID) })
	sb.Spec.Workspace, sb.Spec.WorkspaceAt = ws.ID, req.Target
	// The workspace is stored now, not with the sandbox's first state, so that Reconcile finds it after a crash.
	_, err = w.states.update(ctx, sb.ID, func(s *caisson.Sandbox) error {
		s.Spec.Workspace, s.Spec.WorkspaceAt = ws.ID, req.Target
		return nil
	})
	return err
}

// publishUnreviewed publishes an event that the sandbox's changes to a host directory are not reviewed.
func (w *workspaces) publishUnreviewed(ctx context.Context, sb *caisson.Sandbox, req *caisson.WorkspaceRequest) {
	if req != nil && req.Kind == caisson.WorkspaceDirect {
		w.states.event(ctx, sb, "workspace.direct", map[string]string{
			"source": req.Source, "target": req.Target, "warning": "what the sandbox writes there is on the host at once, and not reviewed",
		})
	}
}

// open returns the mount of a sandbox's workspace or volume, or of its placeholder for a workspace, for a start; nil if the
// sandbox has none of them.
func (w *workspaces) open(ctx context.Context, sb *caisson.Sandbox) ([]caisson.RuntimeMount, error) {
	switch {
	case sb.Spec.Volume != nil:
		return w.openVolume(ctx, sb)
	case sb.Spec.Workspace == "" && sb.Spec.WorkspaceAt == "":
		return nil, nil
	case sb.Spec.Workspace == "":
		return w.openPlaceholder(sb)
	case w.layers == nil:
		return nil, caisson.Errorf(caisson.Unavailable, "this daemon has no workspaces, so it cannot start a sandbox that has one")
	}
	began := time.Now()
	defer func() { timing.RecordTime(ctx, "workspace", began) }()
	m, err := w.layers.Open(ctx, sb.Spec.Workspace)
	return []caisson.RuntimeMount{m}, err
}

// release makes the volume of a removed sandbox available to others, or records that its workspace is no longer live.
func (w *workspaces) release(ctx context.Context, sb *caisson.Sandbox) error {
	if sb.Spec.Volume != nil && w.volumes != nil {
		return w.volumes.Detach(ctx, sb.Spec.Volume.ID, sb.ID)
	}
	if sb.Spec.Workspace == "" || w.layers == nil {
		return nil
	}
	return caisson.IgnoreNotFound(w.layers.Detach(ctx, sb.Spec.Workspace))
}

// workspaceDir is the name of the directory in a capture that contains the changes in the sandbox's workspace.
const workspaceDir = "workspace"

// capture adds the workspace of a frozen or stopped sandbox to its capture in dir.
func (w *workspaces) capture(ctx context.Context, sb *caisson.Sandbox, dir string) error {
	if w.layers == nil {
		return caisson.Errorf(caisson.Unavailable, "this daemon has no workspaces, so it cannot capture a sandbox that has one")
	}
	dir = filepath.Join(dir, workspaceDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return w.layers.Capture(ctx, sb.Spec.Workspace, dir)
}

// checkForkable returns an error if from cannot be forked, if a fork of it cannot have the requested workspace, or if the fork
// needs a workspace and the request has none.
func (w *workspaces) checkForkable(from *origin, req *caisson.ForkRequest) error {
	ask := req.Workspace
	switch {
	case len(from.spec.Mounts) > 0:
		return caisson.Errorf(caisson.Conflict, "a sandbox with mounted host directories cannot be forked: the forks would share them")
	case from.memory && from.spec.Volume != nil:
		return caisson.Errorf(caisson.Conflict, "a sandbox with a volume cannot be forked with its memory: the forks would share volume %s; stop it first, or fork a snapshot of its files only", from.spec.Volume.Name)
	case ask == nil && from.spec.Workspace != "":
		return caisson.Errorf(caisson.Conflict, "a sandbox with a workspace cannot be forked with it; give the fork a workspace of its own at %s", from.spec.WorkspaceAt)
	case ask == nil:
		return nil
	case req.Count != 1:
		return caisson.Invalidf("workspace", "only one fork at a time can have a workspace of its own")
	case from.memory && from.spec.WorkspaceAt == "":
		return caisson.Errorf(caisson.Conflict, "the running processes have no mount point for a workspace; create a new sandbox, or fork a snapshot without memory")
	case from.memory && from.spec.WorkspaceAt != ask.Target:
		return caisson.Invalidf("workspace.target", "the running processes have the mount point for a workspace at %s", from.spec.WorkspaceAt)
	}
	return nil
}

// placeholderDir is the name of the directory of a placeholder for a workspace, in the directory of the sandbox.
const placeholderDir = "placeholder"

// Subdirectories of a placeholder for a workspace, which is mounted as an overlay. They belong to the guest's root: the empty
// lower directory, and the upper and work directories of the overlay.
const (
	emptyDir = "empty"
	upperDir = "upper"
	workDir  = "work"
)

// checkPlaceholder validates the mount point that a request has for a placeholder for a workspace; "" means none.
func checkPlaceholder(req *caisson.CreateRequest) error {
	if req.Placeholder == "" {
		return nil
	}
	if req.Workspace != nil || req.Snapshot != "" {
		return caisson.Invalidf("placeholder", "a sandbox with a workspace, or of a snapshot, has no placeholder of its own")
	}
	req.Placeholder = path.Clean(req.Placeholder)
	return validateMounts("placeholder", append(slices.Clone(req.Mounts), caisson.Mount{Target: req.Placeholder}))
}

// makePlaceholder creates the directories of a sandbox's placeholder for a workspace. The placeholder is mounted like a
// workspace, so that a fork of the sandbox's memory can have a real workspace at the same mount point.
func (w *workspaces) makePlaceholder(ctx context.Context, sb *caisson.Sandbox) error {
	account, err := w.accounts.Get(ctx, sb.Account)
	if err != nil {
		return err
	}
	dir := w.dirs.sandboxPath(sb.ID, placeholderDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{emptyDir, upperDir, workDir} {
		if err := makeOwned(filepath.Join(dir, name), int(account.UIDBase)); err != nil {
			return err
		}
	}
	return nil
}

// openPlaceholder returns the mount of a sandbox's placeholder for a workspace.
func (w *workspaces) openPlaceholder(sb *caisson.Sandbox) (mounts []caisson.RuntimeMount, err error) {
	dir := w.dirs.sandboxPath(sb.ID, placeholderDir)
	m := caisson.RuntimeMount{Target: sb.Spec.WorkspaceAt, Overlay: &caisson.RuntimeOverlay{}}
	for name, f := range map[string]**os.File{emptyDir: &m.Source, upperDir: &m.Overlay.Upper, workDir: &m.Overlay.Work} {
		if *f, err = os.Open(filepath.Join(dir, name)); err != nil {
			closeMounts([]caisson.RuntimeMount{m})
			return nil, err
		}
	}
	return []caisson.RuntimeMount{m}, nil
}

// checkPlaceholderEmpty returns a Conflict error if a sandbox has files in its placeholder for a workspace: forks with a
// workspace would not have these files, and processes that have them open could not continue.
func (w *workspaces) checkPlaceholderEmpty(sb *caisson.Sandbox) error {
	if sb.Spec.WorkspaceAt == "" || sb.Spec.Workspace != "" {
		return nil
	}
	d, err := os.Open(filepath.Join(w.dirs.sandboxPath(sb.ID, placeholderDir), upperDir))
	if err != nil {
		return err
	}
	defer d.Close()
	names, _ := d.Readdirnames(1)
	if len(names) > 0 {
		return caisson.Errorf(caisson.Conflict, "%s is reserved for the workspaces of forks and contains files that the forks would not have; remove them first", sb.Spec.WorkspaceAt)
	}
	return nil
}

// closeOnce returns a copy of a request whose directory is closed only once, however often Close and release are called.
func closeOnce(req *caisson.WorkspaceRequest) (own *caisson.WorkspaceRequest, release func()) {
	if req == nil || req.Directory == nil {
		return req, func() {}
	}
	r := *req
	h := onceHandle{req.Directory, sync.OnceValue(req.Directory.Close)}
	r.Directory = h
	return &r, func() { h.Close() }
}

// onceHandle is a Handle whose Close may be called more than once. Later calls return the result of the first.
type onceHandle struct {
	caisson.Handle
	close func() error // closes the handle on the first call
}

// Close implements [caisson.Handle].
func (h onceHandle) Close() error { return h.close() }
