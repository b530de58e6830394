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
	c    *client // sends the requests
	path string  // /projects/group%2Fname/merge_requests
}

func newGitLab(c *client, args jobArgs) *gitLab {
	c.authorize = bearer("Bearer", args.Secret) // equivalent to PRIVATE-TOKEN, and also valid for OAuth tokens
	return &gitLab{c: c, path: "/projects/" + url.PathEscape(args.Project) + "/merge_requests"}
}

// gitLabMerge is a merge request in answers of GitLab.
type gitLabMerge struct {
	IID     int64  `json:"iid"` // number of the merge request in its project
	WebURL  string `json:"web_url"`
	State   string `json:"state"`
	Draft   bool   `json:"draft"`
	WIP     bool   `json:"work_in_progress"`  // used instead of draft before GitLab 13.2
	Source  string `json:"source_branch"`     // branch with the changes
	Target  string `json:"target_branch"`     // branch to merge into
	SourceP int64  `json:"source_project_id"` // id of the project of the source branch
	TargetP int64  `json:"target_project_id"` // id of the project of the target branch
}

// isOpenFor reports whether m is open, and between the branches of p in one project.
func (m gitLabMerge) isOpenFor(p PullRequest) bool {
	return m.State == "opened" && m.Source == p.Head && m.Target == p.Base && m.SourceP == m.TargetP
}

// toPull converts m. It returns an Invalid error if required fields are missing.
func (m gitLabMerge) toPull() (*Pull, error) {
	state := map[string]string{"opened": "open", "locked": "open", "closed": "closed", "merged": "merged"}[m.State]
	if m.IID <= 0 || state == "" {
		return nil, errInvalidAnswer()
	}
	return &Pull{Number: m.IID, URL: m.WebURL, Draft: m.Draft || m.WIP, State: state}, nil
}

// search returns the open pull request of p's branches if it is on this page of the list, and whether the page had any.
func (g *gitLab) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	q := url.Values{
		"state": {"opened"}, "source_branch": {p.Head}, "target_branch": {p.Base},
		"per_page": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)},
	}
	return firstOpen[gitLabMerge](ctx, g.c, g.path, q, p)
}

// find returns the open pull request of p's branches; nil if it is not on the first page of the list.
func (g *gitLab) find(ctx context.Context, p PullRequest) (*Pull, error) {
	pull, _, err := g.search(ctx, p, 1)
	return pull, err
}

// create creates the pull request p.
func (g *gitLab) create(ctx context.Context, p PullRequest) (*Pull, error) {
	return send[gitLabMerge](ctx, g.c, http.MethodPost, g.path, map[string]string{
		"title": p.draftTitle(draftPrefix, !p.Ready), "description": escapeQuickActions(p.Body), "source_branch": p.Head, "target_branch": p.Base,
	})
}

// alreadyExists reports whether err, returned by create, means that the pull request already exists.
func (g *gitLab) alreadyExists(err error) bool {
	return hasStatus(err, http.StatusConflict, "already exists")
}

// update sets the title and body of the existing pull request have to those of p.
func (g *gitLab) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	in := map[string]string{"title": p.draftTitle(draftPrefix, have.Draft), "description": escapeQuickActions(p.Body)}
	return send[gitLabMerge](ctx, g.c, http.MethodPut, g.path+"/"+strconv.FormatInt(have.Number, 10), in)
}
