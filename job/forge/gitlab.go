package forge

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// draftPrefix marks a merge request as a draft on GitLab, at the beginning of its title.
const draftPrefix = "Draft: "

// gitLab is a client of GitLab's REST API, version 4.
type gitLab struct {
	c    *client
	path string // /projects/group%2Fname/merge_requests
}

func newGitLab(c *client, args jobArgs) *gitLab {
	c.authorize = bearer("Bearer", args.Secret) // equivalent to PRIVATE-TOKEN, and also valid for OAuth tokens
	return &gitLab{c: c, path: "/projects/" + url.PathEscape(args.Project) + "/merge_requests"}
}

type gitLabMerge struct {
	IID     int64  `json:"iid"`
	WebURL  string `json:"web_url"`
	State   string `json:"state"`
	Draft   bool   `json:"draft"`
	WIP     bool   `json:"work_in_progress"` // before GitLab 13.2
	Source  string `json:"source_branch"`
	Target  string `json:"target_branch"`
	SourceP int64  `json:"source_project_id"`
	TargetP int64  `json:"target_project_id"`
}

func (m *gitLabMerge) pull() (*Pull, error) {
	state := map[string]string{"opened": "open", "locked": "open", "closed": "closed", "merged": "merged"}[m.State]
	if m.IID <= 0 || state == "" {
		return nil, errInvalidAnswer()
	}
	return &Pull{Number: m.IID, URL: m.WebURL, Draft: m.Draft || m.WIP, State: state}, nil
}

func (g *gitLab) list(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	q := url.Values{
		"state": {"opened"}, "source_branch": {p.Head}, "target_branch": {p.Base},
		"per_page": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)},
	}
	var list []gitLabMerge
	if err := g.c.call(ctx, http.MethodGet, g.path, q, nil, &list); err != nil {
		return nil, false, err
	}
	for _, m := range list {
		if m.State == "opened" && m.Source == p.Head && m.Target == p.Base && m.SourceP == m.TargetP {
			pull, err := m.pull()
			return pull, true, err
		}
	}
	return nil, len(list) > 0, nil
}

func (g *gitLab) find(ctx context.Context, p PullRequest) (*Pull, error) {
	pull, _, err := g.list(ctx, p, 1)
	return pull, err
}

func (g *gitLab) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	return g.list(ctx, p, page)
}

func (g *gitLab) create(ctx context.Context, p PullRequest) (*Pull, error) {
	title := p.Title
	if !p.Ready {
		title = draftPrefix + title
	}
	in := map[string]string{"title": title, "description": escapeQuickActions(p.Body), "source_branch": p.Head, "target_branch": p.Base}
	var made gitLabMerge
	if err := g.c.call(ctx, http.MethodPost, g.path, nil, in, &made); err != nil {
		return nil, err
	}
	return made.pull()
}

func (g *gitLab) alreadyExists(err error) bool {
	return hasStatus(err, http.StatusConflict, "already exists")
}

func (g *gitLab) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	title := p.Title
	if have.Draft {
		title = draftPrefix + title
	}
	in := map[string]string{"title": title, "description": escapeQuickActions(p.Body)}
	var now gitLabMerge
	if err := g.c.call(ctx, http.MethodPut, g.path+"/"+strconv.FormatInt(have.Number, 10), nil, in, &now); err != nil {
		return nil, err
	}
	return now.pull()
}
