package apitest

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-dev/caisson"
)

func testGatewayRuns(t *testing.T, ctx context.Context, c Cores) {
	account := must(caisson.CallerOf(ctx))(t).Account
	usd := caisson.USD(2.5 * float64(caisson.Dollar))
	want := caisson.GatewayRun{
		Run: "run-1_A", Attempt: 3, Account: account, Session: "s ü", Agent: "a", User: "u@example.com",
		Models: caisson.ModelGrant{
			Models: []string{"large", "small"}, Budget: caisson.Limits{USD: &usd}, Rate: caisson.Rate{Requests: 5, Tokens: 6},
			Allow: []string{caisson.GrantBeta},
		},
		ExpiresAt: time.Now().Add(100 * 24 * time.Hour).Truncate(time.Second).UTC(),
	}
	ask := want
	ask.Account = ""
	same := cmpopts.IgnoreFields(caisson.GatewayRun{}, "CreatedAt")
	if diff := cmp.Diff(&want, must(c.GatewayRuns.PutGatewayRun(ctx, ask))(t), same); diff != "" {
		t.Error(diff)
	}
	small := caisson.GatewayRun{Run: "b", Models: caisson.ModelGrant{Models: []string{"small"}}}
	if got := must(c.GatewayRuns.PutGatewayRun(ctx, small))(t); got.ExpiresAt.IsZero() || got.Account != account || got.Attempt != 0 {
		t.Errorf("%+v", got)
	}
	list := must(c.GatewayRuns.ListGatewayRuns(ctx))(t)
	if len(list) != 2 || list[0].Run != "b" || !cmp.Equal(&want, list[1], same) {
		t.Errorf("%+v", list)
	}
	succeeds(t, c.GatewayRuns.RemoveGatewayRun(ctx, "b"))
	Fails(t, c.GatewayRuns.RemoveGatewayRun(ctx, "b"), caisson.NotFound, "")
	_, err := c.GatewayRuns.PutGatewayRun(ctx, caisson.GatewayRun{Run: "c"})
	Fails(t, err, caisson.Invalid, "models.models")
	// Only local callers may specify another account.
	other := caisson.GatewayRun{Run: "d", Account: "somebody", Models: small.Models}
	_, err = c.GatewayRuns.PutGatewayRun(ctx, other)
	if must(caisson.CallerOf(ctx))(t).Local {
		must(other, err)(t)
		_, err = c.GatewayRuns.PutGatewayRun(ctx, caisson.GatewayRun{Run: "d", Models: small.Models})
		Fails(t, err, caisson.Conflict, "")
		Fails(t, c.GatewayRuns.RemoveGatewayRun(ctx, "d"), caisson.NotFound, "")
	} else {
		Fails(t, err, caisson.Denied, "")
	}
	if list := must(c.GatewayRuns.ListGatewayRuns(ctx))(t); len(list) != 1 {
		t.Errorf("%+v", list)
	}
}
