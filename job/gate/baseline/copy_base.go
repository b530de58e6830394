package baseline

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// KeepCopy is like [Keep], for a workspace whose sandbox has a copy of the directory that [Copy] has made. For files that
// changed between the scan and the copy, it records the state in the copy.
func KeepCopy(ctx context.Context, copied, manifest, dst *os.File, limits Limits) error {
	defer fsat.KeepAlive(copied, dst)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := limits.withDefaults()
	files, err := newest(m, l)
	if err != nil {
		return err
	}
	store := &Store{Entries: map[string]*Entry{}}
	pack, err := fsat.OpenFile(dst, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	out := &packFile{file: pack}
	r := NewHostReader(ctx, int(copied.Fd()))
	for i := range files {
		was := &files[i]
		if caisson.Size(out.off+was.Size) > l.Bytes {
			continue
		}
		is, err := r.Look(was.Path)
		if err != nil {
			return err
		}
		if is.Type != fsat.TypeFile || is.Size > int64(l.File) || is.Unreadable != "" {
			continue
		}
		data, err := fsat.ReadContent(ctx, int(copied.Fd()), was.Path, &is.Stat, int64(l.File))
		if err != nil && (ctx.Err() != nil || !errors.Is(err, fsat.ErrChanged) && fsat.UnlessConcurrent(err) != nil) {
			return fmt.Errorf("read the copy of %s: %w", safetext.Path(was.Path), err)
		}
		if err != nil || !fsat.IsText(data) {
			continue
		}
		e := &Entry{Stat: was.Stat, summed: true, sum: sha256.Sum256(data), off: out.off, length: int64(len(data))}
		if is.Size != was.Size || is.Mtime != was.Mtime || is.Mode != was.Mode&fsat.Permissions {
			e.Stat, e.Rebased = is.Stat, true
		}
		store.Entries[was.Path] = e
		if err := out.write(data); err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(dst)
}

// Forget removes the applied states of paths, and of the paths below them, from base: in a sandbox with a copy, these paths are
// again as in the copy. The contents in the copy are no longer stored, so a change by both sides is a conflict.
func Forget(base *os.File, paths []string) error {
	defer fsat.KeepAlive(base)
	store, err := Open(base)
	if err != nil {
		return err
	}
	defer store.Close()
	n := len(store.Entries)
	for path, e := range store.Entries {
		if e.Rebased && slices.ContainsFunc(paths, func(p string) bool { return p == path || fsat.Below(path, p) }) {
			delete(store.Entries, path)
		}
	}
	if len(store.Entries) == n {
		return nil
	}
	return store.save(base)
}
