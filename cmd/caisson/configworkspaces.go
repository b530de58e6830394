package main

import (
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
)

// workspaceSettings configure which files of host directories sandboxes see, and which changes may be applied to them.
type workspaceSettings struct {
	Hide     []string         `yaml:"hide" json:"hide"`
	Keep     caisson.Duration `yaml:"keep" json:"keep"`
	Rules    check.Rules      `yaml:"rules" json:"rules"`
	Commands []checkCommand   `yaml:"commands" json:"commands"`
}

// checkCommand is a program that must succeed before changes are applied.
type checkCommand struct {
	Name    string           `yaml:"name" json:"name"`
	Command []string         `yaml:"command" json:"command"`
	Image   string           `yaml:"image" json:"image,omitempty"`
	Time    caisson.Duration `yaml:"time" json:"time,omitempty"`
}

func defaultWorkspaceSettings() workspaceSettings {
	return workspaceSettings{Keep: 7 * day, Rules: check.Rules{}.WithDefaults()}
}

func (s *workspaceSettings) validate(bad func(field, format string, args ...any)) {
	if s.Keep <= 0 {
		bad("workspaces.keep", "has to be more than nothing")
	}
	if _, err := baseline.NewMask(s.patterns(), nil); err != nil {
		bad("workspaces.hide", "%s", caisson.MessageOf(err))
	}
	if err := workspaces.ValidateCommands(s.commands()); err != nil {
		bad("workspaces."+caisson.FieldOf(err), "%s", caisson.MessageOf(err))
	}
	if err := s.Rules.Validate(); err != nil {
		bad("workspaces.rules."+caisson.FieldOf(err), "%s", caisson.MessageOf(err))
	}
}

// patterns returns the patterns of all file names that are hidden.
func (s *workspaceSettings) patterns() []string { return append(baseline.DefaultHidden(), s.Hide...) }

// commands returns the check commands in the form of package workspaces.
func (s *workspaceSettings) commands() []workspaces.Command {
	var list []workspaces.Command
	for _, c := range s.Commands {
		list = append(list, workspaces.Command{Name: c.Name, Command: c.Command, Image: c.Image, Time: time.Duration(c.Time)})
	}
	return list
}

// engineConfig converts the settings to the engine's configuration.
func (s *workspaceSettings) engineConfig() engine.WorkspaceConfig {
	return engine.WorkspaceConfig{Hide: s.patterns(), Rules: s.Rules, Keep: time.Duration(s.Keep), Commands: s.commands()}
}
