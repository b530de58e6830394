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
	"github.com/caisson-dev/caisson/guest/task"
)

// Limits on the scan of a directory whose changes are tracked.
const (
	maxEntries  = 20000            // maximum number of files and links
	maxModules  = 2000             // maximum number of files and links below each node_modules directory
	maxText     = 256 << 10        // maximum size of a file that is compared line by line, in bytes
	maxTexts    = 32 << 20         // maximum size of all files together that are compared line by line, in bytes
	maxHashed   = 256 << 20        // maximum size of all read files together, in bytes; other files are compared by size and time
	scanTimeout = 10 * time.Second // maximum duration of one scan of the directory
	clockTick   = time.Second      // upper bound on the resolution of ctime: within it a file may change without a new ctime
)

// entry describes a file, a link or another object in a directory, but not a directory.
type entry struct {
	mode   fs.FileMode       // file type and permissions
	size   int64             // size of the file in bytes
	time   time.Time         // time of the last change of the content (mtime)
	change time.Time         // time of the last change of content or attributes (ctime)
	inode  uint64            // inode number of the file
	hashed bool              // sum is set
	sum    [sha256.Size]byte // hash of the content, or of a link's target
	text   string            // content, if it is text within the size limits
	isText bool              // text is set; the content may be empty
}

// manifest is the content of a directory at one time.
type manifest struct {
	began   time.Time         // when the scan began
	entries map[string]*entry // entries by path relative to the directory
	missing []string          // descriptions of what the manifest lacks because of a limit
	partial bool              // whether entries are missing, and not only the content of entries
}

// tracker compares a directory with its state at the beginning of a task.
type tracker struct {
	root   string    // path of the tracked directory
	before *manifest // content of the directory at the beginning of the task
}

// newTracker scans the directory whose changes the task reports, and returns its tracker; nil if the task reports no changes.
func newTracker(t *task.Task) *tracker {
	if t.Track == "" {
		return nil
	}
	tr := &tracker{root: resolveLinks(t.Track)}
	tr.before = tr.scan(nil)
	return tr
}

// resolveLinks returns the path name with symbolic links resolved, or name cleaned if that is not possible.
func resolveLinks(name string) string {
	if path, err := filepath.EvalSymlinks(name); err == nil {
		return path
	}
	return filepath.Clean(name)
}

// scan scans the directory. Files that, according to inode, size and times, are the same as in the manifest before are not read
// again; before may be nil.
func (tr *tracker) scan(before *manifest) *manifest {
	s := &scanner{
		manifest: manifest{began: time.Now(), entries: map[string]*entry{}}, before: before,
		hash: maxHashed, text: maxTexts, modules: map[string]int{},
	}
	_ = filepath.WalkDir(tr.root, func(name string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(tr.root, name)
		switch {
		case err != nil && rel == ".":
			return err
		case err != nil || relErr != nil:
			return nil // the file was removed meanwhile or cannot be read; skip it
		case time.Since(s.began) > scanTimeout:
			s.noteMissing("the rest of a directory that takes too long to read", true)
			return fs.SkipAll
		}
		return s.visit(name, rel, d)
	})
	return &s.manifest
}

// scanner is the state of a scan of the tracked directory. The scan creates a manifest, which is the content of the directory.
type scanner struct {
	manifest
	before     *manifest      // manifest of an earlier scan; nil if there is none
	hash, text int64          // number of bytes that may still be hashed, and number of bytes of text that may still be kept
	modules    map[string]int // number of entries below each node_modules directory
}

// noteMissing notes what the manifest of the scanned directory does not have because of a limit. entries is true if
// files are missing in it, and false if only the content of files is.
func (s *scanner) noteMissing(what string, entries bool) {
	s.partial = s.partial || entries
	if !slices.Contains(s.missing, what) {
		s.missing = append(s.missing, what)
	}
}

// visit adds the file at the path name, which is rel within the scanned directory, to the manifest, unless it is beyond a limit.
// It skips the objects of git repositories.
func (s *scanner) visit(name, rel string, d fs.DirEntry) error {
	parts := strings.Split(rel, "/")
	if d.IsDir() {
		if n := len(parts); n >= 2 && parts[n-1] == "objects" && parts[n-2] == ".git" {
			return fs.SkipDir // git's objects are not listed: new commits show as changes of references
		}
		return nil
	}
	if i := slices.Index(parts, "node_modules"); i >= 0 && i < len(parts)-1 {
		top := strings.Join(parts[:i+1], "/")
		if s.modules[top]++; s.modules[top] > maxModules {
			s.noteMissing("most of "+top, true)
			return fs.SkipDir
		}
	}
	if len(s.entries) >= maxEntries {
		s.noteMissing("entries beyond the limit", true)
		return fs.SkipAll
	}
	info, err := d.Info()
	if err != nil {
		return nil // the file was removed meanwhile
	}
	if e := s.describe(name, rel, info); e != nil {
		s.entries[rel] = e
	}
	return nil
}

// describe returns the entry for the file at the path name, or nil if that is a link that was removed meanwhile. For a file that
// has not changed since the earlier scan s.before, it returns the entry in s.before.
func (s *scanner) describe(name, rel string, info fs.FileInfo) *entry {
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
			if was := s.before.entries[rel]; was != nil && was.certainlyEqual(e, s.before.began) {
				return was
			}
		}
		s.read(name, e)
	}
	return e
}

// certainlyEqual reports whether e, an entry of a scan that began at the time at, and the later entry now certainly have the same
// content. The files are not read.
func (e *entry) certainlyEqual(now *entry, at time.Time) bool {
	return e.inode == now.inode && e.mode == now.mode && e.size == now.size && e.time.Equal(now.time) && e.change.Equal(now.change) &&
		!e.change.IsZero() && at.Sub(e.change) > clockTick
}

// read reads a regular file, and sets the hash of the entry, and its text if the size is within the limits. If the file cannot be
// read, neither is set.
func (s *scanner) read(name string, e *entry) {
	if e.size > s.hash {
		s.noteMissing("the content of large files", false)
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
		if len(data) <= maxText && isPatchText(data) {
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

// differsFrom reports whether e and the later entry now differ in type, permissions or content. Without hashes, the content
// counts as changed if the size or the mtime has changed.
func (e *entry) differsFrom(now *entry) bool {
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

// changes scans the directory again and returns the output line with its changes; ok is false if no directory is tracked.
func (tr *tracker) changes() (l task.Line, ok bool) {
	if tr == nil {
		return task.Line{}, false
	}
	after := tr.scan(tr.before)
	l = task.Line{RunEvent: caisson.RunEvent{Type: task.LineChanges}}
	l.Changes, l.Patch = diffManifests(tr.before, after)
	return l, true
}
