package runs

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// services starts the services of agents in their sandboxes.
type services struct {
	recipes   map[string]Recipe // recipes by the name of the agent's driver
	models    caisson.Models    // models that can be granted
	files     caisson.Files     // files in sandboxes
	service   Services          // manages the services in sandboxes
	guestExec *guestExec        // executes programs in sandboxes
}

// startService starts an agent's service in a sandbox that has just been created or started again. The service keeps running
// between runs, and is part of snapshots. It is not restarted if it ends: a run then fails, and the next run of the session
// begins with a new process of the service.
func (s *services) startService(ctx context.Context, box caisson.ID, a *caisson.Agent, models []caisson.Model) error {
	if len(a.Service) == 0 {
		return nil
	}
	files := a.Files
	if recipe := s.recipes[a.Driver]; recipe != nil {
		more, err := recipe.Files(a, models)
		if err != nil {
			return err
		}
		files = slices.Concat(files, more)
	}
	if err := seed(ctx, s.files, box, files); err != nil {
		return err
	}
	dir := cmp.Or(a.ServiceDir, a.Workdir)
	for _, d := range []string{dir, a.Workdir} {
		if err := s.files.MakeDir(ctx, string(box), path.Clean(d), true); err != nil && caisson.KindOf(err) != caisson.Conflict {
			return err
		}
	}
	return s.service.ServeAgent(ctx, string(box), caisson.Service{Command: a.Service, Cwd: dir, Restart: caisson.RestartNever})
}

// withdraw removes the agent's service from a sandbox that does not run, so that the service does not start with the sandbox.
func (s *services) withdraw(ctx context.Context, box caisson.ID) error {
	return caisson.IgnoreNotFound(s.service.RemoveService(ctx, string(box), caisson.AgentService))
}

// serviceInterval is the time between two checks whether the service that a run waits for has failed.
const serviceInterval = 500 * time.Millisecond

// drive lets the driver in a sandbox execute a task. It calls say for each line of the driver's output except the last, which it
// returns. If the agent's service has failed, the last line contains that error. If the agent fails before it gets the prompt,
// say also gets the last output of the service, as a log line.
func (s *services) drive(ctx context.Context, box caisson.ID, a *caisson.Agent, t *task.Task, say func(*task.Line)) (*task.Line, error) {
	if len(a.Service) == 0 {
		return s.guestExec.runDriver(ctx, box, t, say)
	}
	driving, stop := context.WithCancel(ctx)
	defer stop()
	waiting, began := context.WithCancel(driving)
	result := make(chan *caisson.RunError, 1)
	watch := func() {
		failed := s.failure(waiting, box)
		for failed == nil && t.Ready != "" && waiting.Err() == nil {
			select {
			case <-time.After(serviceInterval):
			case <-waiting.Done():
			}
			failed = s.failure(waiting, box)
		}
		if failed != nil {
			stop()
		}
		result <- failed
	}
	if t.Ready == "" {
		watch()
	} else {
		go watch()
	}
	prompted := false
	end, err := s.guestExec.runDriver(driving, box, t, func(l *task.Line) {
		began()
		prompted = prompted || l.Mark == task.MarkPrompt
		say(l)
	})
	began()
	if failed := <-result; failed != nil && ctx.Err() == nil {
		end, err = &task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd, Error: failed}}, nil
	}
	if err == nil && end.Error != nil && !prompted {
		if said := s.output(ctx, box); said != "" {
			say(&task.Line{RunEvent: caisson.RunEvent{Type: task.LineLog}, Stream: caisson.LogStderr, Data: []byte(said)})
		}
	}
	return end, err
}

// failure returns an error if the agent's service has failed, and nil if it has not or if its state is unknown.
func (s *services) failure(ctx context.Context, box caisson.ID) *caisson.RunError {
	list, err := s.service.ListServices(ctx, string(box))
	i := slices.IndexFunc(list, func(svc caisson.ServiceStatus) bool { return svc.ID == caisson.AgentService })
	if err != nil || i < 0 || list[i].State != caisson.ServiceFailed || list[i].Exit == nil {
		return nil
	}
	said := s.output(ctx, box)
	said = strings.TrimSpace(safetext.Lines(said[max(0, len(said)-maxServiceOutput):]))
	return &caisson.RunError{
		Code: caisson.RunAgentError, Message: fmt.Sprintf("the agent's service %s: %s", list[i].Exit, cmp.Or(said, "it wrote nothing")),
	}
}

// maxServiceOutput is the maximum size in bytes of the part of a service's output that is shown in an error.
const maxServiceOutput = 2 << 10

// output returns the last output of the agent's service; "" if the output cannot be read.
func (s *services) output(ctx context.Context, box caisson.ID) string {
	ctx, cancel := context.WithTimeout(ctx, reasonTimeout)
	defer cancel()
	r, err := s.service.ServiceLogs(ctx, string(box), caisson.AgentService, false)
	if err != nil {
		return ""
	}
	defer r.Close()
	return excerpt.ReadTail(r, task.MaxData)
}

// usableModels returns the models that an agent may use for the caller's account.
func (s *services) usableModels(ctx context.Context, a *caisson.Agent) (list []caisson.Model, err error) {
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

// grantedModels returns the models of the grant g, in the order of the grant.
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

// startWithGrant starts the agent's service in the sandbox of an attempt, with the models of the attempt.
func (s *services) startWithGrant(ctx context.Context, x *attempt) error {
	models, err := s.grantedModels(ctx, x.assignment().Models)
	if err != nil {
		return err
	}
	return s.startService(ctx, x.box.sandbox.ID, x.agent, models)
}
