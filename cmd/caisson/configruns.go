package main

import (
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/daemon/runs"
)

// defaultAgentsDir is the directory of agents that the administrator adds.
const defaultAgentsDir = "/etc/caisson/agents"

// runSettings limit the runs of all accounts.
type runSettings struct {
	Concurrent   int              `yaml:"concurrent" json:"concurrent"`
	PerAccount   int              `yaml:"perAccount" json:"perAccount"`
	Waiting      int              `yaml:"waiting" json:"waiting"`
	SessionIdle  caisson.Duration `yaml:"sessionIdle" json:"sessionIdle"`
	SessionFiles caisson.Duration `yaml:"sessionFiles" json:"sessionFiles"`
	Keep         caisson.Duration `yaml:"keep" json:"keep"`
	Workspace    caisson.Size     `yaml:"workspace" json:"workspace"`
	Deliver      caisson.Duration `yaml:"deliver" json:"deliver"`
}

func defaultRunSettings() runSettings {
	d := runs.DefaultLimits()
	return runSettings{
		Concurrent: d.Concurrent, PerAccount: d.PerAccount, Waiting: d.Waiting, SessionIdle: caisson.Duration(d.SessionIdle),
		SessionFiles: caisson.Duration(d.SessionFiles), Keep: caisson.Duration(d.Keep), Workspace: d.Workspace, Deliver: caisson.Duration(d.Deliver),
	}
}

func (s *runSettings) validate(bad func(field, format string, args ...any)) {
	for _, n := range []struct {
		field string
		value int64
	}{
		{"runs.concurrent", int64(s.Concurrent)}, {"runs.perAccount", int64(s.PerAccount)}, {"runs.waiting", int64(s.Waiting)},
		{"runs.workspace", int64(s.Workspace)}, {"runs.sessionIdle", int64(s.SessionIdle)}, {"runs.keep", int64(s.Keep)}, {"runs.deliver", int64(s.Deliver)},
	} {
		if n.value < 1 {
			bad(n.field, "has to be more than nothing")
		}
	}
	if s.SessionFiles < s.SessionIdle {
		bad("runs.sessionFiles", "%s is less than runs.sessionIdle", s.SessionFiles)
	}
}

func checkAgentsDir(dir string, bad func(field, format string, args ...any)) {
	if dir != "" && !filepath.IsAbs(dir) {
		bad("agentsDir", "%q is not an absolute path", dir)
	}
}

// agentConfig converts the settings of agents and runs to the engine's configuration.
func (c *config) agentConfig() engine.AgentConfig {
	return engine.AgentConfig{Dir: c.AgentsDir, Limits: runs.Limits{
		Concurrent: c.Runs.Concurrent, PerAccount: c.Runs.PerAccount, Waiting: c.Runs.Waiting,
		SessionIdle: time.Duration(c.Runs.SessionIdle), SessionFiles: time.Duration(c.Runs.SessionFiles), Keep: time.Duration(c.Runs.Keep),
		Workspace: c.Runs.Workspace, Deliver: time.Duration(c.Runs.Deliver),
	}}
}
