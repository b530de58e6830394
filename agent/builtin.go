package agent

import (
	"embed"
	"slices"
	"sync"

	"github.com/caisson-dev/caisson"
)

//go:embed builtin/*.yaml
var files embed.FS

// Builtin returns the built-in agents, by id. Callers may change the agents, not what their slices and maps contain.
func Builtin() []*caisson.Agent {
	list := builtin()
	out := make([]*caisson.Agent, len(list))
	for i, a := range list {
		out[i] = copyOf(a)
	}
	return out
}

// IsBuiltin reports whether id is that of a built-in agent.
func IsBuiltin(id string) bool {
	return slices.ContainsFunc(builtin(), func(a *caisson.Agent) bool { return a.ID == id })
}

var builtin = sync.OnceValue(func() []*caisson.Agent {
	entries, err := files.ReadDir("builtin") // by name, which is by id
	if err != nil {
		panic("agent: " + err.Error()) // they are part of the program
	}
	var list []*caisson.Agent
	for _, e := range entries {
		data, err := files.ReadFile("builtin/" + e.Name())
		if err != nil {
			panic("agent: " + err.Error())
		}
		a, err := Parse(data)
		if err != nil || a.ID+".yaml" != e.Name() {
			panic("agent: " + e.Name() + " is not the file of an agent: " + caisson.MessageOf(err)) // a test reads them all
		}
		list = append(list, a)
	}
	return list
})

// copyOf returns an agent whose fields can be changed without changing a's.
func copyOf(a *caisson.Agent) *caisson.Agent {
	c := *a
	return &c
}
