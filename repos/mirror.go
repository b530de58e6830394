package repos

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/relay/fetch"
	"github.com/caisson-dev/caisson/relay/git"
	"github.com/caisson-dev/caisson/relay/remote"
)

// freshen brings a mirror up to date. A remote that cannot be had at present is told to warn, if there is something to go on with.
func (c mirrors) freshen(ctx context.Context, r *caisson.Repo, warn func(string)) (*caisson.Repo, error) {
	asked := now()
	release, err := c.lock(ctx, r.Account, r.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if r, err = c.Store.Repos().Get(ctx, caisson.In(r.Account), r.Name); err != nil {
		return nil, err
	}
	if r.FetchedAt.After(asked) {
		return r, nil // by somebody who began while this one waited
	}
	fresh, err := c.fetch(ctx, r)
	if kind := caisson.KindOf(err); err != nil && ctx.Err() == nil && !r.FetchedAt.IsZero() && kind == caisson.Unavailable {
		c.Log.WarnContext(ctx, "a repository could not be fetched; what was fetched before is used", "repo", r.Name, "account", r.Account, "err", err)
		if warn != nil {
			warn("the remote of " + r.Name + " cannot be reached; work starts from what was fetched at " + r.FetchedAt.Format(time.RFC3339))
		}
		return r, nil
	}
	return fresh, err
}

// fetch brings a mirror up to date. Whoever calls it has the lock.
func (c mirrors) fetch(ctx context.Context, r *caisson.Repo) (*caisson.Repo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Fetch)
	defer cancel()
	if err := c.keeper.room(ctx, r.Account); err != nil {
		return nil, err
	}
	began := now()
	mirror, err := c.open(r.Account, r.Name, mirrorDir)
	if err != nil {
		return nil, err
	}
	defer mirror.Close()
	var got *git.Remote
	err = c.linked(ctx, r, false, func(link *os.File, t remote.Transport) (err error) {
		got, err = c.Git.Fetch(ctx, mirror, link, fetch.Request{Transport: t})
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.Store.Repos().Update(ctx, caisson.In(r.Account), r.Name, func(r *caisson.Repo) error {
		r.FetchedAt, r.Head = began, ""
		if head := strings.TrimPrefix(got.Head, heads); refname.Valid(head) {
			r.Head = head
		}
		return nil
	})
}

// mirrored returns what the mirror has.
func (c mirrors) mirrored(ctx context.Context, r *caisson.Repo) (*git.Remote, error) {
	mirror, err := c.open(r.Account, r.Name, mirrorDir)
	if err != nil {
		return nil, err
	}
	defer mirror.Close()
	return c.Git.Refs(ctx, mirror)
}

// linkGrace is how long a link may take to end.
const linkGrace = 5 * time.Second

// linked connects f with a repository's remote.
func (c mirrors) linked(ctx context.Context, r *caisson.Repo, push bool, f func(*os.File, remote.Transport) error) error {
	near, far, err := socketpair.New()
	if err != nil {
		return err
	}
	defer near.Close()
	defer far.Close()
	serve, transport, err := c.remote(ctx, r, push)
	if err != nil {
		return err
	}
	lctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serve(lctx, far) }()
	// That there is no link at all says more than that nothing answers at it.
	done := make(chan error, 1)
	go func() { done <- f(near, transport) }()
	select {
	case err := <-done:
		near.Close()
		select { // by itself, as nobody is at the other end any more
		case <-ended:
		case <-time.After(linkGrace):
			cancel()
			<-ended
		}
		return err
	case lerr := <-ended:
		far.Close() // nobody has it any more, so whoever has near sees the end
		err := <-done
		if err != nil && lerr != nil && !errors.Is(lerr, context.Canceled) {
			return lerr
		}
		return err
	}
}
