package quarantine

import (
	"bufio"
	"compress/flate"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/commit"
)

// Types of pack entries.
const (
	packCommit      = 1
	packTree        = 2
	packBlob        = 3
	packTag         = 4
	packOffsetDelta = 6
	packRefDelta    = 7
)

// maxDeltaChain is the longest delta chain that git creates.
const maxDeltaChain = 4095

// Limits are the limits for a pack. A pack that exceeds one is refused.
type Limits struct {
	Objects int   // number of objects
	Object  int64 // bytes of one object, inflated and with deltas applied
	Total   int64 // bytes of all objects, inflated and with deltas applied
	IDSize  int   // not a limit, but the length of an object name in bytes
}

// Deniedf returns the Denied error for a pack that is refused. The client receives its message.
func Deniedf(format string, args ...any) error {
	return caisson.Errorf(caisson.Denied, format, args...)
}

// A packScanner reads a pack once, without storing it, and enforces limits before git inflates anything: an object whose declared
// size exceeds the limit is not inflated, and no object is inflated beyond its declared size. Git checks the content of objects,
// the application of deltas and the checksum of the pack.
type packScanner struct {
	limits Limits
	in     *bufio.Reader // the pack
	offset int64         // bytes read
	zlib   io.ReadCloser // decompresses entries; nil before the first one
	buf    []byte        // scratch space for decompressed data

	starts []int64 // offsets of entries, ascending
	chains []int   // lengths of the entries' delta chains
	total  int64   // bytes of the objects read, inflated and with deltas applied
}

// scanPack reads a pack, which must end at the end of r, and returns the number of objects. Errors are Denied, or come from r.
func scanPack(r io.Reader, l Limits) (int, error) {
	s := &packScanner{limits: l, in: bufio.NewReaderSize(r, 1<<16), buf: make([]byte, 1<<16)}
	var head [12]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return 0, s.truncatedError(err)
	}
	if string(head[:4]) != "PACK" || binary.BigEndian.Uint32(head[4:]) != 2 {
		return 0, Deniedf("the push has no pack of version 2")
	}
	count := binary.BigEndian.Uint32(head[8:])
	if int64(count) > int64(l.Objects) {
		return 0, Deniedf("the push has %d objects; the most is %d", count, l.Objects)
	}
	for range count {
		if err := s.scanEntry(); err != nil {
			return 0, s.truncatedError(err)
		}
	}
	if _, err := io.CopyN(io.Discard, s, int64(l.IDSize)); err != nil {
		return 0, s.truncatedError(err)
	}
	if _, err := s.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			return 0, err
		}
		return 0, Deniedf("something follows the pack")
	}
	return int(count), nil
}

// Read reads from the pack, and adds the number of bytes to s.offset.
func (s *packScanner) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.offset += int64(n)
	return n, err
}

// ReadByte reads one byte of the pack. Because of this method, flate does not read beyond the end of the compressed data.
func (s *packScanner) ReadByte() (byte, error) {
	b, err := s.in.ReadByte()
	if err == nil {
		s.offset++
	}
	return b, err
}

// truncatedError returns a Denied error if err is an unexpected end of the data, else err.
func (s *packScanner) truncatedError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Deniedf("the pack is cut off")
	}
	return err
}

// scanEntry reads one entry and enforces the limits.
func (s *packScanner) scanEntry() error {
	start := s.offset
	typ, size, err := s.readHeader()
	if err != nil {
		return err
	}
	chain := 0
	limit := s.limits.Object
	switch typ {
	case packCommit, packTag:
		limit = commit.MaxCommitObject
	case packTree:
		limit = commit.MaxTreeObject
	case packBlob:
	case packOffsetDelta:
		if chain, err = s.readBase(start); err != nil {
			return err
		}
	case packRefDelta:
		chain = 1
		if _, err := io.CopyN(io.Discard, s, int64(s.limits.IDSize)); err != nil {
			return err
		}
	default:
		return Deniedf("the pack has an entry of the unknown type %d", typ)
	}
	if size > limit {
		return Deniedf("the push has an object of %v; the largest is %v", caisson.Size(size), caisson.Size(limit))
	}
	s.starts, s.chains = append(s.starts, start), append(s.chains, chain)
	return s.inflate(size, chain > 0)
}

// readHeader reads the type and size of an entry: 3 bits of type and 4 bits of size, then 7 bits of size per byte.
func (s *packScanner) readHeader() (typ byte, size int64, err error) {
	b, err := s.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	typ, size = b>>4&7, int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = s.ReadByte(); err != nil {
			return 0, 0, err
		}
		if shift > 46 {
			return 0, 0, Deniedf("the pack has an object of an impossible size")
		}
		size |= int64(b&0x7f) << shift
	}
	return typ, size, nil
}

// readBase reads the offset of the base of a delta, which must be an earlier entry, and returns the length of the delta chain
// including this delta, whose entry begins at start.
func (s *packScanner) readBase(start int64) (chain int, err error) {
	b, err := s.ReadByte()
	if err != nil {
		return 0, err
	}
	back := int64(b & 0x7f)
	for b&0x80 != 0 {
		if b, err = s.ReadByte(); err != nil {
			return 0, err
		}
		if back >= 1<<48 {
			return 0, Deniedf("the pack has a delta of nothing")
		}
		back = (back+1)<<7 | int64(b&0x7f)
	}
	i, found := slices.BinarySearch(s.starts, start-back)
	if !found {
		return 0, Deniedf("the pack has a delta of nothing")
	}
	if chain = s.chains[i] + 1; chain > maxDeltaChain {
		return 0, Deniedf("the pack has more than %d deltas of each other", maxDeltaChain)
	}
	return chain, nil
}

// inflate reads the compressed part of an entry, and at most one byte beyond its declared size.
func (s *packScanner) inflate(size int64, delta bool) error {
	if err := s.reset(); err != nil {
		return s.inflateError(err)
	}
	whole := size
	if delta {
		n, head, err := s.readDeltaSizes(size)
		if err != nil {
			return err
		}
		if n > s.limits.Object {
			return Deniedf("the push has an object of %v; the largest is %v", caisson.Size(n), caisson.Size(s.limits.Object))
		}
		whole, size = n, size-head
	}
	if s.total += whole; s.total > s.limits.Total {
		return Deniedf("the objects of the push have more than %v together", caisson.Size(s.limits.Total))
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{io.LimitReader(s.zlib, size)}, s.buf)
	if err != nil {
		return s.inflateError(err)
	}
	if n != size {
		return Deniedf("the pack has an object that is smaller than its header says")
	}
	// The compressed data must end here. This read also verifies its checksum.
	if n, err := s.zlib.Read(s.buf[:1]); n != 0 || !errors.Is(err, io.EOF) {
		if err != nil && !errors.Is(err, io.EOF) {
			return s.inflateError(err)
		}
		return Deniedf("the pack has an object that is larger than its header says")
	}
	return nil
}

// reset begins the decompression of the next entry.
func (s *packScanner) reset() error {
	if s.zlib == nil {
		z, err := zlib.NewReader(s)
		s.zlib = z
		return err
	}
	return s.zlib.(zlib.Resetter).Reset(s, nil)
}

// readDeltaSizes reads the sizes of base and result at the beginning of a delta of size bytes. It returns the size of the result
// and the number of bytes read.
func (s *packScanner) readDeltaSizes(size int64) (whole, head int64, err error) {
	for range 2 {
		whole = 0
		for shift := 0; ; shift += 7 {
			if head++; head > size || shift > 46 {
				return 0, 0, Deniedf("the pack has a malformed delta")
			}
			if _, err := io.ReadFull(s.zlib, s.buf[:1]); err != nil {
				return 0, 0, s.inflateError(err)
			}
			whole |= int64(s.buf[0]&0x7f) << shift
			if s.buf[0]&0x80 == 0 {
				break
			}
		}
	}
	return whole, head, nil
}

// inflateError returns the error for data that cannot be inflated.
func (s *packScanner) inflateError(err error) error {
	if errors.Is(err, zlib.ErrChecksum) || errors.Is(err, zlib.ErrDictionary) || errors.Is(err, zlib.ErrHeader) {
		return Deniedf("the pack has an object that is not compressed as it must be")
	}
	if isFlateError(err) {
		return Deniedf("the pack has an object that is not compressed as it must be")
	}
	return fmt.Errorf("read the pack: %w", err)
}

// isFlateError reports whether err is an error of malformed compressed data.
func isFlateError(err error) bool {
	var corrupt flate.CorruptInputError
	var internal flate.InternalError
	return errors.As(err, &corrupt) || errors.As(err, &internal)
}
