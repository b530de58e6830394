package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/backup"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/undo"
)

// dataDir is the locked data directory of an engine, and the store in it. No other daemon can use the directory until Close.
type dataDir struct {
	path     string     // absolute path of the directory
	instance caisson.ID // id of the directory, which is part of the names of all objects on the host
	// unchecked is true if the directory is a copy, or was restored from a backup, and the entries in the store whose files are
	// missing have not been removed since.
	unchecked bool
	root      *os.Root
	store     caisson.Store
	unlock    func() error // releases the lock of the directory
}

// DataDirError converts err, due to which the data directory dir cannot be used, to an error with a message for users. If err is
// a [fs.PathError], the result is of kind Exhausted if the disk is full, and else Invalid. Other errors are returned unchanged.
func DataDirError(dir string, err error) error {
	const fix = "make it writable, or choose another one with --data or CAISSON_DATA"
	path, ofPath := errors.AsType[*fs.PathError](err)
	switch {
	case !ofPath:
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return caisson.Wrap(err, caisson.Exhausted, "the disk of the data directory %s is full; free some of it, or choose another one with --data or CAISSON_DATA", dir)
	default:
		return &caisson.Error{Kind: caisson.Invalid, Field: "dataDir", Err: err, Msg: fmt.Sprintf("cannot write in %s: %v; %s", dir, path.Err, fix)}
	}
}

// openDataDir creates the data directory if it does not exist, locks it and opens its store. It makes cfg.Data.Dir absolute.
func openDataDir(ctx context.Context, cfg *Config) (_ *dataDir, err error) {
	if cfg.Data.Dir, err = filepath.Abs(cfg.Data.Dir); err != nil {
		return nil, err
	}
	if err := PrepareDataDir(cfg.Data.Dir); err != nil {
		return nil, err
	}
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	d := &dataDir{path: cfg.Data.Dir}
	if d.unlock, err = lockDir(ctx, d.path, cfg.Data.LockWait); err != nil {
		return nil, err
	}
	back.Push(d.unlock)
	if err := removeStoreCopies(d.path); err != nil {
		return nil, err
	}
	if d.instance, d.unchecked, err = instanceID(d.path); err != nil {
		return nil, DataDirError(d.path, err)
	}
	if d.unchecked {
		cfg.Log.WarnContext(ctx, "the data directory is a copy or was restored from a backup; sandboxes that ran under the original are not running here", "dir", d.path)
	}
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return nil, err
	}
	back.Push(d.root.Close)
	if d.store, err = sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(d.path, backup.StoreName), Log: cfg.Log,
		AuditKey: func() (caisson.Secret, bool, error) {
			key, made, err := credential.LoadKeyFile(filepath.Join(d.path, "audit.key"))
			if _, dbErr := os.Lstat(filepath.Join(d.path, backup.StoreName)); made && dbErr == nil {
				cfg.Log.ErrorContext(ctx, "audit.key was missing and a new one was created, so earlier events cannot be verified; stop the daemon and restore the key from a backup", "dir", d.path)
			}
			return key, made, err
		},
	}); err != nil {
		return nil, err
	}
	back.Release()
	return d, nil
}

// Close closes the store and unlocks the directory.
func (d *dataDir) Close() error { return errors.Join(d.store.Close(), d.root.Close(), d.unlock()) }

// openCallLog opens the file in which the model calls of a sandbox are recorded. The file is removed with the sandbox.
func (d *dataDir) openCallLog(id caisson.ID) (*os.File, error) {
	root, err := os.OpenRoot(filepath.Join(d.path, "sandboxes", string(id)))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenFile("models.jsonl", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// lockDir locks the data directory until unlock is called. If another process holds the lock, lockDir waits for up to
// wait, and then returns Conflict.
func lockDir(ctx context.Context, dir string, wait time.Duration) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, DataDirError(dir, err)
	}
	for deadline := time.Now().Add(wait); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			setHolder(f)
			return f.Close, nil
		}
		if ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(deadline) {
			who := "another caisson daemon"
			if pid := holder(f); pid > 0 {
				who += fmt.Sprintf(" with pid %d", pid)
			}
			f.Close()
			return nil, caisson.Wrap(err, caisson.Conflict, "%s uses %s; run \"caisson daemon stop\", or use another --data directory", who, dir)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// setHolder writes the pid of this process into f, the lock file. Errors, for example on a full disk, are ignored, because the
// pid is used only in messages such as the one of a second daemon that cannot get the lock.
func setHolder(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
}

// LockHolder returns the pid of the daemon that uses a data directory; 0 if no daemon uses it, or if the pid is not known.
func LockHolder(dir string) int {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	return holder(f)
}

// holder returns the pid in f, the lock file, which is that of the process that holds the lock. It returns 0 if f has no pid:
// earlier builds did not write one.
func holder(f *os.File) int {
	text := make([]byte, 20)
	n, _ := f.ReadAt(text, 0)
	pid, _ := strconv.Atoi(string(text[:n])) // 0 if the text is not a number
	return pid
}

// instanceID returns the id of the data directory, which is part of the names of all objects on the host. A copy of a data
// directory gets an id of its own, so that it does not take over the sandboxes that run under the original. The file "place"
// records the path and the inode of the directory at its last start: a directory is a copy if both have changed since. A
// directory that was restored from a backup has a store and no id. unchecked is true for a copy or restored directory whose store
// may still have entries without files: instanceID then creates uncheckedFile, which exists until these entries are removed.
func instanceID(dir string) (id caisson.ID, unchecked bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", false, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	inode := strconv.FormatUint(st.Ino, 10)
	place, err := readOptional(filepath.Join(dir, "place"))
	if err != nil {
		return "", false, err
	}
	data, err := readOptional(filepath.Join(dir, "instance"))
	if err != nil {
		return "", false, err
	}
	if inodeBefore, pathBefore, ok := strings.Cut(place, " "); data != "" && ok && inodeBefore != inode && pathBefore != dir {
		data = ""
	}
	if data == "" {
		if exists(filepath.Join(dir, backup.StoreName)) {
			if err := replaceFile(filepath.Join(dir, uncheckedFile), ""); err != nil {
				return "", false, err
			}
		}
		id = caisson.NewID(caisson.InstancePrefix)
		err = replaceFile(filepath.Join(dir, "instance"), string(id))
	} else {
		id, err = caisson.ParseID(caisson.InstancePrefix, data)
	}
	if now := inode + " " + dir; err == nil && place != now {
		err = replaceFile(filepath.Join(dir, "place"), now)
	}
	return id, exists(filepath.Join(dir, uncheckedFile)), err
}

// exists reports whether there is a file, directory or symlink at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// uncheckedFile is the name of a file that marks a data directory that is a copy or was restored from a backup, until the
// entries in the store whose files are missing have been removed.
const uncheckedFile = "entries-unchecked"

// markChecked records that the entries in the store whose files are missing have been removed.
func (d *dataDir) markChecked() error { return d.root.Remove(uncheckedFile) }

// readOptional returns the content of a file, "" if the file does not exist.
func readOptional(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

// replaceFile creates a file or replaces it atomically, and syncs it to disk.
func replaceFile(path, content string) error {
	return durable.Write(path, func(f *os.File) error {
		_, err := f.WriteString(content)
		return err
	})
}

// PrepareDataDir creates a data directory if it does not exist, and gives it the mode 0700. Returns Invalid if dir belongs to
// another user, or if other users can read it and it has files and is not a data directory.
func PrepareDataDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return DataDirError(dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return DataDirError(dir, err)
	}
	const other = "choose another one with --data or CAISSON_DATA"
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return caisson.Invalidf("dataDir", "%s belongs to the user with uid %d, not to %d; change its owner, or %s", dir, st.Uid, os.Geteuid(), other)
	}
	if info.Mode().Perm() == 0o700 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return DataDirError(dir, err)
	}
	ours := func(e fs.DirEntry) bool {
		return e.Name() == "instance" || e.Name() == "lock" || e.Name() == backup.StoreName
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, ours) {
		return caisson.Invalidf("dataDir", "%s has files and is not a data directory of Caisson; %s", dir, other)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return DataDirError(dir, err)
	}
	return nil
}
