package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// A diskGuard measures how much sandboxes write to the host's disk, and stops those that fill it, as the kernel's OOM
// killer does with memory. A sandbox's root file system has its own limit; a workspace's layer and a volume are host
// directories, and no commonly used file system can limit the size of those.
type diskGuard struct {
	runtime interface {
		lister
		Written(id caisson.ID) (caisson.Size, error)
	}
	states     states                       // stored records of sandboxes
	workspaces *workspaces                  // workspaces and volumes of sandboxes
	locks      *locks                       // one lock for each sandbox
	watches    *watches                     // monitors running sandboxes
	free       func() (caisson.Size, error) // returns the free disk space for the data directory in bytes
	reserve    caisson.Size                 // bytes that must remain free on the file system of the data directory
	log        *slog.Logger

	mu        sync.Mutex               // held during a check
	lastUsage map[caisson.ID]diskUsage // usage of each sandbox at the last check; guarded by mu
}

// Intervals and limits of the checks of a [diskGuard].
const (
	checkInterval   = 5 * time.Second // time between two checks of sandboxes
	lowDiskInterval = time.Second     // time between two checks while the disk is nearly full
	checkShare      = 20              // a check takes at most 1/checkShare of the time
	measureTimeout  = 5 * time.Second // timeout for measuring one sandbox; the size counted so far is then a lower bound
	maxDepth        = 300             // maximum depth of nested directories; the gate rejects deeper ones anyway
	minFileSize     = 4 << 10         // bytes that each file counts at least, because its inode and name need space too
	minGrowth       = 1 << 20         // growth in bytes below which a sandbox is not stopped when the disk is nearly full
)

// diskUsage is the disk space that a sandbox uses on the host.
type diskUsage struct {
	layer   caisson.Size // bytes in its workspace's layer or in its volume
	root    caisson.Size // bytes of its changes to its root file system
	tooDeep bool         // directories are nested deeper than maxDepth, so that the layer cannot be measured completely
}

// run checks the disk usage of sandboxes repeatedly until ctx ends.
func (g *diskGuard) run(ctx context.Context) {
	for {
		began := time.Now()
		wait := checkInterval
		if g.check(ctx) {
			wait = lowDiskInterval
		}
		select {
		case <-time.After(max(wait, checkShare*time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// check stops the sandboxes that have grown beyond their limit since the last check and, if less than half of the disk
// reserve is free, the sandbox that has grown most. It reports whether less than the disk reserve is free.
func (g *diskGuard) check(ctx context.Context) (tight bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	free, err := g.free()
	if err != nil {
		g.log.ErrorContext(ctx, "the free space of the disk could not be read", "err", err)
		free = g.reserve
	}
	list, err := g.runtime.List(ctx)
	if err != nil {
		g.log.ErrorContext(ctx, "what sandboxes write is not known", "err", err)
		return false
	}
	now := make(map[caisson.ID]diskUsage, len(list))
	var most caisson.Size
	var culprit *caisson.Sandbox
	for _, r := range list {
		sb, err := g.states.get(ctx, r.ID)
		if err != nil || ctx.Err() != nil || sb.State != caisson.Running {
			if last, ok := g.lastUsage[r.ID]; ok && err == nil {
				now[r.ID] = last // The growth since the last check is measured when the sandbox runs again.
			}
			continue
		}
		w, err := g.measure(ctx, sb)
		if err != nil {
			if !isGone(err) {
				g.log.WarnContext(ctx, "what a sandbox has written is not known", "sandbox", sb.ID, "err", err)
			}
			continue
		}
		now[sb.ID] = w
		last, known := g.lastUsage[sb.ID]
		if reason := w.exceeds(sb, last, known); reason != "" {
			g.stop(ctx, sb.ID, reason)
			continue
		}
		if more := w.growthSince(sb, last, known); more >= minGrowth && more > most {
			most, culprit = more, sb
		}
	}
	g.lastUsage = now
	reserve := g.reserve
	if free < reserve/2 && culprit != nil {
		g.stop(ctx, culprit.ID, fmt.Sprintf("the host's disk has only %s free, and this sandbox has just written more than any other, %s; free disk space before you start another one", free, most))
	}
	return free < reserve
}

// exceeds returns the reason why a sandbox exceeds the disk limit of its workspace, or "" if it does not. last is the usage at
// the last check; known is false if there is no last check. A sandbox that exceeded the limit at its first check may continue
// while its usage does not grow, so that it can delete files.
func (w diskUsage) exceeds(sb *caisson.Sandbox, last diskUsage, known bool) string {
	limit := sb.Spec.Resources.Disk
	switch {
	case sb.Spec.Volume != nil: // A volume may contain more than the sandbox's disk limit.
		return ""
	case w.tooDeep && !last.tooDeep:
		return fmt.Sprintf("its workspace has more than %d directories in one another", maxDepth)
	case !known || limit <= 0 || w.layer <= limit || w.layer <= last.layer:
		return ""
	}
	return fmt.Sprintf("the changes in its workspace take %s of at most %s; they are kept; create another sandbox with more disk", w.layer, limit)
}

// growthSince returns the number of bytes that a sandbox has written since the last check, whose usage is last; known is false if
// there is no last check. Data that was in a volume before the first check is not counted.
func (w diskUsage) growthSince(sb *caisson.Sandbox, last diskUsage, known bool) caisson.Size {
	if !known && sb.Spec.Volume != nil {
		last.layer = w.layer
	}
	return max(0, w.layer-last.layer) + max(0, w.root-last.root)
}

// measure measures the disk usage of a running sandbox.
func (g *diskGuard) measure(ctx context.Context, sb *caisson.Sandbox) (w diskUsage, err error) {
	if w.root, err = g.runtime.Written(sb.ID); err != nil {
		return w, err
	}
	dir, err := g.workspaces.openWritten(sb)
	if err != nil || dir == nil {
		return w, err
	}
	defer dir.Close()
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	n, err := guesttree.Count(ctx, dir, maxDepth)
	w.layer, w.tooDeep = caisson.Size(max(n.Bytes, n.Files*minFileSize)), errors.Is(err, guesttree.ErrDeep)
	if w.tooDeep || ctx.Err() != nil {
		err = nil // The size counted so far is a lower bound.
	}
	return w, err
}

// openWritten opens the host directory that receives what a sandbox writes to its workspace, placeholder or volume. Returns nil
// if the sandbox has none of them.
func (w *workspaces) openWritten(sb *caisson.Sandbox) (*os.File, error) {
	switch {
	case sb.Spec.Volume != nil && w.volumes != nil:
		return w.volumes.OpenData(sb.Spec.Volume.ID)
	case sb.Spec.Workspace != "" && w.layers != nil:
		return w.layers.OpenUpper(sb.Spec.Workspace)
	case sb.Spec.Workspace == "" && sb.Spec.WorkspaceAt != "":
		return os.Open(filepath.Join(w.dirs.sandboxPath(sb.ID, placeholderDir), upperDir))
	}
	return nil, nil
}

// isGone reports whether err, the error of a measurement, means that the sandbox has ended in the meantime.
func isGone(err error) bool {
	kind := caisson.KindOf(err)
	return kind == caisson.NotFound || kind == caisson.Conflict || errors.Is(err, fs.ErrNotExist)
}

// stop stops a running sandbox and marks it as failed for the given reason. If another operation holds the sandbox's
// lock, stop does nothing; the next check tries again.
func (g *diskGuard) stop(ctx context.Context, id caisson.ID, reason string) {
	release, err := g.locks.tryAcquire(id)
	if err != nil {
		return
	}
	defer release()
	g.watches.fail(ctx, id, "the sandbox was ended: "+reason)
}

// freeSpace returns the free space in bytes on the file system that contains dir.
func freeSpace(dir string) (caisson.Size, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return caisson.Size(st.Bavail) * caisson.Size(st.Bsize), nil
}
