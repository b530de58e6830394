package runs

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/hostdir"
	"github.com/caisson-dev/caisson/internal/tree"
)

// runDir returns the path of a run's directory, relative to the data directory.
func runDir(id caisson.ID) string { return path.Join("runs", string(id)) }

// The files with the contents of a run's workspace: an archive of one tree named workspace, or an archive of names
// relative to the workspace, which is unpacked only in the sandbox.
const (
	workspaceTar = "workspace.tar"
	uploadTar    = "upload.tar"
)

func (c admission) removeDir(id caisson.ID) error { return c.Dir.RemoveAll(runDir(id)) }

// storeContents stores the contents of the run's workspace, because attempts may begin when the request has ended.
func (c admission) storeContents(ctx context.Context, r *caisson.Run) (err error) {
	if err := c.Dir.MkdirAll(runDir(r.ID), 0o700); err != nil {
		return err
	}
	if r.Request.Directory == nil && r.Request.Workspace == nil {
		return nil
	}
	room, err := c.checkCapacity(ctx, r)
	if err != nil {
		return err
	}
	name := workspaceTar
	if r.Request.Workspace != nil {
		name = uploadTar
	}
	f, err := c.Dir.OpenFile(path.Join(runDir(r.ID), name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	left := bound{left: min(int64(c.Limits.Workspace), room), ctx: ctx, free: c.free, err: caisson.Errorf(caisson.Exhausted,
		"the directory is larger than %s, which is the most that is copied into a workspace; choose a smaller one, or raise limits.workspace", c.Limits.Workspace)}
	if r.Request.Workspace != nil {
		return c.spoolArchive(ctx, r, left, f)
	}
	// The caller opened the descriptor, so the caller may read the directory, and all files are opened relative to it.
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(r.Request.Directory.Fd())))
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be read", r.Request.Source)
	}
	defer root.Close()
	if err := c.checkOutsideData(r.Request.Directory); err != nil {
		return err
	}
	mask, err := c.Masker.Mask(r.Request.Show)
	if err != nil {
		return err
	}
	dir, err := hostdir.Of(r.Request.Directory.Fd())
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "the directory %s cannot be read", r.Request.Source)
	}
	if mask, err = mask.Within(dir.Path, r.Request.Source); err != nil {
		return err
	}
	list := mask.Lister()
	if err := tree.PackVisible(root, ".", workspaceName, list.Hides, &boundedWriter{w: f, bound: left}); err != nil {
		return err
	}
	r.Hidden, r.HiddenCount = list.Hidden, list.Count
	return nil
}

// spoolArchive stores the archive of a request in f, without hidden files, regardless of those that the client has left
// out.
func (c admission) spoolArchive(ctx context.Context, r *caisson.Run, left bound, f *os.File) error {
	done, err := c.countUpload(r.Account)
	if err != nil {
		return err
	}
	defer done()
	in := &boundedReader{r: r.Request.Workspace, bound: left}
	hidden, count, err := c.Masker.MaskArchive(ctx, r.Request.Show, in, f, archiveGrowth*left.left)
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
func (c admission) countUpload(account string) (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.uploads[account]; n >= c.Limits.PerAccount {
		return nil, caisson.Errorf(caisson.Exhausted, "%d uploads of the account are under way, as many as may; wait for one to end", n)
	}
	c.uploads[account]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.uploads[account]--; c.uploads[account] == 0 {
			delete(c.uploads, account)
		}
	}, nil
}

// archiveGrowth is the maximum factor by which an archive grows when it is rewritten: headers of entries with long
// names are larger in the format that is written than in others.
const archiveGrowth = 4

// diskReserve is the disk space in bytes that copies of workspaces must leave free: the ledger of every account needs
// it.
const diskReserve = 1 << 30

// checkCapacity returns how many bytes may be stored for a run now. Returns Exhausted if the run cannot be queued, so that its
// contents are not read.
func (c admission) checkCapacity(ctx context.Context, r *caisson.Run) (int64, error) {
	waiting, more, err := c.Store.Runs().List(ctx, caisson.In(r.Account), caisson.RunFilter{
		States: []caisson.RunState{caisson.RunQueued, caisson.RunStarting, caisson.RunRunning}, Limit: c.Limits.Waiting,
	})
	if err != nil {
		return 0, err
	}
	if more || len(waiting) >= c.Limits.Waiting {
		return 0, caisson.Errorf(caisson.Exhausted, "%d runs of the account wait or are under way, as many as may; wait for some, or cancel them", len(waiting))
	}
	return c.free()
}

// free returns how many bytes may be written until only diskReserve is free.
func (c admission) free() (int64, error) {
	dir, err := c.Dir.Open(".")
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

// archiveTTL is how long the contents of a failed run's workspace are kept for a retry.
const archiveTTL = 24 * time.Hour

// trimArchives removes the archives of failed runs that are older than archiveTTL.
func (c admission) trimArchives(ctx context.Context, at time.Time) error {
	f := caisson.RunFilter{States: []caisson.RunState{caisson.RunFailed}, Limit: 1000}
	for {
		list, more, err := c.Store.Runs().List(ctx, caisson.AllAccounts(), f)
		if err != nil {
			return err
		}
		for _, r := range list {
			f.Before = r.ID
			if r.HasWorkspace && at.Sub(r.EndedAt) > archiveTTL {
				err = errors.Join(err, c.removeArchives(r.ID))
			}
		}
		if err != nil || !more {
			return err
		}
	}
}

// workspaceName is the name of the workspace in archives.
const workspaceName = "workspace"

// checkOutsideData returns an Invalid error for a directory that overlaps with the data directory, which contains the secrets of
// every account.
func (c admission) checkOutsideData(dir caisson.Handle) error {
	own, err := c.Dir.Open(".")
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

// bound returns an error once more than left bytes were counted, the disk is full (other processes write to it, too,
// and an archive may grow), or ctx has ended.
type bound struct {
	left int64 // bytes that may still be counted
	ctx  context.Context
	free func() (int64, error) // returns an error if the disk is full
	err  error                 // returned when left is used up
}

func (b *bound) count(n int) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	if b.left -= int64(n); b.left < 0 {
		return b.err
	}
	_, err := b.free()
	return err
}

// A boundedWriter counts the bytes written to w, and returns the error of its bound.
type boundedWriter struct {
	w io.Writer
	bound
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if err := b.count(len(p)); err != nil {
		return 0, err
	}
	n, err := b.w.Write(p)
	return n, durable.DiskFull(err)
}

// A boundedReader counts the bytes read from r, and returns the error of its bound.
type boundedReader struct {
	r io.Reader
	bound
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if over := b.count(n); over != nil {
		return 0, over
	}
	return n, err
}
