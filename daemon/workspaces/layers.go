package workspaces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/hostdir"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/internal/undo"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// Layers implements [caisson.WorkspaceLayers]. It manages the layers of the workspaces of sandboxes.
type Layers struct{ c *Core }

var _ caisson.WorkspaceLayers = (*Layers)(nil)

const (
	defaultTarget = "/workspace" // default path of a workspace in the sandbox
	maxShow       = 100          // maximum number of patterns of names that are not hidden, in one request
)

// Create implements [caisson.WorkspaceLayers]. The sandbox need not be in the store yet.
func (l *Layers) Create(ctx context.Context, sb *caisson.Sandbox, req caisson.WorkspaceRequest) (_ *caisson.Workspace, err error) {
	if req.Directory == nil {
		return nil, caisson.Invalidf("workspace", "the directory %.100q is missing in the request; it must be passed as a file descriptor over the unix socket", req.Source)
	}
	defer req.Directory.Close()
	if sb.Labels[labelTrial] != "" {
		return l.c.trials.claim(sb)
	}
	if err := normalizeRequest(&req); err != nil {
		return nil, err
	}
	dir, err := l.c.admitDirectory(ctx, &req)
	if err != nil {
		return nil, err
	}
	account, err := l.c.cfg.Store.Accounts().Ensure(ctx, sb.Account)
	if err != nil {
		return nil, err
	}
	w := &caisson.Workspace{
		ID: caisson.NewID(caisson.WorkspacePrefix), Account: sb.Account, Kind: req.Kind, Mode: req.Mode, State: caisson.WorkspaceLive,
		Source: req.Source, Target: req.Target, Sandbox: sb.ID, HostPath: dir.Path, Device: dir.Device, Inode: dir.Inode, UID: dir.UID,
		GID: dir.GID, CreatedAt: now(),
	}
	if sb.Assigned != nil {
		w.Run, w.Agent = sb.Assigned.Run, sb.Assigned.Agent
	}
	release, err := l.c.layerFiles.lock(ctx, w.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	// The workspace is stored after its directory is complete. If the daemon is killed before that, the directory
	// belongs to no workspace, and the next daemon removes it.
	back.Push(func() error { return removeTree(l.c.dir(w.ID)) })
	if err := l.c.layerFiles.makeDirs(w.ID, account.UIDBase, dir.Mode); err != nil {
		return nil, durable.DiskFull(err)
	}
	if err := l.c.layerFiles.scan(ctx, w, req.Show, dir.Mode); err != nil {
		return nil, err
	}
	if w.Kind == caisson.WorkspaceCopy {
		if err := l.c.layerFiles.makeCopy(ctx, w, dir.Mode); err != nil {
			return nil, durable.DiskFull(err)
		}
	}
	back.Push(func() error { // NotFound is ignored: the workspace may not be in the store yet
		return caisson.IgnoreNotFound(l.c.cfg.Store.Workspaces().Delete(context.WithoutCancel(ctx), caisson.AllAccounts(), w.ID))
	})
	if err := l.c.cfg.Store.Workspaces().Insert(ctx, w); err != nil {
		return nil, err
	}
	back.Release()
	if w.Kind != caisson.WorkspaceDirect {
		l.c.layerFiles.deferBase(w)
		l.c.secretSearch.schedule(w)
	}
	publish(ctx, l.c.cfg.Events, w, "workspace.created", map[string]string{
		"kind": string(w.Kind), "mode": string(w.Mode), "source": safetext.Path(w.Source), "hidden": fmt.Sprint(w.HiddenCount),
	})
	return w, nil
}

// normalizeRequest fills in the defaults of req, and returns an Invalid error if req is invalid.
func normalizeRequest(req *caisson.WorkspaceRequest) error {
	if err := req.DefaultKind(); err != nil {
		return err
	}
	req.Target = cmp.Or(req.Target, defaultTarget)
	switch {
	case req.Source == "" || len(req.Source) > 4096 || !utf8.ValidString(req.Source):
		return caisson.Invalidf("workspace.source", "must say in UTF-8 what the directory is called")
	case !path.IsAbs(req.Target) || path.Clean(req.Target) != req.Target || req.Target == "/" || len(req.Target) > 4096 ||
		!utf8.ValidString(req.Target) || strings.ContainsRune(req.Target, 0):
		return caisson.Invalidf("workspace.target", "must be an absolute path in the sandbox, and not its root")
	case len(req.Show) > maxShow:
		return caisson.Invalidf("workspace.show", "has more than %d patterns", maxShow)
	}
	return nil
}

// admitDirectory checks the directory that came with req, and returns its description. Returns an error if it cannot be a
// workspace.
func (c *Core) admitDirectory(ctx context.Context, req *caisson.WorkspaceRequest) (hostdir.Dir, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return hostdir.Dir{}, err
	}
	if !caller.MayUseHost() {
		return hostdir.Dir{}, caisson.Errorf(caisson.Denied, "host directories are accepted only over the unix socket")
	}
	d, err := hostdir.FromFD(req.Directory.Fd())
	switch {
	case errors.Is(err, hostdir.ErrNotDir):
		return d, caisson.Invalidf("workspace.source", "%.100q is not a directory", req.Source)
	case errors.Is(err, hostdir.ErrRemoved):
		return d, caisson.Errorf(caisson.Conflict, "the directory %.100q has been removed", req.Source)
	case err != nil:
		return d, err
	}
	if !utf8.ValidString(d.Path) || !path.IsAbs(d.Path) {
		return d, caisson.Invalidf("workspace.source", "the path of %.100q is not UTF-8, or does not lead to it from here; rename or move it", req.Source)
	}
	ours, err := hostdir.Overlap(c.data.Fd(), req.Directory.Fd())
	if err != nil {
		return d, err
	}
	if ours {
		return d, caisson.Errorf(caisson.Denied, "%.100q contains Caisson's own data or lies in it, which no sandbox may see; choose another directory", req.Source)
	}
	// The directory is opened by its path at each start of the sandbox, so the path must lead to it now.
	err = d.CheckReachable(req.Directory.Fd())
	switch {
	case errors.Is(err, hostdir.ErrOtherNamespace):
		return d, caisson.Wrap(err, caisson.Invalid, "the daemon cannot reach %.100q: %s", req.Source, err)
	case err != nil:
		return d, caisson.Wrap(err, caisson.Invalid, "the path of %.100q does not lead to it from here, so it could not be found again; use another directory", req.Source)
	}
	return d, nil
}

// Open implements [caisson.WorkspaceLayers].
func (l *Layers) Open(ctx context.Context, id caisson.ID) (m caisson.RuntimeMount, err error) {
	if t := l.c.trials.find(id); t != nil {
		return l.c.layerFiles.mount(t.w)
	}
	w, err := l.c.cfg.Store.Workspaces().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return m, err
	}
	if w.State != caisson.WorkspaceLive {
		return m, caisson.Errorf(caisson.Conflict, "the sandbox of workspace %s has gone", id)
	}
	// Changes that are being dropped must be removed from the layer before it is mounted. A drop that begins later
	// finds that the sandbox is starting.
	release, err := l.c.layerLocks.Acquire(ctx, string(id))
	if err != nil {
		return m, err
	}
	defer release()
	return l.c.layerFiles.mount(w)
}

// OpenUpper implements [caisson.WorkspaceLayers].
func (l *Layers) OpenUpper(id caisson.ID) (*os.File, error) {
	return openDir(l.c.dir(id, upperDir), unix.O_RDONLY)
}

// mount opens the directories that the launcher mounts as the workspace of a sandbox.
func (c *layerFiles) mount(w *caisson.Workspace) (m caisson.RuntimeMount, err error) {
	var opened files
	defer func() {
		if err != nil {
			opened.close()
			m = caisson.RuntimeMount{}
		}
	}()
	m = caisson.RuntimeMount{
		Source: opened.add(c.openSource(w, unix.O_PATH)), Target: w.Target,
		Writable: w.Kind == caisson.WorkspaceDirect,
	}
	if opened.err != nil || m.Writable {
		return m, opened.err
	}
	// Host directories are accepted only over the unix socket, whose clients have all rights. So the sandbox may access the
	// directory as its owner even if the owner is the host's root.
	o := &caisson.RuntimeOverlay{Root: w.UID == 0}
	if err := readJSON(c.dir(w.ID, showFile), &o.Show); err != nil {
		return m, err
	}
	if o.Hide, err = hiddenPatterns(w, c.hidden, o.Show); err != nil {
		return m, err
	}
	o.Show = append(baseline.DefaultShown(), o.Show...)
	o.Upper = opened.add(openDir(c.dir(w.ID, upperDir), unix.O_PATH))
	o.Work = opened.add(openDir(c.dir(w.ID, workDir), unix.O_PATH))
	o.Mask = opened.add(openDir(c.dir(w.ID, maskDir), unix.O_PATH))
	m.Overlay = o
	return m, opened.err
}

// openSource opens the directory that the workspace w shows: the host directory, or a copy of it. flags are additional flags.
func (c *layerFiles) openSource(w *caisson.Workspace, flags int) (*os.File, error) {
	if w.Kind == caisson.WorkspaceCopy {
		return openDir(c.dir(w.ID, copyDir), flags)
	}
	return openHost(w, flags)
}

// openHost opens the host directory of a workspace. Returns Conflict if there is another directory at its path now, or if the
// directory has another owner or group than when the workspace was created. flags are additional flags.
func openHost(w *caisson.Workspace, flags int) (*os.File, error) {
	f, err := hostdir.Dir{Path: w.HostPath, Device: w.Device, Inode: w.Inode}.Open(flags)
	switch {
	case errors.Is(err, hostdir.ErrRemoved):
		return nil, caisson.Wrap(err, caisson.Conflict, "the directory %.100q is not there any more; put it back where it was", w.Source)
	case errors.Is(err, hostdir.ErrReplaced):
		return nil, caisson.Wrap(err, caisson.Conflict, "%.100q is no longer the directory that the workspace was made of; put that one back, or make a new sandbox with the new one", w.Source)
	case err != nil:
		return nil, err
	}
	return f, checkOwner(w, f)
}

// checkOwner returns a Conflict error, and closes f, if the host directory f has another owner or group than when the workspace
// was created.
func checkOwner(w *caisson.Workspace, f *os.File) error {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && (st.Uid != w.UID || st.Gid != w.GID) {
		err = caisson.Errorf(caisson.Conflict, "%.100q belongs to another user or group than when the workspace was made; give it back, or make a new sandbox", w.Source)
	}
	if err != nil {
		f.Close()
	}
	return err
}
