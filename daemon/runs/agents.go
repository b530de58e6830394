package runs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// Agents implements [caisson.Agents]: the catalog, and the templates and warm snapshots that are made from its entries.
type Agents struct {
	catalog   *agent.Catalog
	models    caisson.Models
	recipes   map[string]Recipe // by driver
	builder   *builder
	warm      *warmSnapshots
	snapshots *snapshots
	templates caisson.Templates
	lifecycle caisson.Sandboxes
	files     caisson.Files
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

// status fills in the state of an agent's template and warm snapshot.
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

// templateStatus fills in the state of the template and the warm snapshot of an agent, which full is with its recipe.
func (s *Agents) templateStatus(ctx context.Context, account string, a, full *caisson.Agent) error {
	name := full.Template
	want := templateOf(full)
	if name == "" {
		name = want.Name
	}
	t, err := s.templates.GetTemplate(ctx, name)
	if caisson.KindOf(err) == caisson.NotFound {
		a.Status = caisson.AgentStatus{Built: full.Template == "" && len(full.Setup) == 0}
		return nil
	}
	if err != nil {
		return err
	}
	a.Status = caisson.AgentStatus{Built: len(t.Setup) == 0 || t.Built != nil}
	if full.Template == "" && !sameTemplate(t, &want) {
		a.Status.Built = len(full.Setup) == 0
		return nil
	}
	if t.Built == nil && len(t.Setup) > 0 {
		return nil
	}
	p, err := s.builder.build(ctx, t, nil) // the template is already built
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
	_, caller, err := scope(ctx)
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
	if err := s.templates.RemoveTemplate(ctx, templatePrefix+id); err != nil && caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	return nil
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
	if _, err := s.catalog.GetAgent(ctx, id); err != nil {
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

// CheckAgent implements [caisson.Agents].
func (s *Agents) CheckAgent(ctx context.Context, id string) (list []caisson.AgentCheck, err error) {
	a, err := s.builder.complete(ctx, id)
	if err != nil {
		return nil, err
	}
	models, err := s.models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	list = append(list, checkModels(a, models)...)
	template, err := s.builder.prepare(ctx, a, "", func(caisson.Progress) {})
	if err != nil {
		return append(list, caisson.AgentCheck{
			Subject: "template", Status: "failed", Detail: caisson.MessageOf(err), Remedy: "correct its setup steps, then run: caisson agent build " + id,
		}), nil
	}
	list = append(list, caisson.AgentCheck{Subject: "template", Status: "ok", Detail: template.name + " is ready"})
	req := template.create(a)
	req.Command, req.Policy = nil, &caisson.Policy{}
	req.Labels = map[string]string{labelAgent: a.ID, labelKey: "check"}
	box, err := s.lifecycle.Create(asAuthor(ctx, a), req)
	if err != nil {
		return nil, err
	}
	defer func() {
		if rerr := s.lifecycle.Remove(context.WithoutCancel(ctx), string(box.ID)); rerr != nil && err == nil {
			err = rerr
		}
	}()
	in := inspection{s.files, box.ID}
	if len(a.Command) > 0 {
		c := caisson.AgentCheck{Subject: "program " + a.Command[0], Status: "ok", Detail: "is installed"}
		if ok, err := in.Has(ctx, a.Command[0]); err != nil {
			return nil, err
		} else if !ok {
			c.Status, c.Detail, c.Remedy = "failed", "is not in the template", "install it in a set-up step, or choose another image"
		}
		list = append(list, c)
	}
	if usesWarmSnapshot(a) {
		c := caisson.AgentCheck{Subject: "warm snapshot", Status: "ok", Detail: "runs fork it"}
		if snap, err := s.snapshots.current(ctx, a, template); err != nil {
			return nil, err
		} else if snap == nil {
			c.Status, c.Detail, c.Remedy = "warning", "there is none; runs start cold", "caisson agent warm "+id
		}
		list = append(list, c)
	}
	if recipe := s.recipes[a.Driver]; recipe != nil {
		more, err := recipe.Check(ctx, a, in)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

// checkModels reports which of an agent's models can be called.
func checkModels(a *caisson.Agent, models []caisson.GatewayModel) (list []caisson.AgentCheck) {
	problems := map[string]string{}
	misfits := map[string]bool{}
	usable := 0
	for _, m := range models {
		problems[m.Alias], misfits[m.Alias] = m.Problem, !a.SupportsAPI(m.API())
		if m.Problem == "" && m.Alias != WarmModel && a.SupportsAPI(m.API()) {
			usable++
		}
	}
	const remedy = "add it to models in the configuration; caisson model ls shows what there is"
	if len(a.Models) == 0 && usable == 0 {
		list = append(list, caisson.AgentCheck{Subject: "models", Status: "warning", Detail: "there is no model that it can call", Remedy: remedy})
	}
	for _, alias := range a.Models {
		problem, there := problems[alias]
		switch {
		case alias == "-":
		case !there:
			list = append(list, caisson.AgentCheck{Subject: "model " + alias, Status: "warning", Detail: "is not configured", Remedy: remedy})
		case misfits[alias]:
			list = append(list, caisson.AgentCheck{
				Subject: "model " + alias, Status: "failed", Detail: "uses an API that the agent does not support, so its runs are refused",
				Remedy: "remove it from models of the agent, or correct apis",
			})
		case problem != "":
			list = append(list, caisson.AgentCheck{Subject: "model " + alias, Status: "warning", Detail: problem, Remedy: remedy})
		default:
			list = append(list, caisson.AgentCheck{Subject: "model " + alias, Status: "ok", Detail: "can be called"})
		}
	}
	return list
}

// An inspection reads files in a sandbox.
type inspection struct {
	files caisson.Files
	box   caisson.ID
}

// maxTree is the maximum size in bytes of an archive that an inspection reads into memory.
const maxTree = 64 << 20

// Tree implements [Inspection].
func (i inspection) Tree(ctx context.Context, path string) ([]byte, error) {
	r, err := i.files.ReadTree(ctx, string(i.box), path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, maxTree+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxTree {
		return nil, caisson.Errorf(caisson.Exhausted, "%s is larger than %d MiB", path, maxTree>>20)
	}
	return b.Bytes(), nil
}

// Has implements [Inspection].
func (i inspection) Has(ctx context.Context, program string) (bool, error) {
	if strings.HasPrefix(program, "/") {
		_, err := i.files.StatFile(ctx, string(i.box), program)
		if caisson.KindOf(err) == caisson.NotFound {
			return false, nil
		}
		return err == nil, err
	}
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/node/bin"} {
		switch _, err := i.files.StatFile(ctx, string(i.box), dir+"/"+program); caisson.KindOf(err) {
		case caisson.NotFound:
		default:
			return err == nil, err
		}
	}
	return false, nil
}
