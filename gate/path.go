package gate

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// The types of what is at a path, as in [caisson.Change].
const (
	typeFile    = "file"
	typeDir     = "dir"
	typeSymlink = "symlink"
	typeFIFO    = "fifo"
	typeSocket  = "socket"
	typeDevice  = "device"
	typeNone    = "none"
)

// types are the types by their number in records, which are append-only.
var types = []string{typeNone, typeFile, typeDir, typeSymlink, typeFIFO, typeSocket, typeDevice}

func typeNumber(typ string) byte {
	for i, t := range types {
		if t == typ {
			return byte(i)
		}
	}
	return 0
}

// typeOf names the type in a mode of stat.
func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return typeFile
	case unix.S_IFDIR:
		return typeDir
	case unix.S_IFLNK:
		return typeSymlink
	case unix.S_IFIFO:
		return typeFIFO
	case unix.S_IFSOCK:
		return typeSocket
	}
	return typeDevice
}

const modeBits = 0o7777

// comparePaths orders paths as walks meet them: a directory, what is in it, then what comes after it.
func comparePaths(a, b string) int {
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

// below reports whether path is in dir, at any depth.
func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && path[:len(dir)] == dir
}

// parentOf returns the directory of path, "" for the root.
func parentOf(path string) string {
	return path[:max(0, strings.LastIndexByte(path, '/'))]
}

// validPath reports whether path is what walks give: relative, clean, within bounds.
func validPath(path string) bool {
	if path == "" || len(path) > maxPathLen || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	depth := 0
	for name := range strings.SplitSeq(path, "/") {
		depth++
		if name == "" || name == "." || name == ".." || len(name) > 255 || depth > maxDepth {
			return false
		}
	}
	return true
}

// resolution is how this package opens what is in a directory: never outside, through symlinks, or on another file system.
const resolution = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openUnder opens path in the directory dir; "" is dir itself.
func openUnder(dir int, path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolution}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		// EAGAIN: something was renamed meanwhile, and the kernel could not be sure.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// openFile is openUnder with a file.
func openFile(dir *os.File, path string, flags int, mode uint32) (*os.File, error) {
	fd, err := openUnder(int(dir.Fd()), path, flags, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: safetext.Path(path), Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// keepAlive, deferred, keeps files from being closed by the garbage collector while only the numbers of their descriptors are
// in use.
func keepAlive(files ...*os.File) { runtime.KeepAlive(files) }

// permissions are the mode bits that can be applied.
const permissions = 0o777
