package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// fileMode is the mode of the database file, which contains data of all accounts. SQLite gives its additional files the same
// mode.
const fileMode = 0o600

// secureFile creates the database file at path with fileMode, or corrects the mode of an existing file.
//
// It must not open an existing file: POSIX locks are lost when the process closes any descriptor of the file, so a store in this
// process that has the file open would lose its locks.
func secureFile(path string) error {
	parent := filepath.Dir(path)
	dir, err := os.OpenRoot(parent)
	if err != nil {
		return caisson.Wrap(err, caisson.Invalid, "cannot open %s for the database; it must be a directory", parent)
	}
	defer dir.Close()
	name := filepath.Base(path)
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	switch {
	case err == nil:
		return errors.Join(f.Chmod(fileMode), f.Close(), syncDir(dir))
	case !errors.Is(err, fs.ErrExist):
		return caisson.Wrap(err, caisson.Invalid, "cannot make the database in %s; it must be a directory that may be written", parent)
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := restrict(dir, name+suffix); err != nil {
			return err
		}
	}
	return nil
}

// restrict sets the mode of a file to fileMode, if the file exists.
func restrict(dir *os.Root, name string) error {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return caisson.Errorf(caisson.Conflict, "%s in the data directory is not a regular file; move it away or use another --data", name)
	case info.Mode().Perm() == fileMode:
		return nil
	}
	return dir.Chmod(name, fileMode)
}

// syncDir syncs a directory so that its entries are durable.
func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
