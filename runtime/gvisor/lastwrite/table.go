// Package lastwrite implements a table of the processes of a sandbox that were the last to change each file of a workspace, and
// the encoding in which the sentry, which has the table, sends it to the daemon. The daemon treats the received table as
// untrusted.
package lastwrite

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
)

// Limits of a table. A path that is longer than MaxPath is dropped. If there are more than MaxPaths paths, or more than MaxBytes
// bytes, the least recently changed paths are dropped. The table counts the dropped paths.
const (
	MaxPaths   = 20_000  // maximum number of paths
	MaxPath    = 4096    // maximum length of one path, in bytes
	MaxBytes   = 4 << 20 // maximum length of all paths together, in bytes
	MaxCommand = 16      // bytes of a command, the limit of Linux for the name of a process
)

// A Process is the process that has made a change.
type Process struct {
	PID     uint32 // process id in the sandbox's root PID namespace
	UID     uint32 // effective user id in the sandbox
	Command string // name of the process, as in /proc/PID/comm
}

// A Record contains the last process that has changed the file at a path.
type Record struct {
	Path string // relative to the workspace, whose own path is ""; may contain any bytes but NUL
	// Moved means that the last change was a rename of the file to or from the path. If the file is a directory, the files below it
	// were moved too, but their records do not show this.
	Moved bool
	Process
}

// A Table records the last change of each path. It is safe for concurrent use. The zero Table is empty.
//
// Changes of a name (created, removed, renamed) are recorded for that name; changes of a file (written, mode changed) for all
// of its names in the table.
type Table struct {
	mu      sync.Mutex
	entries map[string]*pathEntry // entries by path; the map and its elements are guarded by mu
	order   list.List             // the elements are *pathEntry, the least recently changed first; guarded by mu
	bytes   int                   // total length of the paths; guarded by mu
	changes uint64                // number of recorded changes; guarded by mu
	dropped uint64                // number of paths that were dropped at the limits; guarded by mu
}

// A change contains the process that made a change, and the change's position in the order of all changes.
type change struct {
	seq uint64 // value of Table.changes after the change was counted; 0 means no change
	Process
}

// A pathEntry contains the last changes of one path of a workspace: of the name itself, and of the file with that name.
type pathEntry struct {
	path    string        // relative to the workspace
	change                // last change of the name
	removed bool          // the name no longer exists: its last change removed it or renamed it to another name
	moved   bool          // the last change of the name was a rename
	file    *change       // last change of the file, shared with its other names; nil if none is recorded
	element *list.Element // position in Table.order
}

// Wrote records a change of the file at path.
func (t *Table) Wrote(path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.moveToNewest(path); n != nil {
		t.recordFileChange(n, by)
	}
}

// Opened records that path was opened with O_CREAT. This counts as a change, because it may have created the file, unless the
// table has an entry of path that does not say that the file was gone.
func (t *Table) Opened(path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.entries[path]; n != nil && (!n.removed || n.file != nil) {
		return
	}
	if n := t.moveToNewest(path); n != nil {
		t.recordFileChange(n, by)
	}
}

// Made records that path was created, for example as a directory.
func (t *Table) Made(path string, by Process) { t.recordName(path, by, false) }

// Removed records that path was removed.
func (t *Table) Removed(path string, by Process) { t.recordName(path, by, true) }

// recordName records that path was created or, if gone is set, removed.
func (t *Table) recordName(path string, by Process, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.moveToNewest(path); n != nil {
		t.recordNameChange(n, by, gone, false)
		n.file = nil
	}
}

// Linked records that path is another name (hard link) of the file at old.
func (t *Table) Linked(old, path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	file := &change{}
	if n := t.moveToNewest(old); n != nil {
		if n.file == nil {
			n.file = file
		}
		file = n.file
	}
	if n := t.moveToNewest(path); n != nil {
		t.recordNameChange(n, by, false, false)
		n.file = file
	}
}

// Renamed records that old was renamed to path or, if swap is set, that old and path were exchanged.
func (t *Table) Renamed(old, path string, swap bool, by Process) {
	if old == path {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from, to := t.moveToNewest(old), t.moveToNewest(path)
	var was, over *change
	if from != nil {
		was = from.file
	}
	if to != nil {
		if over = to.file; over != nil && over == was {
			return // rename does nothing if both are names of the same file
		}
		t.recordNameChange(to, by, false, true)
		to.file = was
	}
	if from != nil {
		t.recordNameChange(from, by, !swap, true)
		if from.file = nil; swap {
			from.file = over
		}
	}
}

// moveToNewest returns the entry of path, which it creates if necessary and moves to the end of the order. It returns nil if path
// is too long. The caller must hold t.mu.
func (t *Table) moveToNewest(path string) *pathEntry {
	if len(path) > MaxPath {
		t.dropped++
		return nil
	}
	if n := t.entries[path]; n != nil {
		t.order.MoveToBack(n.element)
		return n
	}
	if t.entries == nil {
		t.entries = map[string]*pathEntry{}
	}
	n := &pathEntry{path: path}
	n.element = t.order.PushBack(n)
	t.entries[path] = n
	t.bytes += len(path)
	for len(t.entries) > MaxPaths || t.bytes > MaxBytes {
		oldest := t.order.Remove(t.order.Front()).(*pathEntry)
		delete(t.entries, oldest.path)
		t.bytes -= len(oldest.path)
		t.dropped++
	}
	return n
}

// recordFileChange records a change of the file at n, for all of its names. The caller must hold t.mu.
func (t *Table) recordFileChange(n *pathEntry, by Process) {
	if n.file == nil {
		n.file = &change{}
	}
	t.changes++
	*n.file = change{t.changes, by}
}

// recordNameChange records that the name n was created, removed (gone) or renamed (moved). The caller must hold t.mu.
func (t *Table) recordNameChange(n *pathEntry, by Process, gone, moved bool) {
	t.changes++
	n.change, n.removed, n.moved = change{t.changes, by}, gone, moved
}

// List returns the records in the order of their changes, oldest first, and the number of dropped paths.
func (t *Table) List() (records []Record, dropped uint64) {
	t.mu.Lock()
	type dated struct {
		at uint64
		Record
	}
	all := make([]dated, 0, len(t.entries))
	for path, n := range t.entries {
		last, moved := n.change, n.moved
		if n.file != nil && n.file.seq > last.seq {
			last, moved = *n.file, false
		}
		all = append(all, dated{last.seq, Record{path, moved, last.Process}})
	}
	dropped = t.dropped
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b dated) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.Path, b.Path)) })
	for _, d := range all {
		if d.at > 0 {
			records = append(records, d.Record)
		}
	}
	return records, dropped
}
