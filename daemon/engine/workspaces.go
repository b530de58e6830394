package engine

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/namemask"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/worker"
)

// masker implements [runs.Masker]. The files that it hides in copies of directories are those that workspaces hide, too.
type masker struct {
	jobs worker.Starter // starts worker jobs
	hide []string       // patterns of the names of hidden files
}

// Mask returns a mask that hides the files that match a pattern in m.hide and none in show, except templates like .env.example.
func (m masker) Mask(show []string) (*namemask.Mask, error) { return baseline.NewMask(m.hide, show) }

// MaskArchive copies a client's tar archive from in to out, without the files that the mask of Mask hides. It writes at most most
// bytes. It returns the first paths that it left out, and the number of all of these paths.
func (m masker) MaskArchive(ctx context.Context, show []string, in io.Reader, out *os.File, most int64) ([]string, int, error) {
	left, err := baseline.MaskArchive(ctx, m.jobs, m.hide, show, in, out, most)
	return left.Hidden, left.Count, err
}

// newWorkspaces constructs the core of workspaces.
func newWorkspaces(e *Engine) (*workspaces.Core, error) {
	return workspaces.New(workspaces.Config{
		Dir: e.cfg.Data.Dir, Store: e.data.store, Events: e.events, Jobs: e.drivers.Worker,
		UsesLayers: func(ctx context.Context, id caisson.ID) (bool, error) { return usesWorkspace(ctx, e.data.store, id) },
		Settings:   e.cfg.Work.Workspaces, Log: e.cfg.Log.With("component", "workspaces"),
	})
}

// usesWorkspace reports whether the workspace of a sandbox must not be changed, because the sandbox has mounted it, may mount
// it at any moment, or will continue with it when it is resumed.
func usesWorkspace(ctx context.Context, store caisson.Store, id caisson.ID) (bool, error) {
	sb, err := store.Sandboxes().Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return false, err
	}
	// The memory of a paused sandbox depends on the state of the files in its workspace.
	return sb.State.Live() || sb.State.Transient() || sb.State == caisson.Paused, nil
}
