package runs

import (
	"cmp"
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// builder builds the templates of agents.
type builder struct {
	catalog   *agent.Catalog
	recipes   map[string]Recipe // by driver
	templates caisson.Templates
}

// complete returns an agent of the caller's account with the parts that its recipe generates.
func (b *builder) complete(ctx context.Context, id string) (*caisson.Agent, error) {
	a, err := b.catalog.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	full := *a
	if recipe := b.recipes[a.Driver]; recipe != nil {
		if full, err = recipe.Complete(full); err != nil {
			return nil, err
		}
	}
	full.Workdir = cmp.Or(full.Workdir, agent.DefaultWorkdir)
	return &full, nil
}

// check returns an error if the agent's recipe cannot complete it.
func (b *builder) check(a caisson.Agent) error {
	if recipe := b.recipes[a.Driver]; recipe != nil {
		_, err := recipe.Complete(a)
		return err
	}
	return nil
}

// prepared is a template from which an agent's sandboxes can be created.
type prepared struct {
	name string
	key  string // hash of the template's contents
}

// templatePrefix is the prefix of the names of agents' templates.
const templatePrefix = "agent-"

// prepare makes sure that the agent's template exists and is built. A run with its own image does not need it.
func (b *builder) prepare(ctx context.Context, a *caisson.Agent, image string, progress func(caisson.Progress)) (*prepared, error) {
	switch {
	case image != "":
		return &prepared{name: caisson.HostTemplate}, nil
	case a.Template != "":
		t, err := b.templates.GetTemplate(ctx, a.Template)
		if err != nil {
			return nil, err
		}
		return b.build(ctx, t, progress)
	}
	want := templateOf(a)
	t, err := b.templates.GetTemplate(ctx, want.Name)
	if caisson.KindOf(err) == caisson.NotFound || err == nil && !matchesTemplate(t, &want) {
		// The build policy of the host's own agents is checked against the rights of the host, not of the caller.
		t, err = b.templates.PutTemplate(asAuthor(ctx, a), want)
	}
	if err != nil {
		return nil, err
	}
	return b.build(ctx, t, progress)
}

// asAuthor returns a context for the caller's account with the rights of the agent's author.
func asAuthor(ctx context.Context, a *caisson.Agent) context.Context {
	caller, err := caisson.CallerOf(ctx)
	if err != nil || a.Account != "" {
		return ctx
	}
	return caisson.WithCaller(ctx, caisson.HostCaller(caller.Account, "prepare an agent of the host's"))
}

// templateOf returns the template that an agent needs.
func templateOf(a *caisson.Agent) caisson.Template {
	t := caisson.Template{
		Name: templatePrefix + a.ID, Description: "Template of the agent " + a.ID + "; replaced when the agent changes",
		Image: cmp.Or(a.Image, "host"), Setup: a.Setup, Policy: a.BuildPolicy, Resources: resources(a.Limits), Env: a.Env, Workdir: "/", User: a.User,
	}
	if a.Warm != nil && len(a.Service) == 0 {
		t.Pool = a.Warm.Pool
	}
	return t
}

// matchesTemplate reports whether have is equal to want in all fields that templateOf takes from an agent, except name and
// description.
func matchesTemplate(have, want *caisson.Template) bool {
	a, errA := keyOf(have.Image, have.Setup, have.Policy, have.Resources, have.Env, have.User, have.Pool)
	b, errB := keyOf(want.Image, want.Setup, want.Policy, want.Resources, want.Env, want.User, want.Pool)
	return errA == nil && errB == nil && a == b
}

// build builds a template that has set-up steps and has not been built since it changed.
func (b *builder) build(ctx context.Context, t *caisson.Template, progress func(caisson.Progress)) (*prepared, error) {
	if len(t.Setup) > 0 && t.Built == nil {
		var err error
		if t, err = b.templates.BuildTemplate(ctx, t.Name, caisson.RegistryAuth{}, progress); err != nil {
			return nil, err
		}
	}
	p := &prepared{name: t.Name}
	if t.Built != nil {
		p.key = t.Built.Key
	} else {
		var err error
		if p.key, err = keyOf(t.Image); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// create returns the request for creating a sandbox of the agent.
func (p *prepared) create(a *caisson.Agent) caisson.CreateRequest {
	req := caisson.CreateRequest{Template: p.name, Env: a.Env, User: a.User}
	if p.name == caisson.HostTemplate {
		req.Resources = resources(a.Limits)
	}
	if a.Warm != nil {
		req.Randomness = a.Warm.Randomness
	}
	return req
}
