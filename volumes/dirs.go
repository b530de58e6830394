package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// What is in the data directory; see the package comment.
const (
	topDir  = "volumes"
	dataDir = "data"
)

// dir is the directory of a volume.
func (c *Core) dir(id caisson.ID) string { return filepath.Join(c.Dir, topDir, string(id)) }

// makeDir makes the directory of a new volume, which is on disk when it returns. base is the guest root's uid and gid.
func (c *Core) makeDir(id caisson.ID, base uint32) error {
	if err := os.Mkdir(c.dir(id), 0o700); err != nil {
		return diskFull(err)
	}
	data := filepath.Join(c.dir(id), dataDir)
	if err := os.Mkdir(data, 0o700); err != nil {
		return diskFull(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(data, int(base), int(base)); err != nil {
			return err
		}
	}
	// Whatever the umask. Whoever works in a sandbox writes there, root or not; the guest's root may make it narrower.
	if err := os.Chmod(data, 0o777); err != nil {
		return err
	}
	for _, dir := range []string{data, c.dir(id)} {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return c.top.Sync()
}

// openData opens what guests see of a volume. flags are added, such as O_PATH.
func (c *Core) openData(id caisson.ID, flags int) (*os.File, error) {
	own, err := openAt(c.top, string(id), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	return openAt(own, dataDir, flags)
}

// openAt opens the directory of that name in dir, which is no symlink.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "openat", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// removeDir removes the directory of that name, which belongs to no volume (any more), with all that is in it.
//
// Guests may have made trees of any depth and width. So it keeps two directories open, whatever the depth: what lies below a
// directory is moved up beside it, and removed in its turn. Interrupted at any point, it can be begun again.
func (c *Core) removeDir(ctx context.Context, name string) error {
	dir, err := openAt(c.top, name, unix.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return unlink(c.top, name, 0)
	case err != nil:
		return err
	}
	defer dir.Close()
	r := remover{top: dir}
	err = eachName(ctx, dir, func(name string) error { return r.remove(ctx, name) })
	if err != nil {
		return err
	}
	return errors.Join(unlink(c.top, name, unix.AT_REMOVEDIR), c.top.Sync())
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
	dir, err := openAt(r.top, name, unix.O_RDONLY)
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
		to := fmt.Sprint("moved-", r.moved)
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), to, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST): // an earlier removal has left it
			continue
		case err != nil:
			return &fs.PathError{Op: "rename", Path: name, Err: err}
		}
		return nil
	}
}

// batch is how many names are read at a time: a directory may have any number of them.
const batch = 1024

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

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// diskFull says so where that is why err happened.
func diskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
	}
	return err
}
