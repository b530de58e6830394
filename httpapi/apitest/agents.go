package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// agentCore keeps a catalog with two built-in agents: caisson, which takes any model, and openclaw, which takes large and small, the second
// with a warm snapshot.
type agentCore struct{ m *Memory }

func builtin() []*caisson.Agent {
	return []*caisson.Agent{
		{ID: "caisson", Name: "Caisson", Driver: caisson.DriverJSONL, Image: "host", SubAgents: []string{"*"}},
		{
			ID: "openclaw", Name: "OpenClaw", Description: "Gets things done", Version: "1.2.3", Driver: caisson.DriverOpenClaw, Image: "node:24",
			Models: []string{"large", "small"}, Warm: &caisson.Warm{Randomness: "openssl"}, Memory: true,
		},
	}
}

// find needs mu.
func (c agentCore) find(ctx context.Context, id string) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if a, ok := c.m.agents[caller.Account+"/"+id]; ok {
		return a, nil
	}
	for _, a := range builtin() {
		if a.ID == id {
			return a, nil
		}
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no agent %.40q; see caisson agent ls", id)
}

func (c agentCore) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Agent
	for _, a := range builtin() {
		if c.m.agents[caller.Account+"/"+a.ID] == nil {
			out = append(out, a)
		}
	}
	for key, a := range c.m.agents {
		if strings.HasPrefix(key, caller.Account+"/") {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *caisson.Agent) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func (c agentCore) GetAgent(ctx context.Context, id string) (*caisson.Agent, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.find(ctx, id)
}

func (c agentCore) PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range builtin() {
		if b.ID == a.ID {
			return nil, caisson.Errorf(caisson.Denied, "the agent %s is built in; choose another id", a.ID)
		}
	}
	if a.Driver == caisson.DriverExec && len(a.Command) == 0 {
		return nil, caisson.Invalidf("command", "is required")
	}
	a.Account, a.Status, a.CreatedAt = caller.Account, caisson.AgentStatus{}, time.Now().UTC()
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.agents[caller.Account+"/"+a.ID] = &a
	return &a, nil
}

func (c agentCore) RemoveAgent(ctx context.Context, id string) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	a, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	if a.Account == "" {
		return caisson.Errorf(caisson.Denied, "the agent %s is built in", id)
	}
	delete(c.m.agents, a.Account+"/"+id)
	return nil
}

// change stores what change makes of an agent, for the caller's account; that of a built-in one too.
func (c agentCore) change(ctx context.Context, id string, change func(*caisson.AgentStatus)) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	a, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	out := *a
	change(&out.Status)
	c.m.agents[caller.Account+"/"+id] = &out
	return &out, nil
}

func (c agentCore) BuildAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	a, err := c.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	for i, s := range a.Setup {
		if progress != nil {
			progress(caisson.Progress{Stage: "setup", Done: int64(i), Total: int64(len(a.Setup)), Message: "line\x1b[2J of output"})
		}
		if len(s.Run) > 0 && s.Run[0] == "fail" {
			return nil, caisson.Errorf(caisson.Invalid, "step %d failed", i+1)
		}
	}
	return c.change(ctx, id, func(s *caisson.AgentStatus) { s.Built, s.Digest = true, "sha256:1" })
}

func (c agentCore) WarmAgent(ctx context.Context, id string, progress func(caisson.Progress)) (*caisson.Agent, error) {
	a, err := c.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	if a.Warm == nil {
		return nil, caisson.Errorf(caisson.Invalid, "the agent %s has no recipe for a warm snapshot", id)
	}
	if progress != nil {
		progress(caisson.Progress{Stage: "boot"})
		progress(caisson.Progress{Stage: "snapshot"})
	}
	return c.change(ctx, id, func(s *caisson.AgentStatus) {
		s.Built, s.Snapshot, s.WarmedAt, s.Size = true, caisson.NewID(caisson.SnapshotPrefix), time.Now().UTC(), 300<<20
	})
}

func (c agentCore) CheckAgent(ctx context.Context, id string) ([]caisson.AgentCheck, error) {
	a, err := c.GetAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	list := []caisson.AgentCheck{{Subject: a.ID, Status: "ok", Detail: "can be built"}}
	for _, s := range a.Skills {
		list = append(list, caisson.AgentCheck{Subject: s, Status: "failed", Detail: "needs gh", Remedy: "add gh to setup"})
	}
	return list, nil
}
