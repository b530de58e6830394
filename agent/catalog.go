package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// maxStored bounds how many agents an account has in the store.
const maxStored = 200

// Config says what a catalog consists of.
type Config struct {
	// Builtin are the built-in agents, [Builtin] with what is made by code filled in.
	Builtin []*caisson.Agent
	// Dir has a file for each of the administrator's agents, NAME.yaml; "" or a directory that does not exist has none.
	Dir   string
	Table caisson.Table[caisson.Agent]
	// Ensure makes the caller's account, which the rows of Table need.
	Ensure func(ctx context.Context, account string) error
	// CheckPolicy refuses policies that cannot be compiled, or that the caller may not have.
	CheckPolicy func(ctx context.Context, field string, p caisson.Policy) error
	// Most is what agents that are stored over a token may take; zero fields mean those of [caisson.DefaultAgentLimits].
	Most caisson.AgentLimits
	Log  *slog.Logger
}

// A Catalog is all agents that there are for an account: those built in, those of the administrator's directory, and the account's
// own. It implements [caisson.Agents] but for what makes something of an agent. It is safe for concurrent use.
type Catalog struct {
	config Config
	dir    *directory
}

// New returns a catalog.
func New(c Config) *Catalog {
	reserved := map[string]bool{}
	for _, a := range c.Builtin {
		reserved[a.ID] = true
	}
	return &Catalog{config: c, dir: newDirectory(c.Dir, reserved, c.Log)}
}

// ListAgents returns the built-in agents, the administrator's and those of the caller's account, by id.
func (c *Catalog) ListAgents(ctx context.Context) ([]*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	list := c.common()
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
			if !seen[a.ID] { // one that was there before the administrator's is hidden by it, as it is from GetAgent
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
	if a := c.given(id); a != nil {
		return a, nil
	}
	a, err := c.config.Table.Get(ctx, caisson.In(caller.Account), id)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil, caisson.Wrap(err, caisson.NotFound, "there is no agent %.70q; caisson agent ls shows what there is", id)
	}
	return a, err
}

// PutAgent stores an agent for the caller's account. What was made of it before stays with it if nothing of it has changed.
func (c *Catalog) PutAgent(ctx context.Context, a caisson.Agent) (*caisson.Agent, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := Validate(&a); err != nil {
		return nil, err
	}
	if c.given(a.ID) != nil {
		return nil, caisson.Errorf(caisson.Denied, "%s is there for every account; choose another id", a.ID)
	}
	if !caller.Local {
		if err := c.remote(&a); err != nil {
			return nil, err
		}
	}
	for field, p := range map[string]caisson.Policy{"buildPolicy": a.BuildPolicy, "policy": a.Policy} {
		if err := c.config.CheckPolicy(ctx, field, p); err != nil {
			return nil, err
		}
	}
	if err := c.config.Ensure(ctx, caller.Account); err != nil {
		return nil, err
	}
	a.Account, a.Status, a.CreatedAt = caller.Account, caisson.AgentStatus{}, time.Now().UTC()
	put, err := c.config.Table.Update(ctx, caisson.In(caller.Account), a.ID, func(old *caisson.Agent) error {
		next := a
		next.CreatedAt = old.CreatedAt
		if same(old, &next) {
			next.Status = old.Status
		}
		*old = next
		return nil
	})
	if caisson.KindOf(err) != caisson.NotFound {
		return put, err
	}
	if err := c.room(ctx, caller.Account); err != nil {
		return nil, err
	}
	if err := c.config.Table.Insert(ctx, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// room refuses another agent for an account that has all it may have. Requests at the same time can each find the last place free, so
// there may be a few more: the bound is against heaps, not an exact number.
func (c *Catalog) room(ctx context.Context, account string) error {
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
	if c.given(id) != nil {
		return caisson.Errorf(caisson.Denied, "%s is there for every account and cannot be removed", id)
	}
	return caisson.Wrap(err, caisson.NotFound, "there is no agent %.70q; caisson agent ls shows what there is", id)
}

// Problems returns what is wrong with files of the administrator's directory, by name of file.
func (c *Catalog) Problems() []Problem {
	_, problems := c.dir.read()
	return problems
}

// common returns the agents that every account has.
func (c *Catalog) common() []*caisson.Agent {
	list, _ := c.dir.read()
	for _, a := range c.config.Builtin {
		list = append(list, copyOf(a))
	}
	return list
}

// given returns the agent of that id that every account has; nil if there is none.
func (c *Catalog) given(id string) *caisson.Agent {
	list := c.common()
	if i := slices.IndexFunc(list, func(a *caisson.Agent) bool { return a.ID == id }); i >= 0 {
		return list[i]
	}
	return nil
}

// same reports whether two agents say the same, whatever has been made of them.
func same(a, b *caisson.Agent) bool {
	x, y := *a, *b
	x.Status, y.Status = caisson.AgentStatus{}, caisson.AgentStatus{}
	x.CreatedAt, y.CreatedAt = time.Time{}, time.Time{}
	p, err1 := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(p, q)
}
