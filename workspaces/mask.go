package workspaces

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
)

// showFile has the patterns of names that a workspace shows after all.
const showFile = "show.json"

// fill records what the host's directory is like, and hides what is to be hidden. mode is that of the directory.
func (c laying) fill(ctx context.Context, w *caisson.Workspace, show []string, mode uint32) error {
	if w.Kind == caisson.WorkspaceDirect {
		w.Warning = "The sandbox writes to the directory itself: nothing is hidden or reviewed, and nothing can be undone."
		return nil
	}
	if _, err := gate.NewMask(c.Hide, show); err != nil {
		return err
	}
	if len(show) > 0 { // without the file nothing is shown
		if err := writeJSON(c.dir(w.ID, showFile), show); err != nil {
			return err
		}
	}
	var opened files
	defer opened.close()
	host, err := opened.add(c.openHost(w, 0))
	if err != nil {
		return err
	}
	manifest, err := opened.add(os.OpenFile(c.dir(w.ID, manifestFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600))
	if err != nil {
		return diskFull(err)
	}
	found, err := c.Tool.Scan(ctx, host, c.Hide, show, manifest)
	if err != nil {
		return diskFull(err)
	}
	if found.Cut {
		return caisson.Errorf(caisson.Exhausted, "%.100q has too many entries to look for secrets in all of them; choose a smaller directory", w.Source)
	}
	w.Files, w.Hidden, w.HiddenCount = found.Files+found.Dirs, found.Hidden, found.HiddenCount
	if found.Closed > 0 {
		w.Warning = fmt.Sprintf("%d directories could not be looked into for secrets: their owner cannot read them, or they are on other file systems.", found.Closed)
	}
	layer, err := opened.add(openDir(c.dir(w.ID, maskDir), 0))
	if err != nil {
		return err
	}
	if found.HiddenCount > 0 {
		if err := c.Tool.Cover(ctx, manifest, layer); err != nil {
			return diskFull(err)
		}
	}
	return layer.Chmod(os.FileMode(mode & 0o777)) // the guest sees it, and no job has to write there any more
}

// makeBase keeps small files of the host's directory, for merges.
func (c laying) makeBase(ctx context.Context, w *caisson.Workspace) error {
	if w.Kind == caisson.WorkspaceCopy {
		return c.laying.baseOfCopy(ctx, w)
	}
	var opened files
	defer opened.close()
	host, err := opened.add(c.openHost(w, 0))
	if err != nil {
		return err
	}
	manifest, err := opened.add(os.Open(c.dir(w.ID, manifestFile)))
	if err != nil {
		return err
	}
	base, err := opened.add(openDir(c.dir(w.ID, baseDir), 0))
	if err != nil {
		return err
	}
	return c.Tool.Base(ctx, host, manifest, base, gate.BaseLimits{})
}

// keepBase does makeBase in the background. What cannot be kept clashes later where it could be merged.
func (c laying) keepBase(ctx context.Context, w *caisson.Workspace) {
	release, err := c.lock(ctx, w.ID)
	if err != nil {
		return
	}
	defer release()
	if err := c.laying.makeBase(ctx, w); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) {
		c.Log.WarnContext(ctx, "the directory's files could not be kept for merges", "workspace", w.ID, "err", err)
	}
}
