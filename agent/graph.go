package agent

import (
	"cmp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// provider is what chat clients call the place that agents of a catalog come from: a graph's id is "provider:name".
const provider = "sandbox:"

// A Listing is a catalog as chat clients want it.
type Listing struct {
	Agents  []Graph `json:"agents" nullable:"false"`
	Default *string `json:"defaultAgentId" doc:"null if there are no agents"`
}

// A Graph is an agent as chat clients want it. Both ids are the same.
type Graph struct {
	AgentID     string  `json:"agentId"`
	GraphID     string  `json:"graphId"`
	Name        string  `json:"name"`
	Description *string `json:"description"`
}

// Graphs returns the listing of agents, sorted by name. The default is [Default] if it is among them, else the first.
func Graphs(agents []*caisson.Agent) Listing {
	l := Listing{Agents: []Graph{}}
	seen := map[string]bool{}
	for _, a := range agents {
		id := GraphID(a.ID)
		if seen[id] {
			continue
		}
		seen[id] = true
		g := Graph{AgentID: id, GraphID: id, Name: a.Name}
		if a.Description != "" {
			g.Description = &a.Description
		}
		l.Agents = append(l.Agents, g)
	}
	slices.SortFunc(l.Agents, func(a, b Graph) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.AgentID, b.AgentID)) })
	for i, g := range l.Agents {
		if i == 0 || g.AgentID == GraphID(Default) {
			l.Default = &l.Agents[i].AgentID
		}
	}
	return l
}

// GraphID returns the id of an agent's graph.
func GraphID(agent string) string { return provider + agent }

// FromGraph returns the id of the agent that a chat client means by the name of a graph: "sandbox:openclaw" or "openclaw".
func FromGraph(name string) (agent string, err error) {
	id := strings.TrimPrefix(name, provider)
	if !idForm.MatchString(id) {
		return "", caisson.Invalidf("graphName", "%.80q is not the name of an agent; GET /api/v1/ai/agents lists them", name)
	}
	return id, nil
}
