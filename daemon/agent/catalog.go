package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// maxStored is the maximum number of agents that an account has in the store.
const maxStored = 200

// Config configures a catalog.
type Config struct {
	// Builtin contains the built-in agents; the daemon uses those that the function [Builtin] returns.
	Builtin []*caisson.Agent
	// Dir is the administrator's directory, with a file NAME.yaml for each agent; if it is "" or does not exist, there are none.
	Dir   string
	Table caisson.Table[caisson.Agent] // the accounts' own agents
	// EnsureAccount creates the caller's account if it does not exist, because each row of Table refers to an account.
	EnsureAccount func(ctx context.Context, account string) error
	// CheckPolicy returns an error for policies that cannot be compiled or that the caller is not allowed to use.
	CheckPolicy func(ctx context.Context, field string, p caisson.Policy) error
	// MaxLimits are the highest limits of agents that callers with a token store; zero fields mean those of
	// [caisson.DefaultAgentLimits].
	MaxLimits caisson.AgentLimits
	Log       *slog.Logger
}

// A Catalog has all agents of an account: the built-in ones, those of the administrator's directory, and the account's own. It
// implements the methods of [caisson.Agents] that read and store agents, but not those that build them. It is safe for
// concurrent use.
type Catalog struct {
	config Config
	dir    *directory // agents in the administrator's directory
}

// New returns a catalog.
func New(c Config) *Catalog {
	reserved := map[string]bool{}
	for _, a := range c.Builtin {
		reserved[a.ID] = true
	}
	return &Catalog{config: c, dir: newDirectory(c.Dir, reserved, c.Log)}
}

// ListAgents returns the built-in agents, the administrator's and those of the caller's account, sorted by id.
func (c *Catalog) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	list := c.shared()
	seen := map[string]bool{}
	for _, a := range list {
		seen[a.ID] = true
	}
	f := caisson.Filter{Limit: 1000}
	for more := true; more; {
		var page []*caisson.Agent
		if page, more, err = c.config.Table.List(ctx, caisson.In(caller.Account), f); err != nil {
			return nil, err
		}
		for _, a := range page {
			if !seen[a.ID] { // an agent for all accounts hides the account's agent with the same id
				list = append(list, a)
			}
			f.After = caisson.ID(a.ID)
		}
		more = more && len(page) > 0
	}
	slices.SortFunc(list, func(a, b *caisson.Agent) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

// GetAgent returns an agent by its id.
func (c *Catalog) GetAgent(ctx context.Context, id string) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if a := c.findShared(id); a != nil {
		return a, nil
	}
	a, err := c.config.Table.Get(ctx, caisson.In(caller.Account), id)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil, caisson.Wrap(err, caisson.NotFound, "there is no agent %.70q%s caisson agent ls lists the agents", id, c.suggestion(id))
	}
	return a, err
}

// suggestion returns the text that follows the unknown agent id in an error message: ", did you mean ID?" if the id is the
// beginning of the id of an agent for all accounts, such as claude for claude-code, and otherwise a semicolon.
func (c *Catalog) suggestion(id string) string {
	for _, a := range c.shared() {
		if strings.HasPrefix(a.ID, id+"-") {
			return ", did you mean " + a.ID + "?"
		}
	}
	return ";"
}

// PutAgent stores an agent for the caller's account. Its build status is kept if the definition has not changed.
func (c *Catalog) PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := Validate(&a); err != nil {
		return nil, err
	}
	if c.findShared(a.ID) != nil {
		return nil, caisson.Errorf(caisson.Denied, "%s exists for every account; choose another id", a.ID)
	}
	if !caller.Local {
		if err := c.checkRemote(&a); err != nil {
			return nil, err
		}
	}
	for field, p := range map[string]caisson.Policy{"buildPolicy": a.BuildPolicy, "policy": a.Policy} {
		if err := c.config.CheckPolicy(ctx, field, p); err != nil {
			return nil, err
		}
	}
	if err := c.config.EnsureAccount(ctx, caller.Account); err != nil {
		return nil, err
	}
	a.Account, a.Status, a.CreatedAt = caller.Account, caisson.AgentStatus{}, time.Now().UTC()
	put, err := c.config.Table.Update(ctx, caisson.In(caller.Account), a.ID, func(old *caisson.Agent) error {
		next := a
		next.CreatedAt = old.CreatedAt
		if sameDefinition(old, &next) {
			next.Status = old.Status
		}
		*old = next
		return nil
	})
	if caisson.KindOf(err) != caisson.NotFound {
		return put, err
	}
	if err := c.checkQuota(ctx, caller.Account); err != nil {
		return nil, err
	}
	if err := c.config.Table.Insert(ctx, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// checkQuota returns an Exhausted error if the account has the maximum number of agents. Concurrent requests can each find one
// place left, so an account may exceed the maximum by a few agents, which does no harm.
func (c *Catalog) checkQuota(ctx context.Context, account string) error {
	page, more, err := c.config.Table.List(ctx, caisson.In(account), caisson.Filter{Limit: maxStored})
	if err != nil {
		return err
	}
	if more || len(page) >= maxStored {
		return caisson.Errorf(caisson.Exhausted, "an account has at most %d agents of its own; remove one with caisson agent rm", maxStored)
	}
	return nil
}

// RemoveAgent removes an agent of the caller's account.
func (c *Catalog) RemoveAgent(ctx context.Context, id string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	err = c.config.Table.Delete(ctx, caisson.In(caller.Account), id)
	if caisson.KindOf(err) != caisson.NotFound {
		return err
	}
	if c.findShared(id) != nil {
		return caisson.Errorf(caisson.Denied, "%s exists for every account and cannot be removed", id)
	}
	return caisson.Wrap(err, caisson.NotFound, "there is no agent %.70q; caisson agent ls lists the agents", id)
}

// Problems returns the errors in files of the administrator's directory, sorted by file name.
func (c *Catalog) Problems() []Problem {
	_, problems := c.dir.read()
	return problems
}

// shared returns the agents that every account can use: the built-in agents and those of the administrator's directory.
func (c *Catalog) shared() []*caisson.Agent {
	list, _ := c.dir.read()
	for _, a := range c.config.Builtin {
		list = append(list, shallowCopy(a))
	}
	return list
}

// findShared returns the agent with the given id that every account can use, or nil if there is none.
func (c *Catalog) findShared(id string) *caisson.Agent {
	list := c.shared()
	if i := slices.IndexFunc(list, func(a *caisson.Agent) bool { return a.ID == id }); i >= 0 {
		return list[i]
	}
	return nil
}

// sameDefinition reports whether two agents have the same definition, regardless of their status.
func sameDefinition(a, b *caisson.Agent) bool {
	x, y := *a, *b
	x.Status, y.Status = caisson.AgentStatus{}, caisson.AgentStatus{}
	x.CreatedAt, y.CreatedAt = time.Time{}, time.Time{}
	p, err1 := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(p, q)
}
