package workspaces

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// A dropPlan describes how one change is removed from a layer.
type dropPlan struct {
	paths []string // paths to remove, with everything below them
	dir   string   // path of a directory of which only the permissions are restored; "" for none
	mode  uint32   // permissions that are restored: those that dir had in the host directory
}

// planDrops returns how the changes at the paths in drop are removed from the layer. Returns an error if that would remove
// another change too.
func (s *syncRun) planDrops(r *review, chosen selection, drop []string) ([]dropPlan, error) {
	var list []dropPlan
	for _, name := range drop {
		i, ok := chosen.byPath[name]
		switch {
		case !ok:
			return nil, caisson.Errorf(caisson.Conflict, "the review has no change of %.200q; look at the changes again", name)
		case chosen.chosen[i]:
			return nil, caisson.Invalidf("drop", "contains %.200q, which is applied or needed by an applied change", name)
		case !fs.ValidPath(name) || name == "." || strings.HasPrefix(name, `"`):
			// The path in the review is escaped, or is that of the root, so it is not the name of a file that can be removed.
			return nil, caisson.Errorf(caisson.Conflict, "%.200s cannot be dropped by itself; reset the workspace, or remove it in the sandbox", name)
		}
		ch := r.Changes[i].Change
		if ch.Type == "dir" && ch.Kind == caisson.ChangeMode {
			list = append(list, dropPlan{dir: name, mode: ch.OldMode & 0o777})
			continue
		}
		d := dropPlan{paths: []string{name}}
		if ch.OldPath != "" {
			d.paths = append(d.paths, ch.OldPath)
		}
		for _, other := range r.Changes {
			c := other.Change
			for _, p := range d.paths {
				for _, q := range []string{c.Path, c.OldPath} {
					if strings.HasPrefix(q, p+"/") && !slices.Contains(drop, c.Path) {
						return nil, caisson.Errorf(caisson.Conflict, "a directory goes with all that is in it; drop %.200q as well", c.Path)
					}
				}
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// drop removes changes from the layer. The sandbox must not run.
func (s *syncRun) drop(ctx context.Context, list []dropPlan) error {
	if len(list) == 0 {
		return nil
	}
	var paths []string
	for _, d := range list {
		paths = append(paths, d.paths...)
	}
	if err := s.c.layerFiles.unmarkApplied(ctx, s.w, paths); err != nil {
		return err
	}
	upper, err := os.OpenRoot(s.c.dir(s.w.ID, upperDir))
	if err != nil {
		return err
	}
	defer upper.Close()
	for _, d := range list {
		if d.dir != "" {
			if err := upper.Chmod(d.dir, fs.FileMode(d.mode)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		for _, name := range d.paths {
			if err := removeIn(upper, name, s.c.dir(s.w.ID, droppedDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	publish(ctx, s.c.cfg.Events, s.w, "workspace.dropped", map[string]string{"changes": fmt.Sprint(len(list))})
	return s.c.reviews.countChanges(context.WithoutCancel(ctx), s.w)
}
