// Package baseline records the state of a host directory when a sandbox gets access to it: a [Manifest] of all paths, the files
// that a [Mask] hides, the files that may contain secrets, and the contents of small files for later merges. It also copies
// directories.
package baseline

import (
	"encoding/binary"
	"io"
	"iter"
	"os"
	"slices"
	"sort"

	"github.com/caisson-dev/caisson/internal/namemask"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// A manifest consists of a header, blocks of records in the order of directory walks, an index with the first path of each
// block, and a trailer with the offset of the index. Within a block, a path is stored without the prefix that it shares with
// the path of the record before it.
const (
	manifestMagic = "caisson manifest 1\n"                // the first bytes of a manifest
	blockRecords  = 128                                   // maximum number of records in one block
	maxBlock      = blockRecords * (fsat.MaxPathLen + 64) // maximum size of one block in bytes
	maxRecords    = 5_000_000                             // maximum number of records in one manifest
	maxHeader     = 1 << 20                               // maximum size of the header in bytes
	// Size of the trailer in bytes: the offset of the index, the number of blocks, and flags.
	trailerSize = 8 + 8 + 8
)

// A Record is the state of one path of a directory when its manifest was made.
type Record struct {
	Path   string // the path, relative to the directory
	Hidden bool   // the sandbox does not see the path; the paths below it are not recorded
	Closed bool   // the path is a directory that could not be read, or not completely; not all paths below it are recorded
	fsat.Stat
}

// manifestWriter writes the records of a manifest in order.
type manifestWriter struct {
	w      io.Writer
	off    int64       // number of bytes written to w
	block  fsat.Packer // the records of the current block, encoded
	n      int         // number of records in block
	last   string      // path of the last record
	index  fsat.Packer // the index so far, encoded: the first path and the offset of each block
	blocks uint64      // number of blocks that index lists
	first  string      // first path of the last block that index lists
	start  int64       // offset, in the manifest, of the last block that index lists; 0 if it lists none
	err    error       // the first error of w
}

// newManifestWriter returns a writer of a manifest to w, and writes the header: the mask, and dev, the device number of the
// directory.
func newManifestWriter(w io.Writer, m *Mask, dev uint64) *manifestWriter {
	out := &manifestWriter{w: w}
	var head fsat.Packer
	head.Uint(dev)
	hide, show := m.Lists()
	for _, list := range [][]string{hide, show} {
		head.Uint(uint64(len(list)))
		for _, s := range list {
			head.String(s)
		}
	}
	p := fsat.Packer{B: []byte(manifestMagic)}
	p.Uint(uint64(len(head.B)))
	out.write(append(p.B, head.B...))
	return out
}

// write writes b to the file, unless an earlier write has failed.
func (w *manifestWriter) write(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
	w.off += int64(len(b))
}

// add adds a record. Records must be added in the order of a walk.
func (w *manifestWriter) add(r *Record) {
	shared := 0
	if w.n == 0 {
		at := sharedPrefix(w.first, r.Path)
		w.index.Uint(uint64(at))
		w.index.String(r.Path[at:])
		w.index.Uint(uint64(w.off - w.start))
		w.start, w.first = w.off, r.Path
		w.blocks++
	} else {
		shared = sharedPrefix(w.last, r.Path)
	}
	b := &w.block
	b.Uint(uint64(shared))
	b.String(r.Path[shared:])
	b.Byte(fsat.TypeNumber(r.Type) | fsat.Flag(r.Hidden, 0x40) | fsat.Flag(r.Closed, 0x80))
	b.Uint(uint64(r.Mode))
	if r.Type != fsat.TypeDir {
		b.Uint(uint64(r.Size))
		b.Int(r.Mtime)
		b.Int(r.Ctime - r.Mtime)
		b.Uint(r.Inode)
	}
	w.last = r.Path
	if w.n++; w.n == blockRecords {
		w.flush()
	}
}

// flush writes the current block and begins a new one.
func (w *manifestWriter) flush() {
	w.write(w.block.B)
	w.block.B, w.n = w.block.B[:0], 0
}

// close writes the last block, the index and the trailer. cut means that not all paths were recorded.
func (w *manifestWriter) close(cut bool) error {
	w.flush()
	at := w.off
	w.write(w.index.B)
	end := binary.LittleEndian.AppendUint64(nil, uint64(at))
	end = binary.LittleEndian.AppendUint64(end, w.blocks)
	end = binary.LittleEndian.AppendUint64(end, uint64(fsat.Flag(cut, 1)))
	w.write(end)
	return w.err
}

// sharedPrefix returns the number of bytes of the longest common prefix of a and b.
func sharedPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// A Manifest looks up the records that [Scan] has written. It reads blocks of the file on demand and caches a few. It is not
// safe for concurrent use.
type Manifest struct {
	file   io.ReaderAt // the manifest
	dev    uint64      // device number of the directory
	Mask   *Mask       // the mask that was used for the scan
	cut    bool        // not all paths were recorded
	blocks []blockRef  // the index
	end    int64       // offset of the end of the blocks

	// cached contains the records of some blocks.
	cached [8]struct {
		block   int // index of the cached block in blocks, or -1
		records []Record
	}
	next int // index of the element of cached that is replaced next
}

// A blockRef is an entry of the index: the first path of a block, and the offset of the block in the file.
type blockRef struct {
	first string // first path of the block
	off   int64  // offset of the block in the file
}

// OpenManifest reads the index of a manifest. The caller must keep file open as long as it uses the result.
func OpenManifest(file *os.File) (*Manifest, error) {
	fi, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return parseManifest(file, fi.Size())
}

// errManifest is the error for a malformed manifest.
var errManifest = fsat.Malformed("the record of the directory")

// parseManifest reads the index of the manifest in file, which has size bytes.
func parseManifest(file io.ReaderAt, size int64) (*Manifest, error) {
	m := &Manifest{file: file}
	head := make([]byte, min(size, int64(len(manifestMagic)+binary.MaxVarintLen64+maxHeader)))
	end := make([]byte, trailerSize)
	if size < int64(len(manifestMagic)+trailerSize) || m.read(head, 0) != nil || m.read(end, size-trailerSize) != nil {
		return nil, errManifest
	}
	at := binary.LittleEndian.Uint64(end)
	n, flags := binary.LittleEndian.Uint64(end[8:]), binary.LittleEndian.Uint64(end[16:])
	start, err := m.header(head)
	if err != nil {
		return nil, err
	}
	if at > uint64(size-trailerSize) || int64(at) < start || n > maxRecords/blockRecords+1 || flags > 1 {
		return nil, errManifest
	}
	m.cut, m.end = flags == 1, int64(at)
	index := make([]byte, size-trailerSize-m.end)
	if int64(len(index)) > int64(n)*(fsat.MaxPathLen+32) || m.read(index, m.end) != nil {
		return nil, errManifest
	}
	for i := range m.cached {
		m.cached[i].block = -1
	}
	return m, m.readIndex(index, n, start)
}

// read fills b with the bytes of the file at the offset off.
func (m *Manifest) read(b []byte, off int64) error {
	if n, err := m.file.ReadAt(b, off); n < len(b) {
		return err
	}
	return nil
}

// header parses the header at the beginning of head, and returns the offset of the first block.
func (m *Manifest) header(head []byte) (int64, error) {
	if string(head[:len(manifestMagic)]) != manifestMagic {
		return 0, errManifest
	}
	u := &fsat.Unpacker{B: head[len(manifestMagic):]}
	n := u.Size()
	start := int64(len(head) - len(u.B))
	if u.Bad || n > maxHeader || n > int64(len(u.B)) {
		return 0, errManifest
	}
	u.B = u.B[:n]
	m.dev = u.Uint()
	var lists [2][]string
	for i := range lists {
		count := u.Size()
		if count > namemask.MaxPatterns {
			return 0, errManifest
		}
		for range count {
			lists[i] = append(lists[i], u.String(namemask.MaxPattern))
		}
	}
	if u.Bad || len(u.B) > 0 {
		return 0, errManifest
	}
	var err error
	if m.Mask, err = namemask.New(lists[0], lists[1]); err != nil {
		return 0, errManifest
	}
	return start + n, nil
}

// readIndex parses the index of n blocks, the first of which begins at the offset off.
func (m *Manifest) readIndex(index []byte, n uint64, off int64) error {
	u := &fsat.Unpacker{B: index}
	last := ""
	for i := range n {
		shared, rest, delta := u.Uint(), u.String(fsat.MaxPathLen), u.Size()
		if u.Bad || shared > uint64(len(last)) {
			return errManifest
		}
		path := last[:shared] + rest
		if i == 0 {
			off = delta
		} else {
			off += delta
		}
		if !fsat.ValidPath(path) || i > 0 && fsat.Compare(last, path) >= 0 || off >= m.end || off < 0 {
			return errManifest
		}
		m.blocks = append(m.blocks, blockRef{first: path, off: off})
		last = path
	}
	if len(u.B) > 0 {
		return errManifest
	}
	return nil
}

// block returns the records of the block with the index i.
func (m *Manifest) block(i int) ([]Record, error) {
	for _, c := range m.cached {
		if c.block == i {
			return c.records, nil
		}
	}
	end := m.end
	if i+1 < len(m.blocks) {
		end = m.blocks[i+1].off
	}
	size := end - m.blocks[i].off
	if size <= 0 || size > maxBlock {
		return nil, errManifest
	}
	data := make([]byte, size)
	if m.read(data, m.blocks[i].off) != nil {
		return nil, errManifest
	}
	records, err := m.unpack(data, m.blocks[i].first)
	if err != nil {
		return nil, err
	}
	m.cached[m.next].block, m.cached[m.next].records = i, records
	m.next = (m.next + 1) % len(m.cached)
	return records, nil
}

// unpack returns the records of the block data, whose first path must be first.
func (m *Manifest) unpack(data []byte, first string) ([]Record, error) {
	u := &fsat.Unpacker{B: data}
	records := make([]Record, 0, blockRecords)
	last := ""
	for len(u.B) > 0 && len(records) < blockRecords {
		shared, rest, kind := u.Uint(), u.String(fsat.MaxPathLen), u.Byte()
		if u.Bad || shared > uint64(len(last)) || int(kind&0x3f) >= len(fsat.Types) {
			return nil, errManifest
		}
		r := Record{Path: last[:shared] + rest, Hidden: kind&0x40 != 0, Closed: kind&0x80 != 0}
		r.Type = fsat.Types[kind&0x3f]
		mode := u.Uint()
		if r.Type != fsat.TypeDir {
			r.Size = u.Size()
			r.Mtime = u.Int()
			r.Ctime = r.Mtime + u.Int()
			r.Inode = u.Uint()
		}
		if u.Bad || mode > fsat.ModeBits || !fsat.ValidPath(r.Path) || r.Type == fsat.TypeNone ||
			len(records) == 0 && r.Path != first || len(records) > 0 && fsat.Compare(last, r.Path) >= 0 {
			return nil, errManifest
		}
		r.Mode, r.Dev = uint32(mode), m.dev
		records = append(records, r)
		last = r.Path
	}
	if u.Bad || len(u.B) > 0 || len(records) == 0 {
		return nil, errManifest
	}
	return records, nil
}

// Lookup returns the record of path. found reports whether the path was recorded. If it was not, known reports whether the path
// is certain not to have existed during the scan; it is false if the manifest may be incomplete there.
func (m *Manifest) Lookup(path string) (r Record, found, known bool, err error) {
	r, found, err = m.find(path)
	if err != nil || found {
		return r, found, true, err
	}
	if m.cut {
		return Record{}, false, false, nil
	}
	for dir := fsat.Parent(path); dir != ""; dir = fsat.Parent(dir) {
		above, ok, err := m.find(dir)
		if err != nil {
			return Record{}, false, false, err
		}
		if ok {
			return Record{}, false, !above.Closed && !above.Hidden, nil
		}
	}
	return Record{}, false, true, nil
}

// find returns the record of path, if the path was recorded.
func (m *Manifest) find(path string) (Record, bool, error) {
	i := sort.Search(len(m.blocks), func(i int) bool { return fsat.Compare(m.blocks[i].first, path) > 0 }) - 1
	if i < 0 {
		return Record{}, false, nil
	}
	records, err := m.block(i)
	if err != nil {
		return Record{}, false, err
	}
	j, found := slices.BinarySearchFunc(records, path, func(r Record, path string) int { return fsat.Compare(r.Path, path) })
	if !found {
		return Record{}, false, nil
	}
	return records[j], true, nil
}

// Below returns the records below the directory dir ("" for all records), in order. It ends with an error if the manifest
// cannot be read.
func (m *Manifest) Below(dir string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		i := max(0, sort.Search(len(m.blocks), func(i int) bool { return fsat.Compare(m.blocks[i].first, dir) > 0 })-1)
		for ; i < len(m.blocks); i++ {
			records, err := m.block(i)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, r := range records {
				below := dir == "" || fsat.Below(r.Path, dir)
				if below && !yield(r, nil) || !below && fsat.Compare(r.Path, dir) > 0 {
					return
				}
			}
		}
	}
}

// ScanResult is the summary of a [Scan].
type ScanResult struct {
	Files int64 `json:"files"` // number of entries that are not directories
	Own   int64 `json:"own"`   // number of the entries counted in Files that are not hidden and for which [IsOwnFile] is true
	Dirs  int64 `json:"dirs"`  // number of directories
	Bytes int64 `json:"bytes"` // total size of regular files in bytes
	// Hidden contains the first paths that the mask hides, at most 1000, as [safetext.Path] formats them.
	Hidden []string `json:"hidden,omitempty"`
	// HiddenCount is the number of all paths that the mask hides, also of those that are not in Hidden. The paths below a
	// hidden directory are not counted.
	HiddenCount int `json:"hiddenCount,omitempty"`
	// Suspects are files that the mask shows and whose names indicate that they may contain secrets.
	Suspects Suspects `json:"suspects,omitzero"`
	Closed   int      `json:"closed,omitempty"` // number of directories that could not be read, or not completely
	Cut      bool     `json:"cut,omitempty"`    // not all paths were recorded
}

// maxHiddenShown is the maximum number of paths in ScanResult.Hidden.
const maxHiddenShown = 1000
