package workspaces

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Names in the directory of a workspace; see the package comment.
const (
	topDir       = "workspaces"
	removalDir   = "removals" // beside topDir: counts of removals by directory
	upperDir     = "layers/upper"
	workDir      = "layers/work"
	maskDir      = "mask"
	manifestFile = "manifest"
	baseDir      = "base"
	frozenDir    = "frozen"
	savedDir     = "saved"
	seenFile     = "seen.json"
	writersFile  = "writers.json"
)

// dir returns the directory of a workspace, or a path in it.
func (c *Core) dir(id caisson.ID, name ...string) string {
	return filepath.Join(append([]string{c.Dir, topDir, string(id)}, name...)...)
}

// layerFiles creates the files of workspaces on disk.
type layerFiles struct{ *Core }

// makeDirs creates the directory of a workspace with layers for a guest's root, whose uid and gid are base. mode is
// that of the host directory, which the guest sees.
func (c layerFiles) makeDirs(id caisson.ID, base, mode uint32) error {
	if err := os.Mkdir(c.dir(id), 0o700); err != nil {
		return err
	}
	for _, d := range []struct {
		name  string
		mode  os.FileMode
		guest bool
	}{ // base is readable for all users, because jobs with different uids open it before it has contents
		{"layers", 0o700, false}, {upperDir, os.FileMode(mode & 0o777), true}, {workDir, 0o700, true}, {maskDir, 0o700, true},
		{baseDir, 0o755, false}, {frozenDir, 0o700, false}, {savedDir, 0o700, false},
	} {
		p := c.dir(id, d.name)
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
		if d.guest {
			if err := os.Chown(p, int(base), int(base)); err != nil {
				return err
			}
		}
		if err := os.Chmod(p, d.mode); err != nil { // regardless of the umask
			return err
		}
	}
	return nil
}

// openDir opens a directory of Caisson. flags are additional flags, such as O_PATH.
func openDir(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// readJSON reads a file of Caisson into v; a missing file leaves v unchanged.
func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// writeJSON writes a file and syncs it to disk. Afterwards it exists either completely or not at all.
func writeJSON(path string, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return diskFull(err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		os.Remove(part)
		return diskFull(err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// diskFull returns an Exhausted error if err was caused by a full disk, and err otherwise.
func diskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
	}
	return err
}

// files collects files that are closed together.
type files []*os.File

func (f *files) add(file *os.File, err error) (*os.File, error) {
	if err == nil {
		*f = append(*f, file)
	}
	return file, err
}

func (f *files) close() {
	for _, file := range *f {
		file.Close()
	}
	*f = nil
}
