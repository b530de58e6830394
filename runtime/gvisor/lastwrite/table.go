// Package lastwrite is a table of which process of a sandbox was the last to change each file of a workspace, and the form in
// which gVisor's process, where the table is, tells it to the daemon, which does not believe it.
package lastwrite

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
)

// Bounds of a table. What is longer than a path may be, or has not been changed for the longest time, is dropped and counted.
const (
	MaxPaths   = 20_000
	MaxPath    = 4096    // bytes of one path
	MaxBytes   = 4 << 20 // of all paths
	MaxCommand = 16      // as long as Linux lets the name of a process be
)

// A Process is who did something.
type Process struct {
	PID     uint32 // in the sandbox's own numbering
	UID     uint32
	Command string
}

// A Record says who was the last to change what is at a path.
type Record struct {
	Path string // relative to the workspace, "" for itself; any bytes but NUL
	// Moved says that what is there came, or went, with its name. It holds for what is below as well.
	Moved bool
	Process
}

// A Table notes who changes what. It is safe for concurrent use. The zero Table is empty.
//
// What happens to a name (made, removed, renamed) is noted for that; what happens to a file (written, its mode changed), for all
// the names that it is known to have.
type Table struct {
	mu      sync.Mutex
	names   map[string]*name // guarded by mu, as is what is in it
	order   list.List        // of *name, oldest first; guarded by mu
	bytes   int              // of the paths; guarded by mu
	clock   uint64           // counts changes; guarded by mu
	dropped uint64           // guarded by mu
}

// A mark is a change and when it was.
type mark struct {
	at uint64 // 0: never
	Process
}

// name is what is known of one path.
type name struct {
	path  string
	mark       // of the name
	gone  bool // by that change
	moved bool // by that change
	file  *mark
	place *list.Element
}

// Wrote notes a change of the file at path.
func (t *Table) Wrote(path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.touch(path); n != nil {
		t.write(n, by)
	}
}

// Opened notes that path was opened so that it was made if it was not there: nothing, unless it is known not to have been.
func (t *Table) Opened(path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.names[path]; n != nil && (!n.gone || n.file != nil) {
		return
	}
	if n := t.touch(path); n != nil {
		t.write(n, by)
	}
}

// Made notes that path, which was not there, is now: a directory, say.
func (t *Table) Made(path string, by Process) { t.named(path, by, false) }

// Removed notes that path is not there any more.
func (t *Table) Removed(path string, by Process) { t.named(path, by, true) }

func (t *Table) named(path string, by Process, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.touch(path); n != nil {
		t.name(n, by, gone, false)
		n.file = nil
	}
}

// Linked notes that path is a further name of the file at old.
func (t *Table) Linked(old, path string, by Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	file := &mark{}
	if n := t.touch(old); n != nil {
		if n.file == nil {
			n.file = file
		}
		file = n.file
	}
	if n := t.touch(path); n != nil {
		t.name(n, by, false, false)
		n.file = file
	}
}

// Renamed notes that what was at old is at path, and with swap the other way round as well.
func (t *Table) Renamed(old, path string, swap bool, by Process) {
	if old == path {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from, to := t.touch(old), t.touch(path)
	var was, over *mark
	if from != nil {
		was = from.file
	}
	if to != nil {
		if over = to.file; over != nil && over == was {
			return // two names of one file: nothing has happened
		}
		t.name(to, by, false, true)
		to.file = was
	}
	if from != nil {
		t.name(from, by, !swap, true)
		if from.file = nil; swap {
			from.file = over
		}
	}
}

// touch returns what is known of path, as the newest of all; nil if it is too long to be kept. t is locked.
func (t *Table) touch(path string) *name {
	if len(path) > MaxPath {
		t.dropped++
		return nil
	}
	if n := t.names[path]; n != nil {
		t.order.MoveToBack(n.place)
		return n
	}
	if t.names == nil {
		t.names = map[string]*name{}
	}
	n := &name{path: path}
	n.place = t.order.PushBack(n)
	t.names[path] = n
	t.bytes += len(path)
	for len(t.names) > MaxPaths || t.bytes > MaxBytes {
		oldest := t.order.Remove(t.order.Front()).(*name)
		delete(t.names, oldest.path)
		t.bytes -= len(oldest.path)
		t.dropped++
	}
	return n
}

// write notes a change of the file that n names. t is locked.
func (t *Table) write(n *name, by Process) {
	if n.file == nil {
		n.file = &mark{}
	}
	t.clock++
	*n.file = mark{t.clock, by}
}

// name notes a change of the name n itself. t is locked.
func (t *Table) name(n *name, by Process, gone, moved bool) {
	t.clock++
	n.mark, n.gone, n.moved = mark{t.clock, by}, gone, moved
}

// List returns what the table has, oldest first, and how much it has dropped.
func (t *Table) List() (records []Record, dropped uint64) {
	t.mu.Lock()
	type dated struct {
		at uint64
		Record
	}
	all := make([]dated, 0, len(t.names))
	for path, n := range t.names {
		last, moved := n.mark, n.moved
		if n.file != nil && n.file.at > last.at {
			last, moved = *n.file, false
		}
		all = append(all, dated{last.at, Record{path, moved, last.Process}})
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
