package forge

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// wipPrefix marks a pull request as a draft on Gitea and Forgejo, at the beginning of its title.
const wipPrefix = "WIP: "

// gitea is a client of the REST API of Gitea and Forgejo, version 1.
type gitea struct {
	c    *client // sends the requests
	path string  // /repos/owner/name/pulls
}

func newGitea(c *client, args jobArgs) *gitea {
	c.authorize = bearer("token", args.Secret)
	if strings.Contains(args.Secret, ":") {
		c.authorize = basic(args.Secret)
	}
	return &gitea{c: c, path: "/repos/" + args.Project + "/pulls"}
}

// giteaPull is a pull request in answers of Gitea and Forgejo.
type giteaPull struct {
	gitPull
	Title  string `json:"title"`
	Merged bool   `json:"merged"`
}

// toPull converts p. It returns an Invalid error if required fields are missing.
func (p giteaPull) toPull() (*Pull, error) {
	title := strings.ToUpper(p.Title)
	// Old versions of Gitea have no field draft.
	p.Draft = p.Draft || strings.HasPrefix(title, "WIP:") || strings.HasPrefix(title, "[WIP]")
	return p.convert(p.Merged)
}

// find returns the open pull request of p's branches, or nil. Gitea may answer with any one between them; one that is not open is
// ignored. The URL of this request cannot contain a base branch with slashes; for such a branch, find returns nil.
func (g *gitea) find(ctx context.Context, p PullRequest) (*Pull, error) {
	if strings.Contains(p.Base, "/") {
		return nil, nil
	}
	head := strings.ReplaceAll(url.PathEscape(p.Head), "%2F", "/")
	var one giteaPull
	err := g.c.call(ctx, http.MethodGet, g.path+"/"+url.PathEscape(p.Base)+"/"+head, nil, nil, &one)
	if hasStatus(err, http.StatusNotFound) || hasStatus(err, http.StatusMethodNotAllowed) {
		return nil, nil // there is no such pull request, or this version of Gitea lacks the call
	}
	if err != nil {
		return nil, err
	}
	if !one.isOpenFor(p) {
		return nil, nil
	}
	return one.toPull()
}

// search returns the open pull request of p's branches if it is on this page of the list, and whether the page had any.
func (g *gitea) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	q := url.Values{"state": {"open"}, "sort": {"recentupdate"}, "limit": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)}}
	return firstOpen[giteaPull](ctx, g.c, g.path, q, p)
}

// create creates the pull request p.
func (g *gitea) create(ctx context.Context, p PullRequest) (*Pull, error) {
	in := map[string]string{"title": p.draftTitle(wipPrefix, !p.Ready), "body": p.Body, "head": p.Head, "base": p.Base}
	return send[giteaPull](ctx, g.c, http.MethodPost, g.path, in)
}

// alreadyExists reports whether err, returned by create, means that the pull request already exists.
func (g *gitea) alreadyExists(err error) bool { return hasStatus(err, http.StatusConflict) }

// update sets the title and body of the existing pull request have to those of p.
func (g *gitea) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	in := map[string]string{"title": p.draftTitle(wipPrefix, have.Draft), "body": p.Body}
	return send[giteaPull](ctx, g.c, http.MethodPatch, g.path+"/"+strconv.FormatInt(have.Number, 10), in)
}
