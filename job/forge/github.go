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
	c     *client
	owner string
	path  string // /repos/owner/name/pulls
}

func newGitHub(c *client, args jobArgs) *gitHub {
	c.authorize = bearer("Bearer", args.Secret)
	gitHubHeaders(c)
	owner, _, _ := strings.Cut(args.Project, "/")
	return &gitHub{c: c, owner: owner, path: "/repos/" + args.Project + "/pulls"}
}

func gitHubHeaders(c *client) {
	c.headers = map[string]string{"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
}

type gitHubPull struct {
	gitPull
	MergedAt string `json:"merged_at"`
}

func (p gitHubPull) pull() (*Pull, error) { return p.convert(p.MergedAt != "") }

// gitPull is a pull request as in answers of GitHub and Gitea.
type gitPull struct {
	Number  int64  `json:"number"`
	HTMLURL string `json:"html_url"`
	State   string `json:"state"`
	Draft   bool   `json:"draft"`
	Head    gitRef `json:"head"`
	Base    gitRef `json:"base"`
}

// gitRef is a branch of a repository, as in answers of GitHub and Gitea.
type gitRef struct {
	Ref  string `json:"ref"`
	Repo *struct {
		ID int64 `json:"id"`
	} `json:"repo"` // null if the repository was deleted
}

// opens compares the repositories, too, because a fork may have branches with the same names.
func (p gitPull) opens(want PullRequest) bool {
	return p.State == "open" && p.Head.Ref == want.Head && p.Base.Ref == want.Base && p.Head.Repo != nil && p.Base.Repo != nil &&
		p.Head.Repo.ID == p.Base.Repo.ID
}

// convert returns p as a Pull.
func (p gitPull) convert(merged bool) (*Pull, error) {
	if merged {
		p.State = "merged"
	}
	if p.Number <= 0 || p.State == "" {
		return nil, errInvalidAnswer()
	}
	return &Pull{Number: p.Number, URL: p.HTMLURL, Draft: p.Draft, State: p.State}, nil
}

func errInvalidAnswer() error {
	return caisson.Errorf(caisson.Invalid, "the forge returned an invalid pull request; is the address of its API right?")
}

func (g *gitHub) list(ctx context.Context, p PullRequest, q url.Values) (*Pull, bool, error) {
	q.Set("state", "open")
	q.Set("base", p.Base)
	q.Set("per_page", strconv.Itoa(pageSize))
	return firstOpen[gitHubPull](ctx, g.c, g.path, q, p)
}

func (g *gitHub) find(ctx context.Context, p PullRequest) (*Pull, error) {
	pull, _, err := g.list(ctx, p, url.Values{"head": {g.owner + ":" + p.Head}})
	return pull, err
}

// search omits the owner's name from the query, because the owner has changed if the repository was transferred.
func (g *gitHub) search(ctx context.Context, p PullRequest, page int) (*Pull, bool, error) {
	return g.list(ctx, p, url.Values{"page": {strconv.Itoa(page)}})
}

func (g *gitHub) create(ctx context.Context, p PullRequest) (*Pull, error) {
	in := map[string]any{"title": p.Title, "body": p.Body, "head": p.Head, "base": p.Base, "draft": !p.Ready}
	made, err := send[gitHubPull](ctx, g.c, http.MethodPost, g.path, in)
	if !p.Ready && hasStatus(err, http.StatusUnprocessableEntity, "draft", "not supported") {
		in["draft"] = false
		return send[gitHubPull](ctx, g.c, http.MethodPost, g.path, in)
	}
	return made, err
}

func (g *gitHub) alreadyExists(err error) bool {
	return hasStatus(err, http.StatusUnprocessableEntity, "already exists")
}

func (g *gitHub) update(ctx context.Context, have *Pull, p PullRequest) (*Pull, error) {
	in := map[string]string{"title": p.Title, "body": p.Body}
	return send[gitHubPull](ctx, g.c, http.MethodPatch, g.path+"/"+strconv.FormatInt(have.Number, 10), in)
}
