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
	pageSize = 10  // pull requests on one page
	maxPages = 100 // pages that are searched
)

// A forgeClient makes the requests for pull requests to one kind of forge. The methods find and search return nil if the pull
// request does not exist.
type forgeClient interface {
	// find looks up the open pull request of the branches of p with the cheapest request, which may miss it.
	find(ctx context.Context, p PullRequest) (*Pull, error)
	// search looks for the open pull request of the branches of p on one page of the list of open pull requests. The first page
	// is 1. more reports whether the page had any pull requests.
	search(ctx context.Context, p PullRequest, page int) (pull *Pull, more bool, err error)
	// create creates a pull request.
	create(ctx context.Context, p PullRequest) (*Pull, error)
	// alreadyExists reports whether err, returned by create, means that the pull request already exists.
	alreadyExists(err error) bool
	// update sets the title and body of the existing pull request have to those of p.
	update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error)
}

// A forgePull is a pull request in the JSON of one kind of forge.
type forgePull interface {
	// isOpenFor reports whether the pull request is open, and between the branches of p in one repository.
	isOpenFor(p PullRequest) bool
	// toPull converts the pull request. It returns an Invalid error if required fields are missing.
	toPull() (*Pull, error)
}

// firstOpen requests a page of pull requests, and returns the first one that is open and between the branches of p, nil if there
// is none. more reports whether the page had any pull requests.
func firstOpen[T forgePull](ctx context.Context, c *client, path string, q url.Values, p PullRequest) (pull *Pull, more bool, err error) {
	var page []T
	if err := c.call(ctx, http.MethodGet, path, q, nil, &page); err != nil {
		return nil, false, err
	}
	if i := slices.IndexFunc(page, func(a T) bool { return a.isOpenFor(p) }); i >= 0 {
		pull, err = page[i].toPull()
	}
	return pull, len(page) > 0, err
}

// send makes a request that creates or changes a pull request, and returns the pull request that is in the answer.
func send[T forgePull](ctx context.Context, c *client, method, path string, in any) (*Pull, error) {
	var now T
	if err := c.call(ctx, method, path, nil, in, &now); err != nil {
		return nil, err
	}
	return now.toPull()
}

// draftTitle returns the title of p for forges that mark drafts by a prefix of the title: with the prefix if draft is true.
func (p PullRequest) draftTitle(prefix string, draft bool) string {
	if draft {
		return prefix + p.Title
	}
	return p.Title
}

// openPull finds or creates the pull request args.Pull, and updates an existing one if args.Pull.Update is set.
func openPull(ctx context.Context, args jobArgs) (*Pull, error) {
	d, err := newForgeClient(args)
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

// searchAll finds a pull request that already exists according to the forge. said is the error in which the forge reported that.
func searchAll(ctx context.Context, d forgeClient, p PullRequest, said error) (*Pull, error) {
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

// newForgeClient returns a client for the kind of forge that args names.
func newForgeClient(args jobArgs) (forgeClient, error) {
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
