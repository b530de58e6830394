package agent

import (
	"embed"
	"sync"

	"github.com/caisson-dev/caisson"
)

//go:embed builtin/*.yaml
var builtinFiles embed.FS

// Builtin returns the built-in agents, sorted by id. Callers may change the fields of the agents, but not the contents of their
// slices and maps.
func Builtin() []*caisson.Agent {
	list := builtin()
	out := make([]*caisson.Agent, len(list))
	for i, a := range list {
		out[i] = shallowCopy(a)
	}
	return out
}

// builtin returns the built-in agents, which it parses once.
var builtin = sync.OnceValue(func() []*caisson.Agent {
	entries, err := builtinFiles.ReadDir("builtin") // sorted by name, which is id + ".yaml"
	if err != nil {
		panic("agent: " + err.Error()) // cannot happen: the files are embedded in the binary
	}
	var list []*caisson.Agent
	for _, e := range entries {
		data, err := builtinFiles.ReadFile("builtin/" + e.Name())
		if err != nil {
			panic("agent: " + err.Error())
		}
		a, err := Parse(data)
		if err != nil || a.ID+".yaml" != e.Name() {
			panic("agent: " + e.Name() + " is not the file of an agent: " + caisson.MessageOf(err)) // a test parses all files
		}
		list = append(list, a)
	}
	return list
})

// shallowCopy returns a copy of a that shares the slices, maps and pointers of a.
func shallowCopy(a *caisson.Agent) *caisson.Agent {
	c := *a
	return &c
}
