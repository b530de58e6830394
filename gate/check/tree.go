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
	"github.com/caisson-dev/caisson/gate/fsat"
)

// maxHops is how many symlinks one path may lead through, as in Linux.
const maxHops = 40

// tree is a directory as it would be with all changes: of the base what no change touches.
type tree struct {
	base    Tree
	changed map[string]*caisson.Change
	gone    map[string]bool     // what is removed or renamed away
	added   map[string][]string // names of changes by their directory
	names   map[string][]string // cache of children
}

func newTree(base Tree, changes []caisson.Change) *tree {
	t := &tree{base: base, changed: map[string]*caisson.Change{}, gone: map[string]bool{}, added: map[string][]string{}, names: map[string][]string{}}
	for i := range changes {
		c := &changes[i]
		if c.OldPath != "" && c.Kind == caisson.ChangeRenamed {
			t.gone[c.OldPath] = true
		}
		if c.Type == fsat.TypeNone || c.Kind == caisson.ChangeRemoved {
			t.gone[c.Path] = true
			continue
		}
		t.changed[c.Path] = c
	}
	for path := range t.changed {
		delete(t.gone, path)
		dir := fsat.Parent(path)
		t.added[dir] = append(t.added[dir], path[len(dir):])
	}
	return t
}

// lookup says what is at path, type none if nothing, and where a symlink leads.
func (t *tree) lookup(path string) (typ, link string, err error) {
	if c := t.changed[path]; c != nil {
		return c.Type, c.Link, nil
	}
	if t.covered(path) {
		return fsat.TypeNone, "", nil
	}
	return t.base.Lookup(path)
}

// covered reports whether a change takes away what the host has at path: there or above.
func (t *tree) covered(path string) bool {
	if t.gone[path] {
		return true
	}
	for dir := fsat.Parent(path); dir != ""; dir = fsat.Parent(dir) {
		if c := t.changed[dir]; t.gone[dir] || c != nil && c.Type != fsat.TypeDir {
			return true
		}
	}
	return false
}

// children returns the names in dir.
func (t *tree) children(dir string) ([]string, error) {
	if names, ok := t.names[dir]; ok {
		return names, nil
	}
	var names []string
	if dir == "" || !t.covered(dir) {
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
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return t.gone[prefix+n] })
	for _, n := range t.added[dir] {
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

// errOutside and the others say why a symlink is denied.
var (
	errOutside = errors.New("leads out of the directory")
	errLoop    = errors.New("leads to itself or through too many symlinks")
	errGitLink = errors.New("leads to what belongs to git")
)

// follow finds out where a symlink at path leads, step by step. What is not there yet counts as a directory.
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

// above returns the nearest directory of path that would be none.
func (t *tree) above(path string) string {
	for dir := fsat.Parent(path); dir != ""; dir = fsat.Parent(dir) {
		if c := t.changed[dir]; c != nil && c.Type != fsat.TypeDir || c == nil && t.gone[dir] {
			return dir
		}
	}
	return ""
}

// alike are groups of names in a directory, in order, by what they have in common: the key or the look.
type alike struct{ key, look map[string][]string }

// collisions returns the groups of names in dir that are one name on other systems, or that look alike, and of which at least one is
// that of a change. It may be called from several goroutines.
func (t *tree) collisions(dir string) (alike, error) {
	groups := alike{map[string][]string{}, map[string][]string{}}
	for _, n := range t.added[dir] {
		n = strings.TrimPrefix(n, "/")
		key, look := nameKey(n), nameLook(n)
		groups.key[key] = append(groups.key[key], n)
		groups.look[look] = append(groups.look[look], n)
	}
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	if dir == "" || !t.covered(dir) {
		names, err := t.base.Children(dir)
		if err != nil {
			return alike{}, err
		}
		for _, n := range names {
			if t.gone[prefix+n] {
				continue
			}
			if key := nameKey(n); groups.key[key] != nil { // few have the key of a change
				groups.key[key] = append(groups.key[key], n)
			}
			if look := nameLook(n); groups.look[look] != nil {
				groups.look[look] = append(groups.look[look], n)
			}
		}
	}
	for _, by := range []map[string][]string{groups.key, groups.look} {
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

// allCollisions is collisions of each of dirs; those that could not be looked into are in failed. Most of a large check is this: all
// names beside those of changes are read.
func (t *tree) allCollisions(ctx context.Context, dirs []string) (groups map[string]alike, failed map[string]error) {
	groups, failed = map[string]alike{}, map[string]error{}
	var mu sync.Mutex // guards both
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(dirs)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(dirs)); i = next.Add(1) - 1 {
				err := ctx.Err()
				var found alike
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

// repository reports whether dir would be what git takes for a repository without a work tree, whose configuration it then obeys.
func (t *tree) repository(dir string) (bool, error) {
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

// repositoryNames are what makes a directory a repository.
var repositoryNames = []string{"head", "objects", "refs", "config", "commondir", "hooks"}

// worse returns the stricter of two verdicts.
func worse(a, b string) string {
	order := []string{"", caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictConflict, caisson.VerdictDeny}
	rank := func(v string) int {
		if i := slices.Index(order, v); i >= 0 {
			return i
		}
		return len(order) // unknown is strictest
	}
	if cmp.Compare(rank(a), rank(b)) >= 0 {
		return a
	}
	return b
}

// LinkFault says why a symlink at path of a tree may not lead where link says, "" if it may: symlinks lead to what is in the tree,
// and not to what belongs to git.
func LinkFault(t Tree, path, link string) (string, error) {
	err := newTree(t, nil).follow(path, link)
	if errors.Is(err, errOutside) || errors.Is(err, errLoop) || errors.Is(err, errGitLink) {
		return err.Error(), nil
	}
	return "", err
}
