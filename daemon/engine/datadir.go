package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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

// openDataDir creates the directory if it does not exist, locks it and opens its store. It makes cfg.Data.Dir absolute.
func openDataDir(ctx context.Context, cfg *Config) (_ *dataDir, err error) {
	if cfg.Data.Dir, err = filepath.Abs(cfg.Data.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Data.Dir, 0o700); err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot make the data directory %s", cfg.Data.Dir)
	}
	// If the directory already existed with a wider mode, other users could read it.
	if err := os.Chmod(cfg.Data.Dir, 0o700); err != nil {
		return nil, err
	}
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	d := &dataDir{path: cfg.Data.Dir}
	if d.unlock, err = lockDir(ctx, d.path, cfg.Data.LockWait); err != nil {
		return nil, err
	}
	back.Push(d.unlock)
	if d.instance, err = instanceID(d.path); err != nil {
		return nil, err
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
		return nil, err
	}
	for deadline := time.Now().Add(wait); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if ctx.Err() != nil || !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(deadline) {
			f.Close()
			return nil, caisson.Wrap(err, caisson.Conflict, "another caisson daemon uses %s; run \"caisson daemon stop\", or use another --data directory", dir)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
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
