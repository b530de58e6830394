// Package quarantine holds the objects of a push in a separate directory until all checks have passed, and limits the pack that
// contains them.
package quarantine

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// incomingPrefix is the prefix of the directories of unchecked objects.
const incomingPrefix = "incoming-"

// A Quarantine holds the objects of one push until all checks have passed. Git finds these objects only with the environment of
// Repo.
type Quarantine struct {
	Store git.Repo // the store without the objects in quarantine
	Repo  git.Repo // the store together with the objects in quarantine
	dir   string   // directory of the objects in quarantine
	Lock  *os.File // the directory of the store's objects, locked with flock
}

// Open creates a quarantine and removes the remains of earlier pushes. It returns a Conflict error if another push is in
// progress.
func Open(ctx context.Context, store git.Repo) (*Quarantine, error) {
	lock, err := os.Open(filepath.Join(store.Dir, "objects"))
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the store cannot be opened")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, caisson.Errorf(caisson.Conflict, "another push to this repository is under way; push again when it has ended")
		}
		return nil, os.NewSyscallError("flock", err)
	}
	q := &Quarantine{Store: store, Lock: lock}
	if err := errors.Join(sweepIncoming(store.Dir), store.Sweep(ctx)); err != nil {
		q.Close()
		return nil, caisson.Wrap(err, caisson.Internal, "what an earlier push has left cannot be removed")
	}
	dir := filepath.Join(store.Dir, "objects", incomingPrefix+rand.Text())
	if err := os.MkdirAll(filepath.Join(dir, "pack"), 0o700); err != nil {
		q.Close()
		return nil, caisson.Wrap(err, caisson.Internal, "no directory can be made for the push")
	}
	q.dir = dir
	borrowed := filepath.Join(store.Dir, "objects")
	if store.View != "" {
		borrowed += ":" + filepath.Join(store.View, "objects")
	}
	q.Repo = store.With("GIT_OBJECT_DIRECTORY="+dir, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+borrowed)
	return q, nil
}

// sweepIncoming removes the quarantines of pushes that were killed.
func sweepIncoming(store string) error {
	names, err := os.ReadDir(filepath.Join(store, "objects"))
	for _, n := range names {
		if strings.HasPrefix(n.Name(), incomingPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(store, "objects", n.Name())))
		}
	}
	return err
}

// Close removes the objects that are still in quarantine, and releases the lock.
func (q *Quarantine) Close() error {
	var err error
	if q.dir != "" {
		err = os.RemoveAll(q.dir)
	}
	unix.Flock(int(q.Lock.Fd()), unix.LOCK_UN)
	q.Lock.Close()
	return err
}

// StoreSize returns the size of the store's own objects.
func (q *Quarantine) StoreSize() (caisson.Size, error) {
	var total caisson.Size
	err := filepath.WalkDir(filepath.Join(q.Store.Dir, "objects"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += caisson.Size(info.Size())
		}
		return err
	})
	if err != nil {
		return 0, caisson.Wrap(err, caisson.Internal, "the store cannot be read")
	}
	return total, nil
}

// ReceivePack reads a pack from body into quarantine. It passes the pack to git only after it was read completely and is within
// the limits. Errors are Denied for a pack that is refused, or those of reading body.
func (q *Quarantine) ReceivePack(ctx context.Context, body io.Reader, l Limits, maxPack int64) error {
	spool, err := os.OpenFile(filepath.Join(q.dir, "spool"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "no file can be made for the push")
	}
	defer os.Remove(spool.Name())
	defer spool.Close()
	tooLarge := Deniedf("the pack is larger than %v; push fewer commits at a time, or smaller files", caisson.Size(maxPack))
	in := git.LimitReader(body, maxPack, tooLarge)
	count, err := scanPack(io.TeeReader(in, spool), l)
	if err != nil {
		return err
	}
	if count == 0 {
		return nil
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return q.index(ctx, spool, maxPack)
}

// index stores the objects of a pack. Git checks each object as git fsck does, and that all objects that it references exist.
func (q *Quarantine) index(ctx context.Context, pack *os.File, maxPack int64) error {
	cmd := q.Repo.Git(ctx, "index-pack", "--stdin", "--fix-thin", "--strict=badFilemode=error,gitmodulesParse=error",
		"--max-input-size="+strconv.FormatInt(maxPack, 10))
	said := &excerpt.Tail{Limit: git.MaxGitErrors}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pack, io.Discard, said
	err := cmd.Run()
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := git.GitError("index-pack", said, err); caisson.KindOf(err) == caisson.Exhausted {
		return err
	}
	return caisson.Wrap(err, caisson.Denied, "git refuses the objects: %s", git.OneLine(strings.NewReplacer("fatal: ", "", "error: ", "").Replace(said.String()), 300))
}

// CheckConnected checks that all objects that commits reference exist. It returns a Denied error if one is missing.
func (q *Quarantine) CheckConnected(ctx context.Context, commits []string) error {
	_, err := q.Repo.Output(ctx, strings.Join(commits, "\n")+"\n", "rev-list", "--objects", "--stdin", "--not", "--all", "--quiet")
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if caisson.KindOf(err) == caisson.Exhausted {
		return err
	}
	return caisson.Wrap(err, caisson.Denied, "the push is not whole: a commit, directory or file that it needs is neither in it nor in what this sandbox was granted")
}

// NewCommits returns the commits that tip reaches and no ref reaches, parents first. It returns a Denied error if there are more
// than max.
func (q *Quarantine) NewCommits(ctx context.Context, tip string, max int) ([]string, error) {
	out, err := q.Repo.Output(ctx, tip+"\n", "rev-list", "--topo-order", "--reverse", "--max-count="+strconv.Itoa(max+1), "--stdin", "--not", "--all")
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) > max {
		return nil, Deniedf("the push has more than %d new commits; push fewer at a time", max)
	}
	return ids, nil
}

// Migrate moves the objects in quarantine into the store.
func (q *Quarantine) Migrate() error {
	dirs, err := os.ReadDir(q.dir)
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "the objects cannot be kept")
	}
	for _, d := range dirs {
		// Only packs, and directories of loose objects, whose names have two digits, are moved.
		if name := d.Name(); name != "pack" && len(name) != 2 {
			continue
		}
		if err := git.MoveObjects(filepath.Join(q.dir, d.Name()), filepath.Join(q.Store.Dir, "objects", d.Name())); err != nil {
			return caisson.Wrap(err, caisson.Internal, "the objects cannot be kept")
		}
	}
	return nil
}

// ZeroID returns the all-zero object name, which stands for no object. idSize is the length of an object name in bytes.
func ZeroID(idSize int) string { return string(bytes.Repeat([]byte{'0'}, 2*idSize)) }
