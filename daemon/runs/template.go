package runs

import (
	"cmp"
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// builder builds the templates of agents.
type builder struct {
	catalog   *agent.Catalog    // entries of agents
	recipes   map[string]Recipe // recipes by the name of the agent's driver
	templates caisson.Templates
}

// complete returns an agent of the caller's account with the fields that its recipe generates.
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

// check returns an error if the agent's recipe cannot generate the fields of the agent.
func (b *builder) check(a caisson.Agent) error {
	if recipe := b.recipes[a.Driver]; recipe != nil {
		_, err := recipe.Complete(a)
		return err
	}
	return nil
}

// preparedTemplate is a template that is built, so that sandboxes of an agent can be created from it.
type preparedTemplate struct {
	name string // name of the template
	key  string // hash of the inputs of its build, or of the image reference if it needs no build; "" if the run names an image
}

// templatePrefix is the prefix of the names of agents' templates.
const templatePrefix = "agent-"

// prepare makes sure that the agent's template exists and is built. A run with an image of its own does not need the template.
func (b *builder) prepare(ctx context.Context, a *caisson.Agent, image string, progress func(caisson.Progress)) (*preparedTemplate, error) {
	switch {
	case image != "":
		return &preparedTemplate{name: caisson.HostTemplate}, nil
	case a.Template != "":
		t, err := b.templates.GetTemplate(ctx, a.Template)
		if err != nil {
			return nil, err
		}
		return b.build(ctx, t, progress)
	}
	want := newTemplate(a)
	t, err := b.templates.GetTemplate(ctx, want.Name)
	if caisson.KindOf(err) == caisson.NotFound || err == nil && !matchesTemplate(t, &want) {
		// For an agent that belongs to the host, the build policy is checked against the rights of the host, not of the caller.
		t, err = b.templates.PutTemplate(asAuthor(ctx, a), want)
	}
	if err != nil {
		return nil, err
	}
	return b.build(ctx, t, progress)
}

// asAuthor returns a context for the caller's account with the rights of the host if the agent belongs to the host, as
// built-in agents and those in files on the host do. Otherwise it returns ctx.
func asAuthor(ctx context.Context, a *caisson.Agent) context.Context {
	caller, err := caisson.CallerOf(ctx)
	if err != nil || a.Account != "" {
		return ctx
	}
	return caisson.WithCaller(ctx, caisson.HostCaller(caller.Account, "prepare an agent of the host's"))
}

// newTemplate returns the template that is made from an agent's entry.
func newTemplate(a *caisson.Agent) caisson.Template {
	t := caisson.Template{
		Name: templatePrefix + a.ID, Description: "Template of the agent " + a.ID + "; replaced when the agent changes",
		Image: cmp.Or(a.Image, "host"), Setup: a.Setup, Policy: a.BuildPolicy, Resources: resources(a.Limits), Env: a.Env, Workdir: "/", User: a.User,
	}
	if a.Warm != nil && len(a.Service) == 0 {
		t.Pool = a.Warm.Pool
	}
	return t
}

// matchesTemplate reports whether have is equal to want in all fields that newTemplate takes from an agent, except name and
// description.
func matchesTemplate(have, want *caisson.Template) bool {
	a, errA := hashParts(have.Image, have.Setup, have.Policy, have.Resources, have.Env, have.User, have.Pool)
	b, errB := hashParts(want.Image, want.Setup, want.Policy, want.Resources, want.Env, want.User, want.Pool)
	return errA == nil && errB == nil && a == b
}

// build builds a template if it has set-up steps and has not been built since it changed.
func (b *builder) build(ctx context.Context, t *caisson.Template, progress func(caisson.Progress)) (*preparedTemplate, error) {
	if len(t.Setup) > 0 && t.Built == nil {
		var err error
		if t, err = b.templates.BuildTemplate(ctx, t.Name, caisson.RegistryAuth{}, progress); err != nil {
			return nil, err
		}
	}
	p := &preparedTemplate{name: t.Name}
	if t.Built != nil {
		p.key = t.Built.Key
	} else {
		var err error
		if p.key, err = hashParts(t.Image); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// createRequest returns the request for creating a sandbox of the agent.
func (p *preparedTemplate) createRequest(a *caisson.Agent) caisson.CreateRequest {
	req := caisson.CreateRequest{Template: p.name, Env: a.Env, User: a.User}
	if p.name == caisson.HostTemplate {
		req.Resources = resources(a.Limits)
	}
	if a.Warm != nil {
		req.Randomness = a.Warm.Randomness
	}
	return req
}
