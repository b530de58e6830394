package baseline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// The files of a base directory, and the limits of its index.
const (
	baseIndex = "index"            // file with an [Entry] for each recorded path
	basePack  = "pack"             // file with the stored contents, concatenated
	baseMagic = "caisson base 1\n" // the first bytes of the index
	// minBaseEntry is the minimum size of an entry in the index, in bytes.
	minBaseEntry   = 10
	maxBaseEntries = 1_000_000 // maximum number of entries in one index
)

// Limits are the limits of the contents that [SaveBase] stores for merges. Zero fields mean the default.
type Limits struct {
	File  caisson.Size `json:"file,omitempty"`  // size of the largest file that is stored; default and maximum 1 MiB
	Bytes caisson.Size `json:"bytes,omitempty"` // maximum size of all files together; default 64 MiB
	Files int          `json:"files,omitempty"` // maximum number of files; default 20,000, at most 100,000
}

// withDefaults returns l with zero and too large limits replaced.
func (l Limits) withDefaults() Limits {
	if l.File <= 0 || l.File > fsat.MaxSmallFile {
		l.File = fsat.MaxSmallFile
	}
	l.Bytes = cmp.Or(max(l.Bytes, 0), 64<<20)
	l.Files = cmp.Or(max(l.Files, 0), 20_000)
	l.Files = min(l.Files, 100_000)
	return l
}

// An Entry is the state of a path in a base directory. It adds to the manifest's record of the path or, if Rebased is set,
// replaces it.
type Entry struct {
	fsat.Stat // Type is TypeNone if the path does not exist
	// Rebased means that the entry replaces the manifest's record, because the path was applied after the manifest was made, or
	// had changed when [Copy] copied it for the sandbox.
	Rebased     bool
	hasSum      bool              // sum is set
	sum         [sha256.Size]byte // SHA-256 of the file's content
	Link        string            // target of a symlink
	off, length int64             // position of the content in the pack; length is -1 if the content is not stored
}

// Content returns the SHA-256 of the file's content in hexadecimal, or "" if it is not recorded.
func (e *Entry) Content() string {
	if !e.hasSum {
		return ""
	}
	return hex.EncodeToString(e.sum[:])
}

// State returns the state that e records.
func (e *Entry) State() State {
	return State{Stat: e.Stat, Content: e.Content(), Link: e.Link}
}

// Store is an open base directory: the contents of files that are the base of three-way merges, and the states that were applied.
type Store struct {
	pack    *os.File          // nil if the directory has no pack
	Entries map[string]*Entry // the entries by path
	Rebased []string          // paths of the entries that replace the manifest's records of these paths, sorted
}

// SaveBase stores the contents of small text files of the directory root, as recorded in manifest, in dst, an empty directory.
// The newest files come first. The contents are the base of later three-way merges, and they distinguish files that were only
// touched from files that were changed. Files that changed after manifest was made, or cannot be read, are left out.
func SaveBase(ctx context.Context, root, manifest, dst *os.File, limits Limits) error {
	recorded := func(r *Record) (State, bool, error) { return State{Stat: r.Stat}, false, nil }
	return saveBase(ctx, root, manifest, dst, limits, "", recorded)
}

// saveBase implements [SaveBase] and [SaveBaseOfCopy]. It stores a file only if it is in the state that look returns. rebased
// means that this state replaces the one in the manifest. of is the text before the paths in errors.
func saveBase(
	ctx context.Context, root, manifest, dst *os.File, limits Limits, of string,
	look func(was *Record) (is State, rebased bool, err error),
) error {
	defer fsat.KeepAlive(root, dst)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := limits.withDefaults()
	files, err := newestFiles(m, l)
	if err != nil {
		return err
	}
	store := &Store{Entries: map[string]*Entry{}}
	pack, err := fsat.OpenFile(dst, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	out := &packFile{file: pack}
	for i := range files {
		was := &files[i]
		if caisson.Size(out.off+was.Size) > l.Bytes {
			continue
		}
		is, rebased, err := look(was)
		if err != nil {
			return err
		}
		if is.Type != fsat.TypeFile || is.Size > int64(l.File) || is.Unreadable != "" {
			continue
		}
		data, err := fsat.ReadContent(ctx, int(root.Fd()), was.Path, &is.Stat, int64(l.File))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (errors.Is(err, fsat.ErrChanged) || fsat.UnlessConcurrent(err) == nil):
			continue
		case err != nil:
			return fmt.Errorf("read %s%s: %w", of, safetext.Path(was.Path), err)
		case !fsat.IsText(data):
			continue
		}
		e := &Entry{Stat: was.Stat, hasSum: true, sum: sha256.Sum256(data), off: out.off, length: int64(len(data))}
		if rebased {
			e.Stat, e.Rebased = is.Stat, true
		}
		store.Entries[was.Path] = e
		if err := out.write(data); err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(dst)
}

// SaveBaseOfCopy stores small text files of copied, the copy of a host directory that [Copy] has made for a sandbox, in dst, as
// [SaveBase] does. For files that changed between the scan and the copy, it records the state in the copy.
func SaveBaseOfCopy(ctx context.Context, copied, manifest, dst *os.File, limits Limits) error {
	defer fsat.KeepAlive(copied)
	r := NewHostReader(ctx, int(copied.Fd()))
	return saveBase(ctx, copied, manifest, dst, limits, "the copy of ", func(was *Record) (State, bool, error) {
		is, err := r.Look(was.Path)
		return is, is.Size != was.Size || is.Mtime != was.Mtime || is.Mode != was.Mode&fsat.Permissions, err
	})
}

// newestFiles returns the records of the files that may be stored in a base, the newest first.
func newestFiles(m *Manifest, l Limits) ([]Record, error) {
	var files []Record
	keep := func() {
		slices.SortFunc(files, func(a, b Record) int { return cmp.Or(cmp.Compare(b.Mtime, a.Mtime), fsat.Compare(a.Path, b.Path)) })
		files = files[:min(len(files), l.Files)]
	}
	for r, err := range m.Below("") {
		if err != nil {
			return nil, err
		}
		if r.Type == fsat.TypeFile && !r.Hidden && caisson.Size(r.Size) <= l.File {
			if files = append(files, r); len(files) >= 2*l.Files {
				keep()
			}
		}
	}
	keep()
	return files, nil
}

// packFile appends contents to a pack.
type packFile struct {
	file *os.File
	buf  []byte // bytes that were not written to file yet
	off  int64  // size of the pack in bytes, including the bytes in buf
}

// write appends data to the pack.
func (p *packFile) write(data []byte) error {
	p.buf = append(p.buf, data...)
	p.off += int64(len(data))
	if len(p.buf) > 1<<20 {
		return p.flush()
	}
	return nil
}

// flush writes the buffered bytes to the file.
func (p *packFile) flush() error {
	_, err := p.file.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// AppliedPath is a path that was applied on the host, with the state of the path after the apply.
type AppliedPath struct {
	Path string    `json:"path"` // the path, relative to the host directory
	Node gate.Node `json:"node"` // the state of the path after the apply
}

// Rebase records the applied states in a workspace's base, so that later changes of the paths are compared with these states.
// base is a directory that [SaveBase] has filled, and host is the host's directory. A path that is no longer in the applied
// state on the host is left unchanged in base, and its next change will be a conflict. Rebase is called after an apply and,
// with the restored states, after an undo.
func Rebase(ctx context.Context, host, base *os.File, applied []AppliedPath) error {
	defer fsat.KeepAlive(host, base)
	store, err := Open(base)
	if err != nil {
		return err
	}
	defer store.Close()
	pack, err := fsat.OpenFile(base, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	at, err := pack.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	out := &packFile{file: pack, off: at}
	r := NewHostReader(ctx, int(host.Fd()))
	for _, a := range applied {
		if !fsat.ValidPath(a.Path) {
			return caisson.Invalidf("path", "%.80q is no path in a directory", a.Path)
		}
		now, err := r.State(a.Path)
		if err != nil {
			return err
		}
		if now.Unreadable != "" || !now.Node().Same(a.Node) || store.Entries[a.Path] == nil && len(store.Entries) == maxBaseEntries {
			continue
		}
		e := &Entry{Stat: now.Stat, Rebased: true, Link: now.Link, length: -1}
		if now.Content != "" {
			raw, err := hex.DecodeString(now.Content)
			if err != nil {
				return err
			}
			e.hasSum, e.sum = true, [sha256.Size]byte(raw)
		}
		const maxPack = 256 << 20
		if now.Type == fsat.TypeFile && now.Data != nil && fsat.IsText(now.Data) && out.off+now.Size <= maxPack {
			e.off, e.length = out.off, now.Size
			if err := out.write(now.Data); err != nil {
				return err
			}
		}
		store.Entries[a.Path] = e
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(base)
}

// Forget removes the applied states of paths, and of the paths below them, from base. It is called before the changes of these
// paths are dropped from a sandbox with a copy of the directory, so that the paths have the states of the copy again. Base has no
// contents of these states, so if the host and the sandbox both change such a path later, that is a conflict.
func Forget(base *os.File, paths []string) error {
	defer fsat.KeepAlive(base)
	store, err := Open(base)
	if err != nil {
		return err
	}
	defer store.Close()
	n := len(store.Entries)
	for path, e := range store.Entries {
		if e.Rebased && slices.ContainsFunc(paths, func(p string) bool { return p == path || fsat.Below(path, p) }) {
			delete(store.Entries, path)
		}
	}
	if len(store.Entries) == n {
		return nil
	}
	return store.save(base)
}

// save writes the index of the store to the base directory dir.
func (s *Store) save(dir *os.File) error {
	p := &fsat.Packer{B: []byte(baseMagic)}
	p.Uint(uint64(len(s.Entries)))
	for _, path := range slices.SortedFunc(maps.Keys(s.Entries), fsat.Compare) {
		e := s.Entries[path]
		p.String(path)
		p.Byte(fsat.TypeNumber(e.Type) | fsat.Flag(e.hasSum, 0x40) | fsat.Flag(e.Rebased, 0x80))
		p.Uint(uint64(e.Mode))
		p.Uint(uint64(e.Size))
		p.Int(e.Mtime)
		p.Int(e.Ctime)
		p.Uint(e.Inode)
		if e.hasSum {
			p.B = append(p.B, e.sum[:]...)
		}
		p.String(e.Link)
		p.Uint(uint64(e.off))
		p.Int(e.length)
	}
	return fsat.WriteIndex(int(dir.Fd()), baseIndex, fsat.Seal(p.B))
}

// Open reads the index of a base directory and opens its pack. A directory without an index is an empty Store.
func Open(dir *os.File) (*Store, error) {
	s := &Store{Entries: map[string]*Entry{}}
	index, err := fsat.OpenFile(dir, baseIndex, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	defer index.Close()
	data, err := io.ReadAll(io.LimitReader(index, overlay.MaxIndex+1))
	if err != nil {
		return nil, err
	}
	if err := s.parse(data); err != nil {
		return nil, err
	}
	if s.pack, err = fsat.OpenFile(dir, basePack, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return s, nil
}

// Close closes the pack. The entries remain usable, but Text must not be called any more.
func (s *Store) Close() {
	if s.pack != nil {
		s.pack.Close()
	}
}

// parse sets the entries of s to those of the index data.
func (s *Store) parse(data []byte) error {
	bad := fsat.Malformed("the record of earlier contents")
	body, ok := fsat.Unseal(data, baseMagic)
	if !ok {
		return bad
	}
	u := &fsat.Unpacker{B: body}
	n := u.Size()
	if n > min(int64(len(u.B))/minBaseEntry, maxBaseEntries) {
		return bad
	}
	entries := make([]Entry, n)
	s.Entries = make(map[string]*Entry, n)
	last := ""
	for i := range entries {
		path, kind := u.String(fsat.MaxPathLen), u.Byte()
		e := &entries[i]
		e.Rebased = kind&0x80 != 0
		mode := u.Uint()
		e.Size, e.Mtime, e.Ctime, e.Inode = u.Size(), u.Int(), u.Int(), u.Uint()
		if kind&0x40 != 0 {
			copy(e.sum[:], u.Bytes(sha256.Size))
			e.hasSum = true
		}
		e.Link = u.String(fsat.MaxPathLen)
		e.off, e.length = u.Size(), u.Int()
		if u.Bad || int(kind&0x3f) >= len(fsat.Types) || mode > fsat.ModeBits || !fsat.ValidPath(path) || last != "" && fsat.Compare(last, path) >= 0 ||
			e.length < -1 || e.length > fsat.MaxSmallFile {
			return bad
		}
		e.Type, e.Mode = fsat.Types[kind&0x3f], uint32(mode)
		s.Entries[path] = e
		if e.Rebased {
			s.Rebased = append(s.Rebased, path)
		}
		last = path
	}
	if len(u.B) > 0 {
		return bad
	}
	return nil
}

// Text returns the stored content of the entry e, or nil if it is not stored or is damaged.
func (s *Store) Text(e *Entry) []byte {
	if s.pack == nil || e.length < 0 {
		return nil
	}
	data := make([]byte, e.length)
	if n, _ := s.pack.ReadAt(data, e.off); n < len(data) || sha256.Sum256(data) != e.sum {
		// A damaged content is treated as missing, so that a change by both sides becomes a conflict instead of a merge.
		return nil
	}
	return data
}
