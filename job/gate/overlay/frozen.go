// Package overlay freezes the changes of a sandbox to a workspace: it copies the upper directory of an overlay.
package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// The files in a frozen directory.
const (
	frozenIndex   = "index"              // the entries of the upper directory
	FrozenObjects = "objects"            // contents of large files, by their sha256; small files are in frozenPack
	MergedDir     = "merged"             // index and contents of the files that package compare has merged
	MergedIndex   = "merged/index"       // absent if no file was merged
	frozenMagic   = "caisson frozen 1\n" // the beginning of an index
	MaxIndex      = 1 << 30              // bytes of an index
)

// An Entry is the state of one path in an upper directory.
type Entry struct {
	Path string // as on disk: relative, clean, any bytes but NUL
	// Type is one of the types of [caisson.Change]; none if the path was removed.
	Type string
	Mode uint32 // permission bits, with setuid, setgid and sticky
	Size int64  // of files, in bytes
	// Content is the sha256 of a file's content, in hex; empty if it was not kept.
	Content string
	// Hash is [HashOf] of the entry; empty if the entry was not kept.
	Hash    string
	Link    string // target of a symlink
	Removed bool   // the path, and everything below it, was removed
	Opaque  bool   // the content that the host has in this directory was removed
	// Denied is the reason why the entry was not kept and cannot be applied; empty if it was kept.
	Denied string
}

// HashOf returns a hash of the state of one path: type, permission bits, and the content's sha256 in hex (files) or the target
// (symlinks). A path without a file has the type none.
func HashOf(typ string, mode uint32, contentSHA256, link string) string {
	h := sha256.New()
	switch typ {
	case fsat.TypeNone, fsat.TypeSymlink:
		mode = 0 // the mode of symlinks has no meaning
	}
	fmt.Fprintf(h, "caisson 1\n%s\n%o\n%s\n%d\n%s", typ, mode&fsat.ModeBits, contentSHA256, len(link), link)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Frozen is an immutable copy of the changes of a sandbox. It is safe for concurrent use.
type Frozen struct {
	dir     *os.File
	entries []Entry
	cut     bool // entries were left out
	pack    *pack
	content map[string]string // Entry.Content by Entry.Hash and by Entry.Content
}

// OpenFrozen reads the index that [Freeze] has written to dir, and the index of the files that [compare.Changes] has merged
// since. The caller must close the result. It may close dir before that.
func OpenFrozen(dir *os.File) (*Frozen, error) {
	entries, cut, err := ReadIndex(dir, frozenIndex)
	if err != nil {
		return nil, err
	}
	merged, _, err := ReadIndex(dir, MergedIndex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	f := &Frozen{dir: os.NewFile(uintptr(fd), dir.Name()), entries: entries, cut: cut, content: make(map[string]string, 2*len(entries))}
	if f.pack, err = openPack(dir, entries); err != nil {
		f.dir.Close()
		return nil, err
	}
	for _, list := range [][]Entry{entries, merged} {
		for _, e := range list {
			if e.Content != "" {
				f.content[e.Hash], f.content[e.Content] = e.Content, e.Content
			}
		}
	}
	return f, nil
}

// Close closes the directory. Readers that Object has returned may fail afterwards.
func (f *Frozen) Close() error { return errors.Join(f.dir.Close(), f.pack.close()) }

// Entries returns all entries in the order of a walk: each directory before its content. The caller must not modify them.
func (f *Frozen) Entries() []Entry { return f.entries }

// Cut reports whether the layer exceeded the limits. Entries that were left out cannot be applied.
func (f *Frozen) Cut() bool { return f.cut }

// Lookup returns the entry of a path.
func (f *Frozen) Lookup(path string) (Entry, bool) {
	i := f.search(path)
	if i < len(f.entries) && f.entries[i].Path == path {
		return f.entries[i], true
	}
	return Entry{}, false
}

func (f *Frozen) search(path string) int {
	return sort.Search(len(f.entries), func(i int) bool { return fsat.Compare(f.entries[i].Path, path) >= 0 })
}

// Object opens the content of the file that hash names: a [caisson.Change.Hash] or [Entry.Hash], or the sha256 of the content
// alone as [Entry.Content] and [gate.Node.Hash] have it. Its last Read fails if the content does not have the hash. Returns
// NotFound if the copy has no such content.
func (f *Frozen) Object(hash string) (io.ReadCloser, error) {
	content, ok := f.content[hash]
	if !ok {
		return nil, caisson.Errorf(caisson.NotFound, "the review has no content named %.80q; look at the changes again", hash)
	}
	return f.Open(content)
}

// Open is like Object, for an [Entry.Content] of this copy.
func (f *Frozen) Open(content string) (io.ReadCloser, error) {
	if r := f.pack.open(content); r != nil {
		return &object{file: r, sum: sha256.New(), want: content}, nil
	}
	file, err := fsat.OpenFile(f.dir, FrozenObjects+"/"+content, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = fsat.OpenFile(f.dir, MergedDir+"/"+content, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "a content of the review is gone; look at the changes again")
	}
	return &object{file: file, sum: sha256.New(), want: content}, nil
}

// object reads a content and compares it with its hash.
type object struct {
	file io.ReadCloser
	want string // SHA-256 of the content, in hex

	mu  sync.Mutex // Close may be called concurrently with Read
	sum hash.Hash
}

func (o *object) Read(b []byte) (int, error) {
	n, err := o.file.Read(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sum.Write(b[:n])
	if err == io.EOF && hex.EncodeToString(o.sum.Sum(nil)) != o.want {
		return n, caisson.Errorf(caisson.Conflict, "a content of the review is not what was reviewed; look at the changes again")
	}
	return n, err
}

func (o *object) Close() error { return o.file.Close() }

// packIndex returns entries in the format of indexes: magic, number of entries, cut, and entries, sealed.
func packIndex(entries []Entry, cut bool) []byte {
	p := &fsat.Packer{B: []byte(frozenMagic)}
	p.Uint(uint64(len(entries)))
	p.Byte(fsat.Flag(cut, 1))
	for _, e := range entries {
		p.String(e.Path)
		p.Byte(fsat.TypeNumber(e.Type))
		p.Byte(fsat.Flag(e.Removed, 1) | fsat.Flag(e.Opaque, 2) | fsat.Flag(e.Content != "", 4) | fsat.Flag(e.Hash != "", 8))
		p.Uint(uint64(e.Mode))
		p.Uint(uint64(e.Size))
		if e.Content != "" {
			raw, _ := hex.DecodeString(e.Content)
			p.B = append(p.B, raw...)
		}
		p.String(e.Link)
		p.String(e.Denied)
	}
	return fsat.Seal(p.B)
}

// ReadIndex returns the entries of the index in the file name of dir, and whether entries were left out of it.
func ReadIndex(dir *os.File, name string) ([]Entry, bool, error) {
	file, err := fsat.OpenFile(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, MaxIndex+1))
	if err != nil {
		return nil, false, err
	}
	entries, cut, err := parseIndex(data)
	return entries, cut, err
}

// parseIndex decodes an index, and rejects every input that packIndex does not produce.
func parseIndex(data []byte) ([]Entry, bool, error) {
	bad := fsat.Malformed("the index of a review")
	body, ok := fsat.Unseal(data, frozenMagic)
	if !ok {
		return nil, false, bad
	}
	u := &fsat.Unpacker{B: body}
	n := u.Size()
	cut := u.Byte()
	if u.Bad || cut > 1 || n > int64(len(u.B)) {
		return nil, false, bad
	}
	entries := make([]Entry, 0, min(n, 1<<16))
	for range n {
		e, ok := unpackEntry(u)
		if !ok || len(entries) > 0 && fsat.Compare(entries[len(entries)-1].Path, e.Path) >= 0 {
			return nil, false, bad
		}
		entries = append(entries, e)
	}
	if len(u.B) > 0 {
		return nil, false, bad
	}
	return entries, cut == 1, nil
}

func unpackEntry(u *fsat.Unpacker) (Entry, bool) {
	e := Entry{Path: u.String(fsat.MaxPathLen)}
	typ, flags := u.Byte(), u.Byte()
	mode := u.Uint()
	e.Size = u.Size()
	if flags&4 != 0 {
		e.Content = hex.EncodeToString(u.Bytes(sha256.Size))
	}
	e.Link, e.Denied = u.String(fsat.MaxPathLen), u.String(fsat.MaxReasonLen)
	if u.Bad || int(typ) >= len(fsat.Types) || flags > 15 || mode > fsat.ModeBits || !fsat.ValidPath(e.Path) {
		return e, false
	}
	e.Type, e.Mode, e.Removed, e.Opaque = fsat.Types[typ], uint32(mode), flags&1 != 0, flags&2 != 0
	kept := flags&8 != 0
	switch {
	case e.Removed != (e.Type == fsat.TypeNone), e.Opaque && e.Type != fsat.TypeDir, (e.Link != "") != (e.Type == fsat.TypeSymlink && kept),
		e.Content != "" && e.Type != fsat.TypeFile, kept && e.Type == fsat.TypeFile && e.Content == "", kept == (e.Denied != ""),
		strings.IndexByte(e.Link, 0) >= 0:
		return e, false
	}
	if kept {
		e.Hash = HashOf(e.Type, e.Mode, e.Content, e.Link)
	}
	return e, true
}

// OpenMerged opens the directory for merged files in a frozen directory. It creates the directory if it does not exist.
func OpenMerged(frozen *os.File) (*os.File, error) {
	if err := unix.Mkdirat(int(frozen.Fd()), MergedDir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, os.NewSyscallError("mkdir", err)
	}
	return fsat.OpenFile(frozen, MergedDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
