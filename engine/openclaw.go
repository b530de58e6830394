package engine

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/openclaw"
	"github.com/caisson-dev/caisson/agent/task"
	"github.com/caisson-dev/caisson/runs"
)

// recipes are what is known of programs beyond their entries in the catalog, by driver.
func recipes() map[string]runs.Recipe {
	return map[string]runs.Recipe{caisson.DriverOpenClaw: openClaw{}}
}

// openClaw is package agent/openclaw as the run core knows it.
type openClaw struct{}

// Complete implements [runs.Recipe]. What the entry says stays; what it leaves open is filled in.
func (openClaw) Complete(a caisson.Agent) (caisson.Agent, error) {
	if a.Template == "" && len(a.Setup) == 0 {
		a.Setup = openclaw.Steps(task.Program)
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
	env := openclaw.Env()
	for k, v := range a.Env {
		env[k] = v
	}
	a.Env = env
	return a, nil
}

// Files implements [runs.Recipe].
func (openClaw) Files(a *caisson.Agent, models []caisson.Model) ([]caisson.SeedFile, error) {
	return openclaw.Config(openclaw.Setup{Agent: a, Models: models})
}

// Turn implements [runs.Recipe].
func (openClaw) Turn(t *task.Task, turn runs.Turn) error {
	t.Port, t.Ready = openclaw.Port, turn.Agent.Ready
	t.Remove = append(t.Remove, openclaw.EnvFiles()...)
	t.By = caisson.PromptFile
	if turn.Fork {
		t.ReadyTime = caisson.Duration(20 * time.Second) // it was ready when it was captured
	}
	return nil
}

// Settle implements [runs.Recipe].
func (openClaw) Settle(*caisson.Agent) [][]string { return nil }

// Check implements [runs.Recipe].
func (openClaw) Check(ctx context.Context, a *caisson.Agent, in runs.Inspection) ([]caisson.AgentCheck, error) {
	return nil, nil
}
