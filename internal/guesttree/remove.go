package guesttree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// batch is the number of names that are read from a directory at a time, because a directory may contain any number of names.
const batch = 1024

// Remove removes the file or directory at path with all its contents. It returns nil if path does not exist. The parent
// directory must not be writable by guests.
//
// [os.RemoveAll] opens a descriptor for each level, so a deep tree could exhaust the daemon's descriptors and could
// never be removed. Remove keeps three descriptors open regardless of the depth: the subdirectories of a directory are
// moved up beside it and are removed later. After an interruption Remove can be called again. Other processes may
// remove entries concurrently, but must not add any.
func Remove(ctx context.Context, path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return RemoveAt(ctx, dir, filepath.Base(path))
}

// RemoveAt removes the entry name of dir in the same way as Remove.
func RemoveAt(ctx context.Context, dir *os.File, name string) error {
	top, err := OpenAt(dir, name, unix.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return unlink(dir, name, 0)
	case err != nil:
		return err
	}
	defer top.Close()
	if err := Empty(ctx, top); err != nil {
		return err
	}
	return unlink(dir, name, unix.AT_REMOVEDIR)
}

// Empty removes the contents of a directory in the same way as Remove.
func Empty(ctx context.Context, dir *os.File) error {
	r := remover{top: dir}
	return eachName(ctx, dir, func(name string) error { return r.remove(ctx, name) })
}

// remover removes the contents of a directory to which no other process adds entries.
type remover struct {
	top   *os.File // The directory whose contents are removed, called the top directory.
	moved int      // Number of directories that were moved to the top directory.
}

// remove removes the entry name of the top directory. If it is a directory, its subdirectories are moved to the top directory,
// to be removed later.
func (r *remover) remove(ctx context.Context, name string) error {
	err := unlink(r.top, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	dir, err := OpenAt(r.top, name, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := eachName(ctx, dir, func(name string) error {
		err := unlink(dir, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = r.moveUp(dir, name)
		}
		return err
	}); err != nil {
		return err
	}
	return unlink(r.top, name, unix.AT_REMOVEDIR)
}

// moveUp moves the subdirectory name of dir to the top directory, under an unused name.
func (r *remover) moveUp(dir *os.File, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), fmt.Sprint("moved-", r.moved), unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EEXIST): // The name is left over from an earlier removal, or used by the guest.
			continue
		case err != nil:
			return &fs.PathError{Op: "rename", Path: name, Err: err}
		}
		return nil
	}
}

// eachName calls do, which must remove the name, for each name in a directory until the directory is empty.
func eachName(ctx context.Context, dir *os.File, do func(name string) error) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Read from the start: positions are not reliable while entries are added and removed.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
	}
}

// unlink removes a name from a directory. It returns nil if the name does not exist.
func unlink(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: name, Err: err}
	}
	return nil
}

// OpenAt opens the directory name in dir. It does not follow a symlink. flags are added to those of openat, such as O_PATH.
func OpenAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
