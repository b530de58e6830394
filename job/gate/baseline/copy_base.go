package baseline

import (
	"context"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// KeepCopy is like [Keep], for a workspace whose sandbox has a copy of the directory that [Copy] has made. For files that
// changed between the scan and the copy, it records the state in the copy.
func KeepCopy(ctx context.Context, copied, manifest, dst *os.File, limits Limits) error {
	defer fsat.KeepAlive(copied)
	r := NewHostReader(ctx, int(copied.Fd()))
	return keep(ctx, copied, manifest, dst, limits, "the copy of ", func(was *Record) (State, bool, error) {
		is, err := r.Look(was.Path)
		return is, is.Size != was.Size || is.Mtime != was.Mtime || is.Mode != was.Mode&fsat.Permissions, err
	})
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
