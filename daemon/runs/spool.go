package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/hostdir"
	"github.com/caisson-dev/caisson/internal/tree"
)

// directories manages the directories of runs, with the files of workspaces and the output of the agents' programs.
type directories struct {
	root   *os.Root // the data directory
	runs   caisson.RunStore
	masker Masker // hides files whose names indicate credentials
	limits Limits // limits of runs and sessions

	mu      sync.Mutex
	uploads map[string]int // number of archives being received, by account; guarded by mu
}

// runDir returns the path of a run's directory, relative to the data directory.
func runDir(id caisson.ID) string { return path.Join("runs", string(id)) }

// Names of the files with the contents of a run's workspace: workspaceTar is an archive of one tree named workspace; uploadTar
// is an archive of names relative to the workspace, which is unpacked only in the sandbox.
const (
	workspaceTar = "workspace.tar"
	uploadTar    = "upload.tar"
)

// makeParent creates the directory that contains the directories of all runs.
func (d *directories) makeParent() error { return d.root.MkdirAll("runs", 0o700) }

// removeDir removes the directory of a run.
func (d *directories) removeDir(id caisson.ID) error { return d.root.RemoveAll(runDir(id)) }

// storeWorkspace stores the files for the run's workspace as an archive, or the path and inode of a directory to be mounted.
func (d *directories) storeWorkspace(ctx context.Context, r *caisson.Run) error {
	if r.Request.Directory == nil || r.Request.Kind == caisson.WorkspaceCopy {
		return d.storeContents(ctx, r)
	}
	dir, err := hostdir.FromFD(r.Request.Directory.Fd())
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be used", r.Request.Source)
	}
	if err := d.checkOutsideData(r.Request.Directory); err != nil {
		return err
	}
	if err := dir.CheckReachable(r.Request.Directory.Fd()); errors.Is(err, hostdir.ErrOtherNamespace) {
		return caisson.Wrap(err, caisson.Invalid, "the daemon cannot reach %.100q: %s; a copy can be worked on, with --workspace-kind copy", r.Request.Source, err)
	}
	data, err := json.Marshal(dir)
	if err != nil {
		return err
	}
	if err := d.root.MkdirAll(runDir(r.ID), 0o700); err != nil {
		return err
	}
	return d.root.WriteFile(path.Join(runDir(r.ID), directoryFile), data, 0o600)
}

// storeContents stores the files for the run's workspace as an archive, because attempts may begin after the request has ended.
func (d *directories) storeContents(ctx context.Context, r *caisson.Run) (err error) {
	if err := d.root.MkdirAll(runDir(r.ID), 0o700); err != nil {
		return err
	}
	if r.Request.Directory == nil && r.Request.Workspace == nil {
		return nil
	}
	room, err := d.checkCapacity(ctx, r)
	if err != nil {
		return err
	}
	name := workspaceTar
	if r.Request.Workspace != nil {
		name = uploadTar
	}
	f, err := d.root.OpenFile(path.Join(runDir(r.ID), name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	left := limitWriter{left: min(int64(d.limits.Workspace), room), ctx: ctx, free: d.free, err: caisson.Errorf(caisson.Exhausted,
		"the directory is larger than %s, which is the most that is copied into a workspace; choose a smaller one, leave out --workspace-kind copy, or raise runs.workspace", d.limits.Workspace)}
	if r.Request.Workspace != nil {
		return d.spoolArchive(ctx, r, left, f)
	}
	// The caller has opened the directory and so may read it. All files are opened relative to its descriptor.
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(r.Request.Directory.Fd())))
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be read", r.Request.Source)
	}
	defer root.Close()
	if err := d.checkOutsideData(r.Request.Directory); err != nil {
		return err
	}
	mask, err := d.masker.Mask(r.Request.Show)
	if err != nil {
		return err
	}
	dir, err := hostdir.FromFD(r.Request.Directory.Fd())
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be read", r.Request.Source)
	}
	if mask, err = mask.Within(dir.Path, r.Request.Source); err != nil {
		return err
	}
	if larger, err := tree.LargerThan(root, ".", mask.Hides, left.left); err != nil || larger {
		return cmp.Or(err, left.err)
	}
	list := mask.Lister()
	if err := tree.PackVisible(root, ".", workspaceName, list.Hides, io.MultiWriter(&left, f)); err != nil {
		return durable.DiskFull(err)
	}
	r.Hidden, r.HiddenCount = list.Hidden, list.Count
	return nil
}

// spoolArchive stores the archive of a request in f, without hidden files. It checks all names, because the client may not have
// left hidden files out.
func (d *directories) spoolArchive(ctx context.Context, r *caisson.Run, left limitWriter, f *os.File) error {
	done, err := d.countUpload(r.Account)
	if err != nil {
		return err
	}
	defer done()
	in, most := io.TeeReader(r.Request.Workspace, &left), archiveGrowth*left.left
	hidden, count, err := d.masker.MaskArchive(ctx, r.Request.Show, in, f, most)
	if err != nil {
		return err
	}
	r.Hidden = slices.Concat(r.Request.Hidden, hidden)
	r.HiddenCount = max(r.Request.HiddenCount, len(r.Request.Hidden)) + count
	r.Request.Hidden, r.Request.HiddenCount = nil, 0
	return nil
}

// countUpload counts an upload of the account until done is called. Returns Exhausted if there are too many: each upload
// occupies a process for as long as the client takes.
func (d *directories) countUpload(account string) (done func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.uploads[account]; n >= d.limits.PerAccount {
		return nil, caisson.Errorf(caisson.Exhausted, "the account has %d uploads in progress, which is the maximum; wait until one has ended", n)
	}
	d.uploads[account]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.uploads[account]--; d.uploads[account] == 0 {
			delete(d.uploads, account)
		}
	}, nil
}

// archiveGrowth is the maximum factor by which an archive grows when it is rewritten without hidden files: the format that is
// written has larger headers for entries with long names than other formats.
const archiveGrowth = 4

// diskReserve is the disk space in bytes that copies of workspaces must leave free, because the ledger, which all accounts
// need, is on the same disk.
const diskReserve = 1 << 30

// checkCapacity returns how many bytes may be stored for a run now. Returns Exhausted if the run cannot be queued, so that the
// contents of its workspace are not read in vain. It looks at up to 1,000 runs; storing the run checks the limit again.
func (d *directories) checkCapacity(ctx context.Context, r *caisson.Run) (int64, error) {
	unended, _, err := d.runs.List(ctx, caisson.In(r.Account), caisson.RunFilter{
		States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: 1000,
	})
	if err != nil {
		return 0, err
	}
	unended = slices.DeleteFunc(unended, func(o *caisson.Run) bool { return o.Parent != "" })
	if n := len(unended); n >= d.limits.Waiting {
		return 0, caisson.Errorf(caisson.Exhausted, "the account has %d runs that wait or are in progress, which is the maximum; wait until some have ended, or cancel them", n)
	}
	return d.free()
}

// free returns how many bytes may be written until only diskReserve bytes are free. Returns Exhausted if there are none.
func (d *directories) free() (int64, error) {
	dir, err := d.root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, err
	}
	room := int64(st.Bavail)*st.Bsize - diskReserve
	if room <= 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the disk of the data directory is nearly full; free some space")
	}
	return room, nil
}

// removeArchives removes workspaceTar and uploadTar, the archives of a run that are unpacked into the workspace of each attempt.
func (d *directories) removeArchives(id caisson.ID) (err error) {
	for _, name := range []string{workspaceTar, uploadTar} {
		err = errors.Join(err, d.root.RemoveAll(path.Join(runDir(id), name)))
	}
	return err
}

// archiveTTL is how long the contents of a failed run's workspace are kept for a retry.
const archiveTTL = 24 * time.Hour

// trimArchives removes the archives with the workspaces of runs that failed longer than archiveTTL before the time at.
func (d *directories) trimArchives(ctx context.Context, at time.Time) error {
	f := caisson.RunFilter{States: []caisson.RunState{caisson.RunFailed}, Limit: 1000}
	var failed error
	for r, err := range eachRun(ctx, d.runs, f) {
		if err == nil && r.HasWorkspace && at.Sub(r.EndedAt) > archiveTTL {
			err = d.removeArchives(r.ID)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// workspaceName is the name of the workspace's directory in archives.
const workspaceName = "workspace"

// checkOutsideData returns an Invalid error for a directory that overlaps with the data directory, which contains the secrets of
// every account.
func (d *directories) checkOutsideData(dir caisson.Handle) error {
	own, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer own.Close()
	overlap, err := hostdir.Overlap(own.Fd(), dir.Fd())
	if err != nil {
		return err
	}
	if overlap {
		return caisson.Invalidf("source", "the directory contains Caisson's own data or lies in it, which no sandbox may see; choose another")
	}
	return nil
}

// A limitWriter is a writer that counts bytes and discards them. It returns an error once more than left bytes were written,
// the disk is full (other processes write to it, too, and an archive may grow), or ctx has ended.
type limitWriter struct {
	left int64 // bytes that may still be written
	ctx  context.Context
	free func() (int64, error) // returns an error if the disk is full
	err  error                 // error that is returned when more than left bytes were written
}

func (b *limitWriter) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, b.err
	}
	if _, err := b.free(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// reconcile removes the directories of runs that are not in the store, and the workspaces' archives of runs that have succeeded.
func (d *directories) reconcile(ctx context.Context) error {
	dir, err := d.root.Open("runs")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		id := caisson.ID(name)
		r, err := d.runs.Get(ctx, caisson.AllAccounts(), id)
		switch {
		case caisson.KindOf(err) == caisson.NotFound:
			err = d.removeDir(id)
		case err == nil && r.State == caisson.RunSucceeded:
			err = d.removeArchives(id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// workspace returns the request for the workspace of the attempt's sandbox: a volume, or a host directory that it opens. It is
// nil if nothing is mounted, because the run has no workspace, or its files are unpacked from an archive into the sandbox.
func (d *directories) workspace(x *attempt) (*caisson.WorkspaceRequest, error) {
	if ref := x.volumeRef(); ref != "" {
		return &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: ref, Target: x.agent.Workdir}, nil
	}
	if !x.r.HasWorkspace || !x.mounted() {
		return nil, nil
	}
	data, err := d.root.ReadFile(path.Join(runDir(x.r.ID), directoryFile))
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

// openArchive opens an archive of a run: workspaceTar or uploadTar.
func (d *directories) openArchive(id caisson.ID, name string) (*os.File, error) {
	return d.root.Open(path.Join(runDir(id), name))
}
