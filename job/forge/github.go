package forge

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// gitHub is a client of GitHub's REST API, version 2022-11-28.
type gitHub struct {
	c     *client // sends the requests
	owner string  // name of the repository's owner, a user or an organization
	path  string  // /repos/owner/name/pulls
}

func newGitHub(c *client, args jobArgs) *gitHub {
	c.authorize = bearer("Bearer", args.Secret)
	gitHubHeaders(c)
	owner, _, _ := strings.Cut(args.Project, "/")
	return &gitHub{c: c, owner: owner, path: "/repos/" + args.Project + "/pulls"}
}

// gitHubHeaders makes c send the headers with which GitHub selects the format of answers and the version of the API.
func gitHubHeaders(c *client) {
	c.headers = map[string]string{"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
}

// gitHubPull is a pull request in answers of GitHub.
type gitHubPull struct {
	gitPull
	MergedAt string `json:"merged_at"`
}

// toPull converts p. It returns an Invalid error if required fields are missing.
func (p gitHubPull) toPull() (*Pull, error) { return p.convert(p.MergedAt != "") }

// gitPull has the fields of a pull request that answers of GitHub and Gitea have in common.
type gitPull struct {
	Number  int64  `json:"number"`
	HTMLURL string `json:"html_url"`
	State   string `json:"state"`
	Draft   bool   `json:"draft"`
	Head    gitRef `json:"head"` // branch with the changes
	Base    gitRef `json:"base"` // branch to merge into
}

// gitRef is the branch of a repository in a gitPull.
type gitRef struct {
	Ref  string `json:"ref"` // name of the branch
	Repo *struct {
		ID int64 `json:"id"`
	} `json:"repo"` // null if the repository was deleted
}

// isOpenFor reports whether p is open and merges want.Head into want.Base, both in one repository: not from a fork.
func (p gitPull) isOpenFor(want PullRequest) bool {
	return p.State == "open" && p.Head.Ref == want.Head && p.Base.Ref == want.Base && p.Head.Repo != nil && p.Base.Repo != nil &&
		p.Head.Repo.ID == p.Base.Repo.ID
}

// convert returns p as a Pull. merged reports whether the pull request was merged, which the field State does not show.
func (p gitPull) convert(merged bool) (*Pull, error) {
	if merged {
		p.State = "merged"
	}
	if p.Number <= 0 || p.State == "" {
		return nil, errInvalidAnswer()
	}
	return &Pull{Number: p.Number, URL: p.HTMLURL, Draft: p.Draft, State: p.State}, nil
}

// errInvalidAnswer returns the error for an answer of a forge that lacks required fields.
func errInvalidAnswer() error {
	return caisson.Errorf(caisson.Invalid, "the forge returned an invalid pull request; is the address of its API right?")
}

// list requests the open pull requests into the branch p.Base that the query q selects, and returns the first one between the
// branches of p, nil if there is none, and whether the answer had any pull requests.
func (g *gitHub) list(ctx context.Context, p PullRequest, q url.Values) (*Pull, bool, error) {
	q.Set("state", "open")
	q.Set("base", p.Base)
	q.Set("per_page", strconv.Itoa(pageSize))
	return firstOpen[gitHubPull](ctx, g.c, g.path, q, p)
}

// find returns the open pull request of p's branches; nil if a query by g.owner, the name of the repository's owner, finds none.
func (g *gitHub) find(ctx context.Context, p PullRequest) (*Pull, error) {
	pull, _, err := g.list(ctx, p, url.Values{"head": {g.owner + ":" + p.Head}})
	return pull, err
}

// search returns the open pull request of p's branches if it is on this page of the open ones into p.Base, and whether the page
// had any. It does not query by the name of the repository's owner, because that has changed if the repository was transferred.
func (g *gitHub) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	return g.list(ctx, p, url.Values{"page": {strconv.Itoa(page)}})
}

// create creates the pull request p. It is not a draft if the repository does not support drafts.
func (g *gitHub) create(ctx context.Context, p PullRequest) (*Pull, error) {
	in := map[string]any{"title": p.Title, "body": p.Body, "head": p.Head, "base": p.Base, "draft": !p.Ready}
	made, err := send[gitHubPull](ctx, g.c, http.MethodPost, g.path, in)
	if !p.Ready && hasStatus(err, http.StatusUnprocessableEntity, "draft", "not supported") {
		in["draft"] = false
		return send[gitHubPull](ctx, g.c, http.MethodPost, g.path, in)
	}
	return made, err
}

// alreadyExists reports whether err, returned by create, means that the pull request already exists.
func (g *gitHub) alreadyExists(err error) bool {
	return hasStatus(err, http.StatusUnprocessableEntity, "already exists")
}

// update sets the title and body of the existing pull request have to those of p.
func (g *gitHub) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	in := map[string]string{"title": p.Title, "body": p.Body}
	return send[gitHubPull](ctx, g.c, http.MethodPatch, g.path+"/"+strconv.FormatInt(have.Number, 10), in)
}
