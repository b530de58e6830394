package runs

import (
	"context"
	"path"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// services starts the services of agents in their sandboxes.
type services struct {
	recipes   map[string]Recipe // by driver
	models    caisson.Models
	files     caisson.Files
	processes caisson.Processes
}

// serve starts an agent's service in a sandbox that has just been created or started again. The service does not belong
// to an exec session, so it keeps running between runs, and is part of snapshots. A supervisor in the sandbox reports
// to the driver if the service has failed.
func (s *services) serve(ctx context.Context, box caisson.ID, a *caisson.Agent, models []caisson.Model) error {
	if len(a.Service) == 0 {
		return nil
	}
	files := a.Files
	if recipe := s.recipes[a.Driver]; recipe != nil {
		more, err := recipe.Files(a, models)
		if err != nil {
			return err
		}
		files = append(append([]caisson.SeedFile{}, files...), more...)
	}
	if err := seed(ctx, s.files, box, files); err != nil {
		return err
	}
	dir := a.ServiceDir
	if dir == "" {
		dir = a.Workdir
	}
	for _, d := range []string{dir, a.Workdir} {
		if err := s.files.MakeDir(ctx, string(box), path.Clean(d), true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
	}
	p, err := s.processes.Exec(ctx, string(box), caisson.ExecRequest{
		Command: append([]string{task.Program, "service"}, a.Service...), Workdir: dir, Detach: true,
	})
	if err != nil {
		return err
	}
	return p.Close() // closes the exec session; the process keeps running
}

// usable returns the models that an agent may use for the caller's account.
func (s *services) usable(ctx context.Context, a *caisson.Agent) (list []caisson.Model, err error) {
	all, err := s.models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if m.Problem == "" && m.Alias != WarmModel && a.SupportsAPI(m.API()) && (len(a.Models) == 0 || slices.Contains(a.Models, m.Alias)) {
			list = append(list, m.Model)
		}
	}
	return list, nil
}

// grantedModels returns the models of a grant, in its order.
func (s *services) grantedModels(ctx context.Context, g *caisson.ModelGrant) ([]caisson.Model, error) {
	if g == nil {
		return nil, nil
	}
	all, err := s.models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	var list []caisson.Model
	for _, alias := range g.Models {
		for _, m := range all {
			if m.Alias == alias {
				list = append(list, m.Model)
			}
		}
	}
	return list, nil
}

// serveGranted starts the agent's service in the sandbox of an attempt, where it does not run.
func (s *services) serveGranted(ctx context.Context, x *attempt) error {
	models, err := s.grantedModels(ctx, x.assignment().Models)
	if err != nil {
		return err
	}
	return s.serve(ctx, x.box.sandbox.ID, x.agent, models)
}
