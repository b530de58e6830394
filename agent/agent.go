// Package agent is the catalog of agents: the built-in ones, those in files of the administrator, and those that accounts have
// stored. It reads and checks what people write about an agent, and says what holds for one run of it.
//
// How agents are spoken to is in package drive, which runs inside sandboxes; how runs go is the business of the core of runs.
package agent

import (
	"errors"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// MaxFile bounds a file with an agent, in bytes. A lockfile may be part of it.
const MaxFile = 1 << 20

// Parse reads one agent from YAML and checks it. Faults are joined Invalid errors, each with its field and line.
func Parse(data []byte) (*caisson.Agent, error) {
	if len(data) > MaxFile {
		return nil, caisson.Errorf(caisson.Invalid, "an agent's file has at most %s", caisson.Size(MaxFile))
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

// Validate checks all that can be checked of an agent without knowing the host: not whether its template, models or sub-agents
// exist, and of its policies only that they look like ones. Faults are joined Invalid errors, each with its field.
func Validate(a *caisson.Agent) error {
	c := &checker{}
	c.identity(a)
	c.origin(a)
	c.speech(a)
	c.persons(a)
	c.limits("limits", a.Limits)
	c.warm(a)
	return errors.Join(c.faults...)
}

// checker collects faults.
type checker struct{ faults []error }

func (c *checker) bad(field, format string, args ...any) {
	c.faults = append(c.faults, caisson.Invalidf(field, format, args...))
}
