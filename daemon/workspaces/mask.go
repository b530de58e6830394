package workspaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// showFile contains the patterns of names that a workspace does not hide.
const showFile = "show.json"

// hiddenPatterns returns hide, the patterns of files to hide from the sandbox of w, and those that follow from them for its host
// directory: one for all files if hide, with the exceptions show, hides the directory or a parent of it; and the rest of a
// pattern that begins with the last names of the directory's path. Returns Invalid if a pattern is malformed.
func hiddenPatterns(w *caisson.Workspace, hide, show []string) ([]string, error) {
	mask, err := baseline.NewMask(hide, show)
	if err != nil {
		return nil, err
	}
	if mask, err = mask.Within(w.HostPath, w.Source); err != nil {
		return nil, err
	}
	hide, _ = mask.Lists()
	return hide, nil
}

// scan writes the manifest, which records the state of the host directory, and hides the files that must be hidden,
// except those with names that match a pattern in show. mode is the mode of the host directory.
func (c *layerFiles) scan(ctx context.Context, w *caisson.Workspace, show []string, mode uint32) error {
	if w.Kind == caisson.WorkspaceDirect {
		w.Warning = "The sandbox writes to the directory itself: nothing is hidden or reviewed, and nothing can be undone."
		return nil
	}
	hide, err := hiddenPatterns(w, c.hidden, show)
	if err != nil {
		return err
	}
	if len(show) > 0 { // a missing showFile means that there are no patterns
		if err := durable.WriteJSON(c.dir(w.ID, showFile), show); err != nil {
			return err
		}
	}
	var opened files
	defer opened.close()
	host := opened.add(openHost(w, 0))
	manifest := opened.add(os.OpenFile(c.dir(w.ID, manifestFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))
	if opened.err != nil {
		return durable.DiskFull(opened.err)
	}
	found, err := baseline.RunScan(ctx, c.jobs, host, hide, show, manifest)
	if err != nil {
		return durable.DiskFull(err)
	}
	if found.Cut {
		return caisson.Errorf(caisson.Exhausted, "%.100q has too many entries to search all of them for secrets; choose a smaller directory", w.Source)
	}
	w.Suspects, w.SuspectCount = found.Suspects.List, found.Suspects.Count
	w.Files, w.Hidden, w.HiddenCount = found.Files+found.Dirs, found.Hidden, found.HiddenCount
	if err := c.removals.addWorkspace(w, found.Own); err != nil {
		return err
	}
	if found.Closed > 0 {
		w.Warning = fmt.Sprintf("%d directories could not be searched for secrets: their owner cannot read them, or they are on other file systems.", found.Closed)
	}
	layer := opened.add(openDir(c.dir(w.ID, maskDir), 0))
	if opened.err != nil {
		return opened.err
	}
	if found.HiddenCount > 0 {
		if err := baseline.RunCover(ctx, c.jobs, manifest, layer); err != nil {
			return durable.DiskFull(err)
		}
	}
	return layer.Chmod(os.FileMode(mode & 0o777)) // the sandbox sees this mode; no job writes any more to the layer
}

// saveBase saves the small files of the host directory, or of its copy, as the base for merges.
func (c *layerFiles) saveBase(ctx context.Context, w *caisson.Workspace) error {
	var opened files
	defer opened.close()
	source := opened.add(c.openSource(w, 0))
	manifest := opened.add(os.Open(c.dir(w.ID, manifestFile)))
	base := opened.add(openDir(c.dir(w.ID, baseDir), 0))
	if opened.err != nil {
		return opened.err
	}
	if w.Kind == caisson.WorkspaceCopy {
		return baseline.RunSaveBaseOfCopy(ctx, c.jobs, source, manifest, base, baseline.Limits{})
	}
	return baseline.RunSaveBase(ctx, c.jobs, source, manifest, base, baseline.Limits{})
}

// baseDelay is the delay before the base of a new workspace with more than maxUndelayedBase entries is saved, unless it is
// needed earlier: a large directory takes seconds of CPU time, while the sandbox is being started. The base of a smaller
// directory is saved before its sandbox runs, so that later changes on the host can be merged, and files that are only
// touched are recognised as unchanged.
const (
	baseDelay        = 500 * time.Millisecond // delay before the base of a larger directory is saved
	maxUndelayedBase = 5000                   // entries of a directory whose base is saved at once
)

// deferBase arranges that the base of w is saved: in the background, or before the next operation that locks w. The caller must
// hold the lock of w.
func (c *layerFiles) deferBase(w *caisson.Workspace) {
	c.pendingBases.Store(w.ID, w)
	delay := baseDelay
	if w.Files <= maxUndelayedBase {
		delay = 0
	}
	c.background.Start(func(ctx context.Context) {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return
		}
		if release, err := c.lock(ctx, w.ID); err == nil {
			release()
		}
	})
}

// saveDeferredBase saves the base of a workspace if deferBase was called and it is not saved yet. Later changes of files that
// could not be saved are conflicts, not merges. The caller must hold the lock of the workspace.
func (c *layerFiles) saveDeferredBase(ctx context.Context, id caisson.ID) {
	w, ok := c.pendingBases.LoadAndDelete(id)
	if !ok {
		return
	}
	if err := c.saveBase(ctx, w.(*caisson.Workspace)); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) {
		c.log.WarnContext(ctx, "the directory's files could not be kept for merges", "workspace", id, "err", err)
	}
}
