package workspaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/baseline"
)

// showFile has the patterns of names that a workspace shows after all.
const showFile = "show.json"

// hidesIn returns hide, and what it comes to in the directory of w. Invalid if one of show is malformed.
func hidesIn(w *caisson.Workspace, hide, show []string) ([]string, error) {
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

// fill records what the host's directory is like, and hides what is to be hidden. mode is that of the directory.
func (c laying) fill(ctx context.Context, w *caisson.Workspace, show []string, mode uint32) error {
	if w.Kind == caisson.WorkspaceDirect {
		w.Warning = "The sandbox writes to the directory itself: nothing is hidden or reviewed, and nothing can be undone."
		return nil
	}
	hide, err := hidesIn(w, c.Hide, show)
	if err != nil {
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
	found, err := c.Tool.Scan(ctx, host, hide, show, manifest)
	if err != nil {
		return diskFull(err)
	}
	if found.Cut {
		return caisson.Errorf(caisson.Exhausted, "%.100q has too many entries to look for secrets in all of them; choose a smaller directory", w.Source)
	}
	w.Suspects, w.SuspectCount = found.Suspects.List, found.Suspects.Count
	w.Files, w.Hidden, w.HiddenCount = found.Files+found.Dirs, found.Hidden, found.HiddenCount
	if err := c.removals.begin(w, found.Own); err != nil {
		return err
	}
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
	return c.Tool.Base(ctx, host, manifest, base, baseline.Limits{})
}

// baseDelay is for how long the files of a new workspace with more entries than baseAtOnce are not kept yet, unless somebody wants it: its
// sandbox is being started then, and a large directory takes a processor for seconds. A small one is done before its sandbox runs: what
// is changed on the host from then on can be merged, and what is only touched is known to be the same.
const (
	baseDelay  = 500 * time.Millisecond
	baseAtOnce = 5000
)

// keepBaseSoon does makeBase in the background, or before whatever takes the workspace next. The caller holds w.
func (c laying) keepBaseSoon(w *caisson.Workspace) {
	c.mu.Lock()
	c.baseless[w.ID] = w
	c.mu.Unlock()
	delay := baseDelay
	if w.Files <= baseAtOnce {
		delay = 0
	}
	c.do(func(ctx context.Context) {
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

// keepBaseNow does what keepBaseSoon has put off. The caller holds the workspace.
func (c laying) keepBaseNow(ctx context.Context, id caisson.ID) {
	c.mu.Lock()
	w := c.baseless[id]
	delete(c.baseless, id)
	c.mu.Unlock()
	if w != nil {
		c.laying.base(ctx, w)
	}
}

// keepBase does makeBase in the background.
func (c laying) keepBase(ctx context.Context, w *caisson.Workspace) {
	if release, err := c.lock(ctx, w.ID); err == nil {
		defer release()
		c.laying.base(ctx, w)
	}
}

// base does makeBase. What cannot be kept clashes later where it could be merged.
func (c laying) base(ctx context.Context, w *caisson.Workspace) {
	if err := c.laying.makeBase(ctx, w); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) {
		c.Log.WarnContext(ctx, "the directory's files could not be kept for merges", "workspace", w.ID, "err", err)
	}
}
