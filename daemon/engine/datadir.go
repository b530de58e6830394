package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/internal/undo"
)

// dataDir is the data directory of an engine, which no other daemon uses until Close, with the store in it.
type dataDir struct {
	path     string // absolute
	instance caisson.ID
	root     *os.Root
	store    caisson.Store
	unlock   func() error
}

// DataDirError returns the error for a data directory that cannot be used because of err, which is returned if it is for users already.
// It is Invalid; Exhausted if the disk is full.
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

// openDataDir creates the directory if it does not exist, locks it and opens its store. It makes cfg.Data.Dir absolute.
func openDataDir(ctx context.Context, cfg *Config) (_ *dataDir, err error) {
	if cfg.Data.Dir, err = filepath.Abs(cfg.Data.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Data.Dir, 0o700); err != nil {
		return nil, DataDirError(cfg.Data.Dir, err)
	}
	// If the directory already existed with a wider mode, other users could read it.
	if err := os.Chmod(cfg.Data.Dir, 0o700); err != nil {
		return nil, DataDirError(cfg.Data.Dir, err)
	}
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	d := &dataDir{path: cfg.Data.Dir}
	if d.unlock, err = lockDir(ctx, d.path, cfg.Data.LockWait); err != nil {
		return nil, err
	}
	back.Push(d.unlock)
	if d.instance, err = instanceID(d.path); err != nil {
		return nil, DataDirError(d.path, err)
	}
	if d.root, err = os.OpenRoot(d.path); err != nil {
		return nil, err
	}
	back.Push(d.root.Close)
	if d.store, err = sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(d.path, "caisson.db"), Log: cfg.Log,
		AuditKey: func() (caisson.Secret, bool, error) {
			return credential.LoadKeyFile(filepath.Join(d.path, "audit.key"))
		},
	}); err != nil {
		return nil, err
	}
	back.Release()
	return d, nil
}

// Close closes the store and unlocks the directory.
func (d *dataDir) Close() error { return errors.Join(d.store.Close(), d.root.Close(), d.unlock()) }

// openCallLog opens the file in which a sandbox's model calls are recorded. It is removed with the sandbox.
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

// setHolder writes the pid of this process into the file that it has locked. It may fail, on a full disk for example: only the message
// for a second daemon needs it.
func setHolder(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
}

// holder returns the pid of the process that holds the lock on f; 0 if it is not known, as that of an earlier build.
func holder(f *os.File) int {
	text := make([]byte, 20)
	n, _ := f.ReadAt(text, 0)
	pid, _ := strconv.Atoi(string(text[:n])) // 0 if it is no number
	return pid
}

// instanceID returns the id of the data directory, which is part of the names of all objects on the host.
func instanceID(dir string) (caisson.ID, error) {
	path := filepath.Join(dir, "instance")
	data, err := os.ReadFile(path)
	if err == nil {
		return caisson.ParseID(caisson.InstancePrefix, string(data))
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := caisson.NewID(caisson.InstancePrefix)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(id), 0o600); err != nil {
		return "", err
	}
	return id, os.Rename(tmp, path)
}
