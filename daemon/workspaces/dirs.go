package workspaces

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
	"github.com/caisson-dev/caisson/internal/keylock"
	"github.com/caisson-dev/caisson/job/worker"
)

// Names of files and directories in the directory of a workspace, except topDir and removalDir.
const (
	topDir       = "workspaces"   // directory of all workspaces, in the data directory
	removalDir   = "removals"     // for each host directory its numbers of existing and removed own files; beside topDir
	upperDir     = "layers/upper" // files that the sandbox has written
	workDir      = "layers/work"  // working directory of overlayfs
	maskDir      = "mask"         // layer of whiteouts for hidden files
	manifestFile = "manifest"     // state of the host directory when the workspace was created
	baseDir      = "base"         // copies of small files of the host directory, for merges
	frozenDir    = "frozen"       // reviews, each with a copy of the layer
	savedDir     = "saved"        // files that syncs have replaced
	seenFile     = "seen.json"    // changes for which an event was published
	writersFile  = "writers.json" // process that was the last to change each file
)

// A directory is the path of the directory that contains the directories of all workspaces.
type directory string

// dir returns the path of the directory of a workspace, or of a file in it.
func (d directory) dir(id caisson.ID, name ...string) string {
	return filepath.Join(append([]string{string(d), string(id)}, name...)...)
}

// layerFiles creates and opens the files of workspaces on disk.
type layerFiles struct {
	directory
	jobs         worker.Starter // starts worker jobs
	hidden       []string       // patterns of the names of files that are hidden from sandboxes
	removals     *removalCounts // numbers of existing and removed own files, which limit what automatic syncs remove
	log          *slog.Logger
	background   *background.Group // runs work that no request waits for
	locks        keylock.Locks     // held while a workspace is read or changed, by id
	jobSlots     chan struct{}     // one element for each job slot in use; bounds concurrent worker jobs
	pendingBases sync.Map          // workspaces whose base is not saved yet, by id
}

// lock acquires the lock of a workspace and a job slot.
func (c *layerFiles) lock(ctx context.Context, id caisson.ID) (release func(), err error) {
	unlock, err := c.locks.Acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	if err := c.acquireSlot(ctx); err != nil {
		unlock()
		return nil, err
	}
	c.saveDeferredBase(c.background.Context(), id)
	return func() { <-c.jobSlots; unlock() }, nil
}

// acquireSlot acquires a job slot. The caller releases it by receiving from jobSlots.
func (c *layerFiles) acquireSlot(ctx context.Context) error {
	select {
	case c.jobSlots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// makeDirs creates the directory of a workspace. Its layers belong to the guest's root, whose uid and gid on the host are base.
// mode is the mode of the host directory: the upper layer gets it, because the guest sees it.
func (c *layerFiles) makeDirs(id caisson.ID, base, mode uint32) error {
	if err := os.Mkdir(c.dir(id), 0o700); err != nil {
		return err
	}
	for _, d := range []struct {
		name  string
		mode  os.FileMode
		guest bool
	}{ // the directory base is readable for all users: jobs with different uids open it while it is empty
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
		if err := os.Chmod(p, d.mode); err != nil { // sets the mode regardless of the umask
			return err
		}
	}
	return nil
}

// openDir opens one of Caisson's own directories. flags are additional flags, such as O_PATH.
func openDir(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// readJSON decodes a JSON file into v; a missing file leaves v unchanged.
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

// files contains open files that are closed together, and the first error of opening one of them.
type files struct {
	open []*os.File // files that were opened
	err  error      // first error of opening a file
}

// add adds the result of opening a file, and returns the file, or nil if err is not nil.
func (f *files) add(file *os.File, err error) *os.File {
	if err != nil {
		f.err = cmp.Or(f.err, err)
		return nil
	}
	f.open = append(f.open, file)
	return file
}

// close closes all files.
func (f *files) close() {
	for _, file := range f.open {
		file.Close()
	}
}
