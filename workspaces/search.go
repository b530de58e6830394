package workspaces

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate/baseline"
)

// suspectsFile has what a search for secrets has found in the host's directory, once it has ended.
const suspectsFile = "suspects.json"

// searching looks for secrets in what sandboxes see. It is a report, and holds nothing up.
type searching struct{ *Core }

// soon searches the files of a new workspace in the background.
func (c searching) soon(w *caisson.Workspace) {
	c.do(func(ctx context.Context) {
		select {
		case <-time.After(c.SearchAfter):
		case <-ctx.Done():
			return
		}
		if err := c.search(ctx, w); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) && caisson.KindOf(err) != caisson.Conflict {
			c.Log.WarnContext(ctx, "the directory's files could not be searched for secrets", "workspace", w.ID, "err", err)
		}
	})
}

func (c searching) search(ctx context.Context, w *caisson.Workspace) error {
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
	if err := c.place(ctx); err != nil {
		return err
	}
	found, err := c.Tool.Search(ctx, host, manifest, baseline.SearchLimits{})
	<-c.jobs
	if err != nil {
		return err
	}
	release, err := c.lock(ctx, w.ID) // it may be removed meanwhile
	if err != nil {
		return err
	}
	defer release()
	return writeJSON(c.dir(w.ID, suspectsFile), &found)
}

// tell adds to w what was found in its files, if they were searched.
func (c searching) tell(w *caisson.Workspace) error {
	var found *baseline.SearchResult
	if err := readJSON(c.dir(w.ID, suspectsFile), &found); err != nil || found == nil {
		return err
	}
	w.Suspects, w.SuspectCount = append(w.Suspects, found.List...), w.SuspectCount+found.Count
	w.Search = &caisson.WorkspaceSearch{Searched: found.Searched, Unsearched: found.Unsearched}
	return nil
}
