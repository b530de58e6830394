package engine

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/daemon/runs"
	"github.com/caisson-dev/caisson/job/gate/tool"
)

// AgentConfig configures agents and their runs.
type AgentConfig struct {
	Dir    string // files of the administrator's own agents; "" for none
	Limits runs.Limits
}

// maxTokenAgentLimits returns the maximum limits of agents that are stored over a token: the default limits of runs.
func maxTokenAgentLimits(budget caisson.Limits) caisson.AgentLimits {
	return caisson.DefaultAgentLimits().WithBudget(budget)
}

// newRuns constructs the catalog and the run core.
func newRuns(e *Engine) *runs.Core {
	catalog := agent.New(agent.Config{
		Builtin: e.on.Agents, Dir: e.cfg.Agents.Dir, Table: e.Store.Agents(),
		EnsureAccount: func(ctx context.Context, account string) error {
			_, err := e.Store.Accounts().Ensure(ctx, account)
			return err
		},
		CheckPolicy: policies{e.cfg.ownAddresses()}.checkAgentPolicy, MaxLimits: maxTokenAgentLimits(e.cfg.Limits.Budget), Log: e.cfg.Log.With("component", "agents"),
	})
	calls := e.ledger.Calls
	if e.remoteGateway != nil {
		calls = e.remoteGateway.Calls
	}
	return runs.New(runs.Config{
		Dir: e.root, Store: e.Store, Catalog: catalog, Models: e.catalog, Workspaces: e.Workspaces.Workspaces(), Masker: masker{tool.New(e.on.Worker), e.cfg.Workspaces.hiddenPatterns()}, Relay: e.Relay,
		Sandboxes: runs.Sandboxes{
			Lifecycle: e.Core.Sandboxes(), Processes: e.Core.Processes(), Files: e.Core.Files(), Snapshots: e.Core.Snapshots(),
			Templates: e.Core.Templates(), Policies: e.Core.Policies(), Assign: e.Core.Assign,
		},
		Calls: calls, UnderWay: e.book.InFlight, Forget: e.manager.Forget,
		Events: e.Events, Recipes: recipes(), Budget: e.cfg.Limits.Budget, Limits: e.cfg.Agents.Limits,
		Build: e.build, Version: e.cfg.Version, Log: e.cfg.Log.With("component", "runs"),
	})
}

// checkAgentPolicy returns an error for invalid policies, and a Denied error for those that lead to the host's own networks unless
// the caller is local.
func (p policies) checkAgentPolicy(ctx context.Context, field string, policy caisson.Policy) error {
	normal, err := p.Check(policy)
	if err != nil {
		return err
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if i, inward := p.Inward(normal); inward && !caller.Local {
		return caisson.Errorf(caisson.Denied, "%s: rule %d leads to the host's own networks, which only a policy that is set over the unix socket may", field, i)
	}
	return nil
}
