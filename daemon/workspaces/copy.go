package workspaces

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/guesttree"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// copyDir is the name of the directory with the copy that the sandbox of a workspace of kind copy sees. The copy belongs to the
// owner of the host directory, and is removed after the sandbox, because diffs do not need it.
const copyDir = "copy"

// makeCopy copies the files of the host directory that the manifest lists. mode is the mode of the host directory.
func (c *layerFiles) makeCopy(ctx context.Context, w *caisson.Workspace, mode uint32) error {
	var opened files
	defer opened.close()
	host := opened.add(openHost(w, 0))
	manifest := opened.add(os.Open(c.dir(w.ID, manifestFile)))
	if opened.err != nil {
		return opened.err
	}
	if err := os.Mkdir(c.dir(w.ID, copyDir), 0o700); err != nil {
		return err
	}
	dst := opened.add(openDir(c.dir(w.ID, copyDir), 0))
	if opened.err != nil {
		return opened.err
	}
	if err := dst.Chown(int(w.UID), int(w.GID)); err != nil {
		return err
	}
	made, err := baseline.RunCopy(ctx, c.jobs, host, manifest, dst, baseline.CopyLimits{})
	if err != nil {
		return err
	}
	if made.Left > 0 {
		w.Warning += fmt.Sprintf(" %d files are not in the copy: their owner cannot read them, or they are pipes, sockets or devices.", made.Left)
	}
	if made.Changed > 0 {
		w.Warning += fmt.Sprintf(" %d files changed while they were copied, and may be inconsistent in the copy.", made.Changed)
	}
	w.Warning = strings.TrimSpace(w.Warning)
	// made.Shared counts the files that share their blocks with the original, and so need almost no space.
	c.log.InfoContext(ctx, "a directory was copied", "workspace", w.ID, "files", made.Files, "shared", made.Shared, "bytes", made.Bytes)
	return dst.Chmod(os.FileMode(mode & 0o777))
}

// hasCopy reports whether the sandbox of w sees a copy of the host directory. Applied changes are not written to the copy.
func hasCopy(w *caisson.Workspace) bool {
	return w.Kind == caisson.WorkspaceCopy && w.State == caisson.WorkspaceLive
}

// clearApplied is called after the layer of w was emptied. If the sandbox of w sees a copy of the host directory, which lacks the
// applied changes, it empties the base, which records these changes and is then saved again. The caller must hold the lock of w.
func (c *layerFiles) clearApplied(w *caisson.Workspace) error {
	if !hasCopy(w) {
		return nil
	}
	base, err := openDir(c.dir(w.ID, baseDir), 0)
	if err != nil {
		return err
	}
	defer base.Close()
	if err := guesttree.Empty(context.Background(), base); err != nil {
		return err
	}
	c.deferBase(w)
	return nil
}

// unmarkApplied is called before paths are dropped from the layer of w. If the sandbox of w sees a copy of the host
// directory, which lacks the applied changes, it discards the record that changes of these paths were applied.
func (c *layerFiles) unmarkApplied(ctx context.Context, w *caisson.Workspace, paths []string) error {
	if !hasCopy(w) || len(paths) == 0 {
		return nil
	}
	var opened files
	defer opened.close()
	copied := opened.add(openDir(c.dir(w.ID, copyDir), 0))
	base := opened.add(openDir(c.dir(w.ID, baseDir), 0))
	if opened.err != nil {
		return opened.err
	}
	return baseline.RunForget(ctx, c.jobs, copied, base, paths)
}

// removeCopy removes the copy of a workspace whose sandbox was removed.
func (c *layerFiles) removeCopy(w *caisson.Workspace) error {
	if w.Kind != caisson.WorkspaceCopy || w.State == caisson.WorkspaceLive {
		return nil
	}
	return removeTree(c.dir(w.ID, copyDir))
}
