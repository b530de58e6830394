package forge

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/caisson-dev/caisson"
)

// Limits of the search through all open pull requests. The page size is small because each pull request may have a body of 64
// KiB and an answer is bounded.
const (
	pageSize = 10
	maxPages = 100
)

// A dialect is a client of one kind of forge. Its methods return nil if the pull request does not exist.
type dialect interface {
	// find looks up the open pull request of these branches with the cheapest request, which may miss it.
	find(ctx context.Context, p PullRequest) (*Pull, error)
	// search looks at one page of the open pull requests, from 1 on. more reports whether the page had any.
	search(ctx context.Context, p PullRequest, page int) (pull *Pull, more bool, err error)
	create(ctx context.Context, p PullRequest) (*Pull, error)
	// alreadyExists reports whether err, returned by create, means that the pull request already exists.
	alreadyExists(err error) bool
	update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error)
}

// An answer is a pull request as one kind of forge describes it in JSON.
type answer interface {
	// opens reports whether it is open, and between the branches of p in one repository.
	opens(p PullRequest) bool
	pull() (*Pull, error)
}

// firstOpen requests a page of pull requests, and returns the first one that opens p. more reports whether the page had any.
func firstOpen[T answer](ctx context.Context, c *client, path string, q url.Values, p PullRequest) (pull *Pull, more bool, err error) {
	var page []T
	if err := c.call(ctx, http.MethodGet, path, q, nil, &page); err != nil {
		return nil, false, err
	}
	if i := slices.IndexFunc(page, func(a T) bool { return a.opens(p) }); i >= 0 {
		pull, err = page[i].pull()
	}
	return pull, len(page) > 0, err
}

// send makes a request that creates or changes a pull request, and returns it as it is afterwards.
func send[T answer](ctx context.Context, c *client, method, path string, in any) (*Pull, error) {
	var now T
	if err := c.call(ctx, method, path, nil, in, &now); err != nil {
		return nil, err
	}
	return now.pull()
}

// titled returns the title of p for forges that mark drafts by a prefix of the title.
func (p PullRequest) titled(prefix string, draft bool) string {
	if draft {
		return prefix + p.Title
	}
	return p.Title
}

// openPull finds or creates the pull request.
func openPull(ctx context.Context, args jobArgs) (*Pull, error) {
	d, err := dialectOf(args)
	if err != nil {
		return nil, err
	}
	pull, err := d.find(ctx, args.Pull)
	if err != nil {
		return nil, err
	}
	if pull == nil {
		made, err := d.create(ctx, args.Pull)
		if err == nil || !d.alreadyExists(err) {
			return made, err
		}
		if pull, err = searchAll(ctx, d, args.Pull, err); err != nil {
			return nil, err
		}
	}
	if !args.Pull.Update {
		return pull, nil
	}
	return d.update(ctx, pull, args.Pull)
}

// searchAll finds a pull request that already exists according to the forge. said is the error in which the forge reported
// that.
func searchAll(ctx context.Context, d dialect, p PullRequest, said error) (*Pull, error) {
	for page := range maxPages {
		pull, more, err := d.search(ctx, p, page+1)
		if pull != nil || err != nil {
			return pull, err
		}
		if !more {
			break
		}
	}
	return nil, caisson.Wrap(said, caisson.Conflict, "the forge already has a pull request for branch %s, but it is not among the newest; find or close it there", excerpt(p.Head, maxBranch))
}

func dialectOf(args jobArgs) (dialect, error) {
	c, err := newClient(args)
	if err != nil {
		return nil, err
	}
	if !validSecret(args.Secret) {
		return nil, caisson.Errorf(caisson.Unauthed, "the repository's credential is no token, which a pull request needs; with https a token serves git, too")
	}
	switch args.Forge {
	case caisson.ForgeGitHub:
		return newGitHub(c, args), nil
	case caisson.ForgeGitLab:
		return newGitLab(c, args), nil
	case caisson.ForgeGitea:
		return newGitea(c, args), nil
	}
	return nil, caisson.Errorf(caisson.Invalid, "no such forge: %.40q", args.Forge)
}
