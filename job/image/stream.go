package image

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/caisson-dev/caisson"
)

// A stream reads an archive that may be compressed. It computes the digests and enforces the size limits of the compressed
// and the uncompressed bytes.
type stream struct {
	in, out   *countingReader // readers of the compressed and of the uncompressed bytes
	unpacker  io.Reader       // decompresses the bytes of in
	closeZstd func()          // closes the decompressor of zstd; nil for other archives
}

// openStream returns a stream that reads the archive r. It recognises gzip, zstd and bzip2 by their first bytes, and reads
// other input as it is. maxIn and maxOut are the limits of the compressed and of the uncompressed bytes. Returns Invalid for
// xz, which is not supported.
func openStream(r io.Reader, maxIn, maxOut int64, progress func(n int64)) (*stream, error) {
	s := &stream{in: &countingReader{r: r, sum: sha256.New(), max: maxIn, progress: progress,
		limitMessage: "the archive is larger than announced or allowed"}}
	buf := bufio.NewReaderSize(s.in, 256<<10)
	head, err := buf.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		if s.unpacker, err = gzip.NewReader(buf); err != nil {
			return nil, archiveError(err)
		}
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, archiveError(err)
		}
		s.unpacker, s.closeZstd = z, z.Close
	case bytes.HasPrefix(head, []byte("BZh")):
		s.unpacker = bzip2.NewReader(buf)
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, caisson.Errorf(caisson.Invalid, "xz is not supported; unpack the archive, or use gzip or zstd")
	default:
		s.unpacker = buf
	}
	s.out = &countingReader{r: s.unpacker, sum: sha256.New(), max: maxOut, limitMessage: "the archive unpacks to more than allowed"}
	return s, nil
}

func (s *stream) Read(b []byte) (int, error) { return s.out.Read(b) }

// finish reads the bytes after the end of the archive, because the digests cover them as well.
func (s *stream) finish() error {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return archiveError(err)
	}
	_, err := io.Copy(io.Discard, s.in)
	return err
}

func (s *stream) close() {
	if s.closeZstd != nil {
		s.closeZstd()
	}
}

// archiveError converts an error of reading an archive to a caisson.Error of kind Invalid; a caisson.Error is returned unchanged.
func archiveError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	return caisson.Wrap(err, caisson.Invalid, "the archive is damaged or incomplete")
}

// countingReader is a reader that counts and hashes the bytes it reads, and fails with Exhausted if there are more than max
// bytes.
type countingReader struct {
	r            io.Reader   // the underlying reader
	sum          hash.Hash   // SHA-256 of the bytes that were read
	n, max       int64       // number of bytes that were read, and the maximum number
	limitMessage string      // message of the error if r has more than max bytes
	progress     func(int64) // called every few MiB with the number of bytes that were read so far; may be nil
	reported     int64       // value of n at the last call of progress
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.sum.Write(b[:n])
	c.n += int64(n)
	if c.n > c.max {
		return 0, caisson.Errorf(caisson.Exhausted, "%s (%v)", c.limitMessage, caisson.Size(c.max))
	}
	const step = 4 << 20
	if c.progress != nil && c.n-c.reported >= step {
		c.reported = c.n
		c.progress(c.n)
	}
	return n, err
}

func (c *countingReader) digest() string { return digestOf(c.sum) }

// digestOf returns h's sum in the form of digests: "sha256:" and 64 hexadecimal digits.
func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// hashParts writes parts to h, each preceded by its length, so that different parts never give the same input of the hash.
func hashParts(h hash.Hash, parts ...string) {
	var n [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		io.WriteString(h, part)
	}
}

// digestOfBytes returns the SHA-256 hash of data in the form of digests: "sha256:" and 64 hexadecimal digits.
func digestOfBytes(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
