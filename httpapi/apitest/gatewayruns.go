package apitest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// gatewayRunCore keeps runs on other machines.
type gatewayRunCore struct{ m *Memory }

func (c gatewayRunCore) PutGatewayRun(ctx context.Context, r caisson.GatewayRun) (*caisson.GatewayRun, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if r.Account == "" {
		r.Account = caller.Account
	}
	switch {
	case r.Account != caller.Account && !caller.Local:
		return nil, caisson.Errorf(caisson.Denied, "a token acts for its own account only")
	case len(r.Models.Models) == 0:
		return nil, caisson.Invalidf("models.models", "names no model")
	}
	r.CreatedAt = time.Now().UTC()
	if r.ExpiresAt.IsZero() {
		r.ExpiresAt = r.CreatedAt.Add(24 * time.Hour)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if old := c.m.gatewayRuns[r.Run]; old != nil && old.Account != r.Account {
		return nil, caisson.Errorf(caisson.Conflict, "the run %s is another account's", r.Run)
	}
	c.m.gatewayRuns[r.Run] = &r
	return &r, nil
}

func (c gatewayRunCore) ListGatewayRuns(ctx context.Context) ([]*caisson.GatewayRun, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.GatewayRun
	for _, r := range c.m.gatewayRuns {
		if r.Account == caller.Account {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *caisson.GatewayRun) int { return strings.Compare(a.Run, b.Run) })
	return out, nil
}

func (c gatewayRunCore) RemoveGatewayRun(ctx context.Context, run string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if r := c.m.gatewayRuns[run]; r == nil || r.Account != caller.Account {
		return caisson.Errorf(caisson.NotFound, "there is no run %.80q", run)
	}
	delete(c.m.gatewayRuns, run)
	return nil
}
