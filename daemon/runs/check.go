package runs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
)

// CheckAgent implements [caisson.Agents]. It builds nothing: the contents of the root file system are checked only if the
// template is built.
func (s *Agents) CheckAgent(ctx context.Context, id string) (list []caisson.AgentCheck, err error) {
	a, err := s.builder.complete(ctx, id)
	if err != nil {
		return nil, err
	}
	stored, err := s.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	models, err := s.models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	others, err := s.catalog.ListAgents(ctx)
	if err != nil {
		return nil, err
	}
	list = append(list, countParts(a))
	list = append(list, checkModels(a, models)...)
	list = append(list, checkSubAgents(a, others)...)
	if a.Template != "" {
		if _, err := s.templates.GetTemplate(ctx, a.Template); err != nil {
			return append(list, caisson.AgentCheck{
				Subject: "template", Status: caisson.CheckFailed, Detail: caisson.MessageOf(err), Remedy: "correct template in the agent's file, or create it",
			}), nil
		}
	}
	if !stored.Status.Built {
		return append(list, caisson.AgentCheck{
			Subject: "template", Status: caisson.CheckWarning, Detail: "is not built, so the programs and skills in it are not checked", Remedy: "caisson agent build " + id,
		}), nil
	}
	inside, err := s.checkTemplate(ctx, a)
	return append(list, inside...), err
}

// checkTemplate checks the contents of a template that needs no build, in a sandbox that is removed afterwards.
func (s *Agents) checkTemplate(ctx context.Context, a *caisson.Agent) (list []caisson.AgentCheck, err error) {
	template, err := s.builder.prepare(ctx, a, "", func(caisson.Progress) {})
	if err != nil {
		return append(list, caisson.AgentCheck{
			Subject: "template", Status: caisson.CheckFailed, Detail: caisson.MessageOf(err), Remedy: "fix its setup, then: caisson agent build " + a.ID,
		}), nil
	}
	list = append(list, caisson.AgentCheck{Subject: "template", Status: caisson.CheckOK, Detail: template.name + " is ready"})
	req := template.createRequest(a)
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
		c := caisson.AgentCheck{Subject: "program " + a.Command[0], Status: caisson.CheckOK, Detail: "is installed"}
		if ok, err := in.HasProgram(ctx, a.Command[0]); err != nil {
			return nil, err
		} else if !ok {
			c.Status, c.Detail, c.Remedy = caisson.CheckFailed, "is not in the template", "install it in a set-up step, or choose another image"
		}
		list = append(list, c)
	}
	if usesWarmSnapshot(a) {
		c := caisson.AgentCheck{Subject: "warm snapshot", Status: caisson.CheckOK, Detail: "runs fork it"}
		if snap, err := s.snapshots.current(ctx, a, template); err != nil {
			return nil, err
		} else if snap == nil {
			c.Status, c.Detail, c.Remedy = caisson.CheckWarning, "there is none; runs start cold", "caisson agent warm "+a.ID
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

// countParts returns a check, always successful, whose detail contains the numbers of models, skills, tools and other parts
// that an agent's file names.
func countParts(a *caisson.Agent) caisson.AgentCheck {
	count := func(n int, one, many string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %s", n, many)
	}
	modelsNamed := len(a.Models)
	if slices.Equal(a.Models, []string{agent.NoModels}) {
		modelsNamed = 0
	}
	return caisson.AgentCheck{Subject: "file", Status: caisson.CheckOK, Detail: "names " + strings.Join([]string{
		count(modelsNamed, "model", "models"), count(len(a.Skills), "directory of skills", "directories of skills"),
		count(len(a.Tools.Allow)+len(a.Tools.Deny), "tool", "tools"), count(len(a.SubAgents), "sub-agent", "sub-agents"),
		count(len(a.Personas), "persona", "personas"),
	}, ", ") + " and " + count(len(a.Setup), "set-up step", "set-up steps")}
}

// checkSubAgents reports which of the agents that an agent may start do not exist.
func checkSubAgents(a *caisson.Agent, all []*caisson.Agent) (list []caisson.AgentCheck) {
	for _, id := range a.SubAgents {
		if id != "*" && !slices.ContainsFunc(all, func(o *caisson.Agent) bool { return o.ID == id }) {
			list = append(list, caisson.AgentCheck{
				Subject: "sub-agent " + id, Status: caisson.CheckFailed, Detail: "does not exist, so runs of it are refused",
				Remedy: "correct subAgents in the agent's file, or add the agent; caisson agent ls lists the agents",
			})
		}
	}
	return list
}

// checkModels reports which of an agent's models can be called.
func checkModels(a *caisson.Agent, models []caisson.GatewayModel) (list []caisson.AgentCheck) {
	known := map[string]caisson.GatewayModel{}
	usable := false
	for _, m := range models {
		known[m.Alias] = m
		usable = usable || m.Problem == "" && m.Alias != WarmModel && a.SupportsAPI(m.API())
	}
	const remedy = "add it to models in the configuration; caisson model ls shows what there is"
	if len(a.Models) == 0 && !usable {
		c := caisson.AgentCheck{Subject: "models", Status: caisson.CheckWarning, Detail: "there is no model that it can call", Remedy: remedy}
		if err := agent.CheckModels(a, withoutWarmModel(models)); err != nil {
			c.Detail = caisson.MessageOf(err)
		}
		return []caisson.AgentCheck{c}
	}
	var callable []string
	for _, alias := range a.Models {
		m, there := known[alias]
		switch {
		case alias == agent.NoModels:
		case !there:
			list = append(list, caisson.AgentCheck{Subject: "model " + alias, Status: caisson.CheckWarning, Detail: "is not configured", Remedy: remedy})
		case !a.SupportsAPI(m.API()):
			list = append(list, caisson.AgentCheck{
				Subject: "model " + alias, Status: caisson.CheckFailed, Detail: "uses an API that the agent does not support, so its runs are refused",
				Remedy: "remove it from models of the agent, or correct apis",
			})
		case m.Problem != "":
			list = append(list, caisson.AgentCheck{Subject: "model " + alias, Status: caisson.CheckWarning, Detail: m.Problem, Remedy: remedy})
		default:
			callable = append(callable, alias)
		}
	}
	if len(callable) > 0 {
		can := caisson.AgentCheck{Subject: "models", Status: caisson.CheckOK, Detail: "can be called: " + strings.Join(callable, ", ")}
		list = append([]caisson.AgentCheck{can}, list...)
	}
	return list
}

// withoutWarmModel returns the models that runs can use: all models except WarmModel.
func withoutWarmModel(models []caisson.GatewayModel) []caisson.GatewayModel {
	return slices.DeleteFunc(slices.Clone(models), func(m caisson.GatewayModel) bool { return m.Alias == WarmModel })
}

// warnModels reports a warning as progress if every run of an agent would be refused, because the agent needs a model and can
// call none. It is called before work that takes long.
func (s *Agents) warnModels(ctx context.Context, a *caisson.Agent, progress func(caisson.Progress)) error {
	models, err := s.models.ListModels(ctx)
	if err != nil {
		return err
	}
	if err := agent.CheckModels(a, withoutWarmModel(models)); err != nil {
		progress(caisson.Progress{Stage: "models", Message: "warning: runs of it would be refused: " + caisson.MessageOf(err)})
	}
	return nil
}

// An inspection reads files in a sandbox that was created from an agent's template for a check. It implements [Inspection].
type inspection struct {
	files caisson.Files // files in sandboxes
	box   caisson.ID    // id of the sandbox
}

// maxTree is the maximum size in bytes of the archive that [inspection.ReadTree] reads into memory.
const maxTree = 64 << 20

// ReadTree returns a directory of the sandbox as a tar archive. Returns Exhausted if the archive is larger than maxTree.
func (i inspection) ReadTree(ctx context.Context, name string) ([]byte, error) {
	r, err := i.files.ReadTree(ctx, string(i.box), name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, maxTree+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxTree {
		return nil, caisson.Errorf(caisson.Exhausted, "%s is larger than %d MiB", name, maxTree>>20)
	}
	return b.Bytes(), nil
}

// HasProgram reports whether a program is in one of the sandbox's usual directories of programs, or at an absolute path.
func (i inspection) HasProgram(ctx context.Context, program string) (bool, error) {
	dirs := []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/node/bin"}
	if path.IsAbs(program) {
		dirs = []string{"/"}
	}
	for _, dir := range dirs {
		if _, err := i.files.StatFile(ctx, string(i.box), path.Join(dir, program)); caisson.KindOf(err) != caisson.NotFound {
			return err == nil, err
		}
	}
	return false, nil
}
