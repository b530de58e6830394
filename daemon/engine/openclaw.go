package engine

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/guest/task"
)

// recipes returns, by driver, the recipes that complete the catalog entries of agents and prepare their runs.
func recipes() map[string]runs.Recipe {
	return map[string]runs.Recipe{caisson.DriverOpenClaw: openClaw{}}
}

// openClaw adapts package daemon/agent/openclaw to the interface of the run core.
type openClaw struct{}

// Complete implements [runs.Recipe]. It fills in the fields that the entry leaves empty.
func (openClaw) Complete(a caisson.Agent) (caisson.Agent, error) {
	if a.Template == "" && len(a.Setup) == 0 {
		if a.Version != "" && a.Version != openclaw.Version {
			return a, caisson.Invalidf("version", "driver openclaw installs %s; leave version out, or install another one with a template or setup of your own", openclaw.Version)
		}
		a.Setup = openclaw.Steps(task.ProgramPath)
		if len(a.BuildPolicy.Rules) == 0 {
			a.BuildPolicy = openclaw.BuildPolicy()
		}
	}
	if len(a.Service) == 0 {
		a.Service, a.ServiceDir, a.Ready = openclaw.Service(), openclaw.Home, openclaw.Ready()
	}
	if len(a.Command) == 0 {
		a.Command = openclaw.Command()
	}
	if len(a.Interactive) == 0 {
		a.Interactive = openclaw.Interactive(task.ProgramPath)
	}
	if a.Warm != nil {
		warm := *a.Warm
		warm.Prompt, warm.Rounds = cmp.Or(warm.Prompt, openclaw.WarmPrompt), cmp.Or(warm.Rounds, openclaw.WarmRounds)
		a.Warm = &warm
	}
	env := openclaw.Env()
	maps.Copy(env, a.Env)
	a.Env = env
	return a, nil
}

// Files implements [runs.Recipe]. Forks of a warm snapshot have in memory the configuration with which the snapshot was made. It
// must therefore contain the default model, which the model gateway replaces by the model of each run, and not [runs.WarmModel].
func (openClaw) Files(a *caisson.Agent, models []caisson.Model) ([]caisson.SeedFile, error) {
	if len(models) > 0 && models[0].Alias == runs.WarmModel {
		models = slices.Clone(models)
		models[0].Alias = openclaw.DefaultModel
	}
	return openclaw.Config(openclaw.Setup{Agent: a, Models: models})
}

// Turn implements [runs.Recipe]. It adds to t what OpenClaw needs for the turn. The first task in a sandbox, which may be a fork,
// also removes the files from which OpenClaw would read environment variables, such as .env in its home directory.
func (openClaw) Turn(t *task.Task, turn runs.Turn) error {
	t.Port, t.Ready, t.PromptMode = openclaw.Port, turn.Agent.Ready, caisson.PromptFile
	if turn.First {
		fresh := openclaw.Fork()
		t.Remove, t.Files = append(t.Remove, fresh.Remove...), append(t.Files, fresh.Files...)
		t.Port, t.Secret = fresh.Port, fresh.Secret
	}
	if turn.Warmup {
		t.Model = openclaw.DefaultModel
	} else if i := slices.IndexFunc(turn.Models, func(m caisson.Model) bool { return m.Alias == t.Model }); i >= 0 {
		alias, window := openclaw.SubstituteModel(turn.Models[i])
		t.Substitute = &task.Substitute{Config: openclaw.ConfigFile, Context: window, Model: alias}
	}
	if turn.Fork {
		t.ReadyTime = caisson.Duration(20 * time.Second) // short, because the program was ready when the snapshot was taken
	}
	return nil
}

// Settle implements [runs.Recipe]. OpenClaw needs no programs to reduce the size of a snapshot.
func (openClaw) Settle(*caisson.Agent) [][]string { return nil }

// skillsDir is the directory of the skills that come with OpenClaw.
const skillsDir = openclaw.Install + "/node_modules/openclaw/skills"

// Check implements [runs.Recipe]: it returns the requirements of skills that the sandbox does not meet.
func (openClaw) Check(ctx context.Context, a *caisson.Agent, in runs.Inspection) ([]caisson.AgentCheck, error) {
	var list []caisson.AgentCheck
	for _, dir := range append([]string{skillsDir}, a.Skills...) {
		archive, err := in.ReadTree(ctx, dir)
		if caisson.KindOf(err) == caisson.NotFound {
			list = append(list, caisson.AgentCheck{Subject: "skills in " + dir, Status: "warning", Detail: "there is no such directory in the template"})
			continue
		}
		if err != nil {
			return nil, err
		}
		skills, err := skillFS(archive, path.Base(dir))
		if err != nil {
			return nil, err
		}
		var failed error
		found := openclaw.Check(skills, openclaw.Environment{
			HasProgram: func(name string) bool {
				ok, err := in.HasProgram(ctx, name)
				failed = cmp.Or(failed, err)
				return ok
			},
			HasVariable: func(name string) bool { return a.Env[name] != "" },
			CanReach: func(host string) bool {
				e, err := policies{}.Explain(a.Policy, host+":443")
				return err == nil && e.Verdict.Allowed
			},
		})
		if failed != nil {
			return nil, failed
		}
		list = append(list, found...)
	}
	return list, nil
}

// maxSkillFile is the maximum size in bytes of a file of a skill that is checked; larger files are ignored.
const maxSkillFile = 256 << 10

// skillFS returns the regular files below the directory base of a tar archive, except those that are larger than maxSkillFile.
func skillFS(archive []byte, base string) (fs.FS, error) {
	// The standard library implements a file system on a zip archive, but not on a tar archive.
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the archive of skills cannot be read")
		}
		name, ok := strings.CutPrefix(path.Clean(h.Name), base+"/")
		if !ok || h.Typeflag != tar.TypeReg || h.Size > maxSkillFile {
			continue
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = io.Copy(f, r)
		}
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "the archive of skills cannot be read")
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
}
