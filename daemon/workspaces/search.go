package workspaces

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// suspectsFile is the name of the file with the result of the search for secrets in the host directory, once the search is
// complete.
const suspectsFile = "suspects.json"

// secretSearch searches the files that sandboxes see for secrets. The result is only reported, and no operation waits for it.
type secretSearch struct {
	*layerFiles
	after time.Duration // delay before the search, because the sandbox is being started then
}

// schedule starts a search of the files of a new workspace in the background.
func (c *secretSearch) schedule(w *caisson.Workspace) {
	c.background.Start(func(ctx context.Context) {
		select {
		case <-time.After(c.after):
		case <-ctx.Done():
			return
		}
		if err := c.search(ctx, w); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrNotExist) && caisson.KindOf(err) != caisson.Conflict {
			c.log.WarnContext(ctx, "the directory's files could not be searched for secrets", "workspace", w.ID, "err", err)
		}
	})
}

// search searches the files of a workspace for secrets, and stores the result.
func (c *secretSearch) search(ctx context.Context, w *caisson.Workspace) error {
	var opened files
	defer opened.close()
	host := opened.add(openHost(w, 0))
	manifest := opened.add(os.Open(c.dir(w.ID, manifestFile)))
	if opened.err != nil {
		return opened.err
	}
	if err := c.acquireSlot(ctx); err != nil {
		return err
	}
	found, err := baseline.RunSearch(ctx, c.jobs, host, manifest, baseline.SearchLimits{})
	<-c.jobSlots
	if err != nil {
		return err
	}
	release, err := c.lock(ctx, w.ID) // the workspace may have been removed during the search
	if err != nil {
		return err
	}
	defer release()
	return durable.WriteJSON(c.dir(w.ID, suspectsFile), &found)
}

// addTo adds to w the files whose content may contain secrets, and how much was searched, if the search has ended.
func (c *secretSearch) addTo(w *caisson.Workspace) error {
	var found *baseline.SearchResult
	if err := readJSON(c.dir(w.ID, suspectsFile), &found); err != nil || found == nil {
		return err
	}
	w.Suspects, w.SuspectCount = append(w.Suspects, found.List...), w.SuspectCount+found.Count
	w.Search = &caisson.WorkspaceSearch{Searched: found.Searched, Unsearched: found.Unsearched}
	return nil
}
