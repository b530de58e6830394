package inside

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
	maxEntries = 10_000  // of one directory that are looked at
	maxWalk    = 200_000 // entries of a whole walk
	maxDepth   = 64      // directories in each other
)

// skipped are directories that are never walked into, because they have nothing that a person wrote.
var skipped = map[string]bool{".git": true, ".hg": true, ".svn": true, "node_modules": true, "__pycache__": true, ".venv": true}

// walk goes through a tree in order, without what is ignored. Symbolic links are not followed, so it ends.
type walk struct {
	root  string
	left  int  // entries that may still be looked at
	cut   bool // some were not
	visit func(path string, e fs.DirEntry) (into bool)
	done  func() bool
}

// walkTree calls visit for each entry below root, with its path relative to it, until done. It returns whether all was seen.
func walkTree(ctx context.Context, root string, done func() bool, visit func(path string, e fs.DirEntry) (into bool)) (whole bool) {
	w := &walk{root: root, left: maxWalk, visit: visit}
	w.done = func() bool { return ctx.Err() != nil || done() }
	w.dir("", nil, maxDepth)
	return !w.cut && !w.done()
}

// dir walks the directory at base, "" or with a slash at the end.
func (w *walk) dir(base string, rules ignores, depth int) {
	path := filepath.Join(w.root, base)
	d, err := os.Open(path)
	if err != nil {
		return // what cannot be read is passed over
	}
	entries, _ := d.ReadDir(maxEntries + 1) // what can be read counts
	d.Close()
	if len(entries) > maxEntries {
		entries, w.cut = entries[:maxEntries], true
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	rules = rules.with(path, base)
	for _, e := range entries {
		if w.done() {
			return
		}
		if w.left--; w.left < 0 || depth == 0 {
			w.cut = true
			return
		}
		name := base + e.Name()
		if skipped[e.Name()] && e.IsDir() || rules.has(name, e.IsDir()) {
			continue
		}
		if w.visit(name, e) && e.IsDir() {
			w.dir(name+"/", rules, depth-1)
		}
	}
}

// depthOf returns how many directories path is in.
func depthOf(path string) int { return strings.Count(path, "/") }
