package repos

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// What is in the directory of a repository; see the package comment.
const (
	mirrorDir = "mirror"
	viewsDir  = "views"
	storesDir = "stores"
	newDir    = "new" // where directories are filled before they get their place
)

// dir is the directory of a repository, or a path in it.
func (c *Core) dir(account, repo string, name ...string) string {
	return filepath.Join(append([]string{c.Dir, topDir, account, repo}, name...)...)
}

// lock takes a repository's directories.
func (c *Core) lock(ctx context.Context, account, repo string) (release func(), err error) {
	return c.locks.Acquire(ctx, account+"/"+repo)
}

// makeRepo makes the directories of a repository.
func (c *Core) makeRepo(account, repo string) error {
	for _, name := range []string{viewsDir, storesDir, newDir} {
		if err := os.MkdirAll(c.dir(account, repo, name), 0o700); err != nil {
			return diskFull(err)
		}
	}
	return nil
}

// place has fill make the contents of a directory of the account's own, and gives it its place only when that has succeeded.
// Whoever calls it has the lock.
func (c *Core) place(ctx context.Context, account, repo string, fill func(*os.File) error, name ...string) (err error) {
	owner, err := c.Store.Accounts().Ensure(ctx, account)
	if err != nil {
		return err
	}
	part := c.dir(account, repo, newDir, filepath.Base(filepath.Join(name...)))
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(diskFull(err), os.RemoveAll(part))
		}
	}()
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	if err := os.Chown(part, int(owner.UIDBase), int(owner.UIDBase)); err != nil {
		return err
	}
	f, err := openDir(part)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := fill(f); err != nil {
		return err
	}
	return os.Rename(part, c.dir(account, repo, name...))
}

// open opens a directory of a repository.
func (c *Core) open(account, repo string, name ...string) (*os.File, error) {
	return openDir(c.dir(account, repo, name...))
}

func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// names returns the names in a directory, sorted; none if it is not there.
func names(path string) ([]string, error) {
	list, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out, err
}

// writeJSON writes a file that appears complete or not at all.
func writeJSON(path string, v any) error {
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
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(diskFull(err), os.Remove(part))
	}
	return nil
}

// diskFull says so where that is why err happened.
func diskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return caisson.Wrap(err, caisson.Exhausted, "the disk is full; free some space in the data directory")
	}
	return err
}
