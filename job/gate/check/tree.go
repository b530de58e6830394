package check

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// maxHops is the maximum number of symlinks that are followed to resolve a path, as in Linux.
const maxHops = 40

// tree is the state that a [Tree], base, would have after all changes were applied.
type tree struct {
	base         Tree                       // the tree before the changes
	changed      map[string]*caisson.Change // the changes after which an entry exists, by path
	removedPaths map[string]bool            // paths that do not exist after the changes, because they were removed or renamed
	// changedNames has the names in changed by directory. A name is the rest of the path; it begins with a slash except in the root.
	changedNames map[string][]string
	names        map[string][]string // cache of children: the names in a directory after the changes, by directory
}

// newTree returns the tree of base with changes.
func newTree(base Tree, changes []caisson.Change) *tree {
	t := &tree{base: base, changed: map[string]*caisson.Change{}, removedPaths: map[string]bool{}, changedNames: map[string][]string{}, names: map[string][]string{}}
	for i := range changes {
		c := &changes[i]
		if c.OldPath != "" && c.Kind == caisson.ChangeRenamed {
			t.removedPaths[c.OldPath] = true
		}
		if c.Type == fsat.TypeNone || c.Kind == caisson.ChangeRemoved {
			t.removedPaths[c.Path] = true
			continue
		}
		t.changed[c.Path] = c
	}
	for path := range t.changed {
		delete(t.removedPaths, path)
		dir := fsat.Parent(path)
		t.changedNames[dir] = append(t.changedNames[dir], path[len(dir):])
	}
	return t
}

// lookup returns the type of the entry at path, "none" if it does not exist, and the target of a symlink.
func (t *tree) lookup(path string) (typ, link string, err error) {
	if c := t.changed[path]; c != nil {
		return c.Type, c.Link, nil
	}
	if t.removedOrReplaced(path) {
		return fsat.TypeNone, "", nil
	}
	return t.base.Lookup(path)
}

// removedOrReplaced reports whether a change removes the base's entry at path, or replaces or removes one of its parent
// directories.
func (t *tree) removedOrReplaced(path string) bool {
	if t.removedPaths[path] {
		return true
	}
	for dir := fsat.Parent(path); dir != ""; dir = fsat.Parent(dir) {
		if c := t.changed[dir]; t.removedPaths[dir] || c != nil && c.Type != fsat.TypeDir {
			return true
		}
	}
	return false
}

// children returns the names in dir after all changes, sorted.
func (t *tree) children(dir string) ([]string, error) {
	if names, ok := t.names[dir]; ok {
		return names, nil
	}
	var names []string
	if dir == "" || !t.removedOrReplaced(dir) {
		found, err := t.base.Children(dir)
		if err != nil {
			return nil, err
		}
		names = found
	}
	prefix := dir
	if dir != "" {
		prefix += "/"
	}
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return t.removedPaths[prefix+n] })
	for _, n := range t.changedNames[dir] {
		names = append(names, strings.TrimPrefix(n, "/"))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(t.names) > 1000 {
		clear(t.names)
	}
	t.names[dir] = names
	return names, nil
}

// Reasons why a symlink is denied. Each text completes the sentence "the symlink …".
var (
	errOutside = errors.New("leads out of the directory")
	errLoop    = errors.New("leads to itself or through too many symlinks")
	errGitLink = errors.New("leads to what belongs to git")
)

// follow resolves link, the target of a symlink at path, name by name, and returns one of the reasons why a symlink is denied,
// or nil. A name that does not exist is treated as a directory.
func (t *tree) follow(path, link string) error {
	var at []string
	if dir := fsat.Parent(path); dir != "" {
		at = strings.Split(dir, "/")
	}
	if strings.HasPrefix(link, "/") {
		return errOutside
	}
	todo := strings.Split(link, "/")
	for hops := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return errOutside
			}
			at = at[:len(at)-1]
			continue
		}
		if GitName(name) {
			return errGitLink
		}
		at = append(at, name)
		typ, next, err := t.lookup(strings.Join(at, "/"))
		if err != nil {
			return err
		}
		if typ != fsat.TypeSymlink {
			continue
		}
		if hops++; hops > maxHops {
			return errLoop
		}
		if strings.HasPrefix(next, "/") {
			return errOutside
		}
		at = at[:len(at)-1]
		todo = append(strings.Split(next, "/"), todo...)
	}
	return nil
}

// parentNotDir returns the nearest parent of path that the changes remove or make something other than a directory, or "" if
// there is none.
func (t *tree) parentNotDir(path string) string {
	for dir := fsat.Parent(path); dir != ""; dir = fsat.Parent(dir) {
		if c := t.changed[dir]; c != nil && c.Type != fsat.TypeDir || c == nil && t.removedPaths[dir] {
			return dir
		}
	}
	return ""
}

// nameGroups contains sorted groups of names in one directory. key has those that are one name on systems that ignore case or
// the form of Unicode, by the result of nameKey; skeleton has those that look alike, by the result of nameSkeleton.
type nameGroups struct{ key, skeleton map[string][]string }

// collisions returns the groups of at least two names in dir that collide on other systems, or that look alike. Each group
// contains the name of at least one change. It is safe for concurrent use.
func (t *tree) collisions(dir string) (nameGroups, error) {
	groups := nameGroups{map[string][]string{}, map[string][]string{}}
	for _, n := range t.changedNames[dir] {
		n = strings.TrimPrefix(n, "/")
		key, look := nameKey(n), nameSkeleton(n)
		groups.key[key] = append(groups.key[key], n)
		groups.skeleton[look] = append(groups.skeleton[look], n)
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	if dir == "" || !t.removedOrReplaced(dir) {
		names, err := t.base.Children(dir)
		if err != nil {
			return nameGroups{}, err
		}
		for _, n := range names {
			if t.removedPaths[prefix+n] {
				continue
			}
			if key := nameKey(n); groups.key[key] != nil { // only the names with the same key as the name of a change are collected
				groups.key[key] = append(groups.key[key], n)
			}
			if look := nameSkeleton(n); groups.skeleton[look] != nil {
				groups.skeleton[look] = append(groups.skeleton[look], n)
			}
		}
	}
	for _, by := range []map[string][]string{groups.key, groups.skeleton} {
		for key, g := range by {
			slices.Sort(g)
			if g = slices.Compact(g); len(g) < 2 {
				delete(by, key)
				continue
			}
			by[key] = g
		}
	}
	return groups, nil
}

// allCollisions calls collisions for each of dirs, concurrently. groups and failed contain the results and the errors by
// directory. It takes most of the time of a large check, because it reads all names in the directories of the changes.
func (t *tree) allCollisions(ctx context.Context, dirs []string) (groups map[string]nameGroups, failed map[string]error) {
	groups, failed = map[string]nameGroups{}, map[string]error{}
	var mu sync.Mutex // guards groups and failed
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(dirs)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(dirs)); i = next.Add(1) - 1 {
				err := ctx.Err()
				var found nameGroups
				if err == nil {
					found, err = t.collisions(dirs[i])
				}
				mu.Lock()
				if groups[dirs[i]] = found; err != nil {
					failed[dirs[i]] = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return groups, failed
}

// isRepository reports whether git would interpret dir, after all changes, as a repository without a work tree. Git would then
// obey the configuration in dir, which can contain commands.
func (t *tree) isRepository(dir string) (bool, error) {
	names, err := t.children(dir)
	if err != nil {
		return false, err
	}
	has := map[string]bool{}
	for _, n := range names {
		has[nameKey(n)] = true
	}
	return has["head"] && (has["objects"] && has["refs"] || has["commondir"]), nil
}

// repositoryNames are the names whose presence in a directory can make git interpret the directory as a repository.
var repositoryNames = []string{"head", "objects", "refs", "config", "commondir", "hooks"}

// stricter returns the stricter of two verdicts.
func stricter(a, b string) string {
	order := []string{"", caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictConflict, caisson.VerdictDeny}
	rank := func(v string) int {
		if i := slices.Index(order, v); i >= 0 {
			return i
		}
		return len(order) // an unknown verdict counts as the strictest
	}
	if cmp.Compare(rank(a), rank(b)) >= 0 {
		return a
	}
	return b
}

// LinkFault returns the reason why a symlink at path in t may not have the target link, or "" if it may: a target must be
// inside t and must not belong to git.
func LinkFault(t Tree, path, link string) (string, error) {
	err := newTree(t, nil).follow(path, link)
	if errors.Is(err, errOutside) || errors.Is(err, errLoop) || errors.Is(err, errGitLink) {
		return err.Error(), nil
	}
	return "", err
}
