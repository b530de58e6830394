package gate

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
)

// BaseOfCopy is [Base] for a workspace whose sandbox has a copy of the directory, as [Copy] has made it. What had changed between scan and
// copy starts as the copy has it.
func BaseOfCopy(ctx context.Context, copied, manifest, dst *os.File, limits BaseLimits) error {
	defer keepAlive(copied, dst)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := limits.withDefaults()
	files, err := newest(m, l)
	if err != nil {
		return err
	}
	store := &baseStore{entries: map[string]*baseEntry{}}
	pack, err := openFile(dst, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	out := &packFile{file: pack}
	r := newHostReader(ctx, int(copied.Fd()))
	for i := range files {
		was := &files[i]
		if caisson.Size(out.off+was.size) > l.Bytes {
			continue
		}
		is, err := r.look(was.Path)
		if err != nil {
			return err
		}
		if is.typ != typeFile || is.size > int64(l.File) || is.odd != "" {
			continue
		}
		data, err := readContent(ctx, int(copied.Fd()), was.Path, &is.stat, int64(l.File))
		if err != nil && (ctx.Err() != nil || !errors.Is(err, errChanged) && unexpected(err) != nil) {
			return fmt.Errorf("read the copy of %s: %w", safetext.Path(was.Path), err)
		}
		if err != nil || !isText(data) {
			continue
		}
		e := &baseEntry{stat: was.stat, summed: true, sum: sha256.Sum256(data), off: out.off, length: int64(len(data))}
		if is.size != was.size || is.mtime != was.mtime || is.mode != was.mode&permissions {
			e.stat, e.rebased = is.stat, true
		}
		store.entries[was.Path] = e
		if err := out.write(data); err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(dst)
}

// Forget takes back that paths, and what is below them, were applied: a sandbox with a copy has them again as the copy has. What the
// copy had there is not known any more, so that what both sides change clashes.
func Forget(base *os.File, paths []string) error {
	defer keepAlive(base)
	store, err := openBase(base)
	if err != nil {
		return err
	}
	defer store.close()
	n := len(store.entries)
	for path, e := range store.entries {
		if e.rebased && slices.ContainsFunc(paths, func(p string) bool { return p == path || below(path, p) }) {
			delete(store.entries, path)
		}
	}
	if len(store.entries) == n {
		return nil
	}
	return store.save(base)
}
