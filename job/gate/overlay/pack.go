package overlay

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// frozenPack is the file of a frozen copy that contains the contents of small files, each once, in the order in which the index
// first names them; offsets follow from the index. On ext4, a file for each content takes fifty times as long to create, and
// longer after many files were removed. Copies that earlier versions of the program made have no pack.
const frozenPack = "pack"

// belongsInPack reports whether the content of e is in the pack, if the frozen copy has one.
func belongsInPack(e *Entry) bool { return e.Content != "" && e.Size <= fsat.MaxSmallFile }

// packWriter writes the pack of a frozen copy.
type packWriter struct {
	file *os.File
	out  *bufio.Writer
	has  map[string]bool // the SHA-256 of each content that was added, in hexadecimal
}

// newPacking creates the pack of the frozen copy in dir.
func newPacking(dir *os.File) (*packWriter, error) {
	file, err := fsat.OpenFile(dir, frozenPack, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make room for a review")
	}
	return &packWriter{file: file, out: bufio.NewWriterSize(file, 256<<10), has: map[string]bool{}}, nil
}

// add appends data, whose SHA-256 is content, unless the pack already contains it.
func (p *packWriter) add(content string, data []byte) error {
	if p.has[content] {
		return nil
	}
	p.has[content] = true
	_, err := p.out.Write(data)
	return err
}

func (p *packWriter) close() error { return errors.Join(p.out.Flush(), p.file.Close()) }

// pack reads the pack of a frozen copy.
type pack struct {
	file  *os.File
	spans map[string]packRange // position of each content in the pack, by the SHA-256 of the content
}

// openPack opens the pack of the frozen copy in dir, whose index contains entries. If the copy has no pack, the result contains
// nothing.
func openPack(dir *os.File, entries []Entry) (*pack, error) {
	p := &pack{}
	file, err := fsat.OpenFile(dir, frozenPack, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	p.file, p.spans = file, make(map[string]packRange, len(entries))
	at := 0
	for i := range entries {
		e := &entries[i]
		if _, there := p.spans[e.Content]; belongsInPack(e) && !there {
			p.spans[e.Content] = packRange{at, at + int(e.Size)}
			at += int(e.Size)
		}
	}
	return p, nil
}

// open returns a reader of the content with this SHA-256, or nil if it is not in the pack. The caller must compare the content
// with the hash. The reader is valid until close.
func (p *pack) open(content string) io.ReadCloser {
	s, ok := p.spans[content]
	if !ok {
		return nil
	}
	return io.NopCloser(io.NewSectionReader(p.file, int64(s.start), int64(s.end-s.start)))
}

func (p *pack) close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// Contents opens the contents of a frozen copy by their SHA-256. Its readers do not verify the hash; the jobs that write the
// contents elsewhere do.
type Contents struct {
	frozen *os.File // directory of the frozen copy
	pack   *pack    // contains the contents of small files
}

// OpenContents opens the contents of the copy in frozen, which must stay open until the result is closed.
func OpenContents(frozen *os.File) (*Contents, error) {
	entries, _, err := ReadIndex(frozen, frozenIndex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a copy without an index contains only merged contents
		return nil, err
	}
	p, err := openPack(frozen, entries)
	if err != nil {
		return nil, err
	}
	return &Contents{frozen: frozen, pack: p}, nil
}

// Open opens the content with this SHA-256 of the copy or of a merged file.
func (c *Contents) Open(hash string) (io.ReadCloser, error) {
	if r := c.pack.open(hash); r != nil {
		return r, nil
	}
	r, err := fsat.OpenObject(c.frozen, FrozenObjects, hash)
	if errors.Is(err, fs.ErrNotExist) {
		return fsat.OpenObject(c.frozen, MergedDir, hash)
	}
	return r, err
}

func (c *Contents) Close() error { return c.pack.close() }

// packRange is the position of a content in a pack, as offsets in bytes: that of its first byte, and that after its last byte.
type packRange struct{ start, end int }
