package caisson_test

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestOwnWork: background work of the daemon is not a local caller, but its events have the actor of one.
func TestOwnWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		caller caisson.Caller
		host   bool
		actor  string
	}{
		{caisson.Caller{Account: "a", Local: true}, true, "local"},
		{caisson.Caller{Account: "a", Token: "tk-1"}, false, "tk-1"},
		{caisson.Caller{Account: "a"}, false, ""},
		{caisson.DaemonCaller("a", "sweep"), false, "local"},
		{caisson.HostCaller("a", "build"), true, "local"},
	} {
		ctx := caisson.WithCaller(t.Context(), c.caller)
		got, err := caisson.CallerOf(ctx)
		if err != nil || got != c.caller || got.MayUseHost() != c.host || caisson.ActorOf(ctx) != c.actor {
			t.Errorf("%+v: %+v, host %v, actor %q, %v", c.caller, got, got.MayUseHost(), caisson.ActorOf(ctx), err)
		}
		if err := caisson.LocalOnly(ctx); (err == nil) != got.Local || err != nil && caisson.KindOf(err) != caisson.Denied {
			t.Errorf("%+v: %v", c.caller, err)
		}
	}
	if err := caisson.LocalOnly(t.Context()); caisson.KindOf(err) != caisson.Unauthed {
		t.Errorf("without a caller: %v", err)
	}
}
