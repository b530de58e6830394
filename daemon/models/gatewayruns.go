package models

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Limits of gateway runs, which are runs on other machines that this gateway serves.
const (
	maxGatewayRuns      = 10_000               // runs of all accounts that have not ended
	maxAccountRuns      = 5_000                // unended runs of an account, for callers with a token; enough for one host
	gatewayRunTTL       = 24 * time.Hour       // time until a run expires if the request sets none
	maxGatewayRunTTL    = 366 * 24 * time.Hour // maximum time until a run expires
	maxRunName          = 128                  // bytes in the name of a session, agent or user
	maxRunModels        = 100                  // models in the grant of a run
	gatewayRunRetention = 7 * 24 * time.Hour   // how long the id of a run that has ended stays reserved for its account
)

// GatewayRunsConfig configures GatewayRuns. All fields but Budget are required.
type GatewayRunsConfig struct {
	Serves  bool // this gateway serves sandboxes of other machines
	Store   caisson.Store
	Catalog *Catalog       // models and their providers
	Budget  caisson.Limits // budget of a run whose request sets none
	Wire    WireProcess    // informs the wire process of changes
	Events  caisson.Publisher
}

// GatewayRuns manages gateway runs.
type GatewayRuns struct {
	GatewayRunsConfig
	mu sync.Mutex // serializes changes of runs
}

// NewGatewayRuns returns a GatewayRuns.
func NewGatewayRuns(cfg GatewayRunsConfig) *GatewayRuns { return &GatewayRuns{GatewayRunsConfig: cfg} }

var _ caisson.GatewayRuns = (*GatewayRuns)(nil)

// PutGatewayRun implements [caisson.GatewayRuns].
func (s *GatewayRuns) PutGatewayRun(ctx context.Context, r caisson.GatewayRun) (*caisson.GatewayRun, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	if err := s.validate(ctx, &r, caller, now); err != nil {
		return nil, err
	}
	if _, err := s.Store.Accounts().Ensure(ctx, r.Account); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	in := caisson.In(r.Account)
	old, err := s.admit(ctx, &r, caller)
	if err != nil {
		return nil, err
	}
	if old != nil {
		r.CreatedAt = old.CreatedAt
	}
	ctx = context.WithoutCancel(ctx) // a run is stored completely even if the request is cancelled
	// The budget is set before the gateway can accept the first call of the run.
	if err := s.setBudget(ctx, &r, old); err != nil {
		return nil, err
	}
	if err := s.Store.GatewayRuns().Put(ctx, in, &r); err != nil {
		return nil, err
	}
	if err := s.Wire.ChangeRuns(ctx, caisson.GatewayRunChange{Put: []*caisson.GatewayRun{&r}}); err != nil {
		return nil, err
	}
	if old == nil || old.Attempt != r.Attempt {
		s.publish(ctx, &r, "gateway.run.put")
	}
	return &r, nil
}

// validate validates r and fills in defaults.
func (s *GatewayRuns) validate(ctx context.Context, r *caisson.GatewayRun, caller caisson.Caller, now time.Time) error {
	if !s.Serves {
		return caisson.Errorf(caisson.Conflict, "this daemon serves no other machines; set gateway.listen in its configuration")
	}
	if r.Account == "" {
		r.Account = caller.Account
	}
	if r.ExpiresAt.IsZero() {
		r.ExpiresAt = now.Add(gatewayRunTTL)
	}
	r.CreatedAt, r.ExpiresAt = now, r.ExpiresAt.UTC()
	switch {
	case r.Account != caller.Account && !caller.Local:
		return caisson.Errorf(caisson.Denied, "a token acts for its own account only")
	case !validRunID(r.Run):
		return caisson.Invalidf("run", "%.80q is not 1 to 64 letters, digits, '_' and '-'", r.Run)
	case r.Attempt < 0 || r.Attempt > 1e9:
		return caisson.Invalidf("attempt", "%d is not the number of an attempt", r.Attempt)
	case !r.ExpiresAt.After(now):
		return caisson.Invalidf("expiresAt", "is in the past")
	case r.ExpiresAt.After(now.Add(maxGatewayRunTTL)):
		return caisson.Invalidf("expiresAt", "is more than a year from now")
	case r.Models.Record:
		return caisson.Invalidf("models.record", "calls of other machines are not recorded; remove it")
	case len(r.Models.Models) > maxRunModels:
		return caisson.Invalidf("models.models", "names more than %d models", maxRunModels)
	}
	for _, f := range []struct{ field, value string }{{"session", r.Session}, {"agent", r.Agent}, {"user", r.User}} {
		if len(f.value) > maxRunName || !utf8.ValidString(f.value) || strings.ContainsFunc(f.value, unicode.IsControl) {
			return caisson.Invalidf(f.field, "is not text of at most %d bytes without control characters", maxRunName)
		}
	}
	caller.Account = r.Account // the account that pays for the run determines which providers may be used
	if err := s.Catalog.Check(caisson.WithCaller(ctx, caller), &r.Models); err != nil {
		if f := caisson.FieldOf(err); f != "" {
			return caisson.Invalidf("models."+f, "%s", strings.TrimPrefix(caisson.MessageOf(err), f+": "))
		}
		return err
	}
	return nil
}

// validRunID reports whether s consists of 1 to 64 letters, digits, '_' and '-'.
func validRunID(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

// admit checks whether r can be stored, and returns the run that r replaces, or nil if r is new. Returns Exhausted if the
// maximum number of runs is reached, and Conflict if the run or its session belongs to another account.
func (s *GatewayRuns) admit(ctx context.Context, r *caisson.GatewayRun, caller caisson.Caller) (*caisson.GatewayRun, error) {
	owner, err := s.Store.GatewayRuns().Owner(ctx, r.Run)
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		return nil, err
	}
	if err == nil && owner != r.Account {
		return nil, caisson.Errorf(caisson.Conflict, "the run %s is another account's; choose another id", r.Run)
	}
	// Calls of a session are charged to the budget with the session's id, so no other account may have a session with that id.
	if r.Session != "" {
		b, err := s.Store.Ledger().GetBudget(ctx, caisson.AllAccounts(), "session/"+r.Session)
		if err != nil && caisson.KindOf(err) != caisson.NotFound {
			return nil, err
		}
		if err == nil && b.Account != r.Account {
			return nil, caisson.Errorf(caisson.Conflict, "the session %s is another account's; choose another id", r.Session)
		}
	}
	old, err := s.Store.GatewayRuns().Get(ctx, caisson.In(r.Account), r.Run)
	if caisson.KindOf(err) != caisson.NotFound {
		return old, err
	}
	full, err := s.atLimit(ctx, r.Account, caller)
	if err == nil && full {
		if err = s.endExpired(ctx, time.Now()); err == nil {
			full, err = s.atLimit(ctx, r.Account, caller)
		}
	}
	if err == nil && full {
		err = caisson.Errorf(caisson.Exhausted, "there are too many runs on other machines (%d of all accounts, %d of one with a token); remove some",
			maxGatewayRuns, maxAccountRuns)
	}
	return nil, err
}

// atLimit reports whether no run can be added because of the maximum number of runs of all accounts or, if the caller has a
// token, of the account.
func (s *GatewayRuns) atLimit(ctx context.Context, account string, caller caisson.Caller) (bool, error) {
	all, err := s.Store.GatewayRuns().Count(ctx, caisson.AllAccounts())
	if err != nil || all >= maxGatewayRuns || caller.Local {
		return all >= maxGatewayRuns, err
	}
	own, err := s.Store.GatewayRuns().Count(ctx, caisson.In(account))
	return own >= maxAccountRuns, err
}

// setBudget sets the budget of a run, or removes it if the run no longer has one.
func (s *GatewayRuns) setBudget(ctx context.Context, r, old *caisson.GatewayRun) error {
	limits := r.Models.Budget
	if limits.IsZero() {
		limits = s.Budget
	}
	if limits.IsZero() {
		if old == nil {
			return nil
		}
		return s.removeBudget(ctx, r)
	}
	_, err := s.Store.Ledger().PutBudget(ctx, caisson.In(r.Account), &caisson.Budget{
		Key: "run/" + r.Run, Account: r.Account, Limits: limits, CreatedAt: r.CreatedAt,
	})
	if err != nil {
		return err
	}
	return s.Wire.Forget(ctx, "run/"+r.Run)
}

// removeBudget deletes the budget of a run, if the run has one.
func (s *GatewayRuns) removeBudget(ctx context.Context, r *caisson.GatewayRun) error {
	err := s.Store.Ledger().DeleteBudget(ctx, caisson.In(r.Account), "run/"+r.Run)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Wire.Forget(ctx, "run/"+r.Run)
}

// ListGatewayRuns implements [caisson.GatewayRuns].
func (s *GatewayRuns) ListGatewayRuns(ctx context.Context) ([]*caisson.GatewayRun, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.Store.GatewayRuns().List(ctx, caisson.In(caller.Account))
}

// RemoveGatewayRun implements [caisson.GatewayRuns].
func (s *GatewayRuns) RemoveGatewayRun(ctx context.Context, run string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.Store.GatewayRuns().Get(ctx, caisson.In(caller.Account), run)
	if err != nil {
		return err
	}
	return s.end(context.WithoutCancel(ctx), r, "gateway.run.removed")
}

// end ends a gateway run. The caller must hold mu. The gateway stops serving the run before the budget is removed, so that no
// call is made without a budget. kind is the type of the event that is published.
func (s *GatewayRuns) end(ctx context.Context, r *caisson.GatewayRun, kind string) error {
	if err := s.Store.GatewayRuns().End(ctx, caisson.In(r.Account), r.Run, time.Now()); err != nil {
		return err
	}
	if err := s.Wire.ChangeRuns(ctx, caisson.GatewayRunChange{Remove: []string{r.Run}}); err != nil {
		return err
	}
	s.publish(ctx, r, kind)
	return s.removeBudget(ctx, r)
}

// Housekeep ends expired runs and deletes the records of runs that ended more than gatewayRunRetention ago.
func (s *GatewayRuns) Housekeep(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.endExpired(ctx, now); err != nil {
		return err
	}
	return s.Store.GatewayRuns().Trim(ctx, now.Add(-gatewayRunRetention))
}

// endExpired ends expired runs. The caller must hold mu.
func (s *GatewayRuns) endExpired(ctx context.Context, now time.Time) error {
	list, err := s.Store.GatewayRuns().List(ctx, caisson.AllAccounts())
	if err != nil {
		return err
	}
	for _, r := range list {
		if now.Before(r.ExpiresAt) {
			continue
		}
		if err := s.end(ctx, r, "gateway.run.expired"); err != nil {
			return err
		}
	}
	return nil
}

// Live returns the runs that have not ended.
func (s *GatewayRuns) Live(ctx context.Context) ([]*caisson.GatewayRun, error) {
	return s.Store.GatewayRuns().List(ctx, caisson.AllAccounts())
}

// publish publishes an event of the type kind about a gateway run.
func (s *GatewayRuns) publish(ctx context.Context, r *caisson.GatewayRun, kind string) {
	s.Events.Publish(ctx, r.Account, kind, r.Run, map[string]string{
		"models": strings.Join(r.Models.Models, " "), "expires": r.ExpiresAt.Format(time.RFC3339),
	})
}
