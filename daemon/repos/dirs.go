package repos

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Names of the directories in the directory of a repository.
const (
	mirrorDir = "mirror" // the mirror
	viewsDir  = "views"  // one directory for each view
	storesDir = "stores" // a store and the file of the grant for each sandbox
	newDir    = "new"    // temporary directories, which are moved out of it when they are complete
)

// directories creates, opens and locks the directories that contain all files of repositories.
type directories struct {
	root     string               // directory with one directory for each account
	accounts caisson.AccountStore // accounts with their host uids
	locks    keylock.Locks        // by account and repository; held while the directories of a repository are changed
}

// path returns the directory of a repository, or a path in it.
func (d *directories) path(account, repo string, name ...string) string {
	return filepath.Join(append([]string{d.root, account, repo}, name...)...)
}

// lock locks the directories of a repository.
func (d *directories) lock(ctx context.Context, account, repo string) (release func(), err error) {
	return d.locks.Acquire(ctx, account+"/"+repo)
}

// tryLock is like lock, but returns false instead of waiting.
func (d *directories) tryLock(account, repo string) (release func(), ok bool) {
	return d.locks.Try(account + "/" + repo)
}

// A repoKey identifies a repository.
type repoKey struct{ account, name string }

// all returns the repositories that have a directory. If it also returns an error, some of them may be missing.
func (d *directories) all() (list []repoKey, err error) {
	accounts, err := names(d.root)
	for _, account := range accounts {
		repos, e := names(d.path(account, ""))
		err = errors.Join(err, e)
		for _, name := range repos {
			list = append(list, repoKey{account, name})
		}
	}
	return list, err
}

// create makes the directories of a repository that do not exist.
func (d *directories) create(account, repo string) error {
	for _, name := range []string{viewsDir, storesDir, newDir} {
		if err := os.MkdirAll(d.path(account, repo, name), 0o700); err != nil {
			return durable.DiskFull(err)
		}
	}
	return nil
}

// fill makes a temporary directory that belongs to the account's first uid, calls write to fill it, and renames it to name if
// write succeeds. The caller must hold the repository's lock.
func (d *directories) fill(ctx context.Context, account, repo string, write func(*os.File) error, name ...string) (err error) {
	owner, err := d.accounts.Ensure(ctx, account)
	if err != nil {
		return err
	}
	part := d.path(account, repo, newDir, filepath.Base(filepath.Join(name...)))
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(durable.DiskFull(err), os.RemoveAll(part))
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
	if err := write(f); err != nil {
		return err
	}
	return os.Rename(part, d.path(account, repo, name...))
}

// open opens a directory of a repository.
func (d *directories) open(account, repo string, name ...string) (*os.File, error) {
	return openDir(d.path(account, repo, name...))
}

// openStore opens the store and the view of a grant.
func (d *directories) openStore(g *grant) (store, view *os.File, err error) {
	if store, err = d.open(g.Account, g.Repo, storesDir, string(g.Sandbox)); err != nil {
		return nil, nil, err
	}
	if view, err = d.open(g.Account, g.Repo, viewsDir, g.View); err != nil {
		store.Close()
		return nil, nil, err
	}
	return store, view, nil
}

// openDir opens a directory. It returns an error if path is a symlink.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// names returns the names in a directory, sorted; none if it does not exist.
func names(path string) ([]string, error) {
	list, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out, err
}
