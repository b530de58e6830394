// Package fsat opens and reads files relative to descriptors of directories, never outside them, through symlinks, or on
// another file system. It also implements the encoding of the gate's own files, and gives worker jobs access to directories of
// the daemon.
package fsat

import (
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// The types of files, which are the values of [caisson.Change.Type].
const (
	TypeFile    = "file"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
	TypeFIFO    = "fifo"
	TypeSocket  = "socket"
	TypeDevice  = "device"
	TypeNone    = "none"
)

// Types lists the types of files by the number that stands for each in records. New types may only be appended.
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

const ModeBits = 0o7777 // all mode bits of a file: permissions, setuid, setgid and sticky

// Compare compares two paths by the order of a walk: a directory comes first, then everything below it, then the names after
// the name of the directory.
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

// Below reports whether path is below the directory dir, at any depth.
func Below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// Parent returns the path of the parent directory of path; "" is the root.
func Parent(path string) string {
	return path[:max(0, strings.LastIndexByte(path, '/'))]
}

// ValidPath reports whether path is relative and clean, and within MaxPathLen and MaxDepth, as the paths of a walk are.
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

// resolution are the flags with which openat2 fails unless the path stays beneath the directory and on its mount, and contains
// no symlinks.
const resolution = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Open opens path beneath dir, the file descriptor of a directory. "" is dir itself.
func Open(dir int, path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolution}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		// EAGAIN means that the kernel could not verify the path because of a concurrent rename.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// OpenFile opens path beneath the directory dir, as [Open] does, and returns it as a file. "" is dir itself.
func OpenFile(dir *os.File, path string, flags int, mode uint32) (*os.File, error) {
	fd, err := Open(int(dir.Fd()), path, flags, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: safetext.Path(path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// KeepAlive is to be deferred by functions that use only the descriptor numbers of files: it prevents the garbage collector
// from closing files.
func KeepAlive(files ...*os.File) { runtime.KeepAlive(files) }

// Permissions are the mode bits of files that the gate applies: read, write and execute, without setuid, setgid and sticky.
const Permissions = 0o777
