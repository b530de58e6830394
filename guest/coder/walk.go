package coder

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	maxEntries = 10_000  // maximum number of entries of one directory that are visited
	maxWalk    = 200_000 // maximum number of entries that a walk visits
	maxDepth   = 64      // maximum depth of nested directories
)

// skippedDirs are names of directories that a walk skips, because they contain only generated or downloaded files.
var skippedDirs = map[string]bool{".git": true, ".hg": true, ".svn": true, "node_modules": true, "__pycache__": true, ".venv": true}

// walk is a walk through a directory tree in the order of the names, without the files that .gitignore files exclude. It does not
// follow symbolic links, so it terminates.
type walk struct {
	root       string                                       // path of the directory at which the walk begins
	left       int                                          // number of entries that may still be visited
	incomplete bool                                         // some entries were not visited because of a limit
	visit      func(path string, e fs.DirEntry) (into bool) // called for each entry; into decides whether a directory is walked
	done       func() bool                                  // reports whether the walk must end early
}

// walkTree calls visit for each entry below root, with its path relative to root, until done returns true. It walks a directory
// only if visit returns true for it. It reports whether all entries were visited.
func walkTree(ctx context.Context, root string, done func() bool, visit func(path string, e fs.DirEntry) (into bool)) (whole bool) {
	w := &walk{root: root, left: maxWalk, visit: visit}
	w.done = func() bool { return ctx.Err() != nil || done() }
	w.walkDir("", nil, maxDepth)
	return !w.incomplete && !w.done()
}

// walkDir walks the directory at base, a path relative to the root that is "" or ends with a slash. rules are those of the
// directories above, and depth is the number of levels of directories that may be walked, this directory included.
func (w *walk) walkDir(base string, rules ignores, depth int) {
	path := filepath.Join(w.root, base)
	d, err := os.Open(path)
	if err != nil {
		return // a directory that cannot be read is skipped
	}
	entries, _ := d.ReadDir(maxEntries + 1) // after a read error, the entries that were read are used
	d.Close()
	if len(entries) > maxEntries {
		entries, w.incomplete = entries[:maxEntries], true
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	rules = rules.withFile(path, base)
	for _, e := range entries {
		if w.done() {
			return
		}
		if w.left--; w.left < 0 || depth == 0 {
			w.incomplete = true
			return
		}
		name := base + e.Name()
		if skippedDirs[e.Name()] && e.IsDir() || rules.match(name, e.IsDir()) {
			continue
		}
		if w.visit(name, e) && e.IsDir() {
			w.walkDir(name+"/", rules, depth-1)
		}
	}
}

// pathDepth returns the number of directories that path leads through: 0 for a single name.
func pathDepth(path string) int { return strings.Count(path, "/") }
