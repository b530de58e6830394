// Package agent is the catalog of agents: the built-in ones, those in files of the administrator, and those that accounts have
// stored. It parses and validates definitions of agents, and resolves the settings of one run.
//
// Package drive, which runs inside sandboxes, implements the protocols of agents. Package runs manages the runs themselves.
package agent

import (
	"errors"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// MaxFile is the maximum size of an agent's file, in bytes. It is large enough for a file that contains an npm lock file.
const MaxFile = 1 << 20

// Parse reads one agent from YAML and validates it. It returns joined Invalid errors, each with its field and line.
func Parse(data []byte) (*caisson.Agent, error) {
	if len(data) > MaxFile {
		return nil, caisson.Errorf(caisson.Invalid, "an agent's file can have at most %s", caisson.Size(MaxFile))
	}
	a := &caisson.Agent{}
	if err := strictyaml.Decode(data, a); err != nil {
		return nil, err
	}
	if err := Validate(a); err != nil {
		return nil, strictyaml.AddLines(data, err)
	}
	return a, nil
}

// Validate checks an agent without access to the host: it does not check that the template, models and sub-agents exist, and
// checks only the form of policies. It returns joined Invalid errors, each with its field.
func Validate(a *caisson.Agent) error {
	c := &checker{}
	c.names(a)
	c.sandbox(a)
	c.driver(a)
	c.capabilities(a)
	c.limits("limits", a.Limits)
	c.warm(a)
	return errors.Join(c.errs...)
}

// checker collects validation errors.
type checker struct{ errs []error }

// addf adds an Invalid error about a field.
func (c *checker) addf(field, format string, args ...any) {
	c.errs = append(c.errs, caisson.Invalidf(field, format, args...))
}
