package check

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// A Tree is what changes are applied to: a directory of the host, or the tree of a commit. Paths are relative and clean, with
// slashes; "" is the root. The methods must be safe for concurrent use.
type Tree interface {
	// Lookup returns the type of the entry at path, such as "file" or "dir", and the target if it is a symlink, which is
	// not followed. The type is "none" if the entry does not exist, or if a parent of it is not a directory.
	Lookup(path string) (typ, link string, err error)
	// Children returns the names in dir, in any order. It returns no names if dir is not a directory, and an error if there are
	// too many.
	Children(dir string) ([]string, error)
	// Content returns at most limit bytes of the file at path as it was before the changes. It returns nil if the file did not
	// exist or cannot be read. If there were several versions of the file, one for each parent of a commit, the result contains
	// all of them, each followed by a zero byte.
	Content(path string, limit int64) []byte
}

// maxCheckedNames is the maximum number of names that are read from one directory of the host.
const maxCheckedNames = 200_000

// hostTree implements [Tree] for a directory of the host.
type hostTree struct{ dir *os.File }

// Lookup implements [Tree].
func (t hostTree) Lookup(path string) (typ, link string, err error) {
	defer fsat.KeepAlive(t.dir)
	dir, err := fsat.OpenDir(int(t.dir.Fd()), fsat.Parent(path))
	if err != nil {
		return missingResult(err)
	}
	defer unix.Close(dir)
	name := path[strings.LastIndexByte(path, '/')+1:]
	st, err := fsat.Lstat(dir, name)
	if err != nil {
		return missingResult(err)
	}
	if st.Type != fsat.TypeSymlink {
		return st.Type, "", nil
	}
	buf := make([]byte, fsat.MaxPathLen+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return missingResult(err)
	}
	return st.Type, string(buf[:n]), nil
}

// missingResult returns the results of Lookup if looking up the path failed with err: TypeNone if the path does not exist, and
// the error otherwise.
func missingResult(err error) (string, string, error) {
	if fsat.IsOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL) {
		return fsat.TypeNone, "", nil
	}
	return "", "", err
}

// Children implements [Tree]. It returns fsat.ErrTooMany if dir has more than maxCheckedNames entries.
func (t hostTree) Children(dir string) ([]string, error) {
	defer fsat.KeepAlive(t.dir)
	fd, err := fsat.OpenDir(int(t.dir.Fd()), dir)
	if err != nil {
		_, _, err = missingResult(err)
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ListNames(fd, maxCheckedNames)
}

// Content implements [Tree].
func (t hostTree) Content(path string, limit int64) []byte {
	defer fsat.KeepAlive(t.dir)
	f, err := fsat.Open(int(t.dir.Fd()), path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(f), "host")
	defer file.Close()
	if st, err := fsat.Lstat(f, ""); err != nil || st.Type != fsat.TypeFile {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil
	}
	return text
}
