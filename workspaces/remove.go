package workspaces

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// droppedDir has a change that is being dropped, on its way out of the layer.
const droppedDir = "dropped"

// removeTree removes what is at a path of Caisson's own, with all that is in it; nothing there is no error.
//
// Sandboxes make trees of any depth. [os.RemoveAll] opens a descriptor for each level, so that one of them could take all that the
// daemon may have, and could never be removed. Interrupted at any point, it can be begun again.
func removeTree(name string) error {
	dir, err := openDir(name, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return os.Remove(name)
	case err != nil:
		return err
	}
	defer dir.Close()
	if err := empty(dir); err != nil {
		return err
	}
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// empty removes what is in a directory that nobody else uses. It has two of them open, whatever the depth: what lies below a directory
// is moved up beside it, and removed in its turn.
func empty(top *os.File) error {
	moved := 0
	return eachName(top, func(name string) error {
		err := unlink(top, name, 0)
		if !errors.Is(err, unix.EISDIR) {
			return err
		}
		fd, err := unix.Openat(int(top.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "openat", Path: name, Err: err}
		}
		dir := os.NewFile(uintptr(fd), name)
		defer dir.Close()
		if err := eachName(dir, func(name string) error {
			err := unlink(dir, name, 0)
			if errors.Is(err, unix.EISDIR) {
				err = moveUp(dir, name, top, &moved)
			}
			return err
		}); err != nil {
			return err
		}
		return unlink(top, name, unix.AT_REMOVEDIR)
	})
}

// moveUp moves a directory into top, under a name that is free. moved counts how many have been.
func moveUp(dir *os.File, name string, top *os.File, moved *int) error {
	for {
		*moved++
		err := unix.Renameat2(int(dir.Fd()), name, int(top.Fd()), fmt.Sprint("moved-", *moved), unix.RENAME_NOREPLACE)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EEXIST) { // which an earlier removal has left, or the sandbox calls so
			return &fs.PathError{Op: "rename", Path: name, Err: err}
		}
	}
}

// namesAtOnce is how many names are read at a time: a directory may have any number of them.
const namesAtOnce = 1024

// eachName calls do for each name in a directory, which removes it, until there is none.
func eachName(dir *os.File, do func(name string) error) error {
	for {
		// From the beginning: what is behind a position is not certain where entries come and go.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(namesAtOnce)
		if errors.Is(err, io.EOF) {
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

// removeIn removes what is at name in root. It is gone from there at once, and then from aside, a path of Caisson's own on the same file
// system: what is left of it when the daemon dies is no part of root any more.
func removeIn(root *os.Root, name, aside string) error {
	if err := removeTree(aside); err != nil {
		return err
	}
	above, err := root.OpenRoot(path.Dir(name))
	if err != nil {
		return err
	}
	defer above.Close()
	dir, err := above.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Renameat(int(dir.Fd()), path.Base(name), unix.AT_FDCWD, aside); err != nil {
		return &fs.PathError{Op: "rename", Path: name, Err: err}
	}
	return removeTree(aside)
}
