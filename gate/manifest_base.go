package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// What is in a base directory.
const (
	baseIndex = "index"
	basePack  = "pack" // contents, one after another
	baseMagic = "caisson base 1\n"
	// minBaseEntry is the least that an entry takes in the index.
	minBaseEntry   = 10
	maxBaseEntries = 1_000_000
)

// BaseLimits bound what is kept for merges; zero fields mean the default.
type BaseLimits struct {
	File  caisson.Size `json:"file,omitempty"`  // largest file; 1 MiB, which is the most
	Bytes caisson.Size `json:"bytes,omitempty"` // of all; 64 MiB
	Files int          `json:"files,omitempty"` // 20,000; at most 100,000
}

func (l BaseLimits) withDefaults() BaseLimits {
	if l.File <= 0 || l.File > smallFile {
		l.File = smallFile
	}
	if l.Bytes <= 0 {
		l.Bytes = 64 << 20
	}
	if l.Files <= 0 {
		l.Files = 20_000
	}
	l.Files = min(l.Files, 100_000)
	return l
}

// baseEntry is what is known of a path beyond the manifest, or instead of it.
type baseEntry struct {
	stat             // typ none: nothing is there
	rebased     bool // instead of the manifest's record: what was applied since
	summed      bool // sum is that of the content
	sum         [sha256.Size]byte
	link        string
	off, length int64 // of the content in the pack; length is -1 if it is not there
}

// content is the sha256 of the content in hex, "" if it is not known.
func (e *baseEntry) content() string {
	if !e.summed {
		return ""
	}
	return hex.EncodeToString(e.sum[:])
}

// baseStore is a base directory.
type baseStore struct {
	pack    *os.File // nil if there is none
	entries map[string]*baseEntry
	rebased []string // sorted
}

// Base keeps the contents of small text files of the directory root as the manifest has recorded them, the newest first, in dst,
// an empty directory. They are what a later three-way merge starts from, and they tell a file that was only touched from one
// that was changed. What has moved since the scan, or cannot be read, is left out.
func Base(ctx context.Context, root, manifest, dst *os.File, limits BaseLimits) error {
	defer keepAlive(root, dst)
	m, err := OpenManifest(manifest)
	if err != nil {
		return err
	}
	l := limits.withDefaults()
	files, err := newest(m, l)
	if err != nil {
		return err
	}
	store := &baseStore{entries: map[string]*baseEntry{}}
	pack, err := openFile(dst, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	out := &packFile{file: pack}
	for i := range files {
		r := &files[i]
		if caisson.Size(out.off+r.size) > l.Bytes {
			continue
		}
		data, err := readContent(ctx, int(root.Fd()), r.Path, &r.stat, int64(l.File))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (errors.Is(err, errChanged) || unexpected(err) == nil):
			continue
		case err != nil:
			return fmt.Errorf("read %s: %w", safetext.Path(r.Path), err)
		case !isText(data):
			continue
		}
		store.entries[r.Path] = &baseEntry{stat: r.stat, summed: true, sum: sha256.Sum256(data), off: out.off, length: int64(len(data))}
		if err := out.write(data); err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(dst)
}

// newest returns the records of files that a base may have, newest first.
func newest(m *Manifest, l BaseLimits) ([]Record, error) {
	var files []Record
	keep := func() {
		slices.SortFunc(files, func(a, b Record) int { return cmp.Or(cmp.Compare(b.mtime, a.mtime), comparePaths(a.Path, b.Path)) })
		files = files[:min(len(files), l.Files)]
	}
	err := m.Below("", func(r Record) bool {
		if r.typ == typeFile && !r.Hidden && caisson.Size(r.size) <= l.File {
			if files = append(files, r); len(files) >= 2*l.Files {
				keep()
			}
		}
		return true
	})
	keep()
	return files, err
}

// packFile appends contents to a pack.
type packFile struct {
	file *os.File
	buf  []byte
	off  int64
}

func (p *packFile) write(data []byte) error {
	p.buf = append(p.buf, data...)
	p.off += int64(len(data))
	if len(p.buf) > 1<<20 {
		return p.flush()
	}
	return nil
}

func (p *packFile) flush() error {
	_, err := p.file.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

// Applied is a path that was just written on the host.
type Applied struct {
	Path string `json:"path"`
	Node Node   `json:"node"` // what was put there
}

// Rebase says that what was applied is what a workspace starts from now, so that later changes of the same files are compared with
// that. base is what [Base] has made and host is the directory; a path that is not on the host as it was applied any more is left
// as it was, and its next change will clash. Rebase is called after an apply, and after an undo with what the undo has put back.
func Rebase(ctx context.Context, host, base *os.File, applied []Applied) error {
	defer keepAlive(host, base)
	store, err := openBase(base)
	if err != nil {
		return err
	}
	defer store.close()
	pack, err := openFile(base, basePack, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer pack.Close()
	at, err := pack.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	out := &packFile{file: pack, off: at}
	r := newHostReader(ctx, int(host.Fd()))
	for _, a := range applied {
		if !validPath(a.Path) {
			return caisson.Invalidf("path", "%.80q is no path in a directory", a.Path)
		}
		now, err := r.state(a.Path)
		if err != nil {
			return err
		}
		if now.odd != "" || !now.node().same(a.Node) || store.entries[a.Path] == nil && len(store.entries) == maxBaseEntries {
			continue
		}
		e := &baseEntry{stat: now.stat, rebased: true, link: now.link, length: -1}
		if now.content != "" {
			raw, err := hex.DecodeString(now.content)
			if err != nil {
				return err
			}
			e.summed, e.sum = true, [sha256.Size]byte(raw)
		}
		const maxPack = 256 << 20
		if now.typ == typeFile && now.data != nil && isText(now.data) && out.off+now.size <= maxPack {
			e.off, e.length = out.off, now.size
			if err := out.write(now.data); err != nil {
				return err
			}
		}
		store.entries[a.Path] = e
	}
	if err := out.flush(); err != nil {
		return err
	}
	return store.save(base)
}

// save writes the index.
func (s *baseStore) save(dir *os.File) error {
	p := &packer{b: []byte(baseMagic)}
	paths := make([]string, 0, len(s.entries))
	for path := range s.entries {
		paths = append(paths, path)
	}
	slices.SortFunc(paths, comparePaths)
	p.uint(uint64(len(paths)))
	for _, path := range paths {
		e := s.entries[path]
		p.string(path)
		p.byte(typeNumber(e.typ) | flag(e.summed, 0x40) | flag(e.rebased, 0x80))
		p.uint(uint64(e.mode))
		p.uint(uint64(e.size))
		p.int(e.mtime)
		p.int(e.ctime)
		p.uint(e.inode)
		if e.summed {
			p.b = append(p.b, e.sum[:]...)
		}
		p.string(e.link)
		p.uint(uint64(e.off))
		p.int(e.length)
	}
	h := sha256.Sum256(p.b)
	fd, err := openUnder(int(dir.Fd()), baseIndex+".new", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("make an index: %w", err)
	}
	file := os.NewFile(uintptr(fd), baseIndex)
	_, err = file.Write(append(p.b, h[:]...))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write an index: %w", err)
	}
	return os.NewSyscallError("rename", unix.Renameat(int(dir.Fd()), baseIndex+".new", int(dir.Fd()), baseIndex))
}

// openBase reads a base directory; one without an index is empty.
func openBase(dir *os.File) (*baseStore, error) {
	s := &baseStore{entries: map[string]*baseEntry{}}
	index, err := openFile(dir, baseIndex, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	defer index.Close()
	data, err := io.ReadAll(io.LimitReader(index, maxIndex+1))
	if err != nil {
		return nil, err
	}
	if err := s.parse(data); err != nil {
		return nil, err
	}
	if s.pack, err = openFile(dir, basePack, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return s, nil
}

func (s *baseStore) close() {
	if s.pack != nil {
		s.pack.Close()
	}
}

func (s *baseStore) parse(data []byte) error {
	bad := malformed("the record of earlier contents")
	end := len(data) - sha256.Size
	if end < len(baseMagic) || string(data[:len(baseMagic)]) != baseMagic {
		return bad
	}
	if h := sha256.Sum256(data[:end]); string(h[:]) != string(data[end:]) {
		return bad
	}
	u := &unpacker{b: data[len(baseMagic):end]}
	n := u.size()
	if n > min(int64(len(u.b))/minBaseEntry, maxBaseEntries) {
		return bad
	}
	entries := make([]baseEntry, n)
	s.entries = make(map[string]*baseEntry, n)
	last := ""
	for i := range entries {
		path, kind := u.string(maxPathLen), u.byte()
		e := &entries[i]
		e.rebased = kind&0x80 != 0
		mode := u.uint()
		e.size, e.mtime, e.ctime, e.inode = u.size(), u.int(), u.int(), u.uint()
		if kind&0x40 != 0 {
			copy(e.sum[:], u.bytes(sha256.Size))
			e.summed = true
		}
		e.link = u.string(maxPathLen)
		e.off, e.length = u.size(), u.int()
		if u.bad || int(kind&0x3f) >= len(types) || mode > modeBits || !validPath(path) || last != "" && comparePaths(last, path) >= 0 ||
			e.length < -1 || e.length > smallFile {
			return bad
		}
		e.typ, e.mode = types[kind&0x3f], uint32(mode)
		s.entries[path] = e
		if e.rebased {
			s.rebased = append(s.rebased, path)
		}
		last = path
	}
	if len(u.b) > 0 {
		return bad
	}
	return nil
}

// text returns the content of e, or nil if it is not there.
func (s *baseStore) text(e *baseEntry) []byte {
	if s.pack == nil || e.length < 0 {
		return nil
	}
	data := make([]byte, e.length)
	if n, _ := s.pack.ReadAt(data, e.off); n < len(data) || sha256.Sum256(data) != e.sum {
		return nil // as good as not there: a clash instead of a merge
	}
	return data
}
