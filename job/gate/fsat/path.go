// Package fsat opens and reads files relative to descriptors of directories, never outside them, through symlinks, or on another
// file system. It also has the encoding of the gate's own files, and lends directories to jobs.
package fsat

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// The types of files, as in [caisson.Change].
const (
	TypeFile    = "file"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
	TypeFIFO    = "fifo"
	TypeSocket  = "socket"
	TypeDevice  = "device"
	TypeNone    = "none"
)

// Types lists the types by their number in records. It is append-only.
var Types = []string{TypeNone, TypeFile, TypeDir, TypeSymlink, TypeFIFO, TypeSocket, TypeDevice}

// TypeNumber returns the index of typ in Types, or 0 (TypeNone) if typ is not in Types.
func TypeNumber(typ string) byte {
	return byte(max(slices.Index(Types, typ), 0))
}

// TypeOf returns the type of a file with this st_mode.
func TypeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDir
	case unix.S_IFLNK:
		return TypeSymlink
	case unix.S_IFIFO:
		return TypeFIFO
	case unix.S_IFSOCK:
		return TypeSocket
	}
	return TypeDevice
}

const ModeBits = 0o7777 // permission bits, with setuid, setgid and sticky

// Compare orders paths in the order of a walk: a directory, its content, then the names after it.
func Compare(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		case a[i] < b[i]:
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// Below reports whether path is below dir, at any depth.
func Below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// Parent returns the directory of path, "" for the root.
func Parent(path string) string {
	return path[:max(0, strings.LastIndexByte(path, '/'))]
}

// ValidPath reports whether path is relative, clean and within the bounds, as the paths of a walk are.
func ValidPath(path string) bool {
	if path == "" || len(path) > MaxPathLen || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	depth := 0
	for name := range strings.SplitSeq(path, "/") {
		depth++
		if name == "" || name == "." || name == ".." || len(name) > 255 || depth > MaxDepth {
			return false
		}
	}
	return true
}

// resolution are the flags with which openat2 fails unless the file is beneath the directory, on the same mount, and reached
// without symlinks.
const resolution = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Open opens path in the directory dir; "" is dir itself.
func Open(dir int, path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolution}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		// EAGAIN: a concurrent rename kept the kernel from verifying the path.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// OpenFile is like Open, with an *os.File for the directory and the result.
func OpenFile(dir *os.File, path string, flags int, mode uint32) (*os.File, error) {
	fd, err := Open(int(dir.Fd()), path, flags, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: safetext.Path(path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// KeepAlive, deferred, keeps files from being closed by the garbage collector while only the numbers of their descriptors are
// in use.
func KeepAlive(files ...*os.File) { runtime.KeepAlive(files) }

// Permissions are the mode bits that can be applied.
const Permissions = 0o777
