package workspaces

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/job/gate/compare"
)

// writersTimeout is the timeout for querying a sandbox about the processes that changed files.
const writersTimeout = 5 * time.Second

// writers records which process was the last to change each file in a workspace.
type writers struct {
	directory
	store     caisson.WorkspaceStore
	lifecycle Lifecycle // queries sandboxes; set by Core.SetSandboxes
	log       *slog.Logger
	locks     keylock.Locks // held while writers.json is written, by workspace id; acquired after layerFiles.locks
}

// findAuthors returns which process was the last to change each file in a workspace, as far as that is recorded. Records that
// the sandbox no longer has, because its kernel has ended, are read from writersFile. An error is logged and does not stop the
// review.
func (c *writers) findAuthors(ctx context.Context, w *caisson.Workspace) authors {
	now, err := c.query(ctx, w)
	var kept *caisson.Writers
	err = errors.Join(err, readJSON(c.dir(w.ID, writersFile), &kept))
	if err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "it is not known which processes have changed a workspace", "workspace", w.ID, "sandbox", w.Sandbox, "err", err)
	}
	return newAuthors(now.After(kept))
}

// attribute sets, in each change of list, the process that was the last to change its path, if that is recorded.
func (by authors) attribute(list []compare.Difference) {
	for i := range list {
		ch := &list[i].Change
		// A process that the worker job has returned for the change is not trusted and is overwritten.
		if ch.Process = by.lookup(ch.Path); ch.Process == "" && ch.OldPath != "" {
			ch.Process = by.lookup(ch.OldPath)
		}
	}
}

// query returns the sandbox's records of the processes that changed files in a workspace; nil if no sandbox can be queried.
func (c *writers) query(ctx context.Context, w *caisson.Workspace) (*caisson.Writers, error) {
	if w.State != caisson.WorkspaceLive || w.Kind == caisson.WorkspaceDirect {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writersTimeout)
	defer cancel()
	now, err := c.lifecycle.Writers(ctx, w.Sandbox)
	return now, caisson.IgnoreNotFound(err) // the sandbox may not exist yet, or no longer
}

// save stores in writersFile which process was the last to change each file, according to the sandbox of the workspace with the
// given id, for the time when the sandbox can no longer be queried.
func (c *writers) save(ctx context.Context, id caisson.ID) error {
	release, err := c.locks.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	w, err := c.store.Get(ctx, caisson.AllAccounts(), string(id))
	if err != nil {
		return err
	}
	now, err := c.query(ctx, w)
	if err != nil || now == nil || len(now.List) == 0 {
		return err
	}
	file := c.dir(id, writersFile)
	var kept *caisson.Writers
	if err := readJSON(file, &kept); err != nil {
		return err
	}
	all := now.After(kept)
	if kept != nil && slices.Equal(all.List, kept.List) {
		return nil
	}
	return durable.WriteJSON(file, all)
}

// saveAllWriters stores, for all live workspaces, which process was the last to change each file. It is called periodically,
// because a sandbox loses its records when its kernel ends, which a program in the sandbox can cause.
func (c *Core) saveAllWriters(ctx context.Context) {
	err := c.eachWorkspace(ctx, func(w *caisson.Workspace) {
		if err := c.reviews.writers.save(ctx, w.ID); err != nil {
			c.cfg.Log.DebugContext(ctx, "it is not known which processes have changed a workspace", "workspace", w.ID, "sandbox", w.Sandbox, "err", err)
		}
	}, caisson.WorkspaceLive)
	if err != nil && ctx.Err() == nil {
		c.cfg.Log.ErrorContext(ctx, "workspaces could not be listed", "err", err)
	}
}

// authors contains the records of the processes that changed files in a workspace, indexed by path.
type authors struct {
	list []caisson.Writer // records of changes, oldest first
	at   map[string]int   // index in list of the record of a path
}

// newAuthors indexes by path the records in all of the processes that changed files in a workspace. all may be nil.
func newAuthors(all *caisson.Writers) authors {
	var a authors
	if all == nil {
		return a
	}
	a.list, a.at = all.List, make(map[string]int, len(all.List))
	for i, x := range all.List {
		a.at[x.Path] = i
	}
	return a
}

// lookup returns the id and command of the process that was the last to change the file name, or to rename a directory above
// it; "" if none is recorded.
func (a authors) lookup(name string) string {
	last := -1
	if i, ok := a.at[name]; ok {
		last = i
	}
	for dir := name; dir != "" && len(a.list) > 0; {
		if dir = path.Dir(dir); dir == "." || dir == "/" {
			break
		}
		if i, ok := a.at[dir]; ok && a.list[i].Moved {
			last = max(last, i)
		}
	}
	if last < 0 {
		return ""
	}
	return strconv.Itoa(a.list[last].PID) + " " + a.list[last].Command
}
