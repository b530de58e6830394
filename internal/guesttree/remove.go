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

// batch is how many names are read at a time: a directory may have any number of them.
const batch = 1024

// Remove removes what is at a path, with all that is in it; nothing there is no error. The directory that it is in is the host's own.
//
// [os.RemoveAll] opens a descriptor for each level, so that one tree could take all that the daemon may have, and could never be
// removed. This has three of them open, whatever the depth: what lies below a directory is moved up beside it, and removed in its
// turn. Interrupted at any point, it can be begun again. Somebody else may remove it as well; nobody
// adds to it.
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

// RemoveAt is Remove for a name in a directory.
func RemoveAt(ctx context.Context, dir *os.File, name string) error {
	top, err := openAt(dir, name)
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

// Empty removes what is in a directory, as Remove does.
func Empty(ctx context.Context, dir *os.File) error {
	r := remover{top: dir}
	return eachName(ctx, dir, func(name string) error { return r.remove(ctx, name) })
}

// remover removes what is in a directory that only it uses.
type remover struct {
	top   *os.File
	moved int // how many directories it has moved up
}

// remove removes one entry. Directories that are in it are in the top directory afterwards.
func (r *remover) remove(ctx context.Context, name string) error {
	err := unlink(r.top, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	dir, err := openAt(r.top, name)
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

// moveUp moves a directory into the top directory, under a name that is free.
func (r *remover) moveUp(dir *os.File, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), fmt.Sprint("moved-", r.moved), unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EEXIST): // an earlier removal has left it, or the guest calls something so
			continue
		case err != nil:
			return &fs.PathError{Op: "rename", Path: name, Err: err}
		}
		return nil
	}
}

// eachName calls do for each name in a directory, which removes it, until there is none.
func eachName(ctx context.Context, dir *os.File, do func(name string) error) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// From the beginning: what is behind a position is not certain where entries come and go.
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

// unlink removes a name from a directory; one that is not there is none.
func unlink(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: name, Err: err}
	}
	return nil
}

// openAt opens the directory of that name in dir, which is no symlink.
func openAt(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
