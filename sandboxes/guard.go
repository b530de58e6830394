package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
)

// A guard looks what sandboxes write to the host's disk, and ends those that fill it: as the kernel does with memory, which has no way
// to say no either. A root file system has a limit of its own; a workspace's layer and a volume are directories of the host's, and no
// file system that users have can be relied on to limit those.
type guard struct {
	c *Core

	mu   sync.Mutex             // of a look
	seen map[caisson.ID]written // at the last look; guarded by mu
}

// How often it looks, and how well.
const (
	lookEvery = 5 * time.Second
	lookTight = time.Second     // when the disk is nearly full
	lookShare = 20              // looking takes at most one part of so many of the time
	countTime = 5 * time.Second // for what one sandbox has written; there is at least what was counted by then
	deepest   = 300             // directories in one another; what is deeper does not pass the gate anyway
	leastFile = 4 << 10         // what a file takes at least: its inode and its name count, too
	leastMore = 1 << 20         // growth of less is not what fills a disk
)

// written is what a sandbox has on the host's disk.
type written struct {
	layer caisson.Size // its workspace's layer, or the volume that it has
	root  caisson.Size // what it has written to its root file system
	deep  bool         // there is more, where it cannot be counted
}

// run looks until ctx ends.
func (g *guard) run(ctx context.Context) {
	for {
		began := time.Now()
		wait := lookEvery
		if g.look(ctx) {
			wait = lookTight
		}
		select {
		case <-time.After(max(wait, lookShare*time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// look ends what has grown beyond its limit since the last look and, if the disk is nearly full, what has grown most. It reports whether the
// disk has less left than is kept in reserve.
func (g *guard) look(ctx context.Context) (tight bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	free, err := g.c.Free()
	if err != nil {
		g.c.Log.ErrorContext(ctx, "what is free on the disk is not known", "err", err)
		free = g.c.Limits.DiskReserve
	}
	list, err := g.c.Runtime.List(ctx)
	if err != nil {
		g.c.Log.ErrorContext(ctx, "what sandboxes write is not known", "err", err)
		return false
	}
	now := make(map[caisson.ID]written, len(list))
	var most caisson.Size
	var culprit *caisson.Sandbox
	for _, r := range list {
		sb, err := g.c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(r.ID))
		if err != nil || ctx.Err() != nil || sb.State != caisson.Running {
			if last, ok := g.seen[r.ID]; ok && err == nil {
				now[r.ID] = last // it stands still, and goes on from there
			}
			continue
		}
		w, err := g.written(ctx, sb)
		if err != nil {
			if !gone(err) {
				g.c.Log.WarnContext(ctx, "what a sandbox has written is not known", "sandbox", sb.ID, "err", err)
			}
			continue
		}
		now[sb.ID] = w
		last, known := g.seen[sb.ID]
		if reason := w.over(sb, last, known); reason != "" {
			g.end(ctx, sb.ID, reason)
			continue
		}
		if more := w.since(sb, last, known); more >= leastMore && more > most {
			most, culprit = more, sb
		}
	}
	g.seen = now
	reserve := g.c.Limits.DiskReserve
	if free < reserve/2 && culprit != nil {
		g.end(ctx, culprit.ID, fmt.Sprintf("the host's disk has only %s left, and nobody wrote more just now than this sandbox, %s; make room before you begin another", free, most))
	}
	return free < reserve
}

// over says why a sandbox is over the limit of its workspace, and "" if it is not. One that was when it was first seen, and does not grow,
// can go on and tidy up.
func (w written) over(sb *caisson.Sandbox, last written, known bool) string {
	limit := sb.Spec.Resources.Disk
	switch {
	case sb.Spec.Volume != nil: // which may hold more than one sandbox may write
		return ""
	case w.deep && !last.deep:
		return fmt.Sprintf("its workspace has more than %d directories in one another", deepest)
	case !known || limit <= 0 || w.layer <= limit || w.layer <= last.layer:
		return ""
	}
	return fmt.Sprintf("what it has written to its workspace takes %s of at most %s; the changes are kept; begin another one with more disk", w.layer, limit)
}

// since is how much a sandbox has written since the last look. What was in a volume before is not its doing.
func (w written) since(sb *caisson.Sandbox, last written, known bool) caisson.Size {
	if !known && sb.Spec.Volume != nil {
		last.layer = w.layer
	}
	return max(0, w.layer-last.layer) + max(0, w.root-last.root)
}

// written looks what a sandbox that runs has on the disk.
func (g *guard) written(ctx context.Context, sb *caisson.Sandbox) (w written, err error) {
	if w.root, err = g.c.Runtime.Written(sb.ID); err != nil {
		return w, err
	}
	dir, err := g.c.spaces.written(sb)
	if err != nil || dir == nil {
		return w, err
	}
	defer dir.Close()
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	n, err := guesttree.Count(ctx, dir, deepest)
	w.layer, w.deep = caisson.Size(max(n.Bytes, n.Files*leastFile)), errors.Is(err, guesttree.ErrDeep)
	if w.deep || ctx.Err() != nil {
		err = nil // there is at least so much
	}
	return w, err
}

// written opens the directory of the host's in which a sandbox has what it writes to its workspace or volume; nil if it has none.
func (w workspaces) written(sb *caisson.Sandbox) (*os.File, error) {
	switch {
	case sb.Spec.Volume != nil && w.c.Volumes != nil:
		return w.c.Volumes.Written(sb.Spec.Volume.ID)
	case sb.Spec.Workspace != "" && w.c.Workspaces != nil:
		return w.c.Workspaces.Written(sb.Spec.Workspace)
	case sb.Spec.Workspace == "" && sb.Spec.WorkspaceAt != "":
		return os.Open(filepath.Join(w.c.inDir(sb.ID, placeholderDir), upperDir))
	}
	return nil, nil
}

// gone reports whether an error says that a sandbox has ended meanwhile.
func gone(err error) bool {
	kind := caisson.KindOf(err)
	return kind == caisson.NotFound || kind == caisson.Conflict || errors.Is(err, fs.ErrNotExist)
}

// end ends a sandbox that runs. One that somebody else changes just now is looked at again.
func (g *guard) end(ctx context.Context, id caisson.ID, reason string) {
	release, err := g.c.locks.try(id)
	if err != nil {
		return
	}
	defer release()
	g.c.watches.fail(ctx, id, "the sandbox was ended: "+reason)
}

// free is what is left on the file system of dir.
func free(dir string) (caisson.Size, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return caisson.Size(st.Bavail) * caisson.Size(st.Bsize), nil
}
