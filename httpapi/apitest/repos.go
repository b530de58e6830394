package apitest

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// repoCore is a relay. Every repository has a branch main and a branch feature; one whose URL has "unreachable" in it cannot be
// fetched. What runs deliver is what their prompts say: see [runCore].
type repoCore struct{ m *Memory }

var repoName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func (c repoCore) AddRepo(ctx context.Context, r caisson.Repo) (*caisson.Repo, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case !repoName.MatchString(r.Name):
		return nil, caisson.Invalidf("name", "%.40q is no name of a repository", r.Name)
	case filepath.IsAbs(r.URL) && !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "a path on the host can be added over the unix socket only")
	case strings.Contains(r.URL, "unreachable"):
		return nil, caisson.Errorf(caisson.Unavailable, "the remote cannot be reached")
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	key := caller.Account + "/" + r.Name
	if c.m.repos[key] != nil {
		return nil, caisson.Errorf(caisson.Conflict, "a repo named %q exists already; choose another name or remove it first", r.Name)
	}
	if r.Forge == "" {
		r.Forge = caisson.ForgeNone
		if strings.HasPrefix(r.URL, "https://github.com/") {
			r.Forge = caisson.ForgeGitHub
		}
	}
	if r.Authors == "" {
		r.Authors = caisson.AuthorSet
	}
	r.Account, r.Local, r.Head, r.CreatedAt = caller.Account, caller.Local, "main", time.Now().UTC()
	r.FetchedAt = r.CreatedAt
	c.m.repos[key] = &r
	out := r
	return &out, nil
}

// findRepo needs mu.
func (m *Memory) findRepo(account, name string) (*caisson.Repo, error) {
	if r := m.repos[account+"/"+name]; r != nil && name != "" {
		return r, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no repo %.100q", name)
}

// with calls do with a copy of the caller's repository; do has mu.
func (c repoCore) with(ctx context.Context, name string, do func(*caisson.Repo) error) (*caisson.Repo, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	r, err := c.m.findRepo(caller.Account, name)
	if err != nil {
		return nil, err
	}
	if err := do(r); err != nil {
		return nil, err
	}
	out := *r
	return &out, nil
}

func (c repoCore) GetRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return c.with(ctx, name, func(*caisson.Repo) error { return nil })
}

func (c repoCore) FetchRepo(ctx context.Context, name string) (*caisson.Repo, error) {
	return c.with(ctx, name, func(r *caisson.Repo) error { r.FetchedAt = time.Now().UTC(); return nil })
}

func (c repoCore) ListRepos(ctx context.Context) ([]*caisson.Repo, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Repo
	for _, key := range slices.Sorted(maps.Keys(c.m.repos)) {
		if r := *c.m.repos[key]; r.Account == caller.Account {
			out = append(out, &r)
		}
	}
	return out, nil
}

func (c repoCore) ListBranches(ctx context.Context, name string) ([]caisson.Branch, error) {
	if _, err := c.GetRepo(ctx, name); err != nil {
		return nil, err
	}
	return []caisson.Branch{{Name: "feature", Commit: strings.Repeat("b", 40)}, {Name: "main", Commit: strings.Repeat("a", 40)}}, nil
}

func (c repoCore) RemoveRepo(ctx context.Context, name string) error {
	_, err := c.with(ctx, name, func(r *caisson.Repo) error {
		for _, d := range c.m.deliveries {
			if d.Account == r.Account && d.Repo == r.Name && d.State == caisson.DeliveryWaiting {
				return caisson.Errorf(caisson.Conflict, "delivery %s waits; drop it first", d.ID)
			}
		}
		delete(c.m.repos, r.Account+"/"+r.Name)
		return nil
	})
	return err
}

// mayWorkOn says why a run cannot have the repository that it asks for. It needs mu.
func (m *Memory) mayWorkOn(caller caisson.Caller, req caisson.RunRequest) error {
	if req.Repo == nil {
		return nil
	}
	if req.Source != "" || req.Kind != "" || req.Workspace != nil {
		return caisson.Invalidf("repo", "a workspace is either a repository or a directory")
	}
	_, err := m.findRepo(caller.Account, req.Repo.Name)
	return err
}

// deliver makes the delivery of a run, in the state that its prompt says. It needs mu.
func (m *Memory) deliver(t *task, state caisson.DeliveryState, failed string) {
	req := t.Request.Repo
	if req == nil {
		panic("a run without a repository delivers")
	}
	t.result.Delivery = &caisson.RunDelivery{Repo: req.Name}
	if state == "" {
		return
	}
	d := m.delivery(t.Account, *req, state)
	d.Run, d.Session, d.Error = t.ID, t.Session, failed
	if req.Branch == "" {
		d.Branch = "caisson/" + string(t.ID)
	}
	t.result.Delivery = &caisson.RunDelivery{
		ID: d.ID, Repo: d.Repo, State: d.State, Branch: d.Branch, Commit: d.Commit, URL: d.URL, Error: d.Error,
	}
}

// delivery makes a delivery in a state. It needs mu.
func (m *Memory) delivery(account string, req caisson.RepoRequest, state caisson.DeliveryState) *caisson.Delivery {
	d := &caisson.Delivery{
		ID: caisson.NewID(caisson.DeliveryPrefix), Account: account, Repo: req.Name, Sandbox: caisson.NewID(caisson.SandboxPrefix), State: state,
		Base: cmp.Or(req.Base, m.repos[account+"/"+req.Name].Head), Branch: cmp.Or(req.Branch, "caisson/work"), From: strings.Repeat("a", 40),
		Pushed: strings.Repeat("c", 40), Commit: strings.Repeat("d", 40), Commits: 2, Pull: req.Pull, Ready: req.Ready, Title: req.Title,
		Body: strings.Repeat("body ", 1000), Attempts: 1, CreatedAt: time.Now().UTC(),
	}
	switch state {
	case caisson.DeliveryHeld:
		d.Findings = []caisson.Finding{{Check: "link", Verdict: caisson.VerdictAsk, Message: "dddddddd vendor: a submodule"}}
	case caisson.DeliveryDelivered:
		d.URL, d.Number, d.Sent, d.EndedAt = "https://forge.example/"+req.Name+"/pull/7", 7, d.Commit, d.CreatedAt
	}
	m.deliveries = append(m.deliveries, d)
	return d
}

// GrantRepo lets a sandbox in; what it clones is one file, README.
func (c repoCore) GrantRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.RepoGrant, error) {
	r, err := c.GetRepo(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", "main", "feature"}, req.Base) {
		return nil, caisson.Invalidf("repo.base", "the remote of %s has no branch %.100q", r.Name, req.Base)
	}
	if _, err := (fileCore)(c).WriteFile(ctx, sandbox, dir+"/README", 0, strings.NewReader("cloned")); err != nil {
		return nil, err
	}
	return &caisson.RepoGrant{
		URL: "http://git.caisson.internal/" + r.Name, Start: cmp.Or(req.Base, r.Head), Branch: cmp.Or(req.Branch, "caisson/work"), From: strings.Repeat("a", 40),
	}, nil
}

// DeliverRepo delivers at once what a sandbox has in its clone besides README.
func (c repoCore) DeliverRepo(ctx context.Context, sandbox string, req caisson.RepoRequest, dir string) (*caisson.Delivery, error) {
	r, err := c.GetRepo(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	files, err := (fileCore)(c).ListFiles(ctx, sandbox, dir)
	if err != nil {
		return nil, err
	}
	if len(files) < 2 {
		return nil, caisson.Errorf(caisson.NotFound, "there is nothing new in %s of sandbox %s", req.Name, sandbox)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.find(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	d := c.m.delivery(r.Account, req, caisson.DeliveryDelivered)
	d.Sandbox = b.ID
	out := *d
	return &out, nil
}

func (c repoCore) GetDelivery(ctx context.Context, ref string) (*caisson.Delivery, error) {
	return c.delivery(ctx, ref, func(*caisson.Delivery) error { return nil })
}

// delivery calls do with the caller's delivery, and returns a copy; do has mu.
func (c repoCore) delivery(ctx context.Context, ref string, do func(*caisson.Delivery) error) (*caisson.Delivery, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, d := range slices.Backward(c.m.deliveries) {
		if d.Account != caller.Account || string(d.ID) != ref && string(d.Run) != ref {
			continue
		}
		if err := do(d); err != nil {
			return nil, err
		}
		out := *d
		return &out, nil
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no delivery %.40q, and no run of that id has one; see caisson relay ls", ref)
}

func (c repoCore) ListDeliveries(ctx context.Context, f caisson.DeliveryFilter) (out []*caisson.Delivery, more bool, err error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, false, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var all []*caisson.Delivery
	for _, d := range slices.Backward(c.m.deliveries) {
		if d.Account == caller.Account && (f.Repo == "" || d.Repo == f.Repo) && (f.Run == "" || d.Run == f.Run) {
			one := *d
			all = append(all, &one)
		}
	}
	out, more = page(all, caisson.Filter{After: f.Before, Limit: f.Limit}, func(d *caisson.Delivery) caisson.ID { return d.ID },
		func(d *caisson.Delivery) bool { return len(f.States) == 0 || slices.Contains(f.States, d.State) })
	return out, more, nil
}

func (c repoCore) RetryDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return c.delivery(ctx, string(id), func(d *caisson.Delivery) error {
		if d.State == caisson.DeliveryDelivered || d.State == caisson.DeliveryDropped {
			return caisson.Errorf(caisson.Conflict, "delivery %s is %s", d.ID, d.State)
		}
		d.State, d.Error = caisson.DeliveryWaiting, ""
		return nil
	})
}

func (c repoCore) DropDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	return c.delivery(ctx, string(id), func(d *caisson.Delivery) error {
		if d.State == caisson.DeliveryDelivered {
			return caisson.Errorf(caisson.Conflict, "delivery %s was delivered", d.ID)
		}
		d.State, d.EndedAt, d.Error = caisson.DeliveryDropped, time.Now().UTC(), ""
		return nil
	})
}
