package caisson

import (
	"context"
	"time"
)

// A GatewayRun is a run on another machine that may use the model gateway of this one. Calls for it arrive over TCP with a
// signed run token, which says Run and Attempt; all else about who calls is what is here.
type GatewayRun struct {
	Run       string     `json:"run" doc:"1 to 64 letters, digits, '_' and '-'; unique among all accounts"`
	Attempt   int        `json:"attempt,omitempty" doc:"Tokens for any other attempt are refused"`
	Account   string     `json:"account,omitempty" doc:"Who pays; the caller's account unless named over the unix socket"`
	Session   string     `json:"session,omitempty"`
	Agent     string     `json:"agent,omitempty"`
	User      string     `json:"user,omitempty" doc:"The account's own name for the person behind the run"`
	Models    ModelGrant `json:"models"`
	CreatedAt time.Time  `json:"createdAt,omitzero"`
	ExpiresAt time.Time  `json:"expiresAt,omitzero" doc:"When the run ends by itself; absent: a day from now"`
}

// Guest returns who speaks for the run. It has no sandbox: that is on another machine.
func (r *GatewayRun) Guest() Guest {
	return Guest{Account: r.Account, Run: r.Run, Attempt: r.Attempt, Session: r.Session, Agent: r.Agent, User: r.User}
}

// GatewayRuns is the management of runs on other machines that use the model gateway of this one. All methods act for the
// account of the [Caller] in ctx.
type GatewayRuns interface {
	// PutGatewayRun makes a run known, or replaces what is known of it: another attempt ends the one before. When it returns,
	// calls for the run are served. A local caller may name any account. Conflict if another account has a run with that id, or
	// had one lately, and if this daemon serves no other machines; Exhausted if there are too many runs.
	PutGatewayRun(ctx context.Context, r GatewayRun) (*GatewayRun, error)
	// ListGatewayRuns returns the account's runs by id.
	ListGatewayRuns(ctx context.Context) ([]*GatewayRun, error)
	// RemoveGatewayRun ends a run and removes its budget. Calls that have begun end as they would; when it returns none begins
	// any more. NotFound if there is none.
	RemoveGatewayRun(ctx context.Context, run string) error
}

// GatewayRunStore holds runs on other machines. A run that has ended is not found any more, but its id stays its account's
// until Trim: calls that were under way are charged to that one.
type GatewayRunStore interface {
	// Put adds or replaces a run. Conflict if the id is another account's.
	Put(ctx context.Context, in Scope, r *GatewayRun) error
	// Get returns a run that has not ended.
	Get(ctx context.Context, in Scope, run string) (*GatewayRun, error)
	// List returns the runs that have not ended, by id.
	List(ctx context.Context, in Scope) ([]*GatewayRun, error)
	// Count returns how many runs in that scope have not ended.
	Count(ctx context.Context, in Scope) (int, error)
	// End ends a run; NotFound if it has ended.
	End(ctx context.Context, in Scope, run string, at time.Time) error
	// Owner returns whose run that is or was; NotFound.
	Owner(ctx context.Context, run string) (account string, err error)
	// Trim forgets runs that ended before.
	Trim(ctx context.Context, before time.Time) error
}

// A GatewayRunChange is what the process that serves calls is told of runs. Removals come first.
type GatewayRunChange struct {
	Remove []string      `json:"remove,omitempty"`
	Put    []*GatewayRun `json:"put,omitempty"`
}
