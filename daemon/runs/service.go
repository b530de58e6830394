package runs

import (
	"context"
	"path"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// serve starts an agent's service in a sandbox that has just been created or started again. The service does not belong
// to an exec session, so it keeps running between runs, and is part of snapshots. A supervisor in the sandbox reports
// to the driver if the service has failed.
func (c builder) serve(ctx context.Context, box caisson.ID, a *caisson.Agent, models []caisson.Model) error {
	if len(a.Service) == 0 {
		return nil
	}
	files := a.Files
	if recipe := c.Recipes[a.Driver]; recipe != nil {
		more, err := recipe.Files(a, models)
		if err != nil {
			return err
		}
		files = append(append([]caisson.SeedFile{}, files...), more...)
	}
	if err := seed(ctx, c.Sandboxes.Files, box, files); err != nil {
		return err
	}
	dir := a.ServiceDir
	if dir == "" {
		dir = a.Workdir
	}
	for _, d := range []string{dir, a.Workdir} {
		if err := c.Sandboxes.Files.MakeDir(ctx, string(box), path.Clean(d), true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
	}
	p, err := c.Sandboxes.Processes.Exec(ctx, string(box), caisson.ExecRequest{
		Command: append([]string{task.Program, "service"}, a.Service...), Workdir: dir, Detach: true,
	})
	if err != nil {
		return err
	}
	return p.Close() // closes the exec session; the process keeps running
}

// usable returns the models that an agent may use for the caller's account.
func (c builder) usable(ctx context.Context, a *caisson.Agent) (list []caisson.Model, err error) {
	all, err := c.Models.ListModels(ctx)
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
