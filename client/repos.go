package client

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// repos implements [caisson.Repos] by requests to a daemon.
type repos struct{ c *requester }

// AddRepo implements [caisson.Repos]. A repeated call with the same key of [WithIdempotencyKey] adds no second repository.
func (r repos) AddRepo(ctx context.Context, repo caisson.Repo) (*caisson.Repo, error) {
	// These fields are not sent, because only the daemon sets them.
	repo.Account, repo.Local, repo.Head, repo.CreatedAt, repo.FetchedAt = "", false, "", time.Time{}, time.Time{}
	return call[*caisson.Repo](ctx, r.c, post(repo, "repos").withHeader(createHeader(ctx)))
}

// GetRepo implements [caisson.Repos].
func (r repos) GetRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return call[*caisson.Repo](ctx, r.c, get("repos", name))
}

// ListRepos implements [caisson.Repos].
func (r repos) ListRepos(ctx context.Context) ([]*caisson.Repo, error) {
	return callList[*caisson.Repo](ctx, r.c, get("repos"))
}

// ListBranches implements [caisson.Repos].
func (r repos) ListBranches(ctx context.Context, name string) ([]caisson.Branch, error) {
	return callList[caisson.Branch](ctx, r.c, get("repos", name, "branches"))
}

// FetchRepo implements [caisson.Repos].
func (r repos) FetchRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return call[*caisson.Repo](ctx, r.c, post(nil, "repos", name, "fetch"))
}

// RemoveRepo implements [caisson.Repos].
func (r repos) RemoveRepo(ctx context.Context, name string) error {
	return r.c.do(ctx, remove("repos", name))
}

// GrantRepo implements [caisson.Repos]. A repeated call with the same key of [WithIdempotencyKey] makes no second grant.
func (r repos) GrantRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.RepoGrant, error) {
	in := protocol.SandboxRepo{RepoRequest: req, Dir: dir}
	return call[*caisson.RepoGrant](ctx, r.c, post(in, "sandboxes", sandbox, "repos").withHeader(createHeader(ctx)))
}

// DeliverRepo implements [caisson.Repos]. A repeated call with the same key of [WithIdempotencyKey] makes no second delivery.
func (r repos) DeliverRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.Delivery, error) {
	in := protocol.SandboxRepo{RepoRequest: req, Dir: dir}
	return call[*caisson.Delivery](ctx, r.c, post(in, "sandboxes", sandbox, "deliveries").withHeader(createHeader(ctx)))
}

// GetDelivery implements [caisson.Repos].
func (r repos) GetDelivery(ctx context.Context, ref string) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, get("deliveries", ref))
}

// ListDeliveries implements [caisson.Repos]. The deliveries that it returns have no findings and shortened bodies; GetDelivery
// returns a complete delivery.
func (r repos) ListDeliveries(ctx context.Context, f caisson.DeliveryFilter) (page []*caisson.Delivery, more bool, err error) {
	req := withStates(get("deliveries"), f.States).withParam("repo", f.Repo).withParam("run", string(f.Run)).withParam("after", string(f.Before))
	return callPage[*caisson.Delivery](ctx, r.c, req, f.Limit)
}

// RetryDelivery implements [caisson.Repos].
func (r repos) RetryDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, post(nil, "deliveries", string(id), "retry"))
}

// DropDelivery implements [caisson.Repos].
func (r repos) DropDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, post(nil, "deliveries", string(id), "drop"))
}
