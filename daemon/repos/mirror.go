package repos

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/fetch"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
	"github.com/caisson-dev/caisson/job/worker"
)

const fetchTimeout = time.Hour // time limit for fetching one mirror

// mirrors creates and fetches mirrors, the copies of remote repositories.
type mirrors struct {
	repos   caisson.Table[caisson.Repo]
	jobs    worker.Starter // starts worker jobs
	dirs    *directories   // directories of repositories
	remotes *remotes       // connects to remotes and forges
	keeper  *keeper        // removes unused files, and limits space
	log     *slog.Logger
}

// create makes the directories of a new repository and fetches it. The caller must hold the repository's lock.
func (m *mirrors) create(ctx context.Context, r *caisson.Repo) (*caisson.Repo, error) {
	if err := os.RemoveAll(m.dirs.path(r.Account, r.Name)); err != nil { // a crash may have left a directory
		return nil, err
	}
	if err := m.dirs.create(r.Account, r.Name); err != nil {
		return nil, err
	}
	return m.fetch(ctx, r)
}

// open opens the mirror of a repository. If there is none, because the repository is new or was restored from a backup, which has
// no mirrors, it creates an empty one.
func (m *mirrors) open(ctx context.Context, r *caisson.Repo) (*os.File, error) {
	mirror, err := m.dirs.open(r.Account, r.Name, mirrorDir)
	if !errors.Is(err, fs.ErrNotExist) {
		return mirror, err
	}
	if err := m.dirs.create(r.Account, r.Name); err != nil {
		return nil, err
	}
	if err := m.dirs.fill(ctx, r.Account, r.Name, func(f *os.File) error { return relay.Init(ctx, m.jobs, f) }, mirrorDir); err != nil {
		return nil, err
	}
	return m.dirs.open(r.Account, r.Name, mirrorDir)
}

// update fetches a repository. It reads the repository's record only after it has acquired the lock: while it waits, the
// repository may be removed, and another one of the same name added.
func (m *mirrors) update(ctx context.Context, account, name string) (*caisson.Repo, error) {
	release, err := m.dirs.lock(ctx, account, name)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := m.repos.Get(ctx, caisson.In(account), name)
	if err != nil {
		return nil, err
	}
	return m.fetch(ctx, r)
}

// freshen fetches a repository, unless another call has fetched it while this one waited for the lock. If the remote is
// unavailable and the repository was fetched before, freshen calls warn, unless warn is nil, and returns the repository as it was
// fetched then.
func (m *mirrors) freshen(ctx context.Context, r *caisson.Repo, warn func(string)) (*caisson.Repo, error) {
	began := now()
	release, err := m.dirs.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if r, err = m.repos.Get(ctx, caisson.In(r.Account), r.Name); err != nil {
		return nil, err
	}
	if r.FetchedAt.After(began) {
		return r, nil
	}
	fresh, err := m.fetch(ctx, r)
	if kind := caisson.KindOf(err); err != nil && ctx.Err() == nil && !r.FetchedAt.IsZero() && kind == caisson.Unavailable {
		m.log.WarnContext(ctx, "a repository could not be fetched; what was fetched before is used", "repo", r.Name, "account", r.Account, "err", err)
		if warn != nil {
			warn("the remote of " + r.Name + " cannot be reached; work starts from what was fetched at " + r.FetchedAt.Format(time.RFC3339))
		}
		return r, nil
	}
	return fresh, err
}

// fetch fetches a repository. The caller must hold the repository's lock.
func (m *mirrors) fetch(ctx context.Context, r *caisson.Repo) (*caisson.Repo, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if err := m.keeper.room(ctx, r.Account); err != nil {
		return nil, err
	}
	began := now()
	mirror, err := m.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer mirror.Close()
	var got *git.Remote
	err = m.remotes.connect(ctx, r, false, func(link *os.File, t remote.Protocol) (err error) {
		got, err = fetch.Run(ctx, m.jobs, mirror, link, fetch.Request{Transport: t})
		return err
	})
	if err != nil {
		return nil, err
	}
	return m.repos.Update(ctx, caisson.In(r.Account), r.Name, func(r *caisson.Repo) error {
		r.FetchedAt, r.Head = began, ""
		if head := strings.TrimPrefix(got.Head, headsPrefix); refname.Valid(head) {
			r.Head = head
		}
		return nil
	})
}

// refs returns the branches and tags of a repository's mirror.
func (m *mirrors) refs(ctx context.Context, r *caisson.Repo) (*git.Remote, error) {
	mirror, err := m.dirs.open(r.Account, r.Name, mirrorDir)
	if err != nil {
		return nil, err
	}
	defer mirror.Close()
	return relay.Refs(ctx, m.jobs, mirror)
}
