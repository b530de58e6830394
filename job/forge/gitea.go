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
	c    *client
	path string // /repos/owner/name/pulls
}

func newGitea(c *client, args jobArgs) *gitea {
	c.authorize = bearer("token", args.Secret)
	if strings.Contains(args.Secret, ":") {
		c.authorize = basic(args.Secret)
	}
	return &gitea{c: c, path: "/repos/" + args.Project + "/pulls"}
}

type giteaPull struct {
	Number  int64  `json:"number"`
	HTMLURL string `json:"html_url"`
	Title   string `json:"title"`
	State   string `json:"state"`
	Merged  bool   `json:"merged"`
	Draft   bool   `json:"draft"` // missing in old versions
	Head    gitRef `json:"head"`
	Base    gitRef `json:"base"`
}

func (p *giteaPull) pull() (*Pull, error) {
	state := p.State
	if p.Merged {
		state = "merged"
	}
	if p.Number <= 0 || state == "" {
		return nil, errInvalidAnswer()
	}
	title := strings.ToUpper(p.Title)
	draft := p.Draft || strings.HasPrefix(title, "WIP:") || strings.HasPrefix(title, "[WIP]")
	return &Pull{Number: p.Number, URL: p.HTMLURL, Draft: draft, State: state}, nil
}

// find requests the pull request between two branches. Gitea may return any pull request between them, including a closed one,
// so one that is not open is ignored. The URL of this call cannot contain a base branch with slashes.
func (g *gitea) find(ctx context.Context, p PullRequest) (*Pull, error) {
	if strings.Contains(p.Base, "/") {
		return nil, nil
	}
	head := strings.ReplaceAll(url.PathEscape(p.Head), "%2F", "/")
	var one giteaPull
	err := g.c.call(ctx, http.MethodGet, g.path+"/"+url.PathEscape(p.Base)+"/"+head, nil, nil, &one)
	if hasStatus(err, http.StatusNotFound) || hasStatus(err, http.StatusMethodNotAllowed) {
		return nil, nil // there is none, or this version of Gitea lacks the call
	}
	if err != nil {
		return nil, err
	}
	if one.State != "open" || !sameBranches(one.Head, one.Base, p) {
		return nil, nil
	}
	return one.pull()
}

func (g *gitea) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	q := url.Values{"state": {"open"}, "sort": {"recentupdate"}, "limit": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)}}
	var list []giteaPull
	if err := g.c.call(ctx, http.MethodGet, g.path, q, nil, &list); err != nil {
		return nil, false, err
	}
	for _, one := range list {
		if one.State == "open" && sameBranches(one.Head, one.Base, p) {
			pull, err := one.pull()
			return pull, true, err
		}
	}
	return nil, len(list) > 0, nil
}

func (g *gitea) create(ctx context.Context, p PullRequest) (*Pull, error) {
	title := p.Title
	if !p.Ready {
		title = wipPrefix + title
	}
	in := map[string]string{"title": title, "body": p.Body, "head": p.Head, "base": p.Base}
	var made giteaPull
	if err := g.c.call(ctx, http.MethodPost, g.path, nil, in, &made); err != nil {
		return nil, err
	}
	return made.pull()
}

func (g *gitea) alreadyExists(err error) bool { return hasStatus(err, http.StatusConflict) }

func (g *gitea) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	title := p.Title
	if have.Draft {
		title = wipPrefix + title
	}
	var now giteaPull
	in := map[string]string{"title": title, "body": p.Body}
	if err := g.c.call(ctx, http.MethodPatch, g.path+"/"+strconv.FormatInt(have.Number, 10), nil, in, &now); err != nil {
		return nil, err
	}
	return now.pull()
}
