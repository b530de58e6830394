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

// A guard measures how much sandboxes write to the host's disk, and stops those that fill it, as the kernel's OOM
// killer does with memory. A sandbox's root file system has its own limit; a workspace's layer and a volume are host
// directories, and no commonly used file system can limit the size of those.
type guard struct {
	c *Core

	mu   sync.Mutex             // held during a check
	seen map[caisson.ID]written // usage at the last check; guarded by mu
}

// Intervals and limits of the checks.
const (
	lookEvery = 5 * time.Second
	lookTight = time.Second     // when the disk is nearly full
	lookShare = 20              // a check takes at most 1/lookShare of the time
	countTime = 5 * time.Second // timeout for measuring one sandbox; the count so far is then a lower bound
	deepest   = 300             // maximum depth of nested directories; the gate rejects deeper ones anyway
	leastFile = 4 << 10         // minimum size of a file in bytes, because its inode and name need space too
	leastMore = 1 << 20         // growth in bytes below which a sandbox is not stopped when the disk is nearly full
)

// written is the disk space that a sandbox uses on the host.
type written struct {
	layer caisson.Size // used by its workspace's layer or by its volume
	root  caisson.Size // used by its changes to its root file system
	deep  bool         // there are directories too deep to be measured
}

// run checks repeatedly until ctx ends.
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

// look stops the sandboxes that have grown beyond their limit since the last check and, if less than half of the disk
// reserve is free, the sandbox that has grown most. It reports whether less than the disk reserve is free.
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
				now[r.ID] = last // The sandbox does not run now and will continue from this usage.
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

// over returns why a sandbox exceeds the limit of its workspace, or "" if it does not. A sandbox that already exceeded
// the limit at its first check may continue while it does not grow, so that it can delete files.
func (w written) over(sb *caisson.Sandbox, last written, known bool) string {
	limit := sb.Spec.Resources.Disk
	switch {
	case sb.Spec.Volume != nil: // A volume may contain more than the sandbox's disk limit.
		return ""
	case w.deep && !last.deep:
		return fmt.Sprintf("its workspace has more than %d directories in one another", deepest)
	case !known || limit <= 0 || w.layer <= limit || w.layer <= last.layer:
		return ""
	}
	return fmt.Sprintf("what it has written to its workspace takes %s of at most %s; the changes are kept; begin another one with more disk", w.layer, limit)
}

// since returns how many bytes a sandbox has written since the last check. Data that was in a volume before the first
// check is not counted.
func (w written) since(sb *caisson.Sandbox, last written, known bool) caisson.Size {
	if !known && sb.Spec.Volume != nil {
		last.layer = w.layer
	}
	return max(0, w.layer-last.layer) + max(0, w.root-last.root)
}

// written measures the disk usage of a running sandbox.
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
		err = nil // The count is a lower bound.
	}
	return w, err
}

// written opens the host directory that contains a sandbox's changes to its workspace, or its volume; nil if it has
// neither.
func (w workspaces) written(sb *caisson.Sandbox) (*os.File, error) {
	switch {
	case sb.Spec.Volume != nil && w.c.Volumes != nil:
		return w.c.Volumes.OpenData(sb.Spec.Volume.ID)
	case sb.Spec.Workspace != "" && w.c.Workspaces != nil:
		return w.c.Workspaces.Written(sb.Spec.Workspace)
	case sb.Spec.Workspace == "" && sb.Spec.WorkspaceAt != "":
		return os.Open(filepath.Join(w.c.inDir(sb.ID, placeholderDir), upperDir))
	}
	return nil, nil
}

// gone reports whether err means that the sandbox has ended in the meantime.
func gone(err error) bool {
	kind := caisson.KindOf(err)
	return kind == caisson.NotFound || kind == caisson.Conflict || errors.Is(err, fs.ErrNotExist)
}

// end stops a running sandbox. If another operation holds the sandbox's lock, the next check tries again.
func (g *guard) end(ctx context.Context, id caisson.ID, reason string) {
	release, err := g.c.locks.try(id)
	if err != nil {
		return
	}
	defer release()
	g.c.watches.fail(ctx, id, "the sandbox was ended: "+reason)
}

// free returns the free space in bytes on the file system that contains dir.
func free(dir string) (caisson.Size, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return caisson.Size(st.Bavail) * caisson.Size(st.Bsize), nil
}
