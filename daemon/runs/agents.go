package runs

import (
	"cmp"
	"context"
	"errors"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// Agents implements [caisson.Agents]: the catalog, and the templates and warm snapshots that are made from its entries.
type Agents struct {
	catalog   *agent.Catalog    // entries of agents
	models    caisson.Models    // models that can be granted
	recipes   map[string]Recipe // recipes by the name of the agent's driver
	builder   *builder          // builds the templates of agents
	warm      *warmSnapshots    // makes warm snapshots
	snapshots *snapshots        // finds warm snapshots
	templates caisson.Templates
	lifecycle caisson.Sandboxes // creates, changes and removes sandboxes
	files     caisson.Files     // files in sandboxes
	events    caisson.Publisher
}

var _ caisson.Agents = (*Agents)(nil)

// ListAgents implements [caisson.Agents].
func (s *Agents) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	list, err := s.catalog.ListAgents(ctx)
	for _, a := range list {
		if serr := s.status(ctx, a); serr != nil {
			// An agent whose template cannot be read must not hide the others.
			a.Status = caisson.AgentStatus{Problem: caisson.MessageOf(serr)}
		}
	}
	return list, errors.Join(err, ctx.Err())
}

// GetAgent implements [caisson.Agents].
func (s *Agents) GetAgent(ctx context.Context, id string) (*caisson.Agent, error) {
	a, err := s.catalog.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	return a, s.status(ctx, a)
}

// status fills in a.Status: the state of the agent's template and of its warm snapshot.
func (s *Agents) status(ctx context.Context, a *caisson.Agent) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	full, err := s.builder.complete(ctx, a.ID)
	if err != nil {
		a.Status.Problem = caisson.MessageOf(err)
		return nil
	}
	if err := s.templateStatus(ctx, caller.Account, a, full); err != nil {
		return err
	}
	if len(a.Setup) == 0 {
		for _, step := range full.Setup {
			a.Status.Setup = append(a.Status.Setup, step.Run)
		}
	}
	return nil
}

// templateStatus fills in the state of the template and of the warm snapshot in a. full is a with the fields that its recipe
// generates.
func (s *Agents) templateStatus(ctx context.Context, account string, a, full *caisson.Agent) error {
	want := newTemplate(full)
	t, err := s.templates.GetTemplate(ctx, cmp.Or(full.Template, want.Name))
	if caisson.KindOf(err) == caisson.NotFound {
		a.Status = caisson.AgentStatus{Built: full.Template == "" && len(full.Setup) == 0}
		return nil
	}
	if err != nil {
		return err
	}
	a.Status = caisson.AgentStatus{Built: len(t.Setup) == 0 || t.Built != nil}
	if full.Template == "" && !matchesTemplate(t, &want) {
		a.Status.Built = len(full.Setup) == 0
		return nil
	}
	if t.Built == nil && len(t.Setup) > 0 {
		return nil
	}
	p, err := s.builder.build(ctx, t, nil) // builds nothing, because the template is already built
	if err != nil {
		return err
	}
	snap, err := s.snapshots.current(ctx, full, p)
	switch {
	case err != nil:
		return err
	case snap != nil:
		a.Status.Snapshot, a.Status.WarmedAt, a.Status.Size, a.Status.Digest = snap.ID, snap.CreatedAt, snap.Size, snap.Spec.Digest
		a.Status.Pool = snap.Pool
	case usesWarmSnapshot(full):
		a.Status.Problem = s.warm.problem(account, a.ID)
	}
	return nil
}

// PutAgent implements [caisson.Agents].
func (s *Agents) PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error) {
	if err := s.builder.check(a); err != nil {
		return nil, err
	}
	put, err := s.catalog.PutAgent(ctx, a)
	if err != nil {
		return nil, err
	}
	s.events.Publish(ctx, put.Account, "agent.put", put.ID, nil)
	if put.Warm != nil {
		if err := s.status(ctx, put); err != nil {
			return nil, err
		}
		if snap := put.Status.Snapshot; snap != "" && put.Status.Pool != put.Warm.Pool {
			return s.SetAgentPool(ctx, put.ID, put.Warm.Pool)
		}
	}
	return put, nil
}

// RemoveAgent implements [caisson.Agents]. It also removes the agent's warm snapshots and its template; its runs stay.
func (s *Agents) RemoveAgent(ctx context.Context, id string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if err := s.catalog.RemoveAgent(ctx, id); err != nil {
		return err
	}
	s.events.Publish(ctx, caller.Account, "agent.removed", id, nil)
	if err := s.snapshots.dropOthers(ctx, id, ""); err != nil {
		return err
	}
	return caisson.IgnoreNotFound(s.templates.RemoveTemplate(ctx, templatePrefix+id))
}

// BuildAgent implements [caisson.Agents].
func (s *Agents) BuildAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	a, err := s.builder.complete(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := s.warnModels(ctx, a, progress); err != nil {
		return nil, err
	}
	if _, err := s.builder.prepare(ctx, a, "", progress); err != nil {
		return nil, err
	}
	return s.GetAgent(ctx, id)
}

// WarmAgent implements [caisson.Agents].
func (s *Agents) WarmAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	a, err := s.catalog.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := s.warnModels(ctx, a, progress); err != nil {
		return nil, err
	}
	if _, err := s.warm.make(ctx, id, true, progress); err != nil {
		return nil, err
	}
	return s.GetAgent(ctx, id)
}

// SetAgentPool implements [caisson.Agents].
func (s *Agents) SetAgentPool(ctx context.Context, id string, size int) (*caisson.Agent, error) {
	a, err := s.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	if a.Status.Snapshot == "" {
		return nil, caisson.Errorf(caisson.Conflict, "agent %s has no warm snapshot to fork; make it with: caisson agent warm %s", id, id)
	}
	if err := s.snapshots.resize(ctx, a.Status.Snapshot, size); err != nil {
		return nil, err
	}
	a.Status.Pool = size
	return a, nil
}
