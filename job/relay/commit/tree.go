package commit

import (
	"bytes"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Types of tree entries, with the values of Type in [caisson.Change].
const (
	typeFile    = "file"
	typeDir     = "dir"
	typeSymlink = "symlink"
	typeNone    = "none"
)

// The modes that git writes into trees.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeSymlink    = "120000"
	modeTree       = "40000"
	modeSubmodule  = "160000"
)

// A treeEntry is an entry of a tree. The zero treeEntry stands for a missing entry.
type treeEntry struct {
	name string // any bytes except / and NUL
	mode string // octal digits, as git writes them; "" for a missing entry
	id   string // object name; of a submodule, its commit
}

func (e treeEntry) isTree() bool { return e.mode == modeTree }

// typ returns the type of the entry for checks: file, symlink, dir, none, or "mode" and an unknown mode. A submodule is a dir.
func (e treeEntry) typ() string {
	switch e.mode {
	case "":
		return typeNone
	case modeFile, modeExecutable:
		return typeFile
	case modeSymlink:
		return typeSymlink
	case modeTree, modeSubmodule:
		return typeDir
	}
	return "mode " + e.mode
}

// perm returns the permissions that the entry has on disk.
func (e treeEntry) perm() uint32 {
	switch e.mode {
	case modeFile:
		return 0o644
	case modeExecutable, modeTree, modeSubmodule:
		return 0o755
	}
	return 0
}

// A treeObject is one directory of a commit. It is immutable.
type treeObject struct {
	entries []treeEntry
	byName  map[string]int // index in entries
}

// entry returns the entry with a name, or a zero treeEntry if there is none.
func (t *treeObject) entry(name string) treeEntry {
	if i, ok := t.byName[name]; ok {
		return t.entries[i]
	}
	return treeEntry{}
}

// parseTree parses a tree object with ids of idSize bytes, which is a sequence of "<mode> <name>\0<id>".
func parseTree(data []byte, idSize int) (*treeObject, error) {
	bad := caisson.Errorf(caisson.Invalid, "a directory of the commit is malformed")
	t := &treeObject{byName: map[string]int{}}
	for len(data) > 0 {
		mode, rest, ok := bytes.Cut(data, []byte{' '})
		if !ok || len(mode) == 0 || len(mode) > 6 || len(bytes.Trim(mode, "01234567")) > 0 {
			return nil, bad
		}
		name, rest, ok := bytes.Cut(rest, []byte{0})
		if !ok || len(rest) < idSize || !validEntryName(string(name)) {
			return nil, bad
		}
		e := treeEntry{name: string(name), mode: string(mode), id: hex.EncodeToString(rest[:idSize])}
		if _, twice := t.byName[e.name]; twice {
			return nil, bad
		}
		t.byName[e.name] = len(t.entries)
		t.entries = append(t.entries, e)
		data = rest[idSize:]
	}
	return t, nil
}

// validEntryName reports whether name can be the name of a tree entry.
func validEntryName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/")
}

// find returns the entry at a path below the tree root, or a zero treeEntry if there is none.
func (o *Objects) find(root, name string) (treeEntry, error) {
	at := treeEntry{mode: modeTree, id: root}
	for part := range strings.SplitSeq(name, "/") {
		if !at.isTree() {
			return treeEntry{}, nil
		}
		t, err := o.tree(at.id)
		if err != nil {
			return treeEntry{}, err
		}
		at = t.entry(part)
	}
	return at, nil
}

// commitTree is the tree of a commit, in the form in which the rules of package check read it.
type commitTree struct {
	objects *Objects // reads the trees
	root    string   // id of the tree of the commit
	parents []string // ids of the trees of its parents
}

// Lookup returns the type of the entry at a path, "none" if it does not exist, and the target if it is a symlink.
func (t commitTree) Lookup(name string) (typ, link string, err error) {
	e, err := t.objects.find(t.root, name)
	if err != nil || e.mode != modeSymlink {
		return e.typ(), "", err
	}
	data, err := t.objects.Read(e.id, "blob", maxLink)
	return typeSymlink, string(data), err
}

// Children returns the names of the entries in dir; no names if dir is not a directory.
func (t commitTree) Children(dir string) ([]string, error) {
	root := treeEntry{mode: modeTree, id: t.root}
	if dir != "" {
		var err error
		if root, err = t.objects.find(t.root, dir); err != nil {
			return nil, err
		}
	}
	if !root.isTree() {
		return nil, nil
	}
	tree, err := t.objects.tree(root.id)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(tree.entries))
	for _, e := range tree.entries {
		names = append(names, e.name)
	}
	return names, nil
}

// Content returns the contents of a file in all parents of the commit, each followed by a zero byte, but at most limit bytes.
func (t commitTree) Content(name string, limit int64) []byte {
	var all []byte
	for _, p := range t.parents {
		e, err := t.objects.find(p, name)
		if err != nil || e.typ() != typeFile {
			continue
		}
		data, err := t.objects.Read(e.id, "blob", limit-int64(len(all)))
		if err != nil {
			continue
		}
		all = append(append(all, data...), 0)
	}
	return all[:min(int64(len(all)), limit)]
}

// Limits of trees.
const (
	maxLink  = 4096 // bytes of a symlink's target
	maxDepth = 200  // nested directories
)

// A treeDiff collects the changes of a commit.
type treeDiff struct {
	objects    *Objects         // reads the trees
	limit      int              // maximum number of changes
	changes    []caisson.Change // the changes so far
	submodules map[string]bool  // paths of submodules among the changes
}

// walk adds the entries in dir and below that differ from all parents, and those that undo a change of a parent relative to
// bases, which are the trees of the parents' merge bases. The id "" stands for an empty tree. It returns errTooLarge if there are
// more changes than the limit, or the directories are nested too deeply.
func (d *treeDiff) walk(dir, tree string, parents, bases []string) error {
	if strings.Count(dir, "/") >= maxDepth {
		return errTooLarge
	}
	now, err := d.objects.tree(tree)
	if err != nil {
		return err
	}
	before, err := d.readTrees(parents)
	if err != nil {
		return err
	}
	common, err := d.readTrees(bases)
	if err != nil {
		return err
	}
	for _, e := range now.entries {
		if err := d.compare(dir, e.name, e, before, common); err != nil {
			return err
		}
	}
	// Entries that parents have and this tree does not have were removed.
	for i, t := range before {
		for _, e := range t.entries {
			told := slices.ContainsFunc(before[:i], func(t *treeObject) bool { return t.entry(e.name).mode != "" })
			if told || now.entry(e.name).mode != "" {
				continue
			}
			if err := d.compare(dir, e.name, treeEntry{}, before, common); err != nil {
				return err
			}
		}
	}
	return nil
}

// readTrees returns the parsed trees with the given ids.
func (d *treeDiff) readTrees(ids []string) ([]*treeObject, error) {
	var list []*treeObject
	for _, id := range ids {
		t, err := d.objects.tree(id)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// compare adds the changes of the entry e, called name in dir, and of those below it, unless a merge of the parents yields e.
func (d *treeDiff) compare(dir, name string, e treeEntry, before, common []*treeObject) error {
	if inherited(name, e, before, common) {
		return nil
	}
	var old treeEntry
	dirs, wasTree := subtrees(name, before)
	for _, t := range before {
		if o := t.entry(name); old.mode == "" && o != e {
			old = o
		}
	}
	full := path.Join(dir, name)
	if !e.isTree() || !wasTree {
		if err := d.add(full, e, old); err != nil {
			return err
		}
	}
	if !e.isTree() && !wasTree {
		return nil
	}
	sub := ""
	if e.isTree() {
		sub = e.id
	}
	bases, _ := subtrees(name, common)
	return d.walk(full, sub, dirs, bases)
}

// inherited reports whether e, including everything below it, is what an automatic merge of the parents yields. It is not if e
// equals the entry of a merge base and another parent has changed that entry: otherwise a commit could revert files unnoticed by
// naming an older commit as a parent.
func inherited(name string, e treeEntry, before, common []*treeObject) bool {
	same, changed := false, false
	for _, t := range before {
		o := t.entry(name)
		if o == e {
			same = true
			continue
		}
		for _, b := range common {
			was := b.entry(name)
			// For directories, the entries below have to be compared.
			changed = changed || was == e || o != was && (e.isTree() || o.isTree() || was.isTree())
		}
	}
	return same && !changed
}

// subtrees returns the ids of the directories that trees have at a name, "" for those that have none, and whether at least one of
// them has a directory there.
func subtrees(name string, trees []*treeObject) (ids []string, some bool) {
	ids = make([]string, len(trees))
	for i, t := range trees {
		if o := t.entry(name); o.isTree() {
			ids[i], some = o.id, true
		}
	}
	return ids, some
}

// add adds the change of the entry at the path full from old to e.
func (d *treeDiff) add(full string, e, old treeEntry) error {
	if len(d.changes) >= d.limit {
		return errTooLarge
	}
	c := caisson.Change{
		Path: full, Type: e.typ(), OldType: old.typ(), Mode: e.perm(), OldMode: old.perm(), Hash: e.id, Kind: caisson.ChangeModified,
	}
	switch {
	case e.mode == "":
		c.Kind = caisson.ChangeRemoved
	case old.mode == "":
		c.Kind = caisson.ChangeAdded
	case c.Type != c.OldType:
		c.Kind = caisson.ChangeType
	case e.id == old.id:
		c.Kind = caisson.ChangeMode
	}
	if e.mode == modeSubmodule {
		d.submodules[full] = true
	}
	d.changes = append(d.changes, c)
	return nil
}
