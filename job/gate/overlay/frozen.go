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

// The files in the directory of a frozen copy, and the limits of its index.
const (
	frozenIndex = "index" // the entries of the upper directory
	// FrozenObjects is the directory of the contents of large files, named by their SHA-256. The contents of small files are in
	// frozenPack.
	FrozenObjects = "objects"
	MergedDir     = "merged"             // directory of MergedIndex, and of the contents of files that package compare has merged
	MergedIndex   = "merged/index"       // index of the merged files; absent if no file was merged
	frozenMagic   = "caisson frozen 1\n" // the first bytes of an index
	MaxIndex      = 1 << 30              // maximum size of an index in bytes
)

// An Entry is the state of one path in an upper directory.
type Entry struct {
	Path string // the path as it is on disk: relative, clean, with any bytes but NUL
	// Type is one of the types of [caisson.Change]; TypeNone if the path was removed.
	Type string
	Mode uint32 // permission bits, with setuid, setgid and sticky
	Size int64  // size of a file in bytes
	// Content is the SHA-256 of a file's content in hexadecimal; empty if the content was not copied.
	Content string
	// Hash is a hash of the type, the mode, Content and Link; empty if the entry is denied.
	Hash    string
	Link    string // target of a symlink
	Removed bool   // the path, and everything below it, was removed
	Opaque  bool   // everything that the host has in this directory was removed
	// Denied is the reason why the entry was not copied and cannot be applied; empty if it was copied.
	Denied string
}

// HashOf returns a hash of the state of one path: its type, its permission bits, and the SHA-256 of its content in hexadecimal
// (files) or its target (symlinks). The type of a path that does not exist is TypeNone.
func HashOf(typ string, mode uint32, contentSHA256, link string) string {
	h := sha256.New()
	switch typ {
	case fsat.TypeNone, fsat.TypeSymlink:
		mode = 0 // the mode of a symlink has no meaning
	}
	fmt.Fprintf(h, "caisson 1\n%s\n%o\n%s\n%d\n%s", typ, mode&fsat.ModeBits, contentSHA256, len(link), link)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Frozen is an immutable copy of the changes of a sandbox. It is safe for concurrent use.
type Frozen struct {
	dir     *os.File          // directory of the frozen copy
	entries []Entry           // in the order of a walk
	cut     bool              // entries were left out
	pack    *pack             // contains the contents of small files
	content map[string]string // maps Entry.Hash and Entry.Content of each file to Entry.Content
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

// Close closes the files of the copy. Readers that Object has returned may fail afterwards.
func (f *Frozen) Close() error { return errors.Join(f.dir.Close(), f.pack.close()) }

// Entries returns all entries in the order of a walk: each directory before its content. The caller must not modify them.
func (f *Frozen) Entries() []Entry { return f.entries }

// Cut reports whether entries were left out because the layer exceeded the limits. They cannot be applied.
func (f *Frozen) Cut() bool { return f.cut }

// Lookup returns the entry of a path, if the copy has one.
func (f *Frozen) Lookup(path string) (Entry, bool) {
	i := f.search(path)
	if i < len(f.entries) && f.entries[i].Path == path {
		return f.entries[i], true
	}
	return Entry{}, false
}

// search returns the index in entries at which the entry of path is or would be.
func (f *Frozen) search(path string) int {
	return sort.Search(len(f.entries), func(i int) bool { return fsat.Compare(f.entries[i].Path, path) >= 0 })
}

// Object opens the content of a file. hash is a [caisson.Change.Hash] or [Entry.Hash], or the SHA-256 of the content alone, as
// in [Entry.Content] and [gate.Node.Hash]. The last Read of the result fails if the content does not have this hash. Returns
// NotFound if the copy has no such content.
func (f *Frozen) Object(hash string) (io.ReadCloser, error) {
	content, ok := f.content[hash]
	if !ok {
		return nil, caisson.Errorf(caisson.NotFound, "the review has no content named %.80q; look at the changes again", hash)
	}
	return f.Open(content)
}

// Open opens the content with this SHA-256, that of an entry of this copy. The last Read fails if the content has another one.
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

// object is a reader of the content of a file that compares the content with its hash at the end.
type object struct {
	file io.ReadCloser // the underlying reader
	want string        // SHA-256 that the content must have, in hexadecimal

	mu  sync.Mutex // guards sum if Read is called concurrently
	sum hash.Hash  // hash of the bytes that were read
}

// Read implements [io.Reader]. At the end of the content it returns a Conflict error if the hash is not the expected one.
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

// packIndex encodes an index, that of a frozen copy or that of the merged files: frozenMagic, the number of entries, cut, the
// entries, and the SHA-256 of all of this. cut means that entries were left out.
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

// parseIndex decodes an index that packIndex has encoded, strictly. It returns the entries, and whether some were left out of it.
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

// unpackEntry decodes one entry of an index. It returns false if the entry is malformed.
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

// OpenMerged opens the directory in a frozen copy for the results of three-way merges, and creates it if it does not exist.
func OpenMerged(frozen *os.File) (*os.File, error) {
	if err := unix.Mkdirat(int(frozen.Fd()), MergedDir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, os.NewSyscallError("mkdir", err)
	}
	return fsat.OpenFile(frozen, MergedDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
