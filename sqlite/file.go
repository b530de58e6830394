package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// fileMode is the mode of the database: it holds what every account does. SQLite gives the files beside it the same.
const fileMode = 0o600

// secureFile makes the file at path with its final mode, or corrects the mode of the one that is there.
//
// It must not open a file that exists: POSIX locks are lost when the process closes any descriptor of the file, so if a
// store has it open in this process already, that store's locks would go.
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

// restrict takes group's and others' rights from a file, if there is one.
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

// syncDir makes the names in a directory durable.
func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
