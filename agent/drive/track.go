package drive

import (
	"crypto/sha256"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
)

// Bounds of what is tracked.
const (
	maxEntries = 20000
	maxModules = 2000             // entries below each node_modules
	maxText    = 256 << 10        // of a file that is compared line by line
	maxTexts   = 32 << 20         // of all such files together
	maxHashed  = 256 << 20        // of all files that are read; the others are told apart by size and time
	scanTime   = 10 * time.Second // for one look at the directory
	racy       = time.Second      // a file that was changed so shortly before it was looked at may have been changed again in the same tick
)

// entry is what is known of a file, a link or anything else but directories.
type entry struct {
	mode   fs.FileMode // type and permissions
	size   int64
	time   time.Time // of the last change of content, and of the last one of any kind
	change time.Time
	inode  uint64
	hashed bool
	sum    [sha256.Size]byte // of content or of a link's target
	text   string            // content, if it is text and there was room
	isText bool
}

// manifest is a directory at a moment.
type manifest struct {
	at      time.Time
	entries map[string]*entry // by path below the directory
	cut     []string          // what it lacks, as words
	partial bool              // whether entries are missing, not only content
}

// tracker compares a directory with what it was.
type tracker struct {
	root   string
	before *manifest
}

// newTracker looks at the directory that t tracks; it is nil if there is none.
func newTracker(t *task.Task) *tracker {
	if t.Track == "" {
		return nil
	}
	tr := &tracker{root: resolved(t.Track)}
	tr.before = tr.scan(nil)
	return tr
}

// resolved returns the path of a directory without links in it.
func resolved(name string) string {
	if path, err := filepath.EvalSymlinks(name); err == nil {
		return path
	}
	return filepath.Clean(name)
}

// scan looks at the directory. What is the same as in before, as far as inode, size and times tell, is not read again.
func (tr *tracker) scan(before *manifest) *manifest {
	s := &scanner{
		manifest: manifest{at: time.Now(), entries: map[string]*entry{}}, before: before,
		hash: maxHashed, text: maxTexts, modules: map[string]int{},
	}
	_ = filepath.WalkDir(tr.root, func(name string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(tr.root, name)
		switch {
		case err != nil && rel == ".":
			return err
		case err != nil || relErr != nil:
			return nil // gone, or not to be read; what can be is compared
		case time.Since(s.at) > scanTime:
			s.lacks("the rest of a directory that takes too long to read", true)
			return fs.SkipAll
		}
		return s.visit(name, rel, d)
	})
	return &s.manifest
}

// scanner makes a manifest.
type scanner struct {
	manifest
	before     *manifest
	hash, text int64
	modules    map[string]int // entries by node_modules
}

func (s *scanner) lacks(what string, entries bool) {
	s.partial = s.partial || entries
	if !slices.Contains(s.cut, what) {
		s.cut = append(s.cut, what)
	}
}

func (s *scanner) visit(name, rel string, d fs.DirEntry) error {
	parts := strings.Split(rel, "/")
	if d.IsDir() {
		if n := len(parts); n >= 2 && parts[n-1] == "objects" && parts[n-2] == ".git" {
			return fs.SkipDir // a commit shows in the references
		}
		return nil
	}
	if i := slices.Index(parts, "node_modules"); i >= 0 && i < len(parts)-1 {
		top := strings.Join(parts[:i+1], "/")
		if s.modules[top]++; s.modules[top] > maxModules {
			s.lacks("most of "+top, true)
			return fs.SkipDir
		}
	}
	if len(s.entries) >= maxEntries {
		s.lacks("what is beyond the first entries", true)
		return fs.SkipAll
	}
	info, err := d.Info()
	if err != nil {
		return nil // gone
	}
	if e := s.look(name, rel, info); e != nil {
		s.entries[rel] = e
	}
	return nil
}

// look makes an entry, nil if the file has gone meanwhile.
func (s *scanner) look(name, rel string, info fs.FileInfo) *entry {
	e := &entry{mode: info.Mode(), size: info.Size(), time: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.inode, e.change = st.Ino, time.Unix(st.Ctim.Unix())
	}
	switch {
	case e.mode.Type() == fs.ModeSymlink:
		target, err := os.Readlink(name)
		if err != nil {
			return nil
		}
		e.hashed, e.sum = true, sha256.Sum256([]byte(target))
	case e.mode.IsRegular():
		if s.before != nil {
			if was := s.before.entries[rel]; was != nil && was.same(e, s.before.at) {
				return was
			}
		}
		s.read(name, e)
	}
	return e
}

// same reports whether e, which was looked at at a time, is certainly what now is.
func (e *entry) same(now *entry, at time.Time) bool {
	return e.inode == now.inode && e.mode == now.mode && e.size == now.size && e.time.Equal(now.time) && e.change.Equal(now.change) &&
		!e.change.IsZero() && at.Sub(e.change) > racy
}

func (s *scanner) read(name string, e *entry) {
	if e.size > s.hash {
		s.lacks("the content of large files", false)
		return
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if e.size <= min(maxText, s.text) {
		data, err := io.ReadAll(io.LimitReader(f, maxText+1))
		s.hash -= int64(len(data))
		if err != nil {
			return
		}
		e.hashed, e.sum = true, sha256.Sum256(data)
		if len(data) <= maxText && readable(data) {
			s.text -= int64(len(data))
			e.text, e.isText = string(data), true
		}
		return
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, s.hash))
	s.hash -= n
	if err == nil {
		e.hashed = true
		h.Sum(e.sum[:0])
	}
}

// differs reports whether something has become of e that is worth telling.
func (e *entry) differs(now *entry) bool {
	switch {
	case e.mode.Type() != now.mode.Type() || e.mode.Perm() != now.mode.Perm():
		return true
	case e.mode.Type() != 0 && e.mode.Type() != fs.ModeSymlink:
		return false
	case e.hashed && now.hashed:
		return e.sum != now.sum
	}
	return e.size != now.size || !e.time.Equal(now.time)
}

// changes returns the line that says what has changed; ok is false if nothing is tracked.
func (tr *tracker) changes() (l task.Line, ok bool) {
	if tr == nil {
		return task.Line{}, false
	}
	after := tr.scan(tr.before)
	l = task.Line{RunEvent: caisson.RunEvent{Type: task.LineChanges}}
	l.Changes, l.Patch = compare(tr.before, after)
	return l, true
}
