package check

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/gate/fsat"
)

// A Tree is what changes are made to: a host's directory, or that of a commit. Paths are relative, clean and with slashes; ""
// is the root. Its methods are called from several goroutines.
type Tree interface {
	// Lookup says what is at path, as in [caisson.Change.Type], "none" if nothing, and where it leads if it is a symlink.
	// Nothing is found below what is no directory; symlinks are not followed.
	Lookup(path string) (typ, link string, err error)
	// Children returns the names in dir, in any order; none if it is no directory. It is an error if they are too many to look at.
	Children(dir string) ([]string, error)
	// Content returns at most limit bytes of the file at path as it was before the changes; nil if there was none, or it cannot
	// be read. Where there were several, as in the parents of a commit, a zero byte is after each.
	Content(path string, limit int64) []byte
}

// maxCheckedNames bounds what is looked at in one directory of the host.
const maxCheckedNames = 200_000

// hostTree is a directory of the host.
type hostTree struct{ dir *os.File }

func (t hostTree) Lookup(path string) (typ, link string, err error) {
	defer fsat.KeepAlive(t.dir)
	dir, err := fsat.OpenDir(int(t.dir.Fd()), fsat.Parent(path))
	if err != nil {
		return absent(err)
	}
	defer unix.Close(dir)
	name := path[strings.LastIndexByte(path, '/')+1:]
	st, err := fsat.Lstat(dir, name)
	if err != nil {
		return absent(err)
	}
	if st.Type != fsat.TypeSymlink {
		return st.Type, "", nil
	}
	buf := make([]byte, fsat.MaxPathLen+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return absent(err)
	}
	return st.Type, string(buf[:n]), nil
}

// absent is the answer to a failed look: what is not there is nothing, all else is an error.
func absent(err error) (string, string, error) {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL} {
		if errors.Is(err, e) {
			return fsat.TypeNone, "", nil
		}
	}
	return "", "", err
}

// Children returns fsat.ErrTooMany if the host has more than can be looked at.
func (t hostTree) Children(dir string) ([]string, error) {
	defer fsat.KeepAlive(t.dir)
	fd, err := fsat.OpenDir(int(t.dir.Fd()), dir)
	if err != nil {
		_, _, err = absent(err)
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ListNames(fd, maxCheckedNames)
}

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
