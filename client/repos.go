package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// repos implements [caisson.Repos] by requests to a daemon.
type repos struct{ c *requester }

// AddRepo implements [caisson.Repos]. With a key of [WithIdempotencyKey] it may be repeated.
func (r repos) AddRepo(ctx context.Context, repo caisson.Repo) (*caisson.Repo, error) {
	// Only the daemon sets these fields.
	repo.Account, repo.Local, repo.Head, repo.CreatedAt, repo.FetchedAt = "", false, "", time.Time{}, time.Time{}
	return call[*caisson.Repo](ctx, r.c, request{method: http.MethodPost, path: []string{"repos"}, header: createHeader(ctx), jsonBody: repo})
}

// GetRepo implements [caisson.Repos].
func (r repos) GetRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return call[*caisson.Repo](ctx, r.c, request{method: http.MethodGet, path: []string{"repos", name}})
}

// ListRepos implements [caisson.Repos].
func (r repos) ListRepos(ctx context.Context) ([]*caisson.Repo, error) {
	return callList[*caisson.Repo](ctx, r.c, request{method: http.MethodGet, path: []string{"repos"}})
}

// ListBranches implements [caisson.Repos].
func (r repos) ListBranches(ctx context.Context, name string) ([]caisson.Branch, error) {
	return callList[caisson.Branch](ctx, r.c, request{method: http.MethodGet, path: []string{"repos", name, "branches"}})
}

// FetchRepo implements [caisson.Repos].
func (r repos) FetchRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return call[*caisson.Repo](ctx, r.c, request{method: http.MethodPost, path: []string{"repos", name, "fetch"}})
}

// RemoveRepo implements [caisson.Repos].
func (r repos) RemoveRepo(ctx context.Context, name string) error {
	return r.c.do(ctx, request{method: http.MethodDelete, path: []string{"repos", name}})
}

// GrantRepo implements [caisson.Repos]. With a key of [WithIdempotencyKey] it may be repeated.
func (r repos) GrantRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.RepoGrant, error) {
	return call[*caisson.RepoGrant](ctx, r.c, request{
		method: http.MethodPost, path: []string{"sandboxes", sandbox, "repos"}, header: createHeader(ctx), jsonBody: protocol.SandboxRepo{RepoRequest: req, Dir: dir},
	})
}

// DeliverRepo implements [caisson.Repos]. With a key of [WithIdempotencyKey] it may be repeated.
func (r repos) DeliverRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, request{
		method: http.MethodPost, path: []string{"sandboxes", sandbox, "deliveries"}, header: createHeader(ctx), jsonBody: protocol.SandboxRepo{RepoRequest: req, Dir: dir},
	})
}

// GetDelivery implements [caisson.Repos].
func (r repos) GetDelivery(ctx context.Context, ref string) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, request{method: http.MethodGet, path: []string{"deliveries", ref}})
}

// ListDeliveries implements [caisson.Repos]. It returns deliveries without findings and with shortened bodies;
// [repos.GetDelivery] returns them complete.
func (r repos) ListDeliveries(ctx context.Context, f caisson.DeliveryFilter) (page []*caisson.Delivery, more bool, err error) {
	q := url.Values{}
	for _, s := range f.States {
		q.Add("state", string(s))
	}
	for name, v := range map[string]string{"repo": f.Repo, "run": string(f.Run), "after": string(f.Before)} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	p, err := call[protocol.Page[*caisson.Delivery]](ctx, r.c, request{method: http.MethodGet, path: []string{"deliveries"}, query: q})
	return p.Items, p.Next != "", err
}

// RetryDelivery implements [caisson.Repos].
func (r repos) RetryDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, request{method: http.MethodPost, path: []string{"deliveries", string(id), "retry"}})
}

// DropDelivery implements [caisson.Repos].
func (r repos) DropDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return call[*caisson.Delivery](ctx, r.c, request{method: http.MethodPost, path: []string{"deliveries", string(id), "drop"}})
}
