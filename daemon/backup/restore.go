package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
)

// Restore creates the data directory dir from the archive that it reads from r. dir must be empty or not exist. Restore unpacks
// the archive into a temporary directory next to dir, verifies it, calls check with the path of the temporary directory, syncs it
// to disk, and renames it to dir. On an error it removes the temporary directory, and dir is unchanged.
//
// The configuration in the archive is unpacked to [RestoredDir] in the data directory. Nothing outside of the data directory is
// changed.
func Restore(ctx context.Context, r io.Reader, dir string, check func(ctx context.Context, dir string, h *Header) error) (_ *Header, _ *Manifest, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, err
	}
	if err := checkEmpty(dir); err != nil {
		return nil, nil, err
	}
	// MkdirTemp creates the directory with mode 0700.
	stage, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".restore-")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, caisson.Invalidf("dataDir", "%s does not exist; make it first", filepath.Dir(dir))
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(diskFull(err, dir), os.RemoveAll(stage))
		}
	}()
	root, err := os.OpenRoot(stage)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	room, err := free(stage)
	if err != nil {
		return nil, nil, err
	}
	u := &unpacker{root: root, room: room, owners: os.Geteuid() == 0}
	if err := root.Mkdir(RestoredDir, 0o700); err != nil {
		return nil, nil, err
	}
	h, m, err := read(ctx, r, u.put)
	if err != nil {
		return nil, nil, err
	}
	if err := u.setModes(); err != nil {
		return nil, nil, err
	}
	if err := check(ctx, stage, h); err != nil {
		return nil, nil, err
	}
	return h, m, syncAndRename(stage, dir)
}

// checkEmpty returns an error unless dir is an empty directory or does not exist: Conflict if dir has entries, and Invalid if it
// cannot be read.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return caisson.Invalidf("dataDir", "%s cannot be a data directory: %v", dir, err)
	case len(entries) > 0:
		return caisson.Errorf(caisson.Conflict, "%s is not empty; a backup is restored into an empty directory: stop the daemon and move this one away, or name another one with --data", dir)
	}
	return nil
}

// syncAndRename syncs the file system of stage and renames stage to dir. It returns an error if dir has got entries in the
// meantime.
func syncAndRename(stage, dir string) error {
	f, err := os.Open(stage)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
	if err != nil {
		return err
	}
	switch err := unix.Rename(stage, dir); {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return checkEmpty(dir)
	case errors.Is(err, unix.EBUSY):
		return caisson.Errorf(caisson.Conflict, "%s is a mount point; restore into a directory in it, and set dataDir to that", dir)
	case err != nil:
		return &fs.PathError{Op: "rename", Path: stage, Err: err}
	}
	return durable.Sync(filepath.Dir(dir))
}

// free returns the number of bytes that are free on the file system of dir.
func free(dir string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return int64(st.Bavail) * st.Bsize, err
}

// diskFull returns an Exhausted error if err was caused by a full disk, and otherwise err.
func diskFull(err error, dir string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return caisson.Wrap(err, caisson.Exhausted, "the disk of %s is full; nothing was restored", dir)
	}
	return err
}

// An unpacker creates the entries of an archive in a directory.
type unpacker struct {
	root   *os.Root // directory in which the entries are created
	room   int64    // disk space in bytes that was free at the beginning, minus the size of the files created so far
	owners bool     // whether the owners of entries are set, which only root can do
	dirs   []*entry // created directories, whose owners and modes are not set yet
}

// put implements [sink]: it creates an entry. [reader.readEntry] has checked that the parent of the entry is a directory of the
// archive, and so not a symlink.
func (u *unpacker) put(e *entry, content io.Reader) error {
	name := strings.TrimPrefix(e.name, dataDir+"/")
	if rest, ok := strings.CutPrefix(e.name, hostDir+"/"); ok {
		name = RestoredDir + "/" + rest
	}
	if u.room -= e.size; u.room < 0 {
		return caisson.Errorf(caisson.Exhausted, "the backup needs more disk space than is free; free some, or restore to another disk with --data")
	}
	switch e.mode.Type() {
	case fs.ModeDir:
		u.dirs = append(u.dirs, &entry{name: name, mode: e.mode, uid: e.uid, gid: e.gid})
		return u.root.Mkdir(name, 0o700)
	case fs.ModeSymlink:
		if err := u.root.Symlink(e.target, name); err != nil || !u.owners {
			return err
		}
		return u.root.Lchown(name, e.uid, e.gid)
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil && u.owners {
		err = f.Chown(e.uid, e.gid)
	}
	if err == nil {
		err = f.Chmod(e.mode.Perm())
	}
	return errors.Join(err, f.Close())
}

// setModes sets the owners and modes of directories. It must be called after all entries were created, because the mode of a
// directory may forbid that entries are created in it.
func (u *unpacker) setModes() error {
	for _, e := range u.dirs {
		f, err := u.root.Open(e.name)
		if err != nil {
			return err
		}
		if u.owners {
			err = f.Chown(e.uid, e.gid)
		}
		if err == nil {
			err = f.Chmod(e.mode.Perm())
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
