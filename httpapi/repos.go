package httpapi

import (
	"context"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// repoRoutes serves the repositories of the relay.
type repoRoutes struct {
	core        caisson.Repos
	idempotency idempotency
}

// RepoParam is the name of a repository in a path.
type RepoParam struct {
	Name string `path:"name" maxLength:"64" doc:"Name of the repository"`
}

// ref returns the name in the path; see [refParam].
func (p RepoParam) ref() string { return p.Name }

// NewRepo is the request to add a repository. A client can send back a repository that it has read: fields that only Caisson
// sets are ignored.
type NewRepo struct {
	caisson.Repo
	Account   string    `json:"account,omitempty" doc:"Ignored in requests"`
	Local     bool      `json:"local,omitempty" doc:"Ignored in requests"`
	CreatedAt time.Time `json:"createdAt,omitzero" doc:"Ignored in requests"`
}

func (h repoRoutes) register(rt *router) {
	const tag = "repos"
	add := withCreated(postOp("/repos", "add-repo", tag, "Add a git repository to the relay, and fetch it"))
	add.Description = "The request returns when the repository has been fetched. A path on the host can be added only over the unix socket."
	registerRoute(rt, add, h.add)
	registerListRoute(rt, getOp("/repos", "list-repos", tag, "List repositories, by name"), withoutInput(h.core.ListRepos))
	registerRoute(rt, getOp("/repos/{name}", "get-repo", tag, "Get a repository"), byRef[RepoParam](h.core.GetRepo))
	registerActionRoute(rt, deleteOp("/repos/{name}", "remove-repo", tag, "Remove a repository and its mirror; its remote is not changed"),
		removeByRef[RepoParam](h.core.RemoveRepo))
	registerRoute(rt, postOp("/repos/{name}/fetch", "fetch-repo", tag, "Update the mirror of a repository"), byRef[RepoParam](h.core.FetchRepo))
	registerListRoute(rt, getOp("/repos/{name}/branches", "list-branches", tag, "List the branches that the mirror of a repository has"),
		byRef[RepoParam](h.core.ListBranches))
	registerRoute(rt, postOp("/sandboxes/{ref}/repos", "grant-repo", tag,
		"Grant a running sandbox without a run access to a repository, and clone it there"), h.grant)
	deliver := withCreated(postOp("/sandboxes/{ref}/deliveries", "deliver-repo", tag,
		"Deliver the commits of such a sandbox, pushed or in its clone, to the repository's remote"))
	deliver.Description = "Of the body only name, dir, pull, ready and title are used. The delivery is sent in the background: see get-delivery."
	registerRoute(rt, deliver, h.deliver)
}

func (h repoRoutes) add(ctx context.Context, in *struct {
	KeyParam
	Body NewRepo
},
) (*caisson.Repo, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	r := in.Body.Repo
	if filepath.IsAbs(r.URL) && !caller.Local {
		return nil, errHostPath()
	}
	r.Account, r.Local, r.Head, r.CreatedAt, r.FetchedAt = "", false, "", time.Time{}, time.Time{}
	return once(ctx, h.idempotency, in.Key, "add-repo", r, func() (*caisson.Repo, error) { return h.core.AddRepo(ctx, r) })
}

// sandboxRepoInput is a request to grant a sandbox access to a repository, or to deliver the sandbox's commits.
type sandboxRepoInput struct {
	RefParam
	KeyParam
	Body protocol.SandboxRepo
}

func (h repoRoutes) grant(ctx context.Context, in *sandboxRepoInput) (*caisson.RepoGrant, error) {
	if err := checkPath("dir", in.Body.Dir); err != nil {
		return nil, err
	}
	return once(ctx, h.idempotency, in.Key, "grant-repo "+in.Ref, in.Body, func() (*caisson.RepoGrant, error) {
		return h.core.GrantRepo(ctx, in.Ref, in.Body.RepoRequest, in.Body.Dir)
	})
}

func (h repoRoutes) deliver(ctx context.Context, in *sandboxRepoInput) (*caisson.Delivery, error) {
	if in.Body.Dir != "" {
		if err := checkPath("dir", in.Body.Dir); err != nil {
			return nil, err
		}
	}
	return once(ctx, h.idempotency, in.Key, "deliver-repo "+in.Ref, in.Body, func() (*caisson.Delivery, error) {
		return h.core.DeliverRepo(ctx, in.Ref, in.Body.RepoRequest, in.Body.Dir)
	})
}
