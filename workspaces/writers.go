package workspaces

import (
	"context"
	"path"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
)

// writersTime bounds how long a look waits for a sandbox that does not say who has written what.
const writersTime = 5 * time.Second

// attribute says of each change which process was the last to make it, where that is known. The changes are those of the trees,
// whether it is known or not: a sandbox that does not say is no reason not to look.
func (c reviews) attribute(ctx context.Context, w *caisson.Workspace, list []gate.Difference) {
	all, err := c.writersOf(ctx, w)
	if err != nil && ctx.Err() == nil {
		c.Log.WarnContext(ctx, "it is not known which processes have changed a workspace", "workspace", w.ID, "sandbox", w.Sandbox, "err", err)
	}
	by := newAuthors(all)
	for i := range list {
		ch := &list[i].Change
		// Whatever the job has answered.
		if ch.Process = by.of(ch.Path); ch.Process == "" && ch.OldPath != "" {
			ch.Process = by.of(ch.OldPath)
		}
	}
}

// writersOf returns who was the last to change what in a workspace; nil if nobody knows.
func (c *Core) writersOf(ctx context.Context, w *caisson.Workspace) (*caisson.Writers, error) {
	if w.State == caisson.WorkspaceLive && c.Writers != nil {
		ctx, cancel := context.WithTimeout(ctx, writersTime)
		defer cancel()
		all, err := c.Writers(ctx, w.Sandbox)
		if err == nil || caisson.KindOf(err) != caisson.NotFound {
			return all, err
		}
		// The sandbox is not there yet, or not any more.
	}
	var all *caisson.Writers
	return all, readJSON(c.dir(w.ID, writersFile), &all)
}

// keepWriters keeps who has changed what in a workspace whose sandbox is about to be forgotten.
func (c *Core) keepWriters(ctx context.Context, id caisson.ID) {
	w, err := c.Store.Workspaces().Get(ctx, caisson.Everyone(), string(id))
	if err != nil || w.State != caisson.WorkspaceLive || w.Kind == caisson.WorkspaceDirect {
		return
	}
	all, err := c.writersOf(ctx, w)
	if err == nil && all != nil && len(all.List) > 0 {
		err = writeJSON(c.dir(id, writersFile), all)
	}
	if err != nil {
		c.Log.WarnContext(ctx, "it will not be known which processes have changed a workspace", "workspace", id, "sandbox", w.Sandbox, "err", err)
	}
}

// authors are writers by the path that they have changed.
type authors struct {
	list []caisson.Writer // oldest first
	at   map[string]int   // path → index in list
}

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

// of returns the process that was the last to change what is at name, or to rename a directory that it is in; "" if none is known.
func (a authors) of(name string) string {
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
