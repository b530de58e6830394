package fsat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// MaxSmallFile is the maximum size, in bytes, of a small file. Only small files are read into memory as a whole.
const MaxSmallFile = 1 << 20

// OpenContent opens a regular file for reading. It does not block if the file has become a pipe, does not follow symlinks, and
// does not change the access time if the caller owns the file.
func OpenContent(root int, path string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := Open(root, path, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		fd, err = Open(root, path, flags, 0)
	}
	return fd, err
}

// ErrChanged is returned if a file changes while it is read.
var ErrChanged = errors.New("the file changed while it was read")

// ReadContent returns the content of the file at path beneath root. Returns ErrChanged if the metadata of the file are not st,
// or if it has more than limit bytes.
func ReadContent(ctx context.Context, root int, path string, st *Stat, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if st.Size > limit {
		return nil, ErrChanged
	}
	fd, err := OpenContent(root, path)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	data := make([]byte, st.Size+1)
	n, err := io.ReadFull(file, data)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	after, err := Lstat(fd, "")
	if err != nil {
		return nil, err
	}
	if int64(n) != st.Size || !after.Same(st) {
		return nil, ErrChanged
	}
	return data[:n], nil
}

// UnlessConcurrent returns nil if err, of opening or reading a file, can be caused by permissions or by a concurrent change,
// and err otherwise.
func UnlessConcurrent(err error) error {
	if Inaccessible(err) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	return err
}

// Limits of texts that are compared line by line. Larger files are treated as binary: they are applied as a whole or not at all.
const (
	MaxTextBytes = 8 << 20
	MaxTextLines = 200_000
)

// IsText reports whether b can be shown and compared line by line.
func IsText(b []byte) bool {
	return len(b) <= MaxTextBytes && bytes.IndexByte(b, 0) < 0 && utf8.Valid(b) && bytes.Count(b, []byte("\n")) < MaxTextLines
}

// OpenObject opens the file whose name is hash, a SHA-256 in hexadecimal, in the subdirectory in of dir. The caller must
// compare the content with the hash.
func OpenObject(dir *os.File, in, hash string) (io.ReadCloser, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != hash {
		return nil, caisson.Errorf(caisson.Invalid, "%.100q is not the name of a content", hash)
	}
	fd, err := Open(int(dir.Fd()), in+"/"+hash, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat2", err)
	}
	return os.NewFile(uintptr(fd), hash), nil
}
