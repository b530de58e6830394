package engine

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/daemon/runs"
)

// AgentConfig configures agents and their runs.
type AgentConfig struct {
	Dir    string      // directory with the administrator's files of agents; "" for none
	Limits runs.Limits // limits of runs and sessions
}

// maxTokenAgentLimits returns the highest limits that a client with a token may give to an agent: the default limits of runs.
func maxTokenAgentLimits(budget caisson.Limits) caisson.AgentLimits {
	return caisson.DefaultAgentLimits().WithBudget(budget)
}

// newRuns constructs the catalog of agents and the core of runs.
func newRuns(e *Engine) *runs.Core {
	catalog := agent.New(agent.Config{
		Builtin: e.drivers.Agents, Dir: e.cfg.Agents.Dir, Table: e.data.store.Agents(),
		EnsureAccount: func(ctx context.Context, account string) error {
			_, err := e.data.store.Accounts().Ensure(ctx, account)
			return err
		},
		CheckPolicy: policies{e.cfg.ownAddresses()}.checkAgentPolicy, MaxLimits: maxTokenAgentLimits(e.cfg.Limits.Budget), Log: e.cfg.Log.With("component", "agents"),
	})
	return runs.New(runs.Config{
		Dir: e.data.root, Store: e.data.store,
		Sandboxes: runs.Sandboxes{
			Lifecycle: e.sandboxes.Sandboxes(), Processes: e.sandboxes.Processes(), Terminals: e.access.terminals,
			Files: e.sandboxes.Files(), Snapshots: e.sandboxes.Snapshots(), Templates: e.sandboxes.Templates(), Policies: e.sandboxes.Policies(),
			Services: e.sandboxes.Services(), Assign: e.sandboxes.Assign,
		},
		Agents: runs.AgentConfig{Catalog: catalog, Models: e.gateway.catalog, Recipes: recipes(), Budget: e.cfg.Limits.Budget},
		Work: runs.WorkConfig{
			Workspaces: e.workspaces.Workspaces(), Masker: masker{e.drivers.Worker, e.cfg.Work.Workspaces.HiddenPatterns()}, Relay: e.repos,
		},
		Ledger: runs.LedgerConfig{Calls: e.gateway.calls, UnderWay: e.gateway.book.InFlight, Forget: e.gateway.manager.Forget},
		Events: e.events, Limits: e.cfg.Agents.Limits, Programs: e.programs(), Version: e.cfg.Version, Log: e.cfg.Log.With("component", "runs"),
	})
}

// checkAgentPolicy returns an error if policy is invalid, and a Denied error if policy allows connections to the host's own
// networks and the caller is not local.
func (p policies) checkAgentPolicy(ctx context.Context, field string, policy caisson.Policy) error {
	normal, err := p.Check(policy)
	if err != nil {
		return err
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if i, inward := p.InternalRule(normal); inward && !caller.Local {
		return caisson.Errorf(caisson.Denied, "%s: rule %d leads to the host's own networks, which only a policy that is set over the unix socket may", field, i)
	}
	return nil
}
